// SPDX-License-Identifier: Apache-2.0
//! The cost of a chat before it reaches the engine, at the last turn of a long conversation, compared with rendering everything again.
//!
//! `cargo bench --bench chat`. With TOKENIZER=FOLDER a model's own tokenizer and template (tests/templates fetches Qwen3's), else those
//! of the demo engine, whose vocabulary is small. Times are those of one thread, the best of several runs.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports to its terminal, and fails loudly")]
#![allow(missing_docs, unreachable_pub, reason = "a bench exports nothing")]

#[path = "support/corpus.rs"]
mod corpus;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokentap::api::generate_request::GenerateInputs;
use tokentap::api::openai_chat::request::ChatRequest;
use tokentap::budget::Work;
use tokentap::chat::image_support::ImageSupport;
use tokentap::chat::model::ChatModel;
use tokentap::chat::prompt::{PreparedPrompt, PromptBuilder, PromptLimits};
use tokentap::chat::reply_reader::ParserSettings;
use tokentap::config::EarlierThinking;
use tokentap::demo::Model;
use tokentap::session::{Call, Draft, Session, Sessions, StoreLimits, TurnMetadata};
use tokentap::tokenizer::{Renderer, SamplingDefaults};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TURNS: usize = 50;
/// Tokens of the whole conversation at its last turn.
const TOKENS: usize = 100_000;

/// Takes about the next `tokens` tokens of a text, by its average token length.
struct Reader<'a> {
    rest: &'a str,
    bytes_per_token: f64,
}

impl<'a> Reader<'a> {
    fn next(&mut self, tokens: usize) -> &'a str {
        let mut end = (tokens as f64 * self.bytes_per_token) as usize;
        while !self.rest.is_char_boundary(end) {
            end += 1;
        }
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        text
    }
}

struct Conversation {
    model: ChatModel,
    store: Arc<Sessions>,
    messages: Vec<Value>,
    tokens: usize,
}

impl Conversation {
    fn session(&self) -> Option<Arc<Session>> {
        self.store.session("bench")
    }

    fn request(&self, next: &str) -> Vec<u8> {
        let mut messages = self.messages.clone();
        messages.push(json!({"role": "user", "content": next}));
        json!({"model": "m", "messages": messages, "temperature": 0.7}).to_string().into_bytes()
    }

    /// Prepares a request for the engine.
    fn prepare(&self, body: &[u8], session: Option<&Session>) -> (ChatRequest, PreparedPrompt) {
        let request = ChatRequest::parse(bytes::Bytes::copy_from_slice(body)).unwrap();
        let builder = PromptBuilder {
            renderer: &self.model.renderer,
            session,
            earlier_thinking: EarlierThinking::Keep,
            parser: self.model.parser.clone(),
            shows_images: false,
        };
        let prepared =
            builder.prepare(&request.conversation, PromptLimits { work: &Work::unlimited(), context: None }).unwrap();
        (request, prepared)
    }

    /// Runs one turn with these numbers of tokens in the question and the answer.
    fn turn(&mut self, asked: &str, answered: &str) {
        let body = self.request(asked);
        let (_, prepared) = self.prepare(&body, self.session().as_deref());
        assert!(self.messages.is_empty() || prepared.reused > 0, "the earlier turn is found");
        let tokenizer = self.model.renderer.tokenizer();
        let mut response = tokenizer.encode(answered).unwrap();
        response.extend(self.model.renderer.end_of_turn());
        self.tokens = prepared.ids.len() + response.len();
        let about = TurnMetadata {
            finish: Some("stop".into()),
            chat: Some(Box::new(prepared.chat)),
            ..TurnMetadata::default()
        };
        let draft = Draft { prompt: Some(prepared.ids), response, about, ..Draft::default() };
        drop(Call::new(Arc::clone(&self.store), "bench".into()).commit(draft));
        self.messages.push(json!({"role": "user", "content": asked}));
        self.messages.push(json!({"role": "assistant", "content": answered}));
    }
}

