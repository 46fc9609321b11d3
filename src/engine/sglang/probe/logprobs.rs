// SPDX-License-Identifier: Apache-2.0
//! Probes logprobs: their temperature, the flat form, the plugin, and the engine's sampling defaults.

use serde::Deserialize;
use serde_json::{Value, json};

use super::plugin::{self, FirstToken};
use super::{PROMPTS, Probe, ProbeError};
use crate::engine::capabilities::{Capabilities, Preferred};
use crate::engine::sglang::request::PLUGIN_SWITCH;
use crate::engine::{sgl_jax, sglang};

/// The members of a reply that the probe uses.
#[derive(Debug, Deserialize)]
struct ProbeReply {
    meta_info: Value,
    prompt_token_ids: Option<Value>,
}

/// The gaps between the two likeliest tokens at two temperatures, in nats.
#[derive(Debug, Clone, Copy)]
struct Gaps {
    at_one: f64,
    at_half: f64,
}

impl Probe {
    /// Sends the same prompt at temperature 1 and 0.5. The gap between the two likeliest tokens doubles if logprobs are at the request's
    /// temperature, and stays the same if they are at 1.
    pub(super) async fn logprobs(&self, found: &mut Capabilities) -> Result<(), ProbeError> {
        for prompt in PROMPTS {
            let Some(at_one) = self.first_row(&prompt, &open_sampling(1.0), found).await? else { return Ok(()) };
            let Some(at_half) = self.first_row(&prompt, &open_sampling(0.5), found).await? else { return Ok(()) };
            found.plugin = plugin::judge(&[&at_one, &at_half], found.vocab_size);
            let (at_one, at_half) = (at_one.logprobs, at_half.logprobs);
            if let (Some(one), Some(half)) = (gap(&at_one), gap(&at_half)) {
                found.bf16 |= [&at_one, &at_half].iter().all(|row| is_bf16(row));
                // a smaller gap could be noise; another prompt may have a larger one
                if one > 0.05 && half / one > 1.8 {
                    found.original_logprobs = Some(false);
                    if found.preferred.is_none() {
                        self.sampling_defaults(&prompt, Gaps { at_one: one, at_half: half }, found).await?;
                    }
                    return Ok(());
                }
                if one > 0.05 && half / one < 1.2 {
                    found.original_logprobs = Some(true);
                    return Ok(());
                }
            }
        }
        found.notes.push("the temperature of logprobs is unknown: no prompt gave a clear gap".into());
        Ok(())
    }

    /// Detects whether the engine has sampling defaults that no route reports. It has none if requests without a temperature or a `top_k`
    /// are answered like those with the usual values.
    async fn sampling_defaults(&self, prompt: &[u32], gaps: Gaps, found: &mut Capabilities) -> Result<(), ProbeError> {
        let Some(plain) = self.first_row(prompt, &json!({}), found).await? else { return Ok(()) };
        let Some(at_half) = self.first_row(prompt, &json!({"temperature": 0.5}), found).await? else { return Ok(()) };
        let same = |row: &[f64], expected: f64| gap(row).is_some_and(|found| (found / expected - 1.0).abs() < 0.01);
        if same(&plain.logprobs, gaps.at_one) && same(&at_half.logprobs, gaps.at_half) {
            // default custom_params may still exist; assume so, so that the plugin's switch never replaces them
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
        let mut body = json!({
            "input_ids": prompt,
            "return_logprob": true,
            "top_logprobs_num": found.max_top_logprobs(self.top_k).clamp(2, found.vocab_size.unwrap_or(20).max(2)),
            "sampling_params": sampling,
        });
        body["sampling_params"]["max_new_tokens"] = json!(1);
        if found.traits().ignores_unknown_members {
            body["return_flat_raw_output_top_logprobs"] = json!(true);
            body["return_flat_raw_top_logprobs_b64"] = json!(true);
            body["return_prompt_token_ids"] = json!(true);
            // "full" requests the full vocabulary, in case the plugin is configured to renormalise over fewer tokens
            body["sampling_params"]["custom_params"] = json!({PLUGIN_SWITCH: "full"});
        } else {
            // an unknown engine may be sglang-jax
            sgl_jax::add_probe_members(&mut body);
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
        let Ok(answer) = serde_json::from_slice::<ProbeReply>(&answer) else {
            found.gives_logprobs = Some(false);
            found.notes.push(format!("a request with logprobs was answered {status} without meta_info"));
            return Ok(None);
        };
        let meta = &answer.meta_info;
        if found.product.is_none() && meta.get("weight_version").is_some() {
            found.product = Some(&sglang::TRAITS);
            // repeat the request with the fields of this product
            return Box::pin(self.first_row(prompt, sampling, found)).await;
        }
        let exact = meta.get("output_token_entropy").cloned();
        let is_of_tokentap = meta.get("entropy_info").is_some();
        let flat = meta.get("output_top_logprobs_val_flat_b64").and_then(Value::as_str);
        found.flat |= flat.is_some();
        found.echoes_prompt |= answer.prompt_token_ids.as_ref() == Some(&json!(prompt));
        if let Some(text) = flat {
            let bytes = base64_simd::STANDARD.decode_to_vec(text).unwrap_or_default();
            let floats =
                bytes.chunks_exact(4).map(|raw| f64::from(f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]])));
            found.gives_logprobs = Some(true);
            return Ok(Some(FirstToken { logprobs: floats.collect(), exact, is_of_tokentap }));
        }
        let row = meta.pointer("/output_top_logprobs/0").and_then(Value::as_array);
        found.gives_logprobs = Some(row.is_some());
        if row.is_none() {
            found.notes.push(format!("a request with logprobs was answered {status} without them"));
        }
        let logprobs = row.map(|row| row.iter().filter_map(|triple| triple.get(0).and_then(Value::as_f64)).collect());
        Ok(logprobs.map(|logprobs| FirstToken { logprobs, exact, is_of_tokentap }))
    }
}

/// Sampling parameters that do not truncate the distribution, regardless of the engine's defaults.
fn open_sampling(temperature: f64) -> Value {
    json!({"temperature": temperature, "top_k": -1})
}

/// The gap between the two likeliest tokens, in nats. `None` if the second is masked: its gap is the same at every temperature.
fn gap(row: &[f64]) -> Option<f64> {
    Some(row.first()? - row.get(1).filter(|second| **second > -1e30)?)
}

/// Whether all values are bfloat16: their float32 form ends in 16 zero bits.
fn is_bf16(row: &[f64]) -> bool {
    let mut values = row.iter().map(|value| *value as f32).filter(|value| *value != 0.0 && *value > -1e30).peekable();
    values.peek().is_some() && values.all(|value| value.to_bits() & 0xffff == 0)
}
