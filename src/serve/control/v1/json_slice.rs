// SPDX-License-Identifier: Apache-2.0
//! Small slices as JSON: rows of logits, or of top-k logprobs.

use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::entropy::{Dtype, Logits, TopK};
use crate::json::decode;
use crate::logits::safetensors::RowNumbers;
use crate::logits::shm::FileRange;
use crate::logits::slices;
use crate::logprobs::Rows;
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::response::json_response;

/// The maximum bytes of a body.
pub(super) const LARGEST: u64 = 4 << 20;

/// The maximum number of values of all rows. They are measured on the runtime thread that serves the request.
const MAX_VALUES: usize = 1 << 16;

/// Whole rows, top-k rows, or a file that holds rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JsonSlice {
    /// Whole rows of equal width.
    logits: Option<Vec<Vec<f32>>>,
    /// One for each row, one for all rows, or none.
    temperature: Option<Vec<f32>>,
    /// The sampled token of each row of `logits`.
    token_ids: Option<Vec<i64>>,
    /// The largest logprobs of each token, in nats.
    top_logprobs: Option<Vec<Vec<f32>>>,
    /// The logprob of each sampled token.
    logprobs: Option<Vec<Option<f32>>>,
    /// The vocabulary size of the distributions of `top_logprobs`.
    vocab_size: Option<u32>,
    /// A file that holds a slice. No other member is allowed with it.
    pub(super) shm: Option<FileRange>,
}

impl JsonSlice {
    /// Decodes a body.
    pub(super) fn decode(body: &[u8]) -> Result<Self, Problem> {
        let slice: Self = decode(body).map_err(|error| Problem::bad_request(error.to_string()))?;
        // every member is named, so that a new member breaks the build here
        let alone = matches!(
            &slice,
            Self {
                logits: None,
                temperature: None,
                token_ids: None,
                top_logprobs: None,
                logprobs: None,
                vocab_size: None,
                shm: _
            }
        );
        if slice.shm.is_some() && !alone {
            return Err(Problem::bad_request("nothing goes with shm: the whole slice is in the file"));
        }
        Ok(slice)
    }

    /// Measures the rows.
    pub(super) fn measure(&self, proxy: &Proxy) -> Result<Response<Body>, Problem> {
        let body = match (&self.logits, &self.top_logprobs) {
            (Some(rows), None) => measure_logits(proxy, self, rows)?,
            (None, Some(rows)) => measure_top_k(proxy, self, rows)?,
            _ => return Err(Problem::bad_request("the body must have exactly one of logits, top_logprobs and shm")),
        };
        Ok(json_response(StatusCode::OK, body))
    }
}

fn check_size(rows: &[Vec<f32>]) -> Result<(), Problem> {
    let count: usize = rows.iter().map(Vec::len).sum();
    if count <= MAX_VALUES && rows.len() <= MAX_VALUES {
        return Ok(());
    }
    let message = format!("JSON is for up to {MAX_VALUES} values, not {count}; send larger slices as safetensors");
    Err(Problem::new(ErrorCode::TOO_LARGE, message))
}

fn measure_logits(proxy: &Proxy, slice: &JsonSlice, rows: &[Vec<f32>]) -> Result<Vec<u8>, Problem> {
    check_size(rows)?;
    if slice.logprobs.is_some() || slice.vocab_size.is_some() {
        return Err(Problem::bad_request("logprobs and vocab_size belong to top_logprobs, not to logits"));
    }
    let vocab = rows.first().map_or(1, Vec::len);
    if let Some(at) = rows.iter().position(|row| row.len() != vocab) {
        let message = format!("logits[{at}] has {} values and logits[0] has {vocab}", rows[at].len());
        return Err(Problem::bad_request(message));
    }
    let shape = slices::SliceShape::try_new(Dtype::F32, rows.len(), vocab, MAX_VALUES);
    let shape = shape.map_err(|error| Problem::bad_request(format!("logits: {error}")))?;
    let side = slices::SliceColumns {
        temperature: slice.temperature.clone().unwrap_or_default(),
        chosen: slice.token_ids.clone().unwrap_or_default(),
    };
    side.check(shape).map_err(|error| Problem::bad_request(error.to_string()))?;
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let logits =
        Logits { dtype: Dtype::F32, vocab, bytes: &bytes, temperature: &side.temperature, chosen: &side.chosen };
    let mut stats = Vec::new();
    proxy.generator.context.cpu.rows(&logits, &mut stats);
    Ok(RowNumbers::new(&stats, !side.chosen.is_empty()).to_json())
}

fn measure_top_k(proxy: &Proxy, slice: &JsonSlice, rows: &[Vec<f32>]) -> Result<Vec<u8>, Problem> {
    check_size(rows)?;
    if slice.temperature.is_some() || slice.token_ids.is_some() {
        return Err(Problem::bad_request("temperature and token_ids belong to logits, not to top_logprobs"));
    }
    let chosen = slice.logprobs.as_deref().unwrap_or_default();
    if !chosen.is_empty() && chosen.len() != rows.len() {
        let message = format!("logprobs has {} values for {} rows: one for each row", chosen.len(), rows.len());
        return Err(Problem::bad_request(message));
    }
    if slice.vocab_size == Some(0) {
        return Err(Problem::bad_request("vocab_size must be at least 1"));
    }
    let mut batch = Rows::new();
    rows.iter().for_each(|row| batch.push_row(row));
    let chosen: Vec<f32> = chosen.iter().map(|logprob| logprob.unwrap_or(f32::NAN)).collect();
    let mut stats = Vec::new();
    let batch = TopK { rows: &batch, chosen: &chosen, vocab: slice.vocab_size, stats: true };
    proxy.generator.context.cpu.top_k(&batch, &mut stats);
    let mut object = Map::new();
    object.insert("rows".to_owned(), json!(stats.len()));
    object.insert("unit".to_owned(), json!("nats"));
    let mut column = |name: &str, values: Vec<f32>| object.insert(name.to_owned(), json!(values));
    column("estimate", stats.iter().map(|row| row.estimate).collect());
    column("lower", stats.iter().map(|row| row.lower).collect());
    column("upper", stats.iter().map(|row| row.upper).collect());
    column("renormalized", stats.iter().map(|row| row.renormalized).collect());
    column("tail_mass", stats.iter().map(|row| row.tail_mass).collect());
    column("varentropy", stats.iter().map(|row| row.varentropy).collect());
    column("margin", stats.iter().map(|row| row.margin).collect());
    column("confidence", stats.iter().map(|row| row.confidence).collect());
    if !chosen.is_empty() {
        column("surprisal", stats.iter().map(|row| row.surprisal).collect());
        let rank = |rank: u32| if rank == 0 { Value::Null } else { json!(rank) };
        object.insert("rank".to_owned(), stats.iter().map(|row| rank(row.rank)).collect());
    }
    let flags = |names: Vec<&str>| json!(names);
    object.insert("flags".to_owned(), stats.iter().map(|row| flags(row.flags.names().collect())).collect());
    Ok(Value::Object(object).to_string().into_bytes())
}
