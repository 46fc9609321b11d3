// SPDX-License-Identifier: Apache-2.0
//! Tests of the advantages: a worked example, and a comparison with the results of `tests/readers/egpo_reference.py`.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{AdvantageResponse, Mismatch, RatioLimits, Request, RequestError, SampleResponse, advantages, log_ratios};
use crate::columns::{Column, TEACHER_LOGPROBS};
use crate::session::{EntropyMethod, Path, Step, ThinkTokens, Turn, TurnMetadata};

pub(super) const START: u32 = 151_667;
pub(super) const END: u32 = 151_668;
pub(super) const THINK: ThinkTokens = ThinkTokens { start: START, end: END };

/// A turn with these tokens and entropies in nats.
pub(super) fn turn(prompt: &[u32], response: &[u32], entropy: &[f32]) -> Turn {
    let measured = EntropyMethod {
        source: "top_k".into(),
        estimator: "estimate".into(),
        temperature: Some(1.0),
        top_k: Some(20),
        reason: None,
    };
    Turn {
        id: 0,
        parent: None,
        prompt: prompt.into(),
        response: response.into(),
        logprobs: Box::default(),
        entropy: entropy.into(),
        about: TurnMetadata { measured: Some(measured.into()), ..TurnMetadata::default() },
    }
}

/// A path of these turns, which are all trained.
pub(super) fn path(session: &str, turns: Vec<Turn>) -> Path {
    let numbered = (0..).zip(turns);
    let steps = numbered
        .map(|(id, turn)| Step { turn: Arc::new(Turn { id, ..turn }), trained: true, reward: None, scores: None })
        .collect();
    Path::new(session.into(), 1, steps)
}

fn request(body: &Value) -> Request {
    Request::parse(body.to_string().as_bytes(), Some(THINK)).unwrap()
}

fn answer(request: &Request, paths: &[Path]) -> AdvantageResponse {
    let find = |session: &str, _: Option<u32>| {
        paths
            .iter()
            .find(|path| &*path.session == session)
            .cloned()
            .ok_or_else(|| RequestError::new("not_found", "", session))
    };
    advantages(request, find).unwrap()
}

fn samples(answer: &AdvantageResponse) -> Vec<&SampleResponse> {
    answer.groups.iter().flat_map(|group| &group.samples).collect()
}

fn is_close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs())
}

/// A request with three groups: four samples of which two have the reward 1 and two the reward 0, two samples with the same reward, and a
/// single sample. Also returns their paths.
fn example() -> (Value, Vec<Path>) {
    let sample = |session: &str, reward: f64| json!({ "session": session, "reward": reward });
    let groups = json!([
        { "id": "sums", "samples": [sample("closed", 1.0), sample("cut", 0.0), sample("silent", 0.0), sample("holes", 1.0)] },
        { "id": 2, "samples": [sample("closed", 2.0), sample("cut", 2.0)] },
        { "id": 3, "samples": [sample("alone", 3.0)] },
    ]);
    let mut tool = path(
        "alone",
        vec![turn(&[1], &[START, 7, END, 9], &[0.0, 0.25, 0.0, 0.0]), turn(&[2], &[START, 8, END], &[0.0, 0.75, 0.0])],
    );
    tool.steps[0].trained = false;
    let paths = vec![
        path("closed", vec![turn(&[1, 2], &[START, 7, 8, END, 9], &[3.0, 0.5, 1.0, 3.0, 3.0])]),
        path("cut", vec![turn(&[1, START], &[7, 8], &[0.125, 0.375])]),
        path("silent", vec![turn(&[1, 2], &[9], &[3.0])]),
        path("holes", vec![turn(&[1, 2], &[START, 7, 8, END], &[3.0, f32::NAN, 0.125, 3.0])]),
        tool,
    ];
    (json!({ "groups": groups, "estimator": "egpo" }), paths)
}

