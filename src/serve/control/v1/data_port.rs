// SPDX-License-Identifier: Apache-2.0
//! `/v1/data-port`: where agents send their requests.

use http::Response;
use serde_json::json;

use super::ok;
use crate::serve::body::Body;
use crate::serve::proxy::Proxy;

/// Returns the URL of the data port, and whether its requests need a key.
pub(super) fn show(proxy: &Proxy) -> Response<Body> {
    let config = &proxy.config;
    let scheme = if config.tls.data().is_some() { "https" } else { "http" };
    let keys = &config.keys;
    let engine_needs_key = keys.upstream_api_key.is_some() && !keys.forward_upstream_api_key;
    ok(&json!({
        "url": format!("{scheme}://{}", config.listen),
        "needs_key": keys.agent_token.is_some() || engine_needs_key,
    }))
}
