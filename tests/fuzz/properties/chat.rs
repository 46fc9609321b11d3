// SPDX-License-Identifier: Apache-2.0
//! The parser of chat requests, and the native requests made from them.

use std::sync::LazyLock;

use bytes::Bytes;
use tokentap::api::generate_request::GenerateInputs;
use tokentap::api::openai_chat::request::ChatRequest;
use tokentap::api::openai_completions::request::CompletionRequest;
use tokentap::budget::Work;
use tokentap::chat::RequestError;
use tokentap::chat::prompt::{PromptBuilder, PromptLimits};
use tokentap::chat::reply_reader::ParserSettings;
use tokentap::config::EarlierThinking;
use tokentap::demo::Model;
use tokentap::engine::sglang::request::GenerateRequest;
use tokentap::generation::event::{EventAccess, GenerationEvent};
use tokentap::generation::update::SequenceUpdate;
use tokentap::tokenizer::{Renderer, SamplingDefaults};

use super::grammar::shown;

static RENDERER: LazyLock<Renderer> = LazyLock::new(|| Renderer::new(Model::folder()));

/// A chat that can be served becomes a native request with the ids of its prompt and at most one end-of-turn token per message. The bytes
/// are also parsed as a reply, which must not panic.
pub fn chat(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let _ = GenerationEvent::outline(body.clone(), EventAccess::Fields)
        .is_ok_and(|event| SequenceUpdate::all(&event).is_ok());
    if let Ok(request) = CompletionRequest::parse(body.clone())
        && let Err(unserved) = request.generate_request("m", false, &Work::unlimited())
    {
        assert!(!is_unreadable(&unserved), "{unserved:?} of {}", shown(bytes));
    }
    let Ok(request) = ChatRequest::parse(body) else { return };
    let parser = ParserSettings { format: Some("hermes".into()), separate: Some(true) };
    let builder = PromptBuilder {
        renderer: &RENDERER,
        session: None,
        earlier_thinking: EarlierThinking::Keep,
        parser,
        shows_images: false,
    };
    let Ok(prepared) = builder.prepare(&request.conversation, PromptLimits { work: &Work::unlimited(), context: None })
    else {
        return;
    };
    let inputs = GenerateInputs {
        ids: &prepared.ids,
        images: &[],
        defaults: &SamplingDefaults::default(),
        skip_special: prepared.chat.reading.skip_special,
        require_reasoning: false,
        served_model: "m",
        loses_ids: false,
    };
    match request.generate_request(inputs, false, &Work::unlimited()) {
        Ok(native) => {
            assert_eq!(native.prompt_ids(0).as_deref(), Some(&*prepared.ids), "{}", shown(bytes));
            let read = GenerateRequest::parse(native.bytes.clone());
            let read = read.unwrap_or_else(|error| panic!("{error} of {}", shown(bytes)));
            assert_eq!(read.prompt_ids(0), native.prompt_ids(0), "{}", shown(bytes));
            assert_eq!(read.ids.extremes, native.ids.extremes, "{}", shown(bytes));
        }
        Err(unserved) => assert!(!is_unreadable(&unserved), "{unserved:?} of {}", shown(bytes)),
    }
    if request.conversation.prompt_ids.is_none() {
        let turns = prepared.ids.iter().filter(|id| Some(**id) == RENDERER.end_of_turn()).count();
        // tools may add a system turn, and the generation prompt ends no turn
        assert!(turns <= request.conversation.messages.len() + 1, "{turns} turns of {}", shown(bytes));
    }
}

/// Whether the error says that the native request cannot be parsed.
fn is_unreadable(unserved: &RequestError) -> bool {
    matches!(unserved, RequestError::Unsupported(what) if what.contains("cannot be read"))
}
