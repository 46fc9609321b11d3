//! The fields of a chat request that are needed to record the reply of the engine's own endpoint.

use std::sync::Arc;

use http::HeaderMap;

use super::sglext::SglextOptions;
use crate::api::body::{RequestBody, is_present};
use crate::api::openai::lora_adapter;
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::{SamplingParam, adapter, sampling_params};
use crate::json::Object;

/// The fields of a request that the engine's own endpoint serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassthroughRequest {
    /// The ids that the client asks for in `sglext`.
    pub sglext: SglextOptions,
    /// `n`.
    pub n: usize,
    /// The sampling fields under their names in `sampling_params`, as a JSON object.
    pub sampling: Box<str>,
    /// The adapter, from `model` or `lora_path`.
    pub lora_path: Option<Arc<str>>,
}

impl PassthroughRequest {
    /// Reads a request. `object` has the spans of the members of its body.
    #[must_use]
    pub(crate) fn of(bytes: &[u8], object: &Object, headers: &HeaderMap, engine: &Capabilities) -> Self {
        let body = RequestBody { bytes, object };
        let text = |name: &str| body.value(name).ok().flatten()?.as_str().map(str::to_owned);
        let (model, lora_path) = (text("model").unwrap_or_default(), text("lora_path"));
        Self {
            sglext: SglextOptions::of(bytes, object, headers, &engine.chat),
            n: body.count("n").unwrap_or(1),
            sampling: sampling(&body),
            lora_path: lora_adapter(&model, &engine.model).or(lora_path.as_deref()).and_then(adapter),
        }
    }
}

/// The sampling fields of a body, as a JSON object.
fn sampling(body: &RequestBody<'_>) -> Box<str> {
    let member = |name: &str| body.raw(name).filter(|value| is_present(value));
    sampling_params(|sampling| {
        if let Some(max_tokens) = member("max_completion_tokens").or_else(|| member("max_tokens")) {
            sampling.set(SamplingParam::MaxNewTokens, max_tokens);
        }
        body.write_client_sampling(sampling);
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::api::openai_chat::sglext::options::{FRAMED, INPUT, OUTPUT};
    use crate::engine::capabilities::ChatFacts;

    fn read(body: &str, headers: &[&HeaderName], engine: &ChatFacts) -> PassthroughRequest {
        let yes = HeaderValue::from_static("1");
        let headers = headers.iter().map(|name| ((*name).clone(), yes.clone())).collect();
        let engine = Capabilities { chat: engine.clone(), model: "m:1".into(), ..Capabilities::default() };
        PassthroughRequest::of(body.as_bytes(), &Object::parse(body.as_bytes()).unwrap(), &headers, &engine)
    }

    #[test]
    fn client_gets_ids_that_it_or_the_engine_configuration_requests() {
        let engine = ChatFacts::default();
        let requested = |body: &str, headers: &[&HeaderName], engine: &ChatFacts| {
            let sglext = read(body, headers, engine).sglext;
            (sglext.input, sglext.output)
        };
        assert_eq!(requested("{}", &[], &engine), (false, false));
        assert_eq!(requested(r#"{"return_input_ids_in_sglext":true}"#, &[], &engine), (true, false));
        assert_eq!(requested(r#"{"return_output_ids_in_sglext":false}"#, &[&OUTPUT], &engine), (false, true));
        let engine = ChatFacts { input_ids: true, ..engine };
        assert_eq!(requested("{}", &[], &engine), (true, false));
    }

    #[test]
    fn all_ids_are_requested_in_a_separate_event_unless_the_client_reads_them_in_chunks() {
        let framed = |body: &str, headers: &[&HeaderName]| {
            let mut sent = HeaderMap::new();
            read(body, headers, &ChatFacts::default()).sglext.request_all_ids(&mut sent);
            assert!(sent[INPUT] == "1" && sent[OUTPUT] == "1");
            sent.contains_key(FRAMED)
        };
        assert!(framed("{}", &[]), "the client does not read the ids");
        assert!(!framed("{}", &[&OUTPUT]), "the client reads the ids in a chunk");
        assert!(framed("{}", &[&OUTPUT, &FRAMED]));
    }

    #[test]
    fn sampling_fields_get_their_names_in_sampling_params() {
        let body = r#"{"n":2,"max_tokens":8,"temperature":1.50,"min_tokens":null,"seed":7,"user":"u"}"#;
        let read = read(body, &[], &ChatFacts::default());
        assert_eq!(&*read.sampling, r#"{"max_new_tokens":8,"temperature":1.50,"n":2,"sampling_seed":7}"#);
        assert_eq!(read.n, 2);
    }

    #[test]
    fn adapter_is_in_the_model_or_in_lora_path() {
        for (body, expected) in [
            (r#"{"model":"m:1"}"#, None),
            (r#"{"model":"m:1:a","lora_path":"b"}"#, Some("a")),
            (r#"{"model":"other","lora_path":"b"}"#, Some("b")),
            (r#"{"model":"m:1","lora_path":""}"#, None),
        ] {
            assert_eq!(read(body, &[], &ChatFacts::default()).lora_path.as_deref(), expected, "{body}");
        }
    }
}
