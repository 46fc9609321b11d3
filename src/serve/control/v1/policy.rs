//! `/v1/policy`: the policy epoch, and the version name that the trainer gave it.

use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ok;
use crate::serve::body::Body;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;

/// The body of `POST /v1/policy`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyRequest {
    version: Value,
}

pub(super) fn show(proxy: &Proxy) -> Response<Body> {
    let policy = &proxy.generator.policy;
    let (label, version) = policy.names();
    ok(&json!({
        "epoch": policy.epoch(), "weight_version": label, "version": version, "updating": policy.is_updating(),
    }))
}

pub(super) async fn name(proxy: &Proxy, request: PolicyRequest) -> Result<Response<Body>, Problem> {
    let version = match &request.version {
        Value::String(text) if (1..=256).contains(&text.len()) => text.clone(),
        Value::Number(number) if number.is_u64() => number.to_string(),
        other => return Err(Problem::bad_request(format!("version: must be a string or an integer, not {other}"))),
    };
    let (epoch, ack) = proxy.generator.policy.begin_named_epoch(&version);
    proxy.wait_written(ack).await;
    Ok(ok(&json!({"epoch": epoch, "version": version})))
}
