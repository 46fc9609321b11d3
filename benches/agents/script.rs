// SPDX-License-Identifier: Apache-2.0
//! The texts of the sessions: the system prompt, the tools, the replies of the engine and the results of the tools.

use std::path::Path;

use tokentap::demo::Model;
use tokentap::tokenizer::Renderer;

/// Tokens of the last prompt of a session.
const TOKENS: usize = 60_000;
/// Characters of the result of a tool.
const RESULT: usize = 2_000;
/// Different replies.
pub const REPLIES: usize = 4;

/// The tokenizer and the template of the run.
pub fn tokenizer() -> Renderer {
    match std::env::var("TOKENIZER") {
        Ok(folder) => Renderer::open(Path::new(&folder)).unwrap(),
        Err(_) => Renderer::new(Model::folder()),
    }
}

/// The text of a reply before its call.
fn said(reply: usize) -> String {
    format!("I look at part {reply} of the file next, because the error is reported there.")
}

/// The file that a reply reads; no two replies read the same.
fn file(reply: usize) -> String {
    format!("src/part_{reply}.rs")
}

/// The text of a reply as the model samples it.
pub fn reply_text(reply: usize) -> String {
    let file = file(reply);
    let said = said(reply);
    format!(
        "{said}\n<tool_call>\n{{\"name\": \"read_file\", \"arguments\": {{\"path\": \"{file}\", \"limit\": 200}}}}\n</tool_call>"
    )
}

/// The tokens of a reply, with the end of the turn.
pub fn reply_tokens(renderer: &Renderer, reply: usize) -> Vec<u32> {
    let mut ids = renderer.tokenizer().encode_rendered(&reply_text(reply)).unwrap();
    ids.extend(renderer.end_of_turn());
    ids
}

/// Writes the requests of sessions.
pub struct Script {
    /// The project's code and prose, which repeats itself about as much as files that agents read.
    corpus: Vec<char>,
    /// Characters of the system prompt.
    system: usize,
    pub reply_tokens: usize,
}

impl Script {
    /// The system prompt is as long as it takes to reach [`TOKENS`] at the last of `turns`.
    pub fn new(renderer: &Renderer, turns: usize) -> Self {
        let corpus = crate::corpus::corpus();
        let tokens = renderer.tokenizer().encode(&corpus).unwrap().len();
        let corpus: Vec<char> = corpus.chars().collect();
        let characters_per_token = corpus.len() as f64 / tokens as f64;
        let reply_tokens = reply_tokens(renderer, 0).len();
        let a_turn = RESULT as f64 / characters_per_token + reply_tokens as f64 + 20.0;
        let rest = TOKENS as f64 - a_turn * (turns - 1) as f64 - 300.0;
        let system = (rest.max(200.0) * characters_per_token) as usize;
        Self { corpus, system, reply_tokens }
    }

    /// The start of the body of a session's requests, which ends in the first messages.
    pub fn begin(&self, session: usize, streams: bool) -> Vec<u8> {
        let system = quoted(self.excerpt(session, 0, self.system));
        let task = quoted(self.excerpt(session, 1, 300));
        format!(
            r#"{{"model":"m","temperature":1.0,"max_tokens":{},"stream":{streams},"tools":[{}],"messages":[{{"role":"system","content":{system}}},{{"role":"user","content":{task}}}"#,
            crate::engine::TURN_TOKENS,
            TOOLS.join(","),
        )
        .into_bytes()
    }

    /// Appends the messages after a reply: the reply, and the result of its call.
    pub fn continue_after(&self, body: &mut Vec<u8>, (session, turn): (usize, usize), reply: &Reply) {
        let (id, said) = (&reply.call_id, said(reply.number));
        let arguments = quoted(format!(r#"{{"path": "{}", "limit": 200}}"#, file(reply.number)));
        let result = quoted(self.excerpt(session, 2 + turn, RESULT));
        let messages = format!(
            r#",{{"role":"assistant","content":"{said}","tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"read_file","arguments":{arguments}}}}}]}},{{"role":"tool","tool_call_id":"{id}","content":{result}}}"#
        );
        body.extend_from_slice(messages.as_bytes());
    }

    /// A part of the corpus, another one for each session and place.
    fn excerpt(&self, session: usize, place: usize, length: usize) -> String {
        let length = length.min(self.corpus.len() / 2);
        let mixed = (session * 1009 + place).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let start = (mixed >> 20) % (self.corpus.len() - length);
        self.corpus[start..start + length].iter().collect()
    }
}

/// A reply, as far as the next request repeats it.
pub struct Reply {
    pub number: usize,
    pub call_id: String,
}

impl Reply {
    /// Reads it from the body, which is JSON or a stream of events.
    pub fn parse(body: &[u8]) -> Self {
        let after = |text: &str, prefix: &str| {
            let at = memchr::memmem::find(body, text.as_bytes());
            let at = at.unwrap_or_else(|| panic!("no {text} in {}", String::from_utf8_lossy(body)));
            let rest = &body[at + prefix.len()..];
            let end = rest.iter().position(|byte| matches!(byte, b'"' | b'.')).unwrap();
            String::from_utf8(rest[..end].to_vec()).unwrap()
        };
        let call_id = after("\"id\":\"call_", "\"id\":\"");
        Self { number: after("src/part_", "src/part_").parse().unwrap(), call_id }
    }
}

fn quoted(text: String) -> String {
    serde_json::Value::from(text).to_string()
}

/// The tools of a coding agent.
const TOOLS: [&str; 4] = [
    r#"{"type":"function","function":{"name":"read_file","description":"Returns the text of a file of the project, from a line on.","parameters":{"type":"object","properties":{"path":{"type":"string","description":"The path from the root of the project"},"offset":{"type":"integer","description":"The first line"},"limit":{"type":"integer","description":"The number of lines"}},"required":["path"]}}}"#,
    r#"{"type":"function","function":{"name":"write_file","description":"Replaces the text of a file.","parameters":{"type":"object","properties":{"path":{"type":"string","description":"The path from the root of the project"},"text":{"type":"string","description":"The new text"}},"required":["path","text"]}}}"#,
    r#"{"type":"function","function":{"name":"run","description":"Runs a command of the shell in the project and returns its output.","parameters":{"type":"object","properties":{"command":{"type":"string","description":"The command"},"timeout":{"type":"integer","description":"The most seconds it may run"}},"required":["command"]}}}"#,
    r#"{"type":"function","function":{"name":"search","description":"Finds the lines that match a regular expression.","parameters":{"type":"object","properties":{"pattern":{"type":"string","description":"The regular expression"},"folder":{"type":"string","description":"The folder in which files are searched"}},"required":["pattern"]}}}"#,
];
