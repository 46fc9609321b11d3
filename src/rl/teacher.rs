// SPDX-License-Identifier: Apache-2.0
//! Log ratios of a teacher and the student, at the sampled tokens of recorded turns.

use super::RequestError;
use crate::columns::{Column, TEACHER_LOGPROBS};
use crate::engine::sglang::score::changing_parameter;
use crate::export::logprob_temperature;
use crate::session::{Row, Turn};

/// Why a turn has no log ratios.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RatioProblem {
    /// The teacher has not scored the turn.
    #[error("the teacher has not scored it: see POST /v1/teacher-scores")]
    Unscored,
    /// The engine gave no logprob of a sampled token.
    #[error("a sampled token has no logprob")]
    NoLogprobs,
    /// The recorded logprobs are at another temperature than 1, at which the teacher's are.
    #[error("its logprobs are not at temperature 1, at which the teacher's are")]
    Temperature,
    /// The recorded logprobs are those of a distribution that the request has changed.
    #[error("its logprobs are those after {0}, and the teacher's are not")]
    Changed(&'static str),
}

/// The teacher whose scores the rows of an export have: that of `scores`, or that of the advantages. Advantages that need a teacher ask for
/// its scores.
///
/// # Errors
/// Error message if both are given and differ.
pub fn one_teacher<'a>(scores: Option<&'a str>, of_advantages: Option<&'a str>) -> Result<Option<&'a str>, String> {
    match (scores, of_advantages) {
        (Some(scores), Some(teacher)) if scores != teacher => {
            Err(format!("scores: {scores:?}, and the teacher of the advantages is {teacher:?}"))
        }
        (scores, teacher) => Ok(scores.or(teacher)),
    }
}

/// Checks that the teacher has scored a turn of these rows, so that a misspelt name is no file without scores.
///
/// # Errors
/// `missing_scores`, if there are rows and none of them has a score.
pub fn check_scored(rows: &[Row], teacher: &str) -> Result<(), RequestError> {
    let mut sessions = rows.chunk_by(Row::shares_turns);
    if rows.is_empty()
        || sessions.any(|session| session[0].turns().iter().any(|turn| session[0].scores(turn).is_some()))
    {
        return Ok(());
    }
    let message = format!("{teacher:?} has scored none of these paths: see POST /v1/teacher-scores");
    Err(RequestError::new("missing_scores", "scores", message))
}

impl RatioProblem {
    /// The error of a request that needs the log ratios of this turn.
    pub(super) fn of_turn(self, session: &str, turn: u32) -> RequestError {
        let code = match self {
            Self::Unscored => "missing_scores",
            Self::NoLogprobs | Self::Temperature | Self::Changed(_) => "incomparable_turn",
        };
        RequestError::new(code, "teacher", format!("turn {turn} of session {session:?}: {self}"))
    }
}

/// The log ratio `logprob of the teacher - logprob of the student` of each sampled token of a turn, in nats. The negative is the reverse KL
/// divergence at the token, as in on-policy distillation (<https://thinkingmachines.ai/blog/on-policy-distillation>).
///
/// # Errors
/// [`RatioProblem`].
pub fn log_ratios(turn: &Turn, scores: Option<&[Column]>) -> Result<Vec<f64>, RatioProblem> {
    let scores = scores.and_then(|scores| Column::named(scores, TEACHER_LOGPROBS)?.floats());
    let teacher = scores.filter(|scores| scores.len() == turn.response.len()).ok_or(RatioProblem::Unscored)?;
    let student = &turn.logprobs;
    if student.len() != teacher.len() || student.iter().any(|nats| !nats.is_finite()) {
        return Err(RatioProblem::NoLogprobs);
    }
    if logprob_temperature(turn) != Some(1.0) {
        return Err(RatioProblem::Temperature);
    }
    if let Some(parameter) = turn.about.sampling.as_deref().and_then(changing_parameter) {
        return Err(RatioProblem::Changed(parameter));
    }
    Ok(teacher.iter().zip(student).map(|(teacher, student)| f64::from(*teacher) - f64::from(*student)).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{path, turn};
    use super::*;
    use crate::session::Step;

    fn scored(logprobs: &[f32], scores: Option<&[f32]>) -> Step {
        let mut turn = turn(&[1], &[2, 3], &[0.5, 0.5]);
        turn.logprobs = logprobs.into();
        let mut step = path("s", vec![turn]).steps.swap_remove(0);
        step.scores = scores.map(|scores| [Column::of_floats(TEACHER_LOGPROBS, scores)].into());
        step
    }

    fn ratios(step: &Step) -> Result<Vec<f64>, RatioProblem> {
        log_ratios(&step.turn, step.scores.as_deref())
    }

    #[test]
    fn log_ratio_is_the_difference_of_the_logprobs() {
        assert_eq!(ratios(&scored(&[-1.0, -0.5], Some(&[-0.25, -2.5]))), Ok(vec![0.75, -2.0]));
    }

    #[test]
    fn turn_without_numbers_at_temperature_one_has_no_log_ratios() {
        assert_eq!(ratios(&scored(&[-1.0, -0.5], None)), Err(RatioProblem::Unscored));
        assert_eq!(ratios(&scored(&[-1.0, -0.5], Some(&[-1.0]))), Err(RatioProblem::Unscored), "another length");
        assert_eq!(ratios(&scored(&[-1.0, f32::NAN], Some(&[-1.0, -1.0]))), Err(RatioProblem::NoLogprobs));
        assert_eq!(ratios(&scored(&[], Some(&[-1.0, -1.0]))), Err(RatioProblem::NoLogprobs));
        for temperature in [Some(0.7), None] {
            let mut step = scored(&[-1.0, -0.5], Some(&[-1.0, -1.0]));
            let turn = Arc::make_mut(&mut step.turn);
            Arc::make_mut(turn.about.measured.as_mut().unwrap()).temperature = temperature;
            assert_eq!(ratios(&step), Err(RatioProblem::Temperature));
        }
    }

    #[test]
    fn turn_of_a_changed_distribution_has_no_log_ratios() {
        let of = |sampling: &str| {
            let mut step = scored(&[-1.0, -0.5], Some(&[-1.0, -1.0]));
            Arc::make_mut(&mut step.turn).about.sampling = Some(sampling.into());
            ratios(&step)
        };
        assert_eq!(of(r#"{"repetition_penalty":1.1}"#), Err(RatioProblem::Changed("repetition_penalty")));
        assert_eq!(of(r#"{"frequency_penalty":-0.5}"#), Err(RatioProblem::Changed("frequency_penalty")));
        assert_eq!(of(r#"{"logit_bias":{"3":-1}}"#), Err(RatioProblem::Changed("logit_bias")));
        assert_eq!(of(r#"{"json_schema":"{}"}"#), Err(RatioProblem::Changed("json_schema")));
        let none = r#"{"repetition_penalty":1,"frequency_penalty":0.0,"min_new_tokens":0,"regex":null,"top_p":0.9}"#;
        assert_eq!(of(none), Ok(vec![0.0, -0.5]));
    }
}
