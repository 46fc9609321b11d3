// SPDX-License-Identifier: Apache-2.0
//! A safetensors file as a stream: the header, which needs the shapes only, then one tensor after the other.

use std::cmp::Reverse;
use std::sync::Arc;

use super::text::Text;
use super::{Export, PIECE, pieces};
use crate::images::Image;

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dtype {
    I64,
    F64,
    F32,
    I32,
    U8,
    Bool,
}

/// Consecutive elements of a tensor. They are converted to the tensor's type when they are written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Run<'a> {
    /// Tokens, for `I64`.
    Ids(&'a [u32]),
    /// Numbers, for `F32` and `F64`.
    Floats(&'a [f32]),
    /// Elements of `U8`.
    Bytes(&'a [u8]),
    /// Little-endian unsigned integers of this number of bytes each, for `I32`.
    Unsigned(&'a [u8], usize),
    /// One integer, repeated; below 256 for `U8`, 0 or 1 for `Bool`.
    Integer(i64, usize),
    /// One number, repeated, for `F32` and `F64`.
    Float(f32, usize),
    /// Consecutive integers from the first one, for `I64`.
    Ramp(i64, usize),
}

/// How the elements of a tensor are divided into rows.
#[derive(Debug)]
pub(super) enum Split {
    /// This number of equal rows.
    Even(usize),
    /// Rows of these lengths.
    Each(Box<[usize]>),
}

/// Receives the runs of a row in order.
pub(super) type Sink<'s> = &'s mut dyn FnMut(Run<'_>);

/// A tensor whose elements are generated on demand.
pub(super) struct Tensor {
    /// Its name in the file.
    pub(super) name: String,
    /// The type of its elements.
    pub(super) dtype: Dtype,
    /// Its dimensions. The first one counts rows; a tensor of one dimension may also be a single row.
    pub(super) shape: Vec<usize>,
    /// The rows and their lengths.
    pub(super) rows: Split,
    /// Writes the runs of a row to the sink. It is called twice for a row that spans two pieces.
    pub(super) row: Box<dyn Fn(usize, Sink<'_>) + Send>,
}

/// The file, with `metadata` in its header.
pub(super) fn export(mut tensors: Vec<Tensor>, metadata: &[(&str, String)]) -> Export {
    // larger elements first, so that each tensor is aligned
    tensors.sort_by_key(|tensor| Reverse(tensor.dtype.size()));
    let header = header(&tensors, metadata);
    let data: usize = tensors.iter().map(Tensor::bytes).sum();
    let length = Some((header.len() + data) as u64);
    let stream = Stream { tensors: tensors.into_iter(), tensor: None, row: 0, done: 0 };
    let chunks = pieces(std::iter::once(header).chain(stream));
    Export { length, ..Export::new("application/octet-stream", chunks) }
}

fn header(tensors: &[Tensor], metadata: &[(&str, String)]) -> Vec<u8> {
    let mut text = Text::default();
    text.object(|text| {
        text.key("__metadata__").object(|text| {
            for (name, value) in metadata {
                text.key(name).string(value);
            }
        });
        let mut start = 0;
        for tensor in tensors {
            let end = start + tensor.bytes();
            text.key(&tensor.name).object(|text| {
                text.key("dtype").string(tensor.dtype.name());
                text.key("shape").array(|list| tensor.shape.iter().for_each(|size| list.integer(*size)));
                text.key("data_offsets").array(|list| [start, end].iter().for_each(|at| list.integer(*at)));
            });
            start = end;
        }
    });
    let mut json = text.into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes(), json.as_slice()].concat()
}

/// The elements of all tensors, in pieces.
struct Stream {
    tensors: std::vec::IntoIter<Tensor>,
    tensor: Option<Tensor>,
    /// The current row.
    row: usize,
    /// Its elements that are already written.
    done: usize,
}

impl Iterator for Stream {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut piece = Vec::with_capacity(PIECE);
        loop {
            if self.tensor.as_ref().is_none_or(|tensor| self.row == tensor.count()) {
                (self.row, self.done) = (0, 0);
                self.tensor = self.tensors.next();
            }
            let Some(tensor) = &self.tensor else { break };
            let room = (PIECE - piece.len()) / tensor.dtype.size();
            if room == 0 {
                break;
            }
            if self.row < tensor.count() {
                let written = tensor.write(self.row, self.done, room, &mut piece);
                assert!(
                    written > 0 || tensor.width(self.row) == 0,
                    "a row of {} is shorter than its shape",
                    tensor.name
                );
                self.done += written;
                if self.done == tensor.width(self.row) {
                    (self.row, self.done) = (self.row + 1, 0);
                }
            }
        }
        (!piece.is_empty()).then_some(piece)
    }
}

impl Tensor {
    /// The bytes of a picture under its digest, if they are known.
    pub(super) fn of_image(image: &Arc<Image>) -> Option<Self> {
        let bytes = image.bytes.clone()?;
        Some(Self {
            name: format!("images.{}", image.digest),
            dtype: Dtype::U8,
            shape: vec![bytes.len()],
            rows: Split::Even(1),
            row: Box::new(move |_: usize, sink: Sink<'_>| sink(Run::Bytes(&bytes))),
        })
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    fn count(&self) -> usize {
        match &self.rows {
            Split::Even(count) => *count,
            Split::Each(widths) => widths.len(),
        }
    }

    /// Elements of a row.
    fn width(&self, row: usize) -> usize {
        match &self.rows {
            Split::Even(count) => self.elements() / count,
            Split::Each(widths) => widths[row],
        }
    }

    /// Appends at most `room` elements of a row, after the first `skip`, to `out`. Returns their number.
    fn write(&self, row: usize, mut skip: usize, room: usize, out: &mut Vec<u8>) -> usize {
        let mut left = room;
        (self.row)(row, &mut |run| {
            let from = skip.min(run.len());
            skip -= from;
            let to = run.len().min(from + left);
            left -= to - from;
            run.cut(from, to).write(self.dtype, out);
        });
        room - left
    }
}

impl Dtype {
    fn name(self) -> &'static str {
        match self {
            Self::I64 => "I64",
            Self::F64 => "F64",
            Self::F32 => "F32",
            Self::I32 => "I32",
            Self::U8 => "U8",
            Self::Bool => "BOOL",
        }
    }

    fn size(self) -> usize {
        match self {
            Self::I64 | Self::F64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::U8 | Self::Bool => 1,
        }
    }
}

impl Run<'_> {
    fn len(&self) -> usize {
        match *self {
            Self::Ids(ids) => ids.len(),
            Self::Floats(numbers) => numbers.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Unsigned(bytes, size) => bytes.len() / size,
            Self::Integer(_, count) | Self::Float(_, count) | Self::Ramp(_, count) => count,
        }
    }

    fn cut(self, from: usize, to: usize) -> Self {
        match self {
            Self::Ids(ids) => Self::Ids(&ids[from..to]),
            Self::Floats(numbers) => Self::Floats(&numbers[from..to]),
            Self::Bytes(bytes) => Self::Bytes(&bytes[from..to]),
            Self::Unsigned(bytes, size) => Self::Unsigned(&bytes[from * size..to * size], size),
            Self::Integer(integer, _) => Self::Integer(integer, to - from),
            Self::Float(number, _) => Self::Float(number, to - from),
            Self::Ramp(start, _) => Self::Ramp(start + from as i64, to - from),
        }
    }

    fn write(self, dtype: Dtype, out: &mut Vec<u8>) {
        let count = self.len();
        match (dtype, self) {
            (Dtype::I64, Run::Ids(ids)) => put(out, count, ids.iter().map(|id| i64::from(*id).to_le_bytes())),
            (Dtype::I64, Run::Integer(integer, _)) => put(out, count, std::iter::repeat(integer.to_le_bytes())),
            (Dtype::I64, Run::Ramp(start, _)) => put(out, count, (start..).map(i64::to_le_bytes)),
            (Dtype::F32, Run::Floats(numbers)) => put(out, count, numbers.iter().map(|number| number.to_le_bytes())),
            (Dtype::F32, Run::Float(number, _)) => put(out, count, std::iter::repeat(number.to_le_bytes())),
            (Dtype::F64, Run::Floats(numbers)) => {
                put(out, count, numbers.iter().map(|number| f64::from(*number).to_le_bytes()));
            }
            (Dtype::F64, Run::Float(number, _)) => put(out, count, std::iter::repeat(f64::from(number).to_le_bytes())),
            (Dtype::I32, Run::Unsigned(bytes, size)) => {
                put(out, count, bytes.chunks_exact(size).map(|bytes| unsigned(bytes).to_le_bytes()));
            }
            (Dtype::I32, Run::Integer(0, _)) => put(out, count, std::iter::repeat([0; 4])),
            (Dtype::U8, Run::Bytes(bytes)) => out.extend_from_slice(bytes),
            (Dtype::U8 | Dtype::Bool, Run::Integer(integer, _)) => {
                let byte = u8::try_from(integer).expect("masks are 0 or 1");
                out.resize(out.len() + count, byte);
            }
            (dtype, run) => unreachable!("{run:?} does not make a tensor of {dtype:?}"),
        }
    }
}

/// A little-endian unsigned integer of at most four bytes.
pub(super) fn unsigned(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Appends `count` elements. Resizes `out` first, so that the compiler knows the bounds of the loop and vectorizes it.
fn put<const N: usize>(out: &mut Vec<u8>, count: usize, elements: impl Iterator<Item = [u8; N]>) {
    let start = out.len();
    out.resize(start + count * N, 0);
    for (cell, element) in out[start..].chunks_exact_mut(N).zip(elements) {
        cell.copy_from_slice(&element);
    }
}

#[cfg(test)]
mod tests {
    use ::safetensors::SafeTensors;

    use super::*;
    use crate::export::fixture::{File, bytes};

    fn tensor(name: &str, dtype: Dtype, shape: &[usize], row: fn(usize, Sink<'_>)) -> Tensor {
        let rows = if shape.len() > 1 { shape[0] } else { 1 };
        let rows = Split::Even(rows);
        Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), rows, row: Box::new(row) }
    }

    #[test]
    fn file_matches_the_reference_bytes() {
        let bytes = bytes(export(
            vec![
                tensor("b", Dtype::U8, &[1], |_, sink| sink(Run::Integer(1, 1))),
                tensor("a", Dtype::F32, &[2], |_, sink| sink(Run::Floats(&[1.0, -2.0]))),
            ],
            &[("k", "v\"".to_owned())],
        ));
        let header = concat!(
            r#"{"__metadata__":{"k":"v\""},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"#,
            r#""b":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}}"#
        );
        let padded = format!("{header:<0$}", header.len().next_multiple_of(8));
        let mut expected = (padded.len() as u64).to_le_bytes().to_vec();
        expected.extend_from_slice(padded.as_bytes());
        expected.extend_from_slice(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 1]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn rows_continue_in_the_next_piece() {
        // three rows of half a piece and one element, in runs that cross the borders of pieces
        const WIDTH: usize = PIECE / 16 + 1;
        static IDS: [u32; WIDTH - 7] = [5; WIDTH - 7];
        let ids = tensor("ids", Dtype::I64, &[3, WIDTH], |row, sink| {
            sink(Run::Ramp(i64::try_from(row).unwrap() * 10, 7));
            sink(Run::Ids(&IDS));
        });
        let mask = tensor("mask", Dtype::Bool, &[3, 2], |row, sink| sink(Run::Integer((row == 1).into(), 2)));
        let export = export(vec![mask, ids], &[]);
        assert!(export.length.unwrap() > PIECE as u64, "it takes two pieces");
        let file = File::of(export);
        let row = |first: i64| (first..first + 7).chain(std::iter::repeat_n(5, WIDTH - 7));
        assert_eq!(file.integers("ids"), row(0).chain(row(10)).chain(row(20)).collect::<Vec<_>>());
        assert_eq!(file.integers("mask"), [0, 0, 1, 1, 0, 0]);
    }

    #[test]
    fn row_longer_than_a_piece_is_split() {
        const WIDTH: usize = PIECE / 4 + 3;
        let long = tensor("long", Dtype::F64, &[1, WIDTH], |_, sink| {
            sink(Run::Float(0.5, 1));
            sink(Run::Float(2.0, WIDTH - 1));
        });
        let numbers = File::of(export(vec![long], &[])).floats("long");
        assert_eq!((numbers[0], numbers[1], numbers[WIDTH - 1]), (0.5, 2.0, 2.0));
    }

    #[test]
    fn tensors_may_be_empty() {
        let empty = |name, shape: &[usize]| tensor(name, Dtype::I64, shape, |_, sink| sink(Run::Ids(&[])));
        let bytes = bytes(export(vec![empty("a", &[0, 4]), empty("b", &[4, 0]), empty("c", &[0])], &[]));
        assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), 3);
    }
}
