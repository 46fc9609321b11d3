// SPDX-License-Identifier: Apache-2.0
//! Parses limits from an engine's error messages, and the vocabulary size and the routing from a model's config.json.

use serde_json::Value;

use crate::columns::ExpertShape;

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

/// Parses the routing of a mixture-of-experts model from its config.json. The names are those of the text model that SGLang reads, and the
/// names of the number of experts are those of the usual families.
pub(super) fn config_experts(text: &[u8]) -> Option<ExpertShape> {
    let config: Value = serde_json::from_slice(text).ok()?;
    let number = |name: &str| {
        let inner = ["text_config", "llm_config"].into_iter().filter_map(|inner| config.get(inner)?.get(name));
        inner
            .chain(config.get(name))
            .filter_map(Value::as_u64)
            .find_map(|number| u32::try_from(number).ok().filter(|number| *number > 0))
    };
    let experts = ["num_experts", "n_routed_experts", "num_local_experts"].into_iter().find_map(number)?;
    Some(ExpertShape { layers: number("num_hidden_layers")?, per_token: number("num_experts_per_tok")?, experts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_read_from_the_names_of_each_family() {
        let shape = |layers, per_token, experts| Some(ExpertShape { layers, per_token, experts });
        for (text, expected) in [
            (r#"{"num_hidden_layers":48,"num_experts_per_tok":8,"num_experts":128}"#, shape(48, 8, 128)),
            (r#"{"num_hidden_layers":61,"num_experts_per_tok":8,"n_routed_experts":256}"#, shape(61, 8, 256)),
            (r#"{"num_hidden_layers":32,"num_experts_per_tok":2,"num_local_experts":8}"#, shape(32, 2, 8)),
            (
                r#"{"num_hidden_layers":1,"text_config":{"num_hidden_layers":40,"num_experts_per_tok":8,"num_experts":256}}"#,
                shape(40, 8, 256),
            ),
            (r#"{"num_hidden_layers":28}"#, None),
            (r#"{"num_hidden_layers":28,"num_experts_per_tok":0,"num_experts":8}"#, None),
            (r#"{"num_hidden_layers":28,"num_experts_per_tok":null,"num_experts":8}"#, None),
            ("[]", None),
        ] {
            assert_eq!(config_experts(text.as_bytes()), expected, "{text}");
        }
    }

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
