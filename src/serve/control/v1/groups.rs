// SPDX-License-Identifier: Apache-2.0
//! `/v1/groups`: the samples of one prompt within a training step.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::query::Query;
use super::{ok, steps};
use crate::long_work::offload;
use crate::serve::body::Body;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::session::{GroupCursor, GroupOrder, GroupPage, GroupQuery, PASS_ABOVE, RewardSamples, SampleGroup};

/// The default and the maximum number of groups of a page.
const PAGE: (usize, usize) = (100, 10_000);

/// Returns a page of the groups of the sessions in memory.
pub(super) async fn list(proxy: &Arc<Proxy>, query: Query) -> Result<Response<Body>, Problem> {
    let Query { by, conditions, sort, after, limit, .. } = query;
    let (by, key) = steps::key(by)?;
    let bad = |error: &dyn std::fmt::Display| Problem::bad_request(error.to_string());
    let order: GroupOrder = sort.map(|sort| sort.parse()).transpose().map_err(|error| bad(&error))?.unwrap_or_default();
    let after = after.map(|after| GroupCursor::parse(&after, &order)).transpose().map_err(|error| bad(&error))?;
    let query = GroupQuery { key, conditions, order, after, limit: limit.unwrap_or(PAGE.0).min(PAGE.1) };
    let proxy = Arc::clone(proxy);
    Ok(offload(move || {
        let GroupPage { groups, next, matched, scope } = proxy.sessions.groups(&query);
        let groups: Vec<Value> = groups.iter().map(row).collect();
        let next = next.map(|next| next.to_string());
        let mut reply = json!({"by": by, "pass_above": PASS_ABOVE, "groups": groups, "next": next, "matched": matched});
        if let Some(scope) = scope {
            reply["scope"] = scope.name().into();
        }
        ok(&reply)
    })
    .await)
}

fn row(group: &SampleGroup) -> Value {
    let rewards = group.rewards;
    json!({
        "step": &*group.step,
        "session": &*group.session,
        "turn": group.turn,
        "sessions": group.sessions,
        "samples": group.samples,
        "rewarded": rewards.map_or(0, |rewards| rewards.count),
        "pass_rate": group.pass_rate(),
        "mean": rewards.map(RewardSamples::mean),
        "std": group.deviation(),
        "min": rewards.map(|rewards| rewards.least),
        "max": rewards.map(|rewards| rewards.greatest),
        "one_reward": group.has_one_reward(),
    })
}
