// SPDX-License-Identifier: Apache-2.0
//! The members of `sampling_params` that affect logprobs.

use std::ops::Range;

use crate::json::{Cursor, Malformed, Object};

/// The member of `custom_params` that requests exact entropies from the plugin `tokentap-sglang`.
pub const PLUGIN_SWITCH: &str = "tokentap_entropy";

/// `custom_params` of one object of sampling parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CustomParams {
    /// Absent or null.
    #[default]
    Absent,
    /// An object, without [`PLUGIN_SWITCH`].
    Free,
    /// An object in which the client has set [`PLUGIN_SWITCH`]; whether it is switched on.
    Switched(bool),
    /// A value to which no member can be added.
    Other,
}

/// One object of sampling parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// The range of the object in the body.
    pub span: Range<usize>,
    /// `temperature`; `None` when absent or null.
    pub temperature: Option<f64>,
    /// `top_k`.
    pub top_k: Option<i64>,
    /// `max_new_tokens`: absent is the engine's 128, null is up to the context.
    pub max_new_tokens: Option<Option<u64>>,
    /// `n`.
    pub n: Option<i64>,
    /// `beam_width` above 1: the engine then refuses logprobs.
    pub beams: bool,
    /// A grammar constrains the tokens.
    pub grammar: bool,
    /// A value of `logit_bias` is finite in JSON but not in float32, to which the engine converts it.
    pub bias_overflows: bool,
    /// `top_k` exceeds 32 bits, in any format.
    pub top_k_overflows: bool,
    /// `custom_params`.
    pub custom: CustomParams,
    /// The numeric members are numbers.
    pub readable: bool,
}

impl SamplingParams {
    /// Parses the object at the cursor; `None` for any other value, which is ambiguous.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Option<Self>, Malformed> {
        if cursor.peek() != Some(b'{') {
            cursor.skip()?;
            return Ok(None);
        }
        let mut sampling = Self {
            span: 0..0,
            temperature: None,
            top_k: None,
            max_new_tokens: None,
            n: None,
            beams: false,
            grammar: false,
            bias_overflows: false,
            top_k_overflows: false,
            custom: CustomParams::Absent,
            readable: true,
        };
        let object = Object::read(cursor, |key, cursor| {
            let name = key.decode();
            if name == "logit_bias" && cursor.peek() == Some(b'{') {
                let bias = Object::read(cursor, |_, cursor| cursor.skip().map(drop))?;
                sampling.bias_overflows = bias.members.iter().any(|member| {
                    let text = std::str::from_utf8(&cursor.bytes()[member.value.clone()]).unwrap_or_default();
                    text.parse::<f64>().is_ok_and(|value| (value as f32).is_infinite())
                });
                return Ok(());
            }
            if name == "custom_params" && cursor.peek() == Some(b'{') {
                sampling.custom = custom(cursor)?;
                return Ok(());
            }
            let span = cursor.skip()?;
            let text = std::str::from_utf8(&cursor.bytes()[span]).unwrap_or("?");
            let null = text == "null";
            match name.as_ref() {
                "temperature" => sampling.temperature = sampling.number(text, null),
                "top_k" => {
                    sampling.top_k = sampling.number(text, null);
                    let loose = text.trim_matches('"').parse::<f64>();
                    sampling.top_k_overflows = loose.is_ok_and(|k| k > f64::from(i32::MAX));
                }
                "n" => sampling.n = sampling.number(text, null),
                "max_new_tokens" => sampling.max_new_tokens = Some(sampling.number(text, null)),
                "beam_width" => sampling.beams = sampling.number::<i64>(text, null).is_some_and(|width| width > 1),
                "custom_params" => sampling.custom = if null { CustomParams::Absent } else { CustomParams::Other },
                "json_schema" | "regex" | "ebnf" | "structural_tag" => sampling.grammar |= !null && text != "\"\"",
                _ => {}
            }
            Ok(())
        })?;
        sampling.span = object.span;
        Ok(Some(sampling))
    }

    fn number<T: std::str::FromStr>(&mut self, text: &str, null: bool) -> Option<T> {
        let number = text.parse().ok();
        self.readable &= null || number.is_some();
        number
    }
}

/// Parses the `custom_params` object at the cursor.
fn custom(cursor: &mut Cursor<'_>) -> Result<CustomParams, Malformed> {
    let mut custom = CustomParams::Free;
    Object::read(cursor, |key, cursor| {
        let text = if cursor.peek() == Some(b'"') { Some(cursor.string()?.decode()) } else { None };
        let full = text.as_deref() == Some("full");
        let value = if text.is_some() { &b""[..] } else { &cursor.bytes()[cursor.skip()?] };
        if key.is(PLUGIN_SWITCH) {
            custom = CustomParams::Switched(full || value == b"true");
        }
        Ok(())
    })?;
    Ok(custom)
}