fn main() {
    let renderer = match std::env::var("TOKENIZER") {
        Ok(folder) => Renderer::open(Path::new(&folder)).unwrap(),
        Err(_) => Renderer::new(Model::folder()),
    };
    let limits = StoreLimits { bytes: 1 << 30, ttl: Duration::from_secs(86_400), idle: Duration::from_secs(300) };
    let store = Arc::new(Sessions::new(limits));
    let parser = ParserSettings { format: Some("hermes".into()), separate: Some(true) };
    let vocabulary = renderer.tokenizer().vocab_size();
    let model = ChatModel {
        renderer: Arc::new(renderer),
        defaults: SamplingDefaults::default(),
        parser,
        has_reasoning_parser: false,
        images: ImageSupport::default(),
        context: None,
    };
    let mut conversation = Conversation { model, store, messages: Vec::new(), tokens: 0 };
    // a tag of thinking or of a tool call in the sources would change what the template renders
    let corpus = corpus::corpus().replace('<', "(");
    let bytes_per_token =
        corpus.len() as f64 / conversation.model.renderer.tokenizer().encode(&corpus).unwrap().len() as f64;
    let mut reader = Reader { rest: &corpus, bytes_per_token };
    let each = TOKENS / (2 * (TURNS - 1));
    for _ in 0..TURNS - 1 {
        conversation.turn(reader.next(each), reader.next(each));
    }
    let history = conversation.tokens;
    let session = conversation.session();
    let long: String = reader.rest.chars().take(2_000).collect();
    let body = conversation.request("Go on.");
    let parse = best(|| drop(black_box(ChatRequest::parse(bytes::Bytes::copy_from_slice(&body)).unwrap())));
    let prepare = best(|| drop(black_box(conversation.prepare(&body, session.as_deref()))));
    let native = |body: &[u8]| {
        let (request, prepared) = conversation.prepare(body, session.as_deref());
        let (ids, defaults) = (&prepared.ids, &conversation.model.defaults);
        request
            .generate_request(
                GenerateInputs {
                    ids,
                    images: &[],
                    defaults,
                    skip_special: true,
                    require_reasoning: false,
                    served_model: "m",
                    loses_ids: false,
                },
                false,
                &Work::unlimited(),
            )
            .unwrap()
    };
    let all = best(|| drop(black_box(native(&body))));
    let more = conversation.request(&long);
    let with_more = best(|| drop(black_box(native(&more))));
    let from_scratch = |body: &[u8]| {
        let (request, _) = conversation.prepare(body, session.as_deref());
        best(|| {
            let builder = PromptBuilder::without_session(&conversation.model);
            drop(black_box(
                builder
                    .render_whole(&request.conversation, PromptLimits { work: &Work::unlimited(), context: None })
                    .unwrap(),
            ));
        })
    };
    let (from_scratch_all, from_scratch_more) = (from_scratch(&body), from_scratch(&more));
    let (_, prepared) = conversation.prepare(&more, session.as_deref());
    let per_token = |time: Duration| time.as_secs_f64() * 1e9 / history as f64;
    println!(
        "turn {TURNS} of {history} tokens ({} bytes of JSON), vocabulary {vocabulary}; {} bytes rendered, {} tokens encoded for {} new characters",
        body.len(),
        prepared.rendered,
        prepared.ids.len() - prepared.reused,
        long.chars().count(),
    );
    println!("| step | time | goal |\n|---|---|---|");
    println!("| parse the messages | {:.1} ns a token of history | |", per_token(parse));
    println!("| and find the turn and its tokens | {:.1} ns | |", per_token(prepare));
    println!("| and write the ids: total | {:.1} ns, {:.2} ms | at most 40 ns |", per_token(all), ms(all));
    println!(
        "| {} more characters | {:.2} ms | at most 1.5 ms |",
        long.chars().count(),
        ms(with_more.saturating_sub(all))
    );
    println!("| render and encode everything | {:.1} ms | |", ms(from_scratch_all));
    let times = |from_scratch: Duration, time: Duration| from_scratch.as_secs_f64() / time.as_secs_f64();
    println!("| ratio to the total | {:.0} times | at least 50 times |", times(from_scratch_all, all));
    println!(
        "| ratio with {} more characters | {:.0} times | |",
        long.chars().count(),
        times(from_scratch_more, with_more)
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The best of several runs.
fn best(mut run: impl FnMut()) -> Duration {
    let timed = |()| {
        let started = Instant::now();
        run();
        started.elapsed()
    };
    std::iter::repeat_n((), 15).map(timed).min().unwrap()
}
