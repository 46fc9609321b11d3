// SPDX-License-Identifier: Apache-2.0
//! The header of a safetensors body: its tensors, their types and sizes.

use safetensors::tensor::{Dtype as TensorDtype, Metadata};

use crate::entropy::Dtype;
use crate::logits::slices::SliceShape;

use super::body::SafetensorsError;

/// The largest header, in bytes. A header has at most three tensors.
pub(super) const LONGEST: u64 = 64 << 10;

/// The tensors of a slice, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The shape of `logits`.
    pub rows: SliceShape,
    /// In the order of their bytes.
    pub(super) tensors: Vec<Tensor>,
}

/// A tensor that the body contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) role: TensorRole,
    pub(super) bytes: usize,
}

/// The meaning of a tensor, and its stored type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorRole {
    Logits,
    Temperature(TensorDtype),
    TokenIds(TensorDtype),
}

impl Header {
    /// Parses the JSON of a header. `most` is the largest number of rows.
    pub(super) fn parse(json: &[u8], most: usize) -> Result<Self, SafetensorsError> {
        let metadata: Metadata = serde_json::from_slice(json)
            .map_err(|error| SafetensorsError::bad(format!("the safetensors header: {error}")))?;
        let mut rows = None;
        let mut tensors = Vec::new();
        for name in metadata.offset_keys() {
            let info = metadata.info(&name).expect("offset_keys returns existing names");
            let role = match &*name {
                "logits" => {
                    rows = Some(logits(info.dtype, &info.shape, most)?);
                    TensorRole::Logits
                }
                "temperature" => TensorRole::Temperature(column(&name, info, &[TensorDtype::F32, TensorDtype::F64])?),
                "token_ids" => {
                    TensorRole::TokenIds(column(&name, info, &[TensorDtype::I64, TensorDtype::I32, TensorDtype::U32])?)
                }
                _ => {
                    let message = format!("{name:?} is not logits, temperature or token_ids");
                    return Err(SafetensorsError::bad(message));
                }
            };
            tensors.push(Tensor { role, bytes: info.data_offsets.1 - info.data_offsets.0 });
        }
        let rows = rows.ok_or_else(|| SafetensorsError::bad("no tensor named logits"))?;
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

    /// Whether a tensor that is needed to measure the rows follows them in the body.
    pub(super) fn is_late(&self) -> bool {
        self.tensors.last().is_some_and(|tensor| tensor.role != TensorRole::Logits)
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes as u64).sum()
    }
}

fn logits(dtype: TensorDtype, shape: &[usize], most: usize) -> Result<SliceShape, SafetensorsError> {
    let stored = match dtype {
        TensorDtype::F32 => Dtype::F32,
        TensorDtype::BF16 => Dtype::Bf16,
        TensorDtype::F16 => Dtype::F16,
        _ => return Err(SafetensorsError::bad(format!("logits are F32, BF16 or F16, not {dtype:?}"))),
    };
    let [rows, vocab] = shape else {
        return Err(SafetensorsError::bad(format!("logits have the shape [rows, vocab], not {shape:?}")));
    };
    SliceShape::try_new(stored, *rows, *vocab, most).map_err(|error| SafetensorsError::bad(format!("logits: {error}")))
}

/// Checks a tensor that has one value per row; returns its stored type.
fn column(
    name: &str,
    info: &safetensors::tensor::TensorInfo,
    stored: &[TensorDtype],
) -> Result<TensorDtype, SafetensorsError> {
    if !stored.contains(&info.dtype) {
        return Err(SafetensorsError::bad(format!("{name} is one of {stored:?}, not {:?}", info.dtype)));
    }
    if info.shape.len() > 1 {
        return Err(SafetensorsError::bad(format!("{name} has the shape [rows], not {:?}", info.shape)));
    }
    Ok(info.dtype)
}