#[test]
fn worked_example_has_the_expected_advantages() {
    let (body, paths) = example();
    let answer = answer(&request(&body), &paths);
    let [sums, equal, alone] = &answer.groups[..] else { panic!("three groups") };
    // mean 1/2; std of 1, 0, 0, 1 is sqrt(4 * 0.25 / 3) = 0.57735027; |A| = 0.5 / 0.57735127 = 0.86602390
    assert_eq!(sums.mean, Some(0.5));
    assert!(is_close(sums.std.unwrap(), 0.577_350_269_189_625_8, 1e-15));
    let stats = [equal.mean, equal.std, alone.mean, alone.std].map(Option::unwrap);
    assert_eq!(stats, [2.0, 0.0, 0.0, 1.0]);
    let expected = [
        // H = (0.5 + 1) / 2 is clipped to |A|/2 = 0.43301195, and 0.4 of that is 0.17320478
        (0.866_023_903_787_036_7, Some(0.75), 1.039_228_684_544_444),
        // H = (0.125 + 0.375) / 2 is below the bound; 0.4 * 0.25 = 0.1 is also added to a negative advantage
        (-0.866_023_903_787_036_7, Some(0.25), -0.766_023_903_787_036_7),
        (-0.866_023_903_787_036_7, None, -0.866_023_903_787_036_7),
        // H is the only known entropy: 0.4 * 0.125 = 0.05
        (0.866_023_903_787_036_7, Some(0.125), 0.916_023_903_787_036_7),
        (0.0, Some(0.75), 0.0),
        (0.0, Some(0.25), 0.0),
        // 3 / 1.000001, and 0.4 * 0.5
        (2.999_997_000_003, Some(0.5), 3.199_997_000_003),
    ];
    for (sample, (grpo, entropy, egpo)) in samples(&answer).into_iter().zip(expected) {
        let session = &*sample.session;
        assert!(is_close(sample.grpo_advantage.unwrap(), grpo, 1e-12), "{session}: {sample:?}");
        assert!(is_close(sample.advantage.unwrap(), egpo, 1e-12), "{session}: {sample:?}");
        assert_eq!(sample.entropy, entropy, "{session}");
        assert_eq!(sample.incomplete, session == "holes");
        assert_eq!(sample.entropy_estimator.as_deref(), Some("estimate"));
    }
    let alone = &alone.samples[0];
    let a = alone.advantage.unwrap();
    assert_eq!(alone.advantages, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, a, a, a], "prompts and the untrained turn have none");
    assert_eq!(alone.leaf, 1);
}

#[test]
fn response_has_the_documented_members() {
    let body = json!({ "groups": [{ "id": "g", "samples": [{ "session": "s", "leaf": 0, "reward": 0.0 }] }] });
    let silent = path("s", vec![turn(&[1], &[9], &[])]);
    let found = serde_json::to_value(answer(&request(&body), &[silent])).unwrap();
    let think = json!({
        "mean": null, "tokens": 0, "present": false, "closed": false, "in_prompt": false, "incomplete": false, "high_share": null
    });
    let sample = json!({
        "session": "s", "leaf": 0, "reward": 0.0, "advantage": 0.0, "grpo_advantage": 0.0, "H": null, "think": think,
        "incomplete": false, "entropy_estimator": null, "repeats_sample": false, "advantages": [0.0, 0.0]
    });
    let expected = json!({
        "estimator": "grpo", "lambda": 0.4, "alpha": 2.0, "entropy_over": "thinking", "normalize_std": true,
        "groups": [{ "id": "g", "mean": 0.0, "std": 1.0, "samples": [sample] }]
    });
    assert_eq!(found, expected);
}

