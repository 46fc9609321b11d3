// SPDX-License-Identifier: Apache-2.0
//! Probes routed experts. An engine reports its launch flag; a router before it may drop the request for them.

use serde_json::{Value, json};

use super::{PROMPTS, Probe, ProbeError};
use crate::columns::{COLUMNS, ROUTED_EXPERTS_AT};

impl Probe {
    /// Whether a generation returns its routed experts on request; `None` if it is not answered with a generation.
    ///
    /// # Errors
    /// [`ProbeError`] when the upstream stops answering.
    pub(crate) async fn returns_experts(&self) -> Result<Option<bool>, ProbeError> {
        let source = &COLUMNS[ROUTED_EXPERTS_AT];
        let mut body = json!({
            "input_ids": PROMPTS[0],
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "top_k": -1},
        });
        body[source.request] = json!(true);
        let (status, answer) = self.generate(&body).await?;
        let answer = serde_json::from_slice::<Value>(&answer).ok().filter(|_| status.is_success());
        Ok(answer.and_then(|answer| Some(answer.get("meta_info")?.get(source.member).is_some())))
    }
}
