// SPDX-License-Identifier: Apache-2.0
//! The parser of slices of logits in safetensors format.

use std::sync::{Arc, OnceLock};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tokentap::config::{EntropyBackend, SliceConfig};
use tokentap::entropy::{Cpu, RowStats};
use tokentap::logits::safetensors::{Body, SafetensorsError};
use tokentap::logits::slices::{MAX_VOCAB, Slices};
use tokentap::metrics::Metrics;

use super::grammar::shown;

/// The largest body, in bytes.
const LIMIT: usize = 1 << 20;
/// The largest number of rows.
const MOST: usize = 4096;

/// The first two bytes determine how the body is split, the rest is the body. A body is measured exactly if the `safetensors` crate accepts
/// it and its names, types and counts are those of a slice, which that crate does not check. The numbers do not depend on the split.
pub fn tensors(bytes: &[u8]) {
    let [first, every, body @ ..] = bytes else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let wanted = Slice::new(body);
    let pieces: Vec<&[u8]> = {
        let (head, rest) = body.split_at(body.len().min(usize::from(*first)));
        std::iter::once(head).chain(rest.chunks(usize::from(*every) + 1)).collect()
    };
    let whole = runtime.block_on(measured(&[body]));
    let cut = runtime.block_on(measured(&pieces));
    match (&whole, &cut, &wanted) {
        (Ok(whole), Ok(cut), Some(wanted)) => {
            let bits = |rows: &[RowStats]| {
                rows.iter().map(|row| [row.entropy, row.log_z, row.surprisal].map(f64::to_bits)).collect::<Vec<_>>()
            };
            assert_eq!(bits(whole), bits(cut), "{}", shown(bytes));
            wanted.check(whole, bytes);
        }
        (
            Err(SafetensorsError::Bad(_) | SafetensorsError::TooLarge(_)),
            Err(SafetensorsError::Bad(_) | SafetensorsError::TooLarge(_)),
            None,
        ) => {}
        _ => panic!("{whole:?} and {cut:?}, readable: {}: {}", wanted.is_some(), shown(bytes)),
    }
}

async fn measured(pieces: &[&[u8]]) -> Result<Vec<RowStats>, SafetensorsError> {
    static SLICES: OnceLock<Arc<Slices>> = OnceLock::new();
    let slices = SLICES.get_or_init(|| {
        let config = SliceConfig {
            entropy_backend: EntropyBackend::Cpu,
            cuda_memory: 0,
            cuda_deadline: std::time::Duration::ZERO,
            entropy_threads: 1,
            slice_memory: 64 << 20,
            max_slice_bytes: LIMIT as u64,
        };
        let metrics = Arc::new(Metrics::new(Cpu::new().name()));
        Arc::new(Slices::start(&config, &metrics).unwrap())
    });
    let mut body = Body::new(slices, LIMIT as u64, MOST);
    for piece in pieces {
        body.push(piece).await?;
    }
    body.finish().await
}

/// The contents of a valid body.
struct Slice {
    rows: Vec<Vec<f64>>,
    temperature: Vec<f64>,
}

impl Slice {
    fn new(body: &[u8]) -> Option<Self> {
        let header = u64::from_le_bytes(*body.first_chunk()?);
        let tensors = SafeTensors::deserialize(body).ok().filter(|_| header <= 64 << 10 && body.len() <= LIMIT)?;
        let mut names = tensors.names();
        names.sort_unstable();
        if names.iter().any(|name| !["logits", "temperature", "token_ids"].contains(name)) {
            return None;
        }
        let logits = tensors.tensor("logits").ok()?;
        let &[count, vocab] = logits.shape() else { return None };
        if count > MOST || !(1..=MAX_VOCAB).contains(&vocab) {
            return None;
        }
        let values: Vec<f64> = match logits.dtype() {
            Dtype::F32 => numbers(&logits, |bytes| f64::from(f32::from_le_bytes(bytes))),
            Dtype::BF16 => numbers(&logits, |[low, high]| f64::from(f32::from_le_bytes([0, 0, low, high]))),
            // accepted; a separate test checks the numbers
            Dtype::F16 => vec![f64::NAN; count * vocab],
            _ => return None,
        };
        let mut temperature = vec![1.0; count];
        if let Ok(tensor) = tensors.tensor("temperature") {
            let given = match tensor.dtype() {
                Dtype::F32 => numbers(&tensor, |bytes| f64::from(f32::from_le_bytes(bytes))),
                Dtype::F64 => numbers(&tensor, |bytes| f64::from(f64::from_le_bytes(bytes) as f32)),
                _ => return None,
            };
            let known = |value: &f64| (f64::from(1e-6_f32)..=1e6).contains(value);
            if tensor.shape().len() > 1 || ![1, count].contains(&given.len()) || !given.iter().all(known) {
                return None;
            }
            temperature = if given.len() == count { given } else { vec![given[0]; count] };
        }
        if let Ok(tensor) = tensors.tensor("token_ids") {
            let given: Vec<i64> = match tensor.dtype() {
                Dtype::I64 => numbers(&tensor, i64::from_le_bytes),
                Dtype::I32 => numbers(&tensor, |bytes| i32::from_le_bytes(bytes).into()),
                Dtype::U32 => numbers(&tensor, |bytes| u32::from_le_bytes(bytes).into()),
                _ => return None,
            };
            let inside = |id: &i64| usize::try_from(*id).map_or(*id < 0, |id| id < vocab);
            if tensor.shape().len() > 1 || given.len() != count || !given.iter().all(inside) {
                return None;
            }
        }
        Some(Self { rows: values.chunks(vocab).map(<[f64]>::to_vec).collect(), temperature })
    }

    /// Compares the entropies with the textbook definition, for rows whose values are small enough for it.
    fn check(&self, stats: &[RowStats], bytes: &[u8]) {
        assert_eq!(stats.len(), self.rows.len(), "{}", shown(bytes));
        for ((row, temperature), stats) in self.rows.iter().zip(&self.temperature).zip(stats) {
            let scaled: Vec<f64> = row.iter().map(|value| value / temperature).collect();
            if !scaled.iter().all(|value| value.abs() < 100.0) {
                continue;
            }
            let sum: f64 = scaled.iter().map(|value| value.exp()).sum();
            let mean: f64 = scaled.iter().map(|value| value.exp() / sum * value).sum();
            let wanted = sum.ln() - mean;
            let near = (stats.entropy - wanted).abs() < 1e-3 * (1.0 + wanted);
            assert!(near, "{} is not {wanted}: {}", stats.entropy, shown(bytes));
        }
    }
}

fn numbers<const N: usize, T>(tensor: &TensorView<'_>, read: impl Fn([u8; N]) -> T) -> Vec<T> {
    tensor.data().as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect()
}
