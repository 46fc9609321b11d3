//! What the header of a safetensors body says is coming.

use safetensors::tensor::{Dtype as Stored, Metadata};

use crate::entropy::Dtype;
use crate::logits::slices::Rows;

use super::body::SafetensorsError;

/// The longest header: it names three tensors.
pub(super) const LONGEST: u64 = 64 << 10;

/// The tensors of a slice, and where they lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// What `logits` holds.
    pub rows: Rows,
    /// In the order of their bytes.
    pub(super) tensors: Vec<Tensor>,
}

/// One tensor on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) what: What,
    pub(super) bytes: usize,
}

/// What a tensor is, and how it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Logits,
    Temperature(Stored),
    TokenIds(Stored),
}

impl Header {
    /// Reads the JSON of a header.
    pub(super) fn parse(json: &[u8], most: usize) -> Result<Self, SafetensorsError> {
        let metadata: Metadata = serde_json::from_slice(json)
            .map_err(|error| SafetensorsError::bad(format!("the safetensors header: {error}")))?;
        let mut rows = None;
        let mut tensors = Vec::new();
        for name in metadata.offset_keys() {
            let info = metadata.info(&name).expect("it is one of its own names");
            let what = match &*name {
                "logits" => {
                    rows = Some(logits(info.dtype, &info.shape, most)?);
                    What::Logits
                }
                "temperature" => What::Temperature(side(&name, info, &[Stored::F32, Stored::F64])?),
                "token_ids" => What::TokenIds(side(&name, info, &[Stored::I64, Stored::I32, Stored::U32])?),
                _ => {
                    let message = format!("{name:?} is none of logits, temperature and token_ids");
                    return Err(SafetensorsError::bad(message));
                }
            };
            tensors.push(Tensor { what, bytes: info.data_offsets.1 - info.data_offsets.0 });
        }
        let rows = rows.ok_or_else(|| SafetensorsError::bad("there is no tensor named logits"))?;
        for (name, one_for_all) in [("temperature", true), ("token_ids", false)] {
            let Some(info) = metadata.info(name) else { continue };
            let count: usize = info.shape.iter().product();
            if count != rows.count() && !(one_for_all && count == 1) {
                let all = if one_for_all { ", or one for all" } else { "" };
                let message = format!("{name} has {count} values for {} rows: one a row{all}", rows.count());
                return Err(SafetensorsError::bad(message));
            }
        }
        Ok(Self { rows, tensors })
    }

    /// Whether something that is needed to measure the rows comes behind them.
    pub(super) fn is_late(&self) -> bool {
        self.tensors.last().is_some_and(|tensor| tensor.what != What::Logits)
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes as u64).sum()
    }
}

fn logits(dtype: Stored, shape: &[usize], most: usize) -> Result<Rows, SafetensorsError> {
    let stored = match dtype {
        Stored::F32 => Dtype::F32,
        Stored::BF16 => Dtype::Bf16,
        Stored::F16 => Dtype::F16,
        _ => return Err(SafetensorsError::bad(format!("logits are F32, BF16 or F16, not {dtype:?}"))),
    };
    let [rows, vocab] = shape else {
        return Err(SafetensorsError::bad(format!("logits have the shape [rows, vocab], not {shape:?}")));
    };
    Rows::try_new(stored, *rows, *vocab, most).map_err(|error| SafetensorsError::bad(format!("logits: {error}")))
}

/// A tensor with one value a row.
fn side(name: &str, info: &safetensors::tensor::TensorInfo, stored: &[Stored]) -> Result<Stored, SafetensorsError> {
    if !stored.contains(&info.dtype) {
        return Err(SafetensorsError::bad(format!("{name} is one of {stored:?}, not {:?}", info.dtype)));
    }
    if info.shape.len() > 1 {
        return Err(SafetensorsError::bad(format!("{name} has the shape [rows], not {:?}", info.shape)));
    }
    Ok(info.dtype)
}
