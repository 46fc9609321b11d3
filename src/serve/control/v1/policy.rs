// SPDX-License-Identifier: Apache-2.0
//! `/v1/policy`: the policy epochs of the base weights and of adapters, and the version names that the trainer gave them.

use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ok;
use crate::serve::body::Body;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;

/// The most bytes of a name.
const MOST_NAME: usize = 256;

/// The body of `POST /v1/policy`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyRequest {
    version: Value,
    /// Names the epoch of this adapter instead of that of the base weights.
    adapter: Option<String>,
}

pub(super) fn show(proxy: &Proxy) -> Response<Body> {
    let policy = &proxy.generator.policy;
    let (label, version) = policy.names();
    let adapter = |(name, epoch, version)| json!({"name": name, "epoch": epoch, "version": version});
    let adapters: Vec<Value> = policy.adapters().into_iter().map(adapter).collect();
    ok(&json!({
        "epoch": policy.epoch(), "weight_version": label, "version": version, "updating": policy.is_updating(),
        "adapters": adapters,
    }))
}

pub(super) async fn name(proxy: &Proxy, request: PolicyRequest) -> Result<Response<Body>, Problem> {
    let version = match &request.version {
        Value::String(text) if (1..=MOST_NAME).contains(&text.len()) => text.clone(),
        Value::Number(number) if number.is_u64() => number.to_string(),
        other => return Err(Problem::bad_request(format!("version: must be a string or an integer, not {other}"))),
    };
    let policy = &proxy.generator.policy;
    let Some(adapter) = request.adapter else {
        let (epoch, ack) = policy.begin_named_epoch(&version);
        proxy.wait_written(ack).await;
        return Ok(ok(&json!({"epoch": epoch, "version": version})));
    };
    if !(1..=MOST_NAME).contains(&adapter.len()) {
        return Err(Problem::bad_request(format!("adapter: must have 1 to {MOST_NAME} bytes")));
    }
    let (epoch, ack) = policy.begin_named_adapter_epoch(&adapter, &version);
    proxy.wait_written(ack).await;
    Ok(ok(&json!({"adapter": adapter, "epoch": epoch, "version": version})))
}
