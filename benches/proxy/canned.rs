// SPDX-License-Identifier: Apache-2.0
//! The replies of the canned engine, written once by the demo engine's encoder from random but plausible numbers.

use std::ops::Range;

use tokentap::demo::wire::{
    DONE, Finish, Form, LogprobRow, LogprobTable, Logprobs, Mask, Meta, Reply, SideLogprobs, Span, Timing, Wire,
};

/// Rows of the output layer, as Qwen's.
pub const VOCAB: u32 = 151_936;
/// Sampled ids: ids of the demo's tokenizer whose text is ASCII and does not end in white space, so that a chat that streams has a chunk
/// for each token.
const SAMPLED: Range<u32> = 599..923;
/// Different replies of one shape, so that a branch predictor cannot learn them.
pub const VARIANTS: u64 = 4;

/// Tokens of the prompt.
const PROMPT: usize = 32;
/// The ids from which each token is sampled, where masks are requested.
pub const SUPPORT: usize = 20;
/// Values of a token's routed experts: 48 layers, 8 of 128 experts.
const EXPERTS: usize = 48 * 8;

/// The token columns of a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Columns {
    /// `output_token_sampling_mask`.
    pub mask: bool,
    /// `routed_experts`.
    pub experts: bool,
}

/// Identifies a canned reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Tokens of the reply.
    pub tokens: usize,
    /// k, if logprobs are requested.
    pub k: Option<usize>,
    /// Top logprobs in flat base64.
    pub flat: bool,
    pub columns: Columns,
    /// Which of the replies of this shape.
    pub variant: u64,
}

impl Shape {
    /// The name in the header [`CANNED`](crate::upstream::CANNED).
    pub fn label(&self) -> String {
        let logprobs = match (self.k, self.flat) {
            (None, _) => format!("plain/{}", self.tokens),
            (Some(k), true) => format!("flat/{}x{k}", self.tokens),
            (Some(k), false) => format!("nested/{}x{k}", self.tokens),
        };
        let mask = if self.columns.mask { "+mask" } else { "" };
        let experts = if self.columns.experts { "+experts" } else { "" };
        format!("{logprobs}{mask}{experts}")
    }
}

/// A finished sequence.
pub struct Sequence {
    shape: Shape,
    /// Where the text of each token ends.
    ends: Vec<usize>,
    text: String,
    ids: Vec<u32>,
    chosen: Vec<LogprobRow>,
    top: Vec<LogprobRow>,
    masks: Vec<Mask>,
    experts: Option<String>,
    finish: Finish,
    spans: [Span; 1],
}

impl Sequence {
    /// Text and ids depend only on tokens and variant, so that replies with and without logprobs do not differ otherwise.
    pub fn new(shape: Shape) -> Self {
        let mut random = Random::new(shape.variant);
        let (mut text, mut ends, mut ids) = (String::new(), Vec::new(), Vec::new());
        for _ in 0..shape.tokens {
            text.push(' ');
            for _ in 0..1 + random.below(6) {
                text.push(char::from(b'a' + random.below(26) as u8));
            }
            ends.push(text.len());
            ids.push(SAMPLED.start + random.below(SAMPLED.end - SAMPLED.start));
        }
        let (mut chosen, mut top) = (Vec::new(), Vec::new());
        let mut random = Random::new(shape.variant + 1000);
        for &id in shape.k.map_or(&[][..], |_| &ids) {
            let logprobs = random.logprobs(shape.k.unwrap_or(0).max(1));
            let at = random.draw(&logprobs);
            chosen.push(LogprobRow { logprob: Some(logprobs[at]), id });
            let rows = logprobs.iter().take(shape.k.unwrap_or(0)).enumerate();
            top.extend(rows.map(|(i, &logprob)| LogprobRow {
                logprob: Some(logprob),
                id: if i == at { id } else { random.below(VOCAB) },
            }));
        }
        let mut random = Random::new(shape.variant + 2000);
        let mut mask = |id: &u32| {
            let mut ids: Vec<u32> = (1..SUPPORT).map(|_| random.below(VOCAB)).chain([*id]).collect();
            ids.sort_unstable();
            Mask { ids, logprobs: vec![-0.5], whole: false }
        };
        let masks = if shape.columns.mask { ids.iter().map(&mut mask).collect() } else { Vec::new() };
        let values = (PROMPT + shape.tokens - 1) * EXPERTS;
        let experts = shape.columns.experts.then(|| {
            let bytes: Vec<u8> = (0..values).flat_map(|_| random.below(128).to_le_bytes()).collect();
            base64_simd::STANDARD.encode_to_string(bytes)
        });
        let spans = [Span { version: "default".to_owned(), start: 0, end: shape.tokens }];
        Self { shape, ends, text, ids, chosen, top, masks, experts, finish: Finish::Length(shape.tokens), spans }
    }

    /// The body of a reply that does not stream.
    pub fn whole(&self) -> Vec<u8> {
        let mut out = Vec::new();
        WIRE.object(&mut out, &self.reply(0, self.shape.tokens));
        out
    }

