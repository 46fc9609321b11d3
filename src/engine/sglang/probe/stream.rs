// SPDX-License-Identifier: Apache-2.0
//! Detects the streaming mode of an engine from the events of a stream.

use serde_json::Value;

use crate::engine::capabilities::StreamMode;

/// The streaming mode of one sequence's events. `None` if it is ambiguous: fewer than two events with tokens, no `completion_tokens`, or
/// lists that fit no mode.
pub(super) fn mode(body: &[u8]) -> Option<StreamMode> {
    let mut seen = 0;
    let mut modes = Vec::new();
    for event in body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:")) {
        let Ok(event) = serde_json::from_slice::<Value>(event) else { continue };
        let Some(total) = event["meta_info"]["completion_tokens"].as_u64() else { continue };
        let total = usize::try_from(total).ok()?;
        let new = total.checked_sub(seen)?;
        if seen > 0 && new > 0 {
            modes.push(event_mode(&event, new, total)?);
        }
        seen = total;
    }
    let first = *modes.first()?;
    modes.iter().all(|mode| *mode == first).then_some(first)
}

/// The mode that one event with `new` of `total` tokens shows.
fn event_mode(event: &Value, new: usize, total: usize) -> Option<StreamMode> {
    let ids = event["output_ids"].as_array().map(Vec::len)?;
    let logprobs = event["meta_info"]["output_token_logprobs"].as_array().map(Vec::len);
    match (ids, logprobs) {
        (ids, Some(logprobs)) if ids == total && logprobs == total => Some(StreamMode::Cumulative),
        (ids, Some(logprobs)) if ids == new && logprobs == new => Some(StreamMode::Incremental),
        (ids, Some(logprobs)) if ids == new && logprobs == total => Some(StreamMode::IncrementalIds),
        (ids, None) if ids == total => Some(StreamMode::Cumulative),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A stream of four tokens whose events hold `ids` and `logprobs` entries.
    fn stream(lists: &[(usize, usize)]) -> Vec<u8> {
        let events = lists.iter().enumerate().map(|(at, (ids, logprobs))| {
            let meta =
                json!({"completion_tokens": at + 1, "output_token_logprobs": vec![json!([-0.5, 1, null]); *logprobs]});
            format!("data: {}\n\n", json!({"output_ids": vec![1; *ids], "meta_info": meta}))
        });
        (events.collect::<String>() + "data: [DONE]\n\n").into_bytes()
    }

    #[test]
    fn mode_follows_from_the_lengths_of_the_lists() {
        assert_eq!(mode(&stream(&[(1, 1), (2, 2), (3, 3)])), Some(StreamMode::Cumulative));
        assert_eq!(mode(&stream(&[(1, 1), (1, 1), (1, 1)])), Some(StreamMode::Incremental));
        assert_eq!(mode(&stream(&[(1, 1), (1, 2), (1, 3)])), Some(StreamMode::IncrementalIds));
    }

    #[test]
    fn mode_is_unknown_where_events_do_not_show_it() {
        assert_eq!(mode(&stream(&[(1, 1)])), None, "one event");
        assert_eq!(mode(&stream(&[(1, 1), (2, 2), (1, 1)])), None, "two modes");
        assert_eq!(mode(&stream(&[(1, 1), (5, 5)])), None, "neither");
        assert_eq!(mode(b"<html></html>"), None);
        assert_eq!(mode(b"data: {\"error\":{\"message\":\"no\"}}\n\ndata: [DONE]\n\n"), None);
        let plain = b"data: {\"output_ids\":[1],\"meta_info\":{\"completion_tokens\":1}}\n\n\
            data: {\"output_ids\":[1],\"meta_info\":{\"completion_tokens\":2}}\n\n";
        assert_eq!(mode(plain), None, "new ids without logprobs do not show the mode of other lists");
    }
}
