//! Parses limits from an engine's error messages, and the vocabulary size from a model's config.json.

use serde_json::Value;

/// Parses the vocabulary size from an error message: the range `[0, 151935]` includes the last id, `[0, 151936)` excludes its end.
pub(super) fn range_end(text: &str) -> Option<u32> {
    let range = &text[text.find("[0, ")? + 4..];
    let digits = range.bytes().take_while(u8::is_ascii_digit).count();
    let end: u32 = range[..digits].parse().ok()?;
    match range.as_bytes().get(digits) {
        Some(b']') => end.checked_add(1),
        Some(b')') => Some(end),
        _ => None,
    }
}

/// Parses the largest top_k from the error for a sampling mask: `… finite 1 < top_k <= 4096; got …`.
pub(super) fn mask_limit(text: &str) -> Option<u32> {
    let text = &text[text.find("return_sampling_mask requires")?..];
    let limit = &text[text.find("top_k <= ")? + 9..];
    limit[..limit.bytes().take_while(u8::is_ascii_digit).count()].parse().ok()
}

/// Parses the vocabulary size from a model's config.json.
pub(super) fn config_vocab(text: &[u8]) -> Option<u32> {
    let config: Value = serde_json::from_slice(text).ok()?;
    let size = config.get("vocab_size").or_else(|| config.pointer("/text_config/vocab_size"))?;
    size.as_u64().and_then(|size| u32::try_from(size).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vocabulary_size_is_read_from_either_range_format() {
        assert_eq!(
            range_end(r#"{"error":{"message":"logit_bias must has keys in [0, 151935], got 2000000000."}}"#),
            Some(151_936)
        );
        assert_eq!(range_end("token id 999999; valid range is [0, 151936)."), Some(151_936));
        for text in ["", "[0, ", "[0, x]", "[0, 12", "[0, 99999999999]"] {
            assert_eq!(range_end(text), None, "{text}");
        }
    }

    #[test]
    fn sampling_mask_limit_is_read_from_the_error() {
        let refusal = "return_sampling_mask requires top_k=1 for greedy sampling or finite 1 < top_k <= 4096; got top_k=1073741824.";
        assert_eq!(mask_limit(refusal), Some(4096));
        for text in ["", "return_sampling_mask requires", "top_k <= 4096", "return_sampling_mask requires top_k <= x"] {
            assert_eq!(mask_limit(text), None, "{text}");
        }
    }

    #[test]
    fn vocabulary_size_is_read_from_text_config() {
        assert_eq!(config_vocab(br#"{"vocab_size":10}"#), Some(10));
        assert_eq!(config_vocab(br#"{"text_config":{"vocab_size":11}}"#), Some(11));
    }
}
