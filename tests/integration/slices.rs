// SPDX-License-Identifier: Apache-2.0
//! Slices of logits sent to the control port and to `tokentap entropy`.

use std::net::SocketAddr;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};

use crate::support::binary::output;
use crate::support::client::{Answer, Connection, request, written};
use crate::support::manual_upstream::ManualUpstream;
use crate::support::proxy::Proxy;

pub(crate) const BINARY: (&str, &str) = ("content-type", "application/octet-stream");

/// A slice, with reference numbers in float64.
pub(crate) struct Slice {
    pub(crate) dtype: Dtype,
    pub(crate) vocab: usize,
    /// The stored values, after rounding to the type.
    logits: Vec<f64>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) temperature: Vec<f32>,
    pub(crate) token_ids: Vec<i64>,
}

impl Slice {
    /// Logits like a model's, with different rows.
    pub(crate) fn new(dtype: Dtype, rows: usize, vocab: usize) -> Self {
        let mut state = 0x9e37_79b9_u64.wrapping_add(vocab as u64);
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        let (mut logits, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..rows * vocab {
            let value = 20.0 * (unit() + unit() + unit() - 1.5);
            let bits = value.to_bits();
            if dtype == Dtype::F32 {
                logits.push(f64::from(value));
                bytes.extend(bits.to_le_bytes());
            } else {
                logits.push(f64::from(f32::from_bits(bits & 0xffff_0000)));
                bytes.extend(((bits >> 16) as u16).to_le_bytes());
            }
        }
        let temperature = (0..rows).map(|row| 0.5 + row as f32 * 0.25).collect();
        let token_ids = (0..rows).map(|row| if row == 1 { -1 } else { (row * 37 % vocab) as i64 }).collect();
        Self { dtype, vocab, logits, bytes, temperature, token_ids }
    }

    pub(crate) fn rows(&self) -> usize {
        self.temperature.len()
    }

    /// The safetensors file; with `late` the temperature and token ids follow the logits.
    pub(crate) fn file(&self, late: bool) -> Vec<u8> {
        let temperature: Vec<u8> = self.temperature.iter().flat_map(|value| value.to_le_bytes()).collect();
        let ids: Vec<u8> = self.token_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let logits = ("logits", name(self.dtype), vec![self.rows(), self.vocab], &self.bytes);
        let columns =
            [("temperature", "F32", vec![self.rows()], &temperature), ("token_ids", "I64", vec![self.rows()], &ids)];
        let [a, b] = columns;
        let tensors = if late { [logits, a, b] } else { [a, b, logits] };
        by_hand(&tensors)
    }

    /// entropy, log_z, p_max, varentropy, surprisal of a row.
    fn truth(&self, row: usize) -> [f64; 5] {
        let temperature = f64::from(self.temperature[row]);
        let x: Vec<f64> = self.logits[row * self.vocab..][..self.vocab].iter().map(|x| x / temperature).collect();
        let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_z = top + x.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
        let logprobs: Vec<f64> = x.iter().map(|x| x - log_z).collect();
        let entropy = -logprobs.iter().map(|l| l * l.exp()).sum::<f64>();
        let varentropy = logprobs.iter().map(|l| l.exp() * (l + entropy).powi(2)).sum();
        let chosen = usize::try_from(self.token_ids[row]).map_or(f64::NAN, |id| -logprobs[id]);
        [entropy, log_z, (top - log_z).exp(), varentropy, chosen]
    }

    pub(crate) fn check(&self, answer: &Value) {
        assert_eq!(answer["rows"], self.rows());
        assert_eq!(answer["unit"], "nats");
        for row in 0..self.rows() {
            let names = ["entropy", "log_z", "p_max", "varentropy", "surprisal"];
            for (name, truth) in names.into_iter().zip(self.truth(row)) {
                let actual = answer[name][row].as_f64().unwrap_or(f64::NAN);
                let near = (actual - truth).abs() <= 5e-6 * truth.abs().max(1.0) || (actual.is_nan() && truth.is_nan());
                assert!(near, "{name}[{row}] is {actual}, not {truth}");
            }
        }
    }
}

fn name(dtype: Dtype) -> &'static str {
    if dtype == Dtype::F32 { "F32" } else { "BF16" }
}

