//! `choices[].logprobs` in OpenAI's shape: texts and bytes for the engine's ids.

use crate::api::sample::TokenLogprob;
use crate::chat::quoted;
use crate::tokenizer::Tokenizer;

/// `{"content":[…]}`: an entry a token.
#[must_use]
pub(super) fn content(tokenizer: &Tokenizer, said: &[TokenLogprob]) -> String {
    let mut out = String::from("{\"content\":[");
    for (at, token) in said.iter().enumerate() {
        out.push_str(if at > 0 { "," } else { "" });
        named(&mut out, tokenizer, token.id, &token.logprob);
        out.push_str(",\"top_logprobs\":[");
        for (at, (id, logprob, _)) in token.top.iter().enumerate() {
            out.push_str(if at > 0 { "," } else { "" });
            named(&mut out, tokenizer, *id, logprob);
            out.push('}');
        }
        out.push_str("]}");
    }
    out.push_str("]}");
    out
}

/// The members that every entry has, without the brace that ends it.
fn named(out: &mut String, tokenizer: &Tokenizer, id: u32, logprob: &str) {
    let text = tokenizer.decode(&[id], false).unwrap_or_default();
    out.push_str("{\"token\":");
    out.push_str(&quoted(&text));
    out.push_str(",\"bytes\":[");
    for (at, byte) in tokenizer.bytes(id).unwrap_or_else(|| text.into_bytes()).into_iter().enumerate() {
        out.push_str(if at > 0 { "," } else { "" });
        out.push_str(itoa::Buffer::new().format(byte));
    }
    out.push_str("],\"logprob\":");
    out.push_str(logprob);
}
