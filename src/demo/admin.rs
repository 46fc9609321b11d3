// SPDX-License-Identifier: Apache-2.0
//! The control routes: abort, pause, continue, flush the cache, update the weights.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde::Deserialize;
use tokio::sync::OwnedRwLockWriteGuard;

use super::control::{PauseMode, Weights};
use super::engine::Engine;
use super::refusal::Refusal;
use super::routes::{ReplyBody, default_true, json, parse, respond};
use super::wire::quoted;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AbortRequest {
    rid: Option<String>,
    abort_all: bool,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct PauseRequest {
    mode: String,
}

impl Default for PauseRequest {
    fn default() -> Self {
        Self { mode: "abort".to_owned() }
    }
}

#[derive(Debug, Deserialize)]
struct UpdateWeightsRequest {
    model_path: String,
    #[serde(flatten)]
    load: WeightLoad,
}

/// The body of `/update_weights_from_tensor` and `/update_weights_from_distributed`.
#[derive(Debug, Deserialize)]
struct LoadTensorsRequest {
    #[serde(default, alias = "names")]
    serialized_named_tensors: Vec<String>,
    #[serde(flatten)]
    load: WeightLoad,
}

/// How new weights are loaded.
#[derive(Debug, Deserialize)]
struct WeightLoad {
    weight_version: Option<String>,
    #[serde(default)]
    abort_all_requests: bool,
    #[serde(default = "default_true")]
    flush_cache: bool,
}

#[derive(Debug, Deserialize)]
struct UpdateWeightVersionRequest {
    new_version: String,
    #[serde(default = "default_true")]
    abort_all_requests: bool,
}

/// Parses a body; an empty one is an object without members.
fn parse_or_default<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    parse(if body.is_empty() { b"{}" } else { body })
}

/// Aborts the requests whose id begins with `rid`, or all. Answers 200 with an empty body, also when no request matches.
pub(super) fn abort(engine: &Engine, body: &Bytes) -> Result<Response<ReplyBody>, Refusal> {
    let request: AbortRequest = parse_or_default(body)?;
    match request.rid {
        _ if request.abort_all => engine.control.abort(""),
        Some(rid) if !rid.is_empty() => engine.control.abort(&rid),
        _ => {}
    }
    Ok(respond(StatusCode::OK, "", ""))
}