/// A safetensors file with its tensors in this order.
fn by_hand(tensors: &[(&str, &str, Vec<usize>, &Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

async fn started(flags: &[&str]) -> Proxy {
    Proxy::start(ManualUpstream::start().await.addr, flags).await
}

pub(crate) async fn send(control: SocketAddr, file: &[u8]) -> Answer {
    request(control, "POST", "/v1/entropy", &[BINARY], file).await
}

#[tokio::test(flavor = "multi_thread")]
async fn slice_matches_the_reference() {
    let proxy = started(&[]).await;
    for dtype in [Dtype::F32, Dtype::BF16] {
        for (rows, vocab) in [(1, 1), (3, 7), (5, 1000), (40, 50_257), (2, 151_936)] {
            let slice = Slice::new(dtype, rows, vocab);
            for late in [false, true] {
                let answer = send(proxy.control, &slice.file(late)).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                slice.check(&answer.json());
            }
        }
    }
    let rows = proxy.parts.metrics.slices.rows.with_label_values(&[tokentap::entropy::Cpu::new().name()]);
    assert_eq!(rows.get(), 2 * 2 * (1 + 3 + 5 + 40 + 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn tensor_order_of_the_safetensors_library_is_accepted() {
    let proxy = started(&[]).await;
    let slice = Slice::new(Dtype::F32, 6, 300);
    let temperature: Vec<u8> = slice.temperature.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
    let ids: Vec<u8> = slice.token_ids.iter().flat_map(|id| i32::try_from(*id).unwrap().to_le_bytes()).collect();
    let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let tensors = [
        ("logits", view(Dtype::F32, &[6, 300], &slice.bytes)),
        ("temperature", view(Dtype::F64, &[6], &temperature)),
        ("token_ids", view(Dtype::I32, &[6], &ids)),
    ];
    let answer = send(proxy.control, &serialize(tensors, None).unwrap()).await;
    slice.check(&answer.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn accept_header_selects_safetensors() {
    let proxy = started(&[]).await;
    let slice = Slice::new(Dtype::BF16, 9, 4000);
    let accept = ("accept", "application/octet-stream");
    let answer = request(proxy.control, "POST", "/v1/entropy", &[BINARY, accept], &slice.file(false)).await;
    let file = SafeTensors::deserialize(&answer.body).unwrap();
    for (at, name) in ["entropy", "log_z", "p_max", "varentropy", "surprisal"].into_iter().enumerate() {
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F64, &[9][..]));
        for (row, bytes) in tensor.data().as_chunks::<8>().0.iter().enumerate() {
            let (actual, truth) = (f64::from_le_bytes(*bytes), slice.truth(row)[at]);
            assert!((actual - truth).abs() < 5e-6 * truth.abs().max(1.0) || truth.is_nan(), "{name}[{row}]");
        }
    }
    for (accept, json) in [
        ("text/plain, application/x-safetensors;q=0.9, */*", false),
        ("Application/JSON, application/octet-stream", true),
        ("*/*", true),
    ] {
        let accept = [BINARY, ("accept", accept)];
        let answer = request(proxy.control, "POST", "/v1/entropy", &accept, &slice.file(false)).await;
        assert_eq!(serde_json::from_slice::<Value>(&answer.body).is_ok(), json, "{accept:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slice_larger_than_the_slot_memory_is_measured() {
    // one slot, which holds 13 of these rows
    let proxy = started(&["limit:slice-memory", "4MiB", "limit:entropy-threads", "1"]).await;
    let slice = Slice::new(Dtype::F32, 60, 80_000);
    let (mine, file) = (slice.file(false), slice.file(true));
    let (first, second) = tokio::join!(send(proxy.control, &mine), send(proxy.control, &mine));
    for answer in [first, second] {
        slice.check(&answer.json());
    }
    let refused = send(proxy.control, &file).await;
    assert_eq!(refused.status, 413);
    assert!(refused.text().contains("temperature and token_ids before the logits"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn body_sent_byte_by_byte_is_measured() {
    let proxy = started(&[]).await;
    for late in [false, true] {
        let slice = Slice::new(Dtype::BF16, 3, 11);
        let bytes = written(proxy.control, "POST", "/v1/entropy", &[BINARY], &slice.file(late));
        let mut connection = Connection::open(proxy.control).await;
        for byte in &bytes {
            connection.send(std::slice::from_ref(byte)).await;
        }
        slice.check(&connection.answer().await.json());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_upload_frees_its_slots() {
    let proxy = started(&["limit:slice-memory", "4MiB"]).await;
    let slice = Slice::new(Dtype::F32, 4, 100_000);
    let file = slice.file(false);
    for _ in 0..3 {
        let mut connection = Connection::open(proxy.control).await;
        let bytes = written(proxy.control, "POST", "/v1/entropy", &[BINARY], &file);
        connection.send(&bytes[..bytes.len() / 2]).await;
    }
    slice.check(&send(proxy.control, &file).await.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_slices_are_rejected_with_the_reason() {
    let proxy = started(&["limit:max-slice-bytes", "1MiB"]).await;
    let four: Vec<u8> = [0f32; 4].iter().flat_map(|value| value.to_le_bytes()).collect();
    let (zero, none) = (vec![0u8; 4], Vec::new());
    let one = |name, dtype, shape: &[usize], bytes| by_hand(&[(name, dtype, shape.to_vec(), bytes)]);
    let side = |name, dtype, shape: &[usize], bytes| {
        by_hand(&[("logits", "F32", vec![2, 2], &four), (name, dtype, shape.to_vec(), bytes)])
    };
    let good = one("logits", "F32", &[2, 2], &four);
    let large = vec![0u8; 2 << 20];
    let nan: Vec<u8> = f32::NAN.to_le_bytes().to_vec();
    let id: Vec<u8> = [0i64, 2].iter().flat_map(|id| id.to_le_bytes()).collect();
    let cases: Vec<(u16, Vec<u8>, &str)> = vec![
        (400, b"{\"logits\": [[1,2]]}".to_vec(), "not a safetensors file"),
        (400, [&8u64.to_le_bytes()[..], b"{\"a\":1}}"].concat(), "the safetensors header"),
        (400, one("logits", "I64", &[1, 2], &four), "F32, BF16 or F16, not I64"),
        (400, one("logits", "F32", &[4], &four), "[rows, vocab], not [4]"),
        (400, one("logits", "F32", &[4, 0], &none), "1 to 1048576 logits, not 0"),
        (400, one("logit", "F32", &[2, 2], &four), "\"logit\" is not logits, temperature or token_ids"),
        (400, one("temperature", "F32", &[1], &zero), "no tensor named logits"),
        (400, side("temperature", "F32", &[1], &zero), "temperature[0] is 0, not from 1e-6 to 1e6"),
        (400, side("temperature", "F32", &[1], &nan), "temperature[0] is NaN"),
        (400, side("temperature", "F32", &[4], &four), "temperature has 4 values for 2 rows"),
        (400, side("temperature", "U8", &[4], &zero), "temperature is one of [F32, F64], not U8"),
        (400, side("token_ids", "I64", &[2], &id), "token_ids[1] is 2: the rows have 2 logits"),
        (400, side("token_ids", "I32", &[1], &zero), "token_ids has 1 values for 2 rows"),
        (400, [&good[..], b"x"].concat(), "follow the last tensor"),
        (400, good[..good.len() - 1].to_vec(), "the body ends early, in logits"),
        (400, good[..20].to_vec(), "the body ends early, in its header"),
        (400, Vec::new(), "the body ends early, in the length of its header"),
        (413, one("logits", "F32", &[2, 1 << 18], &large), "are more than the limit"),
    ];
    for (status, body, words) in cases {
        let answer = send(proxy.control, &body).await;
        assert_eq!(answer.status, status, "{words}: {}", answer.text());
        let error = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(error.contains(words), "{words:?} in {error:?}");
    }
    let answer = request(proxy.control, "POST", "/v1/entropy", &[("content-type", "text/plain")], &good).await;
    assert_eq!(answer.status, 415);
    assert_eq!(request(proxy.control, "GET", "/v1/entropy", &[], b"").await.status, 405);
    assert_eq!(send(proxy.control, &one("logits", "F32", &[0, 5], &none)).await.json()["entropy"], json!([]));
    assert_eq!(send(proxy.control, &good).await.status, 200, "rejected slices leave no state");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_slices_may_be_json() {
    let proxy = started(&[]).await;
    let ask = async |body: Value| {
        let json = ("content-type", "application/json; charset=utf-8");
        request(proxy.control, "POST", "/v1/entropy", &[json], body.to_string().as_bytes()).await
    };
    let near = |value: &Value, truth: f64| {
        let value = value.as_f64().unwrap();
        assert!((value - truth).abs() < 1e-6, "{value} is not {truth}");
    };
    let whole = ask(json!({"logits": [[1, 1, 1, 1], [100, -100, -100, -100]], "token_ids": [3, 0]})).await.json();
    near(&whole["entropy"][0], 4f64.ln());
    near(&whole["entropy"][1], 0.0);
    near(&whole["surprisal"][0], 4f64.ln());
    let quarter = 0.25f64.ln();
    let top = ask(
        json!({"top_logprobs": [[quarter, quarter], [quarter, quarter, quarter, quarter]], "logprobs": [quarter, null], "vocab_size": 4}),
    );
    let top = top.await.json();
    near(&top["renormalized"][0], 2f64.ln());
    near(&top["lower"][0], 4f64.ln());
    near(&top["upper"][0], 4f64.ln());
    near(&top["estimate"][1], 4f64.ln());
    assert_eq!(top["rank"], json!([1, null]));
    for (body, status, words) in [
        (json!({}), 400, "exactly one of logits, top_logprobs and shm"),
        (json!({"logits": [[1, 2], [3]]}), 400, "logits[1] has 1 values and logits[0] has 2"),
        (json!({"logits": [[1, 2]], "vocab_size": 2}), 400, "belong to top_logprobs"),
        (json!({"top_logprobs": [[-1]], "token_ids": [1]}), 400, "belong to logits"),
        (json!({"top_logprobs": [[-1]], "logprobs": [-1, -2]}), 400, "2 values for 1 rows"),
        (json!({"logit": [[1]]}), 400, "unknown field"),
        (json!({"logits": [vec![0; 70_000]]}), 413, "send larger slices as safetensors"),
    ] {
        let answer = ask(body).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(words), "{words:?} in {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entropy_command_prints_one_line_per_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slice.safetensors");
    let slice = Slice::new(Dtype::BF16, 70, 50_000);
    std::fs::write(&path, slice.file(false)).unwrap();
    let done = output(&["entropy", path.to_str().unwrap()]).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.stderr.is_empty(), "no progress bar without a terminal");
    let lines: Vec<Value> =
        String::from_utf8(done.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows: Vec<&Value> = lines.iter().map(|line| &line["row"]).collect();
    assert_eq!(json!(rows), json!((0..70).collect::<Vec<u32>>()));
    let column = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    slice.check(&json!({
        "rows": 70, "unit": "nats", "entropy": column("entropy"), "log_z": column("log_z"), "p_max": column("p_max"),
        "varentropy": column("varentropy"), "surprisal": column("surprisal"),
    }));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let cut = output(&["entropy", path.to_str().unwrap()]).await;
    assert_eq!(cut.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&cut.stderr).contains("slice.safetensors: the body ends early, in logits"));
}
