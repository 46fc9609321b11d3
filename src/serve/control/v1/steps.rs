// SPDX-License-Identifier: Apache-2.0
//! `/v1/steps`: an overview of training steps.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::ok;
use super::query::Query;
use crate::long_work::offload_export;
use crate::rl::{Mismatch, MismatchSums, RatioLimits, RatioProblem, log_ratios};
use crate::serve::body::Body;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::session::{EntropyTotals, MOST_STEPS, Numbers, Session, StepKey, StepList, StepQuery, TrainingStep};

/// The default and the maximum number of steps of a reply.
const STEPS: (usize, usize) = (1000, 10_000);

/// Sessions whose scores are read at once.
const SCORED_AT_ONCE: usize = 64;

/// The tag of a step.
const DEFAULT_TAG: &str = "step";

/// The shares of the quantiles, with their names.
const QUANTILES: [(&str, f64); 5] = [("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9)];

/// Returns the steps of the sessions in memory.
pub(super) async fn list(proxy: &Arc<Proxy>, query: Query) -> Result<Response<Body>, Problem> {
    let Query { by, conditions, limit, scores: teacher, .. } = query;
    let (by, key) = key(by)?;
    let limit = limit.unwrap_or(STEPS.0).min(STEPS.1);
    let query = StepQuery { key, conditions, think: proxy.think_tokens(), teacher };
    let (list, query) = {
        let proxy = Arc::clone(proxy);
        // the first request reads the thinking of all turns
        offload_export(move || (proxy.sessions.steps(&query), query)).await
    };
    let Some(StepList { mut steps, scope }) = list else {
        let message = format!("by: the tag has more than {MOST_STEPS} values, not the few of steps; see where");
        return Err(Problem::bad_request(message));
    };
    let total = steps.len();
    steps.drain(..total.saturating_sub(limit));
    let mut mismatches = Vec::new();
    if let Some(teacher) = query.teacher.map(Arc::<str>::from) {
        for step in &mut steps {
            mismatches.push(mismatch(std::mem::take(&mut step.scored), &teacher).await);
        }
    }
    let reply = offload_export(move || {
        let mut rows: Vec<Value> = steps.iter().map(row).collect();
        for (row, mismatch) in rows.iter_mut().zip(mismatches) {
            row["mismatch"] = mismatch;
        }
        let mut reply = json!({"by": by, "total": total, "steps": rows});
        if let Some(scope) = scope {
            reply["scope"] = scope.name().into();
        }
        ok(&reply)
    });
    Ok(reply.await)
}

/// What makes a step, with its name: the tag `step` unless `by` is another one.
pub(super) fn key(by: Option<String>) -> Result<(String, StepKey), Problem> {
    let by = by.unwrap_or_else(|| DEFAULT_TAG.to_owned());
    let bad = || Problem::bad_request(format!("by: must be policy or the name of a tag, not {by:?}"));
    let key = StepKey::parse(&by).ok_or_else(bad)?;
    Ok((by, key))
}

fn row(step: &TrainingStep) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
    let share = |count: u64, of: u64| (of > 0).then(|| count as f64 / of as f64);
    let (groups, one_reward) = step.groups();
    json!({
        "step": step.name,
        "sessions": step.sessions,
        "turns": step.turns,
        "rows": step.rows,
        "sampled_tokens": step.sampled_tokens,
        "trained_tokens": step.trained_tokens,
        "reward": numbers(&step.rewards),
        "length": numbers(&step.lengths),
        "entropy": entropy(&step.entropy),
        "thinking_entropy": step.thinking.as_ref().map(entropy),
        "answer_entropy": step.thinking.as_ref().map(|thinking| entropy(&step.entropy.without(thinking))),
        "truncated_share": share(step.truncated, step.rows),
        "fault_share": share(step.faulty, step.sessions),
        "groups": {"count": groups, "one_reward": one_reward},
    })
}

/// The statistics of the log ratios of a teacher at the trained tokens of the rows that an export of these sessions has. Ends between two parts
/// if the client leaves.
async fn mismatch(sessions: Vec<Arc<Session>>, teacher: &Arc<str>) -> Value {
    let mut found = (MismatchSums::default(), 0);
    let mut sessions = sessions.into_iter();
    while sessions.len() > 0 {
        let (part, teacher): (Vec<_>, _) = (sessions.by_ref().take(SCORED_AT_ONCE).collect(), Arc::clone(teacher));
        found = offload_export(move || {
            let (mut sums, mut incomparable) = found;
            for session in part {
                add_mismatch(&session, &teacher, &mut sums, &mut incomparable);
            }
            (sums, incomparable)
        })
        .await;
    }
    let (sums, incomparable) = found;
    let Mismatch { tokens, mean, k1, k3, p99: _, max, above_limit, tis_mean, mis_masked } = sums.mismatch();
    json!({
        "tokens": tokens, "incomparable": incomparable, "mean": mean, "k1": k1, "k3": k3, "max": max, "above_limit": above_limit,
        "tis_mean": tis_mean, "mis_masked": mis_masked,
    })
}

fn add_mismatch(session: &Session, teacher: &str, sums: &mut MismatchSums, incomparable: &mut usize) {
    let snapshot = session.scored(&session.open_snapshot(), teacher);
    for row in snapshot.rows(true).0 {
        for turn in row.trained() {
            match log_ratios(turn, row.scores(turn).map(|scores| &**scores)) {
                Ok(ratios) => ratios.into_iter().for_each(|ratio| sums.add(ratio, &RatioLimits::DEFAULT)),
                Err(RatioProblem::Unscored) => {}
                Err(_) => *incomparable += turn.response.len(),
            }
        }
    }
}

fn numbers(numbers: &Numbers) -> Value {
    let Some(quantiles) = numbers.quantiles(QUANTILES.map(|(_, share)| share)) else { return Value::Null };
    let mut shown = json!({"count": numbers.len(), "mean": numbers.mean()});
    for ((name, _), value) in QUANTILES.into_iter().zip(quantiles) {
        shown[name] = value.into();
    }
    shown
}

fn entropy(entropy: &EntropyTotals) -> Value {
    let Some(mean) = entropy.mean() else { return Value::Null };
    let mut shown = json!({"tokens": entropy.measured, "mean": mean, "high_share": entropy.high_share()});
    for (name, share) in QUANTILES {
        shown[name] = entropy.histogram.quantile(share).into();
    }
    shown
}