pub(super) async fn pause(engine: &Engine, body: &Bytes) -> Result<Response<ReplyBody>, Refusal> {
    let request: PauseRequest = parse_or_default(body)?;
    let mode = match request.mode.as_str() {
        "abort" => PauseMode::Abort,
        "in_place" => PauseMode::InPlace,
        "retract" => PauseMode::Retract,
        _ => return Err(Refusal::field("mode", "literal")),
    };
    engine.control.pause(mode).await;
    Ok(json(StatusCode::OK, r#"{"message":"Generation paused successfully.","status":"ok"}"#))
}

pub(super) fn continue_generation(engine: &Engine) -> Response<ReplyBody> {
    engine.control.resume();
    json(StatusCode::OK, r#"{"message":"Generation continued successfully.","status":"ok"}"#)
}

pub(super) fn flush(engine: &Engine) -> Response<ReplyBody> {
    let idle = engine.control.is_idle();
    if idle {
        engine.cache.flush();
    }
    let status = if idle { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    let body = "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting \
                requests, the operation will not be performed.)\n";
    respond(status, "", body)
}

/// Loads new weights: increments the number of the weights. A path that begins with `/nonexistent` cannot be loaded.
pub(super) async fn update_weights(engine: &Engine, body: &Bytes) -> Result<Response<ReplyBody>, Refusal> {
    let UpdateWeightsRequest { model_path, load } = parse_or_default(body)?;
    let gate = load.wait_for_gate(engine).await;
    if model_path.starts_with("/nonexistent") {
        let message = format!("Failed to get weights iterator: no weights at '{model_path}'..");
        return Ok(update_reply(false, &message));
    }
    Ok(load.run(engine, gate.is_some(), |weights| {
        weights.path.clone_from(&model_path);
        weights.name = model_path;
    }))
}

/// Begins an update, which only one call may do until its end.
pub(super) async fn begin_update(engine: &Engine) -> Response<ReplyBody> {
    let _gate = engine.control.write_gate().await;
    match engine.control.set_updating(true) {
        true => update_reply(false, "an update has begun already"),
        false => update_reply(true, "Success"),
    }
}

/// Ends an update.
pub(super) async fn end_update(engine: &Engine) -> Response<ReplyBody> {
    let _gate = engine.control.write_gate().await;
    match engine.control.set_updating(false) {
        true => update_reply(true, "Success"),
        false => update_reply(false, "no update has begun"),
    }
}

/// Loads tensors within an update: increments the number of the weights. An empty list of tensors cannot be loaded.
pub(super) async fn load_tensors(engine: &Engine, body: &Bytes) -> Result<Response<ReplyBody>, Refusal> {
    let LoadTensorsRequest { serialized_named_tensors, load } = parse_or_default(body)?;
    let gate = load.wait_for_gate(engine).await;
    if !engine.control.is_updating() {
        return Ok(update_reply(false, "no update has begun"));
    }
    if serialized_named_tensors.is_empty() {
        return Ok(update_reply(false, "no tensors"));
    }
    Ok(load.run(engine, gate.is_some(), |_| {}))
}

impl WeightLoad {
    /// Waits until no request runs, unless generation is paused.
    async fn wait_for_gate(&self, engine: &Engine) -> Option<OwnedRwLockWriteGuard<()>> {
        if self.abort_all_requests {
            engine.control.abort("");
        }
        engine.control.write_gate().await
    }

    /// Loads new weights, and flushes the cache if that is asked for. With `is_gated`, no request runs.
    fn run(self, engine: &Engine, is_gated: bool, rename: impl FnOnce(&mut Weights)) -> Response<ReplyBody> {
        let control = &engine.control;
        // a pause may hold requests in place: their state cannot be flushed, but the weights change nevertheless
        let flushed = !self.flush_cache || is_gated || !control.holds_state();
        control.change_weights(|weights| {
            weights.number += 1;
            if let Some(label) = &self.weight_version {
                weights.label.clone_from(label);
            }
            if flushed {
                weights.reported_label.clone_from(&weights.label);
                rename(weights);
            }
        });
        if !flushed {
            return update_reply(
                false,
                "Weights were updated, but the cache was not flushed because requests are still running or queued. \
                        Retract or finish them, then call /flush_cache.",
            );
        }
        if self.flush_cache {
            engine.cache.flush();
        }
        let label = self.weight_version.map(|label| format!(" Weight version updated to {label}.")).unwrap_or_default();
        update_reply(true, &format!("Succeeded to update model weights.{label}"))
    }
}

fn update_reply(success: bool, message: &str) -> Response<ReplyBody> {
    let status = if success { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    let message = quoted(message);
    let body = format!(r#"{{"success":{success},"message":{message},"num_paused_requests":0}}"#);
    json(status, body)
}

/// Changes the label of the weights. The distributions do not change.
pub(super) async fn update_weight_version(engine: &Engine, body: &Bytes) -> Result<Response<ReplyBody>, Refusal> {
    let request: UpdateWeightVersionRequest = parse_or_default(body)?;
    if request.abort_all_requests {
        engine.control.abort("");
    }
    engine.control.change_weights(|weights| {
        weights.label.clone_from(&request.new_version);
        weights.reported_label.clone_from(&request.new_version);
    });
    let (message, version) =
        (quoted(&format!("Weight version updated to {}", request.new_version)), quoted(&request.new_version));
    let body = format!(r#"{{"success":true,"message":{message},"new_version":{version}}}"#);
    Ok(json(StatusCode::OK, body))
}
