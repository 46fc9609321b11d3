// SPDX-License-Identifier: Apache-2.0
//! Exports compared with the engine's journal.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokentap::demo::{End, JournalEntry};

use super::harness::{Harness, SequenceReply};
use crate::support::client::{get, post};
use crate::support::demo::numbers;

/// Tolerance of an exact entropy (k is the whole vocabulary), in nats: the engine's logprobs are float32.
const EXACT_TOLERANCE: f64 = 1e-5;

/// Tolerance of an interval's bounds, in nats, for the same reason.
const BOUND_TOLERANCE: f64 = 1e-4;

/// The verified exports of a session.
#[derive(Debug)]
pub struct Audit {
    /// All paths.
    pub rows: Vec<Value>,
    /// Lines of `POST /v1/samples`.
    pub samples: Vec<Value>,
    /// Leaves that are not exported, with the reasons.
    pub refused: Vec<(u64, String)>,
    /// The session's list of turns.
    pub turns: Vec<Value>,
}

impl Audit {
    /// A member of every turn.
    pub fn each(&self, name: &str) -> Vec<Value> {
        self.turns.iter().map(|turn| turn[name].clone()).collect()
    }

    /// The causes of all turns.
    pub fn causes(&self) -> Vec<String> {
        self.each("cause").iter().map(|cause| cause.as_str().unwrap().to_owned()).collect()
    }

    /// The turn of a sequence.
    pub fn turn(&self, rid: &str) -> &Value {
        self.turns.iter().find(|turn| turn["rid"] == rid).unwrap_or_else(|| panic!("{rid} is recorded"))
    }

    /// The row that ends in a turn.
    pub fn row(&self, leaf: u64) -> &Value {
        self.rows.iter().find(|row| row["leaf"] == leaf).unwrap_or_else(|| panic!("a path ends in {leaf}"))
    }
}

