// SPDX-License-Identifier: Apache-2.0
//! How turns end in model families: the tokens of the next prompt, with one template for each family.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokentap::api::openai_chat::request::ChatRequest;
use tokentap::budget::Work;
use tokentap::chat::Conversation;
use tokentap::chat::prompt::{PreparedPrompt, PromptBuilder, PromptLimits};
use tokentap::chat::reply_reader::ParserSettings;
use tokentap::config::EarlierThinking;
use tokentap::session::{Call, Draft, Sessions, StoreLimits, TurnMetadata};
use tokentap::tokenizer::{Fit, Folder, Renderer};

pub const TOKENIZER: &[u8] = include_bytes!("../../../src/demo/assets/tokenizer.json");

/// A model with this template, and a session.
pub struct Family {
    pub renderer: Renderer,
    store: Arc<Sessions>,
    pub earlier_thinking: EarlierThinking,
}

impl Family {
    fn new(template: &str) -> Self {
        Self::of(Renderer::new(Folder::embedded(TOKENIZER, template, "<|im_end|>").unwrap()))
    }

    pub fn of(renderer: Renderer) -> Self {
        let limits = StoreLimits { bytes: 1 << 20, ttl: Duration::from_secs(60), idle: Duration::from_secs(60) };
        Self { renderer, store: Arc::new(Sessions::new(limits)), earlier_thinking: EarlierThinking::Keep }
    }

    /// Builds the prompt of a chat.
    pub fn prepare(&self, body: &serde_json::Value) -> PreparedPrompt {
        self.prepare_conversation(&ChatRequest::parse(body.to_string().into()).unwrap().conversation)
    }

    pub fn prepare_conversation(&self, conversation: &Conversation) -> PreparedPrompt {
        let session = self.store.session("s");
        let format = self.renderer.family().tool_calls().map(Box::from);
        PromptBuilder {
            renderer: &self.renderer,
            session: session.as_deref(),
            earlier_thinking: self.earlier_thinking,
            parser: ParserSettings { format, separate: Some(true) },
            shows_images: false,
        }
        .prepare(conversation, PromptLimits { work: &Work::unlimited(), context: None })
        .unwrap()
    }

    /// Records a turn with this prompt and reply. Returns its tokens.
    pub fn record(&self, prompt: PreparedPrompt, reply: &str, finish: &str) -> Vec<u32> {
        let response = self.renderer.tokenizer().encode(reply).unwrap();
        let known = [&prompt.ids[..], &response].concat();
        let chat = Some(Box::new(prompt.chat));
        let about = TurnMetadata { finish: Some(finish.into()), chat, ..TurnMetadata::default() };
        let draft = Draft { prompt: Some(prompt.ids), response, about, ..Draft::default() };
        drop(Call::new(Arc::clone(&self.store), "s".into()).commit(draft));
        known
    }

    pub fn decode(&self, ids: &[u32]) -> String {
        self.renderer.tokenizer().decode(ids, false).unwrap()
    }

    /// The text of the second call's prompt after the first turn, whose reply was `reply`, and the number of inserted end-of-turn tokens.
    pub fn text_after_turn(&self, reply: &str, finish: &str) -> (String, u32) {
        let first = self.prepare(&json!({"messages": [{"role": "user", "content": "U"}]}));
        let known = self.record(first, reply, finish);
        let next = self.prepare(&json!({"messages": [
            {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"},
        ]}));
        assert!(!next.chat.retokenised, "the turn was found");
        // the stop token of an expected role may be replaced by that of the actual role
        let kept = known.iter().zip(&*next.ids).take_while(|(a, b)| a == b).count();
        assert!(kept + 1 >= known.len(), "{:?} begins {:?}", self.decode(&known), self.decode(&next.ids));
        (self.decode(&next.ids[kept..]), next.chat.inserted_end_of_turn)
    }
}

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// As GLM: a turn ends where the next one's role begins.
const NEXT_ROLE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// As Kimi K2 and Llama 3: nothing between the end of a turn and the next.
const NO_SEPARATOR: &str = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}";

/// As Nemotron Nano v2: a line end before the token that ends a turn.
const LINE_BEFORE_END: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn text_after_a_turn_equals_that_of_the_template() {
    for (template, reply, finish, expected, inserted) in [
        (CHATML, "A<|im_end|>", "stop", "\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n", 0),
        (CHATML, "A", "length", "<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n", 1),
        // for example a stop string: the turn has no end token yet
        (CHATML, "A", "stop", "<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n", 1),
        (NEXT_ROLE, "A<|im_start|>", "stop", "user\nV<|im_start|>assistant\n", 0),
        (NEXT_ROLE, "A", "length", "<|im_start|>user\nV<|im_start|>assistant\n", 0),
        // it stopped at the token of a role that does not follow
        (NEXT_ROLE, "A<|im_end|>", "stop", "<|im_start|>user\nV<|im_start|>assistant\n", 0),
        (NO_SEPARATOR, "A<|im_end|>", "stop", "<|im_start|>user:V<|im_end|><|im_start|>assistant:", 0),
        (LINE_BEFORE_END, "A<|im_end|>", "stop", "\n<|im_start|>user\nV\n<|im_end|>\n<|im_start|>assistant\n", 0),
        (LINE_BEFORE_END, "A", "length", "\n<|im_end|>\n<|im_start|>user\nV\n<|im_end|>\n<|im_start|>assistant\n", 1),
    ] {
        let family = Family::new(template);
        assert_eq!(
            family.text_after_turn(reply, finish),
            (expected.to_owned(), inserted),
            "{reply:?} {finish} in {template}"
        );
        assert_eq!(family.renderer.check_continuation().user, Fit::Exact, "{template}");
    }
}

#[test]
fn template_that_rewrites_earlier_turns_is_detected() {
    let dated = "{% for m in messages %}<|im_start|>{% if loop.first %}{{ loop.length }} {% endif %}{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    assert_eq!(
        Family::new(dated).renderer.check_continuation().user,
        Fit::NoBoundary,
        "a new message changes the beginning"
    );
    let spaced = dated
        .replace("{% if loop.first %}{{ loop.length }} {% endif %}", "{{ ' ' if loop.first and loop.length > 2 }}");
    assert_eq!(Family::new(&spaced).renderer.check_continuation().user, Fit::NoBoundary, "white space is text, too");
    let marked = spaced.replace("' '", "'<think>'");
    assert_eq!(Family::new(&marked).renderer.check_continuation().user, Fit::NoBoundary, "and so is a mark");
    let ageing = "{% for m in messages %}<|im_start|>{% if m.role == 'assistant' and loop.index0 < loop.length - 3 %}old {% endif %}{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    assert_eq!(Family::new(ageing).renderer.check_continuation().user, Fit::Rewrites);
    let refusing =
        "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ messages[0].content }}";
    assert_eq!(Family::new(refusing).renderer.check_continuation().user, Fit::Refused);
    let silent = "{{ messages[0].content }}{% if add_generation_prompt %}<|im_start|>{% endif %}";
    assert_eq!(Family::new(silent).renderer.check_continuation().user, Fit::NoBoundary);
}
