//! A chat that the engine's own endpoint serves, as far as it matters to who takes the ids from its reply.

use http::HeaderMap;

use super::sglext::Wanted;
use crate::api::openai::{Members, RequestBody, is_present};
use crate::engine::probe::ChatFacts;
use crate::json::Object;

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassthroughRequest {
    /// What of the ids is the client's.
    pub wanted: Wanted,
    /// `n`.
    pub n: usize,
    /// What of it is about sampling, by the names of `sampling_params`: the text of a JSON object.
    pub sampling: Box<str>,
}

impl PassthroughRequest {
    /// What a call asks, whose body has the members of `object`.
    #[must_use]
    pub(crate) fn of(bytes: &[u8], object: &Object, headers: &HeaderMap, engine: &ChatFacts) -> Self {
        let body = RequestBody { bytes, object };
        Self {
            wanted: Wanted::of(bytes, object, headers, engine),
            n: body.count("n").unwrap_or(1),
            sampling: sampling(&body),
        }
    }
}

fn sampling(body: &RequestBody<'_>) -> Box<str> {
    let said = |name: &str| body.raw(name).filter(|value| is_present(value));
    let mut out = b"{".to_vec();
    let mut members = Members::new(&mut out);
    if let Some(most) = said("max_completion_tokens").or_else(|| said("max_tokens")) {
        members.put("max_new_tokens", most);
    }
    body.own_sampling(&mut members);
    out.push(b'}');
    String::from_utf8_lossy(&out).into()
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::api::openai_chat::sglext::wanted::{FRAMED, INPUT, OUTPUT};

    fn read(body: &str, headers: &[&HeaderName], engine: &ChatFacts) -> PassthroughRequest {
        let yes = HeaderValue::from_static("1");
        let headers = headers.iter().map(|name| ((*name).clone(), yes.clone())).collect();
        PassthroughRequest::of(body.as_bytes(), &Object::parse(body.as_bytes()).unwrap(), &headers, engine)
    }

    #[test]
    fn ids_are_the_clients_where_it_or_the_engines_operator_asked_for_them() {
        let engine = ChatFacts::default();
        let wanted = |body: &str, headers: &[&HeaderName], engine: &ChatFacts| {
            let wanted = read(body, headers, engine).wanted;
            (wanted.input, wanted.output)
        };
        assert_eq!(wanted("{}", &[], &engine), (false, false));
        assert_eq!(wanted(r#"{"return_input_ids_in_sglext":true}"#, &[], &engine), (true, false));
        assert_eq!(wanted(r#"{"return_output_ids_in_sglext":false}"#, &[&OUTPUT], &engine), (false, true));
        let engine = ChatFacts { input_ids: true, ..engine };
        assert_eq!(wanted("{}", &[], &engine), (true, false));
    }

    #[test]
    fn the_engine_is_asked_for_all_ids_in_a_form_that_suits_the_client() {
        let framed = |body: &str, headers: &[&HeaderName]| {
            let mut asked = HeaderMap::new();
            read(body, headers, &ChatFacts::default()).wanted.ask_for_all(&mut asked);
            assert!(asked[INPUT] == "1" && asked[OUTPUT] == "1");
            asked.contains_key(FRAMED)
        };
        assert!(framed("{}", &[]), "nobody else reads them");
        assert!(!framed("{}", &[&OUTPUT]), "the client reads them among the chunks");
        assert!(framed("{}", &[&OUTPUT, &FRAMED]));
    }

    #[test]
    fn sampling_has_the_names_of_sampling_params() {
        let body = r#"{"n":2,"max_tokens":8,"temperature":1.50,"min_tokens":null,"seed":7,"user":"u"}"#;
        let read = read(body, &[], &ChatFacts::default());
        assert_eq!(&*read.sampling, r#"{"max_new_tokens":8,"temperature":1.50,"n":2,"sampling_seed":7}"#);
        assert_eq!(read.n, 2);
    }
}
