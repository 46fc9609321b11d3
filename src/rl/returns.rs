// SPDX-License-Identifier: Apache-2.0
//! Rewards of turns: the discounted return of each step of a path.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::group_request::{RequestError, check_reward, reward_of};
use crate::session::{Path, Row, Turn};

/// The rewards from which advantages are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardSource {
    /// One reward for each path, of which all its tokens get the advantage.
    #[default]
    Path,
    /// The rewards of the turns of a path, and its own. Each turn gets an advantage.
    Turns,
}

/// A turn that a path trains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TurnReturn {
    /// The turn.
    pub(super) turn: u32,
    /// Its reward.
    pub(super) reward: Option<f64>,
    /// Its discounted return.
    pub(super) value: f64,
}

/// A turn of a path, and its part in the export.
struct Step<'a> {
    turn: &'a Turn,
    trained: bool,
    reward: Option<&'a Arc<Value>>,
}

/// Computes the return of each trained turn of a path, the last first: `G_t = r_t + discount * G_{t+1}`, where `r_t` is the reward of the turn,
/// or 0 without one, and that of the last turn includes the reward of the path (GiGPO, arXiv 2505.10978, equation 5). A turn that resumes the
/// one before it, without a token in between, belongs to the same step, so it is not discounted.
///
/// # Errors
/// `missing_reward` if neither the path nor a turn of it has a reward; `invalid_reward` if one is no number.
pub(super) fn returns(path: &Path, reward: Option<f64>, discount: f64) -> Result<Vec<TurnReturn>, RequestError> {
    let steps = path.steps.iter().rev();
    let steps = steps.map(|step| Step { turn: &step.turn, trained: step.trained, reward: step.reward.as_ref() });
    let has_rewards = path.steps.iter().any(|step| step.reward.is_some());
    Discounting { session: &path.session, leaf: path.leaf().id, discount }.returns(steps, reward, has_rewards)
}

/// The same for a row of an export. The time is linear in the turns that no earlier row holds.
///
/// # Errors
/// As those of [`returns`].
pub(super) fn row_returns(row: &Row, reward: Option<f64>, discount: f64) -> Result<Vec<TurnReturn>, RequestError> {
    let step = |turn| Step { turn, trained: row.trains(turn), reward: row.turn_reward(turn) };
    let has_rewards = row.turn_rewards().next().is_some();
    let discounting = Discounting { session: row.session(), leaf: row.leaf(), discount };
    discounting.returns(row.own().map(|turn| step(turn)), reward, has_rewards)
}

struct Discounting<'a> {
    session: &'a str,
    leaf: u32,
    discount: f64,
}

impl Discounting<'_> {
    fn returns<'a>(
        &self,
        last_first: impl Iterator<Item = Step<'a>>,
        reward: Option<f64>,
        has_turn_rewards: bool,
    ) -> Result<Vec<TurnReturn>, RequestError> {
        if reward.is_none() && !has_turn_rewards {
            let Self { session, leaf, .. } = self;
            let message = format!(
                "none is given, and neither the path to turn {leaf} of session {session:?} nor one of its turns has one: see POST \
                 /v1/sessions/{{id}}/reward"
            );
            return Err(RequestError::new("missing_reward", "reward", message));
        }
        let (mut returns, mut value, mut begins_step) = (Vec::new(), reward.unwrap_or(0.0), false);
        for Step { turn, trained, reward } in last_first {
            let own = reward.map(|reward| self.number(turn, reward)).transpose()?;
            value = own.unwrap_or(0.0) + if begins_step { self.discount * value } else { value };
            if trained {
                returns.push(TurnReturn { turn: turn.id, reward: own, value });
            }
            begins_step = !turn.prompt.is_empty();
        }
        Ok(returns)
    }

    fn number(&self, turn: &Turn, reward: &Arc<Value>) -> Result<f64, RequestError> {
        let Self { session, .. } = self;
        let number = reward_of(reward, || format!("of turn {} of session {session:?}", turn.id))?;
        check_reward(number).map(|()| number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{path, turn};
    use super::*;
    use serde_json::json;

    fn rewarded(turns: Vec<Turn>, rewards: &[Option<Value>]) -> Path {
        let mut path = path("s", turns);
        path.steps.iter_mut().zip(rewards).for_each(|(step, reward)| step.reward = reward.clone().map(Arc::new));
        path
    }

    fn values(path: &Path, reward: Option<f64>, discount: f64) -> Vec<(u32, f64)> {
        returns(path, reward, discount).unwrap().iter().map(|found| (found.turn, found.value)).collect()
    }

    #[test]
    fn return_is_the_discounted_sum_of_this_and_later_rewards() {
        let turns = vec![turn(&[1], &[2], &[]), turn(&[3], &[4], &[]), turn(&[5], &[6], &[])];
        let path = rewarded(turns, &[Some(json!(1)), None, Some(json!({"score": 4}))]);
        // 4 + 8, then half of it, then 1 and a quarter of it
        assert_eq!(values(&path, Some(8.0), 0.5), [(2, 12.0), (1, 6.0), (0, 4.0)]);
        assert_eq!(values(&path, None, 1.0), [(2, 4.0), (1, 4.0), (0, 5.0)]);
        assert_eq!(values(&path, None, 0.0), [(2, 4.0), (1, 0.0), (0, 1.0)]);
    }

    #[test]
    fn resumed_turn_is_not_discounted_and_context_has_no_return() {
        let turns = vec![turn(&[1], &[2], &[]), turn(&[3], &[4], &[]), turn(&[], &[5], &[])];
        let mut path = rewarded(turns, &[None, None, Some(json!(2))]);
        path.steps[1].trained = false;
        assert_eq!(values(&path, None, 0.5), [(2, 2.0), (0, 1.0)], "the last two turns are one step");
    }

    #[test]
    fn path_without_any_reward_and_reward_without_a_number_are_errors() {
        let turns = || vec![turn(&[1], &[2], &[])];
        let error = returns(&rewarded(turns(), &[]), None, 1.0).unwrap_err();
        assert_eq!((error.code, &*error.at), ("missing_reward", "reward"));
        assert_eq!(values(&rewarded(turns(), &[]), Some(3.0), 1.0), [(0, 3.0)]);
        for reward in [json!({"style": 1}), json!(1e39)] {
            let error = returns(&rewarded(turns(), &[Some(reward)]), Some(1.0), 1.0).unwrap_err();
            assert_eq!(error.code, "invalid_reward");
        }
    }
}
