//! `/v1/policy`: the epoch, and what the trainer calls it.

use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Problem, ok};
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;

/// `POST /v1/policy`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyRequest {
    version: Value,
}

pub(super) fn show(state: &TrainerState) -> Response<Body> {
    let policy = &state.policy;
    let (label, version) = policy.names();
    ok(&json!({"epoch": policy.epoch(), "weight_version": label, "version": version}))
}

pub(super) async fn name(state: &TrainerState, said: PolicyRequest) -> Result<Response<Body>, Problem> {
    let version = match &said.version {
        Value::String(text) if (1..=256).contains(&text.len()) => text.clone(),
        Value::Number(number) if number.is_u64() => number.to_string(),
        other => return Err(Problem::bad(format!("version: a text or a whole number, not {other}"))),
    };
    let (epoch, ack) = state.policy.named(&version);
    super::written(state, ack).await;
    Ok(ok(&json!({"epoch": epoch, "version": version})))
}