    /// The events of a stream, one for each token: cumulative or incremental.
    pub fn events(&self, incremental: bool) -> Vec<Vec<u8>> {
        let mut events: Vec<Vec<u8>> = (0..self.shape.tokens)
            .map(|at| {
                let mut event = Vec::new();
                WIRE.event(&mut event, &self.reply(if incremental { at } else { 0 }, at + 1));
                event
            })
            .collect();
        events.push(DONE.to_vec());
        events
    }

    /// The bounds of each token's entropy in nats: the share of the listed tokens alone, and with the remaining probability spread evenly
    /// over the other tokens.
    pub fn entropy_bounds(&self) -> Vec<(f64, f64)> {
        let bounds = |rows: &[LogprobRow]| {
            let logprobs = || rows.iter().filter_map(|row| row.logprob).map(f64::from);
            let head: f64 = logprobs().map(|logprob| -logprob * logprob.exp()).sum();
            let tail = (1.0 - logprobs().map(f64::exp).sum::<f64>()).max(1e-12);
            (head, head + tail * (f64::from(VOCAB) / tail).ln())
        };
        self.top.chunks(self.shape.k.unwrap_or(1)).map(bounds).collect()
    }

    /// The reply sent after token `end`, with the tokens from `start` on and their logprobs.
    fn reply(&self, start: usize, end: usize) -> Reply<'_> {
        let width = self.shape.k.unwrap_or(0);
        let table = |rows| (width > 0).then_some(LogprobTable { null_prefix: 0, width, rows });
        let logprobs = self.shape.k.map(|k| Logprobs {
            input: SideLogprobs { top: table(&[]), ..SideLogprobs::default() },
            output: SideLogprobs {
                tokens: &self.chosen[start..end],
                top: table(&self.top[start * k..end * k]),
                form: if self.shape.flat { Form::FlatBase64 } else { Form::Nested },
                ids: None,
            },
            output_length: end,
            texts: None,
        });
        let from = start.checked_sub(1).map_or(0, |before| self.ends[before]);
        Reply {
            text: &self.text[from..self.ends[end - 1]],
            output_ids: &self.ids[start..end],
            meta: Meta {
                id: "0123456789abcdef0123456789abcdef",
                finish: (end == self.shape.tokens).then_some(&self.finish),
                prompt_tokens: PROMPT,
                completion_tokens: end,
                cached_tokens: 16,
                weight_version: "default",
                weight_versions: &self.spans,
                retractions: 0,
                logprobs,
                masks: self.shape.columns.mask.then(|| &self.masks[start..end]),
                masks_length: end,
                experts: self.experts.as_deref().filter(|_| end == self.shape.tokens),
                exact: None,
                timing: TIMING,
                first: end == 1,
            },
            prompt_token_ids: None,
            index: None,
        }
    }
}

const WIRE: Wire = Wire { dialect: tokentap::demo::Dialect::Sglang0523, metrics: true };

const TIMING: Timing = Timing {
    request_received_ts: 1_763_726_400.123_456,
    api_server_dispatch_finish_ts: 1_763_726_400.124_567,
    forward_entry_time: 1_763_726_400.125_678,
    prefill_finished_time: 1_763_726_400.156_789,
    queue_time: 0.001_111,
    request_finished_ts: 1_763_726_403.234_567,
    response_sent_to_client_ts: 1_763_726_403.235_678,
};

/// A reply of one token to the probe, whose two likeliest tokens are `gap` nats apart.
pub fn probe_reply(k: Option<usize>, flat: bool, columns: Columns, gap: f32) -> Vec<u8> {
    let mut sequence = Sequence::new(Shape { tokens: 1, k, flat, columns, variant: 0 });
    for (at, row) in sequence.top.iter_mut().enumerate() {
        row.logprob = Some(-1.317_3 - gap * at as f32);
    }
    sequence.whole()
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Falling logprobs whose probabilities sum to at most 1: most tokens are nearly certain, some are open, a few are very uncertain.
    fn logprobs(&mut self, k: usize) -> Vec<f32> {
        let (mass, slope) = match self.below(100) {
            0..55 => (1.0 - 1e-4 * self.unit(), 4.0),
            55..85 => (1.0 - 0.03 * self.unit(), 1.0),
            _ => (0.4 + 0.4 * self.unit(), 0.2),
        };
        let mut depth = 0.0;
        let depths: Vec<f64> = (0..k)
            .map(|at| {
                let here = depth;
                depth += slope * -self.unit().ln() / (1.0 + at as f64 / 4.0);
                here
            })
            .collect();
        let sum: f64 = depths.iter().map(|depth| (-depth).exp()).sum();
        // each other token must have at most the probability of the last listed one, or the row belongs to no distribution
        let least = f64::ln(1.5 * (1.0 - mass) / (f64::from(VOCAB) - k as f64));
        depths.iter().map(|depth| (f64::ln(mass / sum) - depth).max(least) as f32).collect()
    }

    /// Samples one of the listed tokens by its probability.
    fn draw(&mut self, logprobs: &[f32]) -> usize {
        let mut left = self.unit();
        let found = logprobs.iter().position(|logprob| {
            left -= f64::from(*logprob).exp();
            left <= 0.0
        });
        found.unwrap_or(0)
    }
}
