// SPDX-License-Identifier: Apache-2.0
//! Chats for the engine's own endpoint, which renders what tokentap cannot: those that clients send, and calls of other APIs that are
//! translated to chats.

mod translation;

use bytes::Bytes;
use http::Request;

use super::body::RequestBody;
use super::generate_request::write_sampling;
use super::openai::lora_adapter;
use super::{ApiGeneration, ApiPlan, ApiRequest, ReplyEncoder};
use crate::budget::Work;
use crate::chat::RequestSession;
use crate::chat::forwarded::ForwardedChat;
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::{SamplingParam, adapter, sampling_params};
use crate::engine::sglang::routes::Route;
use crate::engine::sglang::sglext::SglextOptions;
use crate::generation::request::{ChatKind, ChatOfPrompt, EngineChat};
use crate::json::Object;
use translation::TranslatedChat;

/// A chat of a client, whose body the engine gets unchanged, and its decoded members.
#[derive(Debug)]
pub(crate) struct ClientChat<'a> {
    pub(crate) body: &'a RequestBody,
    pub(crate) model: &'a str,
    pub(crate) n: usize,
    pub(crate) sglext: SglextOptions,
}

impl ClientChat<'_> {
    /// The request for the engine's endpoint. `chat` describes its conversation, if it was decoded.
    pub(crate) fn into_engine_chat(
        self,
        route: Route,
        chat: Option<ForwardedChat>,
        engine: &Capabilities,
    ) -> EngineChat {
        let Self { body, model, n, sglext } = self;
        let text = |name: &str| body.text(name).ok().flatten();
        let lora_path = text("lora_path");
        EngineChat {
            body: body.bytes.clone(),
            route,
            rid: text("rid").map(Into::into),
            sglext,
            n,
            sampling: sampling(body),
            lora_path: lora_adapter(model, &engine.model).or(lora_path.as_deref()).and_then(adapter),
            chat: chat.map(chat_of_prompt),
            kind: ChatKind::PassedThrough,
            reason: Box::default(),
        }
    }
}

/// A chat of a client that is not decoded. `object` has the spans of the members of the body.
#[must_use]
pub(crate) fn undecoded_chat(
    request: &Request<Bytes>,
    object: Object,
    route: Route,
    engine: &Capabilities,
) -> EngineChat {
    let body = RequestBody { bytes: request.body().clone(), object };
    let chat = ClientChat {
        model: &body.text("model").ok().flatten().unwrap_or_default(),
        n: body.samples().unwrap_or(1),
        sglext: SglextOptions::decode(&body.bytes, &body.object, request.headers(), &engine.chat),
        body: &body,
    };
    chat.into_engine_chat(route, None, engine)
}

/// A call of another API as a chat, and the encoder of its reply. `None` if its conversation has no media, or if chats do not have one of its
/// members.
pub(crate) fn translate(
    decoded: &dyn ApiRequest,
    route: Route,
    mut chat: ForwardedChat,
    session: RequestSession<'_>,
    work: &Work,
    engine: &Capabilities,
) -> Option<(EngineChat, Box<dyn ReplyEncoder>)> {
    let conversation = chat.take_conversation()?;
    let session = RequestSession { omits_media: true, ..session };
    let Ok(ApiPlan::Generation(plan)) = decoded.plan(session, work) else { return None };
    let ApiGeneration { request, chat: without_media, encoder } = plan;
    let mut share = work.share();
    // the pictures are encoded as parts, and then in the body
    share.insist(conversation.images().map(|image| 2 * image.image.size as usize / 3 * 4).sum());
    let TranslatedChat { body, sampling, rid } = TranslatedChat::try_new(&conversation, &request, engine)?;
    if let Some(without_media) = without_media {
        chat.complete(*without_media);
    }
    share.insist(body.len());
    let chat = EngineChat {
        body: share.hold(body),
        route,
        rid,
        sglext: SglextOptions::default(),
        n: 1,
        sampling,
        lora_path: request.adapter(0),
        chat: Some(chat_of_prompt(chat)),
        kind: ChatKind::Translated { is_deferred: request.stream == Some(true) },
        reason: Box::default(),
    };
    Some((chat, encoder))
}

fn chat_of_prompt(chat: ForwardedChat) -> ChatOfPrompt {
    ChatOfPrompt::new(move |prompt| Box::new(chat.after_prompt(prompt)))
}

/// The sampling fields of a body, as a JSON object.
fn sampling(body: &RequestBody) -> Box<str> {
    sampling_params(|sampling| {
        if let Some(max_tokens) = body.present("max_completion_tokens").or_else(|| body.present("max_tokens")) {
            sampling.set(SamplingParam::MaxNewTokens, max_tokens);
        }
        write_sampling(sampling, &body.fields());
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sglang::routes;

    fn read(body: &'static str) -> EngineChat {
        let engine = Capabilities { model: "m:1".into(), ..Capabilities::default() };
        let request = Request::new(Bytes::from_static(body.as_bytes()));
        let object = Object::parse(body.as_bytes()).unwrap();
        undecoded_chat(&request, object, routes::route(routes::CHAT), &engine)
    }

    #[test]
    fn sampling_fields_get_their_names_in_sampling_params() {
        let body = r#"{"n":2,"max_tokens":8,"temperature":1.50,"min_tokens":null,"seed":7,"user":"u"}"#;
        let read = read(body);
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
            assert_eq!(read(body).lora_path.as_deref(), expected, "{body}");
        }
    }
}
