//! What the probe learns from logprobs: the temperature that they are at, the flat form, the plugin, and the engine's sampling defaults.

use serde::Deserialize;
use serde_json::{Value, json};

use super::ask::PROMPTS;
use super::plugin::{self, FirstToken};
use super::{Capabilities, Dialect, Preferred, Probe, ProbeError};
use crate::engine::request::PLUGIN_SWITCH;

/// The members of a reply that answer questions.
#[derive(Debug, Deserialize)]
struct Answer {
    meta_info: Value,
    prompt_token_ids: Option<Value>,
}

impl Probe {
    /// The same prompt at temperature 1 and 0.5: the gap between the two likeliest tokens doubles where logprobs are at the
    /// request's temperature, and stays where they are at 1.
    pub(super) async fn logprobs(&self, found: &mut Capabilities) -> Result<(), ProbeError> {
        for prompt in PROMPTS {
            let Some(at_one) = self.first_row(&prompt, &open_sampling(1.0), found).await? else { return Ok(()) };
            let Some(at_half) = self.first_row(&prompt, &open_sampling(0.5), found).await? else { return Ok(()) };
            found.plugin = plugin::judge(&[&at_one, &at_half], found.vocab_size);
            let (at_one, at_half) = (at_one.logprobs, at_half.logprobs);
            if let (Some(one), Some(half)) = (gap(&at_one), gap(&at_half)) {
                found.bf16 |= [&at_one, &at_half].iter().all(|row| is_bf16(row));
                // a gap this small could be noise; another prompt has another
                if one > 0.05 && half / one > 1.8 {
                    found.original_logprobs = Some(false);
                    if found.preferred.is_none() {
                        self.sampling_defaults(&prompt, (one, half), found).await?;
                    }
                    return Ok(());
                }
                if one > 0.05 && half / one < 1.2 {
                    found.original_logprobs = Some(true);
                    return Ok(());
                }
            }
        }
        found.notes.push("the temperature of logprobs could not be told: no prompt gave a clear gap".into());
        Ok(())
    }

    /// Whether the engine puts sampling defaults under a request's, where no route names them: a request without a temperature, and
    /// one without a `top_k`, are answered as those that name the usual values (`one` and `half`, the gaps at these temperatures).
    async fn sampling_defaults(
        &self,
        prompt: &[u32],
        (one, half): (f64, f64),
        found: &mut Capabilities,
    ) -> Result<(), ProbeError> {
        let Some(plain) = self.first_row(prompt, &json!({}), found).await? else { return Ok(()) };
        let Some(at_half) = self.first_row(prompt, &json!({"temperature": 0.5}), found).await? else { return Ok(()) };
        let same = |row: &[f64], expected: f64| gap(row).is_some_and(|found| (found / expected - 1.0).abs() < 0.01);
        if same(&plain.logprobs, one) && same(&at_half.logprobs, half) {
            // whether there are custom_params is still unknown: taken as present, so that the plugin's switch never replaces them
            found.preferred = Some(Preferred { custom_params: true, ..Preferred::default() });
        } else {
            found.notes.push("the engine's sampling defaults are not known, and they are not temperature 1".into());
        }
        Ok(())
    }

    async fn first_row(
        &self,
        prompt: &[u32],
        sampling: &Value,
        found: &mut Capabilities,
    ) -> Result<Option<FirstToken>, ProbeError> {
        let sglang = found.dialect == Some(Dialect::Sglang);
        let mut body = json!({
            "input_ids": prompt,
            "return_logprob": true,
            "top_logprobs_num": found.max_top_logprobs(self.top_k).clamp(2, found.vocab_size.unwrap_or(20).max(2)),
            "sampling_params": sampling,
        });
        body["sampling_params"]["max_new_tokens"] = json!(1);
        if sglang {
            body["return_flat_raw_output_top_logprobs"] = json!(true);
            body["return_flat_raw_top_logprobs_b64"] = json!(true);
            body["return_prompt_token_ids"] = json!(true);
            // for the full vocabulary alone: else the plugin may have been told to renormalise over fewer tokens
            body["sampling_params"]["custom_params"] = json!({PLUGIN_SWITCH: "full"});
        } else {
            // what sglang-jax does not know can be a 500 there, and an engine that is not known may be one
            body["return_text_in_logprobs"] = json!(false);
        }
        let (status, answer) = self.generate(&body).await?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&answer);
            found.gives_logprobs = Some(false);
            found.notes.push(format!(
                "a request with logprobs was answered {status}: {}",
                text.chars().take(200).collect::<String>()
            ));
            return Ok(None);
        }
        let Ok(answer) = serde_json::from_slice::<Answer>(&answer) else {
            found.gives_logprobs = Some(false);
            found.notes.push(format!("a request with logprobs was answered {status} without meta_info"));
            return Ok(None);
        };
        let meta = &answer.meta_info;
        if found.dialect.is_none() && meta.get("weight_version").is_some() {
            found.dialect = Some(Dialect::Sglang);
            // asked again in the words that this engine knows
            return Box::pin(self.first_row(prompt, sampling, found)).await;
        }
        let exact = meta.get("output_token_entropy").cloned();
        let flat = meta.get("output_top_logprobs_val_flat_b64").and_then(Value::as_str);
        found.flat |= flat.is_some();
        found.echoes_prompt |= answer.prompt_token_ids.as_ref() == Some(&json!(prompt));
        if let Some(text) = flat {
            let bytes = base64_simd::STANDARD.decode_to_vec(text).unwrap_or_default();
            let floats =
                bytes.chunks_exact(4).map(|raw| f64::from(f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]])));
            found.gives_logprobs = Some(true);
            return Ok(Some(FirstToken { logprobs: floats.collect(), exact }));
        }
        let row = meta.pointer("/output_top_logprobs/0").and_then(Value::as_array);
        found.gives_logprobs = Some(row.is_some());
        if row.is_none() {
            found.notes.push(format!("a request with logprobs was answered {status} without them"));
        }
        let logprobs = row.map(|row| row.iter().filter_map(|triple| triple.get(0).and_then(Value::as_f64)).collect());
        Ok(logprobs.map(|logprobs| FirstToken { logprobs, exact }))
    }
}

/// Sampling parameters that leave the distribution whole, whatever the engine's defaults are.
fn open_sampling(temperature: f64) -> Value {
    json!({"temperature": temperature, "top_k": -1})
}

/// The distance of the two likeliest tokens, in nats. A masked second token is equally far away at every temperature.
fn gap(row: &[f64]) -> Option<f64> {
    Some(row.first()? - row.get(1).filter(|second| **second > -1e30)?)
}

/// Values that are all bfloat16: their float32 form ends in 16 zero bits.
fn is_bf16(row: &[f64]) -> bool {
    let mut told = row.iter().map(|value| *value as f32).filter(|value| *value != 0.0 && *value > -1e30).peekable();
    told.peek().is_some() && told.all(|value| value.to_bits() & 0xffff == 0)
}