#[test]
fn missing_trajectory_returns_not_found_with_its_path() {
    let (body, _) = example();
    let error = advantages(&request(&body), |session, leaf| match session {
        "silent" => Err(RequestError::new("not_found", "", format!("no session {session:?} with leaf {leaf:?}"))),
        _ => Ok(path(session, vec![turn(&[1], &[9], &[])])),
    });
    let error = error.unwrap_err();
    assert_eq!(error.code, "not_found");
    assert_eq!(error.to_string(), r#"groups[0].samples[2]: no session "silent" with leaf None"#);
}

#[test]
fn entropy_estimator_is_mixed_if_turns_have_different_ones() {
    let body = json!({ "groups": [{ "id": 1, "samples": [{ "session": "s", "reward": 0.0 }] }] });
    let mut other = turn(&[2], &[9], &[0.5]);
    Arc::make_mut(other.about.measured.as_mut().unwrap()).estimator = "lower".into();
    let mut unmeasured = other.clone();
    unmeasured.entropy = [f32::NAN].into();
    let name = |turns| answer(&request(&body), &[path("s", turns)]).groups[0].samples[0].entropy_estimator.clone();
    let first = || turn(&[1], &[9], &[0.5]);
    assert_eq!(name(vec![first(), other]).as_deref(), Some("mixed"));
    assert_eq!(name(vec![first(), unmeasured]).as_deref(), Some("estimate"), "a turn without entropies is ignored");
}

proptest! {
    #[test]
    fn advantages_do_not_depend_on_the_order_of_samples(order in Just(vec![0, 1, 2, 3]).prop_shuffle()) {
        let (mut body, paths) = example();
        let before = answer(&request(&body), &paths);
        let group = body["groups"][0]["samples"].clone();
        body["groups"][0]["samples"] = order.iter().map(|at| group[*at].clone()).collect();
        let after = answer(&request(&body), &paths);
        for (at, sample) in order.into_iter().zip(&after.groups[0].samples) {
            let same = &before.groups[0].samples[at];
            prop_assert_eq!(&sample.session, &same.session);
            prop_assert_eq!(sample.think, same.think);
            prop_assert!(is_close(sample.advantage.unwrap(), same.advantage.unwrap(), 1e-12));
        }
    }
}

fn number(value: &Value) -> Option<Arc<Value>> {
    value.is_number().then(|| Arc::new(value.clone()))
}

/// Parses a path of the reference.
fn recorded(path: &Value) -> Path {
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let steps = path["steps"].as_array().unwrap().iter().map(|step| {
        let entropy: Vec<Option<f32>> = serde_json::from_value(step["entropy"].clone()).unwrap();
        let entropy: Vec<f32> = entropy.into_iter().map(|nats| nats.unwrap_or(f32::NAN)).collect();
        let turn = turn(&ids(&step["prompt"]), &ids(&step["response"]), &entropy);
        Step { turn: Arc::new(turn), trained: step["trained"] == true, reward: number(&step["reward"]), scores: None }
    });
    let numbered = steps.zip(0..).map(|(mut step, id)| {
        Arc::make_mut(&mut step.turn).id = id;
        step
    });
    let reward = number(&path["reward"]);
    Path { steps: numbered.collect(), reward, ..super::tests::path(path["session"].as_str().unwrap(), Vec::new()) }
}

fn same(found: Option<f64>, expected: &Value) -> bool {
    match (found, expected.as_f64()) {
        (Some(found), Some(expected)) => is_close(found, expected, 1e-9),
        (found, expected) => found == expected,
    }
}

#[test]
fn advantages_equal_those_of_the_numpy_reference() {
    let fixture: Value = serde_json::from_str(include_str!("../../tests/fixtures-rl/egpo.json")).unwrap();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() >= 20, "the reference has cases");
    for case in cases {
        let paths: Vec<Path> = case["paths"].as_array().unwrap().iter().map(recorded).collect();
        let answer = answer(&request(&case["request"]), &paths);
        let groups = case["answer"].as_array().unwrap();
        assert_eq!(groups.len(), answer.groups.len());
        for (group, expected) in answer.groups.iter().zip(groups) {
            assert!(same(group.mean, &expected["mean"]) && same(group.std, &expected["std"]), "{group:?}");
            let expected = expected["samples"].as_array().unwrap();
            assert_eq!(group.samples.len(), expected.len());
            for (sample, expected) in group.samples.iter().zip(expected) {
                assert!(is_as_expected(sample, expected), "{sample:?} is not {expected}");
            }
        }
    }
}

#[test]
fn advantages_of_turns_equal_those_of_the_numpy_reference() {
    let fixture: Value = serde_json::from_str(include_str!("../../tests/fixtures-rl/steps.json")).unwrap();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() >= 20, "the reference has cases");
    for case in cases {
        let paths: Vec<Path> = case["paths"].as_array().unwrap().iter().map(recorded).collect();
        let answer = answer(&request(&case["request"]), &paths);
        assert_eq!(answer.discount, case["request"]["discount"].as_f64());
        for (group, expected) in answer.groups.iter().zip(case["answer"].as_array().unwrap()) {
            assert!(same(group.mean, &expected["mean"]) && same(group.std, &expected["std"]), "{group:?}");
            for (sample, expected) in group.samples.iter().zip(expected["samples"].as_array().unwrap()) {
                let (turns, expected) = (sample.turns.as_ref().unwrap(), expected.as_array().unwrap());
                assert_eq!((turns.len(), sample.advantage), (expected.len(), None));
                for (turn, expected) in turns.iter().zip(expected) {
                    assert_eq!(expected[0], turn.turn);
                    let found = [turn.value, turn.grpo_advantage, turn.advantage];
                    assert!((1..4).all(|at| same(Some(found[at - 1]), &expected[at])), "{turn:?} is not {expected}");
                }
                check_tokens(sample, &paths);
            }
        }
    }
}