/// A list of whole numbers.
pub fn integers(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// A reply of the control port.
pub async fn control(harness: &Harness, path: &str) -> Value {
    let answer = get(harness.demo.proxy.control, path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// The lines of these sessions in `jsonl`.
pub async fn samples(harness: &Harness, sessions: &[&str]) -> Vec<Value> {
    samples_and_refusals(harness, sessions).await.0
}

/// The lines, and the number of refused leaves by reason.
async fn samples_and_refusals(harness: &Harness, sessions: &[&str]) -> (Vec<Value>, HashMap<String, usize>) {
    let body = json!({"sessions": sessions, "format": "jsonl"}).to_string();
    let answer = post(harness.demo.proxy.control, "/v1/samples", body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let refused = serde_json::from_str(answer.header("tokentap-refused").unwrap()).unwrap();
    (answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect(), refused)
}

/// The members that an entry of the trajectories shares with a line of `jsonl`, in the line's form.
pub fn shared(entry: &Value) -> Value {
    let text = |value: &Value| if value.is_null() { Value::Null } else { value.to_string().into() };
    let mut line = entry.clone();
    line["reward_json"] = text(&entry["reward"]);
    line["reward"] = [&entry["reward"], &entry["reward"]["reward"], &entry["reward"]["score"]]
        .iter()
        .find_map(|reward| reward.as_f64())
        .into();
    for span in line["policy"].as_array_mut().unwrap() {
        if span["until"].is_null() {
            span["until"] = span["epoch"].clone();
        }
        if span["adapter_until"].is_null() {
            span["adapter_until"] = span["adapter_epoch"].clone();
        }
        // absent if the session is not shared, and without an adapter
        for name in ["process", "adapter", "adapter_epoch", "adapter_version"] {
            span.as_object_mut().unwrap().entry(name).or_insert(Value::Null);
        }
    }
    // absent if the path has none
    line.as_object_mut().unwrap().entry("columns").or_insert_with(|| json!([]));
    line.as_object_mut().unwrap().entry("tags").or_insert(Value::Null);
    for turn in line["turns"].as_array_mut().unwrap() {
        let turn = turn.as_object_mut().unwrap();
        // absent without a reward of the turn
        turn.entry("reward").or_insert(Value::Null);
        turn.entry("reward_json").or_insert(Value::Null);
        turn.entry("missing_columns").or_insert_with(|| json!([]));
        let measured = turn.remove("measured").unwrap();
        for (name, member) in [
            ("entropy_source", "source"),
            ("entropy_estimator", "estimator"),
            ("entropy_top_k", "top_k"),
            ("entropy_reason", "reason"),
        ] {
            turn.insert(name.to_owned(), measured[member].clone());
        }
        turn.insert("temperature".to_owned(), measured["temperature"].clone());
        // the text keeps the client's member order and white space
        turn.remove("sampling");
        turn["extras"] = if turn["extras"] == json!({}) { Value::Null } else { turn["extras"].clone() };
    }
    line
}

/// A line with the members that [`shared`] returns.
pub fn comparable(line: &Value) -> Value {
    let parsed = |text: &Value| text.as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
    let mut line = line.clone();
    let members = line.as_object_mut().unwrap();
    let columns = ["schema_version", "row_key", "labels", "prompt_length", "response_length", "incomplete", "model"];
    let images = ["images", "image_settings", "image_data"];
    let more = ["started_ms", "elapsed_ms", "advantages", "prompt_text", "response_text"];
    for name in columns.into_iter().chain(more).chain(images) {
        members.remove(name).unwrap_or_else(|| panic!("a line has {name}"));
    }
    for turn in line["turns"].as_array_mut().unwrap() {
        turn.as_object_mut().unwrap().remove("sampling");
        turn["extras"] = parsed(&turn["extras"]);
    }
    line
}

impl Harness {
    /// Reads the exports of a session and compares them with the journal and with each other.
    pub async fn audit(&self, session: &str) -> Audit {
        let mut head = control(self, &format!("/v1/sessions/{session}/trajectories")).await;
        let rows = head.as_object_mut().unwrap().remove("trajectories").unwrap().as_array().unwrap().clone();
        let turns = control(self, &format!("/v1/sessions/{session}")).await["list"].as_array().unwrap().clone();
        let (samples, counts) = samples_and_refusals(self, &[session]).await;
        let refused = head["refused"].as_array().unwrap().iter();
        let refused: Vec<(u64, String)> =
            refused.map(|leaf| (leaf["leaf"].as_u64().unwrap(), leaf["reason"].as_str().unwrap().to_owned())).collect();
        let mut reasons = HashMap::new();
        for (_, reason) in &refused {
            *reasons.entry(reason.clone()).or_default() += 1;
        }
        assert_eq!(counts, reasons, "both exports refuse the same leaves");
        let audit = Audit { rows, samples, refused, turns };
        let journal: HashMap<String, JournalEntry> =
            self.journal().into_iter().map(|entry| (entry.rid.clone(), entry)).collect();
        let replies: HashMap<String, SequenceReply> =
            self.replies(session).into_iter().map(|reply| (reply.rid.clone(), reply)).collect();
        let verifier = Verifier { journal, replies, exact: self.exact };
        audit.rows.iter().for_each(|row| verifier.row(row));
        verifier.session(&audit);
        audit
    }
}

/// The engine's journal and the clients' replies, against which exports are verified.
struct Verifier {
    journal: HashMap<String, JournalEntry>,
    replies: HashMap<String, SequenceReply>,
    exact: bool,
}

impl Verifier {
    /// Verifies the tokens and numbers of one path.
    fn row(&self, row: &Value) {
        let (ids, mask) = (integers(&row["token_ids"]), integers(&row["loss_mask"]));
        let (logprobs, entropy) = (numbers(&row["logprobs"]), numbers(&row["entropy"]));
        assert_eq!([mask.len(), logprobs.len(), entropy.len()], [ids.len(); 3], "one of each a token");
        let turns = row["turns"].as_array().unwrap();
        let mut end = 0;
        for segment in row["segments"].as_array().unwrap() {
            let start = end;
            assert_eq!(segment["start"], start, "segments are contiguous");
            end = segment["end"].as_u64().unwrap() as usize;
            let turn = turns.iter().find(|turn| turn["id"] == segment["turn"]).unwrap();
            let (logprobs, entropy) = (&logprobs[start..end], &entropy[start..end]);
            let response = segment["kind"] == "response";
            let trained = response && turn["trained"] == true;
            assert_eq!(mask[start..end], vec![u32::from(trained); end - start], "the mask of {segment}");
            if !response {
                assert!(logprobs.iter().chain(entropy).all(Option::is_none), "a prompt has no numbers: {segment}");
                continue;
            }
            assert!(turn["fault"].is_null() || !trained, "what is trained has no fault: {turn}");
            let entry = &self.journal[turn["rid"].as_str().unwrap()];
            assert_eq!(ids[..start], entry.prompt, "the path to {turn} is what the engine received");
            self.response(turn, entry, &ids[start..end]);
            self.logprobs(turn, entry, logprobs);
            self.entropies(turn, entry, entropy);
            policy(row, entry, start, end);
        }
        assert_eq!(end, ids.len(), "every token belongs to a segment");
    }

    fn response(&self, turn: &Value, entry: &JournalEntry, ids: &[u32]) {
        let output = entry.output();
        if turn["fault"] == "disconnected" {
            assert!(output.starts_with(ids), "{ids:?} is a prefix of the sampled {output:?}");
            return;
        }
        assert_eq!(*ids, output, "the engine sampled this in {turn}");
        assert_eq!(turn["finish_reason"], json!(entry.end.and_then(End::name)), "{turn}");
        assert_eq!(self.replies[&entry.rid].output, output, "the client received the same");
    }

    fn logprobs(&self, turn: &Value, entry: &JournalEntry, recorded: &[Option<f64>]) {
        let body = self.replies.get(&entry.rid).map_or(&Value::Null, |reply| &reply.body);
        if body["return_entropy"] == false && body["return_logprob"] != true {
            assert!(recorded.iter().all(Option::is_none), "the client did not request logprobs: {turn}");
            return;
        }
        let recorded: Vec<Option<u32>> =
            recorded.iter().map(|recorded| recorded.map(|recorded| (recorded as f32).to_bits())).collect();
        let truth = entry.sampled[..recorded.len()].iter().map(|token| Some(token.logprob.to_bits()));
        assert_eq!(recorded, truth.collect::<Vec<_>>(), "the logprobs of {turn}, bit by bit");
    }

    fn entropies(&self, turn: &Value, entry: &JournalEntry, recorded: &[Option<f64>]) {
        let reply = self.replies.get(&entry.rid);
        let body = reply.map_or(&Value::Null, |reply| &reply.body);
        if body["return_entropy"] == false {
            assert!(
                recorded.iter().all(Option::is_none) && turn["measured"].is_null(),
                "the client did not request entropies: {turn}"
            );
            return;
        }
        if body["stream"] == true && body["sampling_params"]["max_new_tokens"].as_u64() > Some(512) {
            let nothing = recorded.iter().all(Option::is_none) && turn["measured"]["source"] == "none";
            assert!(nothing, "a cumulative stream would repeat too much: {turn}");
            return;
        }
        let exact = self.exact && body["logprob_start_len"].as_i64().is_none_or(|start| start < 0);
        if !turn["measured"].is_null() {
            let source = if exact { "exact" } else { "top_k" };
            assert_eq!(turn["measured"]["source"], source, "{turn}");
        }
        let bounds =
            reply.map(|reply| ["lower", "upper"].map(|side| &reply.meta[format!("output_token_entropy_{side}")]));
        for (at, (recorded, token)) in recorded.iter().zip(&entry.sampled).enumerate() {
            let recorded = recorded.unwrap_or_else(|| panic!("token {at} of {turn} has an entropy"));
            let truth = token.entropy;
            assert!(
                !exact || (recorded - truth).abs() <= EXACT_TOLERANCE,
                "token {at} of {turn}: {recorded}, expected {truth}"
            );
            let Some([lower, upper]) = bounds.map(|bounds| bounds.map(|side| side[at].as_f64())) else { continue };
            if let (Some(lower), Some(upper)) = (lower, upper) {
                assert!(
                    lower <= recorded && recorded <= upper,
                    "token {at} of {turn}: {recorded} lies in [{lower}, {upper}]"
                );
                let within = lower - BOUND_TOLERANCE <= truth && truth <= upper + BOUND_TOLERANCE;
                assert!(within, "token {at} of {turn}: {truth} lies in [{lower}, {upper}]");
            }
        }
    }

    /// Verifies all paths together.
    fn session(&self, audit: &Audit) {
        for sample in &audit.samples {
            let row = audit.row(sample["leaf"].as_u64().unwrap());
            assert_eq!(comparable(sample), shared(row), "both exports are equal");
        }
        assert_eq!(audit.rows.len(), audit.samples.len() + audit.refused.len(), "every path is exported or refused");
        for rid in self.replies.keys() {
            let turns = audit.turns.iter().filter(|turn| turn["rid"] == **rid).count();
            assert_eq!(turns, 1, "each reply is one turn: {rid}");
        }
        let ended = self.replies.keys().map(|rid| &self.journal[rid]);
        let delivered = ended.filter(|entry| matches!(entry.end, Some(End::Stop | End::Length)));
        let sampled: usize = delivered.map(|entry| entry.sampled.len()).sum();
        let trained: u32 = audit.samples.iter().flat_map(|row| integers(&row["loss_mask"])).sum();
        assert_eq!(trained as usize, sampled, "each delivered token is trained once");
    }
}

/// Verifies that the policy spans cover a response and name the weights of its tokens.
fn policy(row: &Value, entry: &JournalEntry, start: usize, end: usize) {
    let position = |span: &Value, name: &str| span[name].as_u64().unwrap() as usize;
    let spans = row["policy"].as_array().unwrap().iter();
    let spans: Vec<&Value> = spans.filter(|span| (start..end).contains(&position(span, "start"))).collect();
    let mut at = start;
    for span in spans {
        assert_eq!(position(span, "start"), at, "the spans cover the response without a gap");
        at = position(span, "end");
        for token in &entry.sampled[position(span, "start") - start..at - start] {
            assert_eq!(span["weight_version"], token.label.as_str(), "{span} names the weights");
        }
    }
    assert_eq!(at, end, "the spans cover the response");
}
