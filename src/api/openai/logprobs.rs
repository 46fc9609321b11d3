//! Encodes logprobs in OpenAI's format: the text and the bytes of each token id.

use crate::chat::quoted;
use crate::generation::update::TokenLogprob;
use crate::tokenizer::Tokenizer;

/// A JSON list with an entry for each token.
#[must_use]
pub(crate) fn logprob_list(tokenizer: &Tokenizer, tokens: &[TokenLogprob]) -> String {
    let mut out = String::from("[");
    for (at, token) in tokens.iter().enumerate() {
        out.push_str(if at > 0 { "," } else { "" });
        write_entry_start(&mut out, tokenizer, token.id, &token.logprob);
        out.push_str(",\"top_logprobs\":[");
        for (at, (id, logprob, _)) in token.top.iter().enumerate() {
            out.push_str(if at > 0 { "," } else { "" });
            write_entry_start(&mut out, tokenizer, *id, logprob);
            out.push('}');
        }
        out.push_str("]}");
    }
    out.push(']');
    out
}

/// Writes the members that all entries have, without the closing brace.
fn write_entry_start(out: &mut String, tokenizer: &Tokenizer, id: u32, logprob: &str) {
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