/// A step of the reference with the logprobs of student and teacher.
fn scored(step: &Value) -> Step {
    let floats = |name: &str| -> Vec<f32> { serde_json::from_value(step[name].clone()).unwrap() };
    let ids = |name: &str| -> Vec<u32> { serde_json::from_value(step[name].clone()).unwrap() };
    let response = ids("response");
    let mut turn = turn(&ids("prompt"), &response, &vec![0.5; response.len()]);
    turn.logprobs = floats("logprobs").into();
    let column = Column::of_floats(TEACHER_LOGPROBS, &floats("teacher"));
    Step { turn: Arc::new(turn), trained: step["trained"] == true, reward: None, scores: Some([column].into()) }
}

#[test]
fn distillation_and_mismatch_equal_those_of_the_numpy_reference() {
    let fixture: Value = serde_json::from_str(include_str!("../../tests/fixtures-rl/distill.json")).unwrap();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() >= 16, "the reference has cases");
    let body = json!({
        "groups": [{ "id": 1, "samples": [{ "session": "s" }] }], "estimator": "distill", "teacher": "t"
    });
    for case in cases {
        let steps = case["steps"].as_array().unwrap().iter().map(scored).collect();
        let path = Path { steps, ..path("s", Vec::new()) };
        let answer = answer(&request(&body), std::slice::from_ref(&path));
        let (group, sample) = (&answer.groups[0], &answer.groups[0].samples[0]);
        assert_eq!((group.mean, group.std, sample.advantage), (None, None, None));
        let expected: Vec<f64> = serde_json::from_value(case["advantages"].clone()).unwrap();
        assert_eq!(sample.advantages, expected, "differences of float32 numbers are exact in float64");
        assert!(same(sample.reverse_kl, &case["reverse_kl"]), "{:?}", sample.reverse_kl);
        let number = |name: &str| case[name].as_f64().unwrap();
        let limits = RatioLimits { cap: number("cap"), limit: number("limit") };
        let trained = path.steps.iter().filter(|step| step.trained);
        let ratios = trained.flat_map(|step| log_ratios(&step.turn, step.scores.as_deref()).unwrap());
        let found = serde_json::to_value(Mismatch::new(&ratios.collect::<Vec<f64>>(), &limits)).unwrap();
        for (name, value) in case["mismatch"].as_object().unwrap() {
            assert!(same(found[name].as_f64(), value), "{name}: {} is not {value}", found[name]);
        }
    }
}

/// Checks that each token has the advantage of its turn if it is trained, else 0.
fn check_tokens(sample: &SampleResponse, paths: &[Path]) {
    let path = paths.iter().find(|path| *path.session == *sample.session).unwrap();
    let mut turns = sample.turns.iter().flatten();
    let of_step = |step: &Step| {
        let advantage = if step.trained { turns.next().unwrap().advantage } else { 0.0 };
        [vec![0.0; step.turn.prompt.len()], vec![advantage; step.turn.response.len()]].concat()
    };
    let expected: Vec<f64> = path.steps.iter().flat_map(of_step).collect();
    assert_eq!(sample.advantages, expected);
}

fn is_as_expected(sample: &SampleResponse, expected: &Value) -> bool {
    let think = sample.think;
    let flags = json!([think.tokens, think.present, think.closed, think.in_prompt, sample.incomplete]);
    let of_mask = |advantage: &f64| if Some(*advantage) == sample.advantage { '1' } else { '0' };
    let mask: String = sample.advantages.iter().map(of_mask).collect();
    same(sample.advantage, &expected["advantage"])
        && same(sample.grpo_advantage, &expected["grpo_advantage"])
        && same(sample.entropy, &expected["H"])
        && same(think.high_share, &expected["high_share"])
        && flags == expected["think"]
        // the mask cannot be derived from an advantage of 0
        && (sample.advantage == Some(0.0) || mask == expected["mask"])
        && sample.advantages.len() == expected["mask"].as_str().map_or(0, str::len)
}
