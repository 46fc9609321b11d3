// SPDX-License-Identifier: Apache-2.0
//! Asks the engine for the routed experts of a few tokens, to compare them with the shape of the model.

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::columns::{COLUMNS, ColumnFault, ExpertShape, ROUTED_EXPERTS_AT, TurnTokens};
use crate::engine::transport::client::Client;

/// A prompt of ids that every vocabulary has.
const PROMPT: [u32; 3] = [10, 11, 12];

/// Sampled tokens: enough that some of their experts have high numbers.
const SAMPLED: usize = 8;

/// The routed experts of a short generation.
#[derive(Debug)]
pub(crate) struct ExpertSample {
    /// Numbers of each token.
    pub(crate) values: usize,
    /// Why a turn with them would lack the column.
    pub(crate) fault: Option<ColumnFault>,
}

#[derive(Deserialize)]
struct Reply {
    output_ids: Vec<u32>,
    meta_info: serde_json::Map<String, Value>,
}

/// Generates a few tokens, and reads their experts as a turn of a model of this shape; `None` if the engine returns none.
///
/// # Errors
/// A line for the user when the engine does not answer as SGLang does.
pub(crate) async fn expert_sample(client: &Client, shape: Option<ExpertShape>) -> Result<Option<ExpertSample>, String> {
    let source = &COLUMNS[ROUTED_EXPERTS_AT];
    let body = json!({
        "input_ids": PROMPT,
        source.request: true,
        "sampling_params": {"max_new_tokens": SAMPLED, "temperature": 0, "ignore_eos": true},
    });
    let (status, answer) =
        client.call(Method::POST, "/generate", Some(body.to_string())).await.map_err(|error| error.to_string())?;
    if !status.is_success() {
        return Err(format!("a request for them was answered {status}"));
    }
    let reply: Reply = serde_json::from_slice(&answer).map_err(|error| format!("the reply: {error}"))?;
    let Some(payload) = reply.meta_info.get(source.member).filter(|payload| !payload.is_null()) else {
        return Ok(None);
    };
    let payload = payload.to_string();
    let (prompt, sampled) = (Some(PROMPT.len()), reply.output_ids.len());
    let tokens = |experts| TurnTokens { prompt, sampled, start: Some(0), experts, earlier_values: None };
    // without a shape, the number of values follows from the length
    let flat = source.read(&payload, tokens(None)).map_err(|fault| format!("their payload: {}", fault.name()))?;
    let rows = flat.as_ref().and_then(|column| column.rows()).unwrap_or_default();
    let values = rows.first().map_or(0, |row| row.len() / source.number.size());
    Ok(Some(ExpertSample { values, fault: source.read(&payload, tokens(shape)).err() }))
}
