// SPDX-License-Identifier: Apache-2.0
//! The parser of one object of a reply.

use serde_json::Value;
use tokentap::engine::events::{Chunk, NoKnownPrefix, Numbers};
use tokentap::json::{Cursor, Object};

use super::grammar::{Plain, shown};

/// The parser finds every member of a JSON object, and no logprob that does not exist.
pub fn reply(bytes: &[u8]) {
    let (mut cursor, mut numbers) = (Cursor::new(bytes), Numbers::default());
    let read = Chunk::decode(&mut cursor, &NoKnownPrefix, &mut numbers).and_then(|chunk| cursor.end().map(|()| chunk));
    if let Ok(chunk) = &read {
        let _ = (chunk.count_ids(bytes), chunk.weight_versions(bytes), chunk.text(bytes), chunk.cached_tokens(bytes));
        for span in [&chunk.output_ids, &chunk.prompt_ids].into_iter().flatten() {
            let _ = Chunk::ids(bytes, span, &mut Vec::new());
        }
        assert_eq!(numbers.chosen.len(), numbers.ids.len());
    }
    // the parser compares names without decoding escapes
    let Some(value) = serde_json::from_slice::<Value>(bytes).ok().filter(|_| !bytes.contains(&b'\\')) else { return };
    let Ok(chunk) = read else {
        let lists = ["output_token_logprobs", "output_top_logprobs"];
        let odd = lists.iter().any(|name| Plain::new(bytes).is_object() && contains(bytes, name));
        assert!(!value.is_object() || odd, "rejected: {}", shown(bytes));
        return;
    };
    assert_eq!(Some(chunk.object), Object::parse(bytes).ok(), "{}", shown(bytes));
    let meta = value.get("meta_info").filter(|meta| meta.is_object());
    // a repeated name may first be an object and last something else
    if meta.is_none() {
        return;
    }
    assert!(chunk.meta.is_some(), "{}", shown(bytes));
    let count = |name: &str| meta?.get(name)?.as_u64();
    assert_eq!(chunk.prompt_tokens, count("prompt_tokens"), "{}", shown(bytes));
    assert_eq!(chunk.completion_tokens, count("completion_tokens"), "{}", shown(bytes));
    let kind = meta.and_then(|meta| meta.get("finish_reason")?.get("type")?.as_str());
    assert_eq!(chunk.finish.map(|finish| finish.kind).as_deref(), kind, "{}", shown(bytes));
    // if a list occurs twice, the numbers of both are returned
    let once = |name: &str| bytes.windows(name.len()).filter(|part| *part == name.as_bytes()).count() == 1;
    let list = |name: &str| meta?.get(name)?.as_array().filter(|_| once(name) && once("meta_info"));
    if let Some(triples) = list("output_token_logprobs") {
        let ids: Option<Vec<u64>> = triples.iter().map(|triple| triple.get(1)?.as_u64()).collect();
        assert_eq!(Some(numbers.ids.iter().map(|id| u64::from(*id)).collect()), ids, "{}", shown(bytes));
    }
    if let Some(rows) = list("output_top_logprobs") {
        let lengths: Vec<usize> = rows.iter().map(|row| row.as_array().map_or(0, Vec::len)).collect();
        assert_eq!(numbers.rows.iter().map(<[f32]>::len).collect::<Vec<_>>(), lengths, "{}", shown(bytes));
    }
}

fn contains(bytes: &[u8], name: &str) -> bool {
    bytes.windows(name.len()).any(|part| part == name.as_bytes())
}
