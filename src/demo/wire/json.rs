// SPDX-License-Identifier: Apache-2.0
//! Writes the JSON of a reply, with the numbers of the JSON libraries that SGLang uses.

use std::io::Write;

use base64_simd::STANDARD;

use super::reply::{Form, LogprobRow, LogprobTable, Logprobs};
use crate::demo::options::Dialect;

/// Writes the JSON of one reply.
#[derive(Debug)]
pub(super) struct JsonWriter<'o> {
    pub(super) out: &'o mut Vec<u8>,
    pub(super) library: JsonLibrary,
}

impl JsonWriter<'_> {
    pub(super) fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(super) fn integer(&mut self, value: usize) {
        write!(self.out, "{value}").expect("a Vec takes all of it");
    }

    pub(super) fn float(&mut self, value: f64) {
        self.library.float(self.out, value);
    }

    pub(super) fn string(&mut self, text: &str) {
        string(self.out, text);
    }

    /// Writes a list. Calls `write` for each item.
    pub(super) fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.raw("[");
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.raw(",");
            }
            write(self, item);
        }
        self.raw("]");
    }

    /// Writes all logprob members, each with a comma after it.
    pub(super) fn logprobs(&mut self, logprobs: &Logprobs<'_>, with_length: bool) {
        let Logprobs { input, output, texts, .. } = logprobs;
        self.raw("\"input_token_logprobs\":");
        self.rows(input.tokens, *texts);
        self.raw(",\"output_token_logprobs\":");
        self.rows(output.tokens, *texts);
        self.raw(",");
        if with_length {
            self.raw("\"output_token_logprobs_length\":");
            self.integer(logprobs.output_length);
            self.raw(",");
        }
        for (name, side) in [("input", input), ("output", output)] {
            let Some(top) = &side.top else { continue };
            match side.form {
                Form::Nested => self.table(name, "top_logprobs", top, *texts),
                Form::Flat => self.flat(name, top),
                Form::FlatBase64 => self.flat_base64(name, top),
            }
        }
        for (name, side) in [("input", input), ("output", output)] {
            if let Some(ids) = &side.ids {
                self.table(name, "token_ids_logprobs", ids, *texts);
            }
        }
    }

    fn rows(&mut self, rows: &[LogprobRow], texts: Option<&[String]>) {
        self.list(rows, |writer, row| {
            writer.raw("[");
            match row.logprob {
                Some(logprob) => writer.float(f64::from(logprob)),
                None => writer.raw("null"),
            }
            writer.raw(",");
            writer.integer(row.id as usize);
            writer.raw(",");
            match texts.and_then(|texts| texts.get(row.id as usize)) {
                Some(text) => writer.string(text),
                None => writer.raw("null"),
            }
            writer.raw("]");
        });
    }

    fn table(&mut self, side: &str, name: &str, table: &LogprobTable<'_>, texts: Option<&[String]>) {
        self.raw(&format!("\"{side}_{name}\":"));
        let nulls = std::iter::repeat_n(None, table.null_prefix);
        let groups = table.rows.chunks_exact(table.width.max(1)).map(Some);
        self.list(nulls.chain(groups), |writer, group| match group {
            Some(rows) => writer.rows(rows, texts),
            None => writer.raw("null"),
        });
        self.raw(",");
    }

    fn flat(&mut self, side: &str, table: &LogprobTable<'_>) {
        self.raw(&format!("\"{side}_top_logprobs_val_flat\":"));
        self.list(values(table), |writer, value| writer.float(f64::from(value)));
        self.raw(&format!(",\"{side}_top_logprobs_idx_flat\":"));
        self.list(table.rows, |writer, row| writer.integer(row.id as usize));
        self.raw(",");
        self.shape(side, table);
    }

    fn flat_base64(&mut self, side: &str, table: &LogprobTable<'_>) {
        let values: Vec<u8> = values(table).flat_map(f32::to_le_bytes).collect();
        let ids: Vec<u8> = table.rows.iter().flat_map(|row| row.id.to_le_bytes()).collect();
        for (name, bytes) in [("val", &values), ("idx", &ids)] {
            self.raw(&format!("\"{side}_top_logprobs_{name}_flat_b64\":\""));
            self.raw(&STANDARD.encode_to_string(bytes));
            self.raw("\",");
        }
        for (name, kind) in [("val", "float32"), ("idx", "int32")] {
            self.raw(&format!("\"{side}_top_logprobs_{name}_flat_b64_dtype\":\"{kind}\","));
        }
        self.shape(side, table);
    }

    fn shape(&mut self, side: &str, table: &LogprobTable<'_>) {
        let (positions, width, nulls) = (table.rows.len() / table.width.max(1), table.width, table.null_prefix);
        self.raw(&format!(
            "\"{side}_top_logprobs_shape\":[{positions},{width}],\"{side}_top_logprobs_null_prefix\":{nulls},"
        ));
    }
}

fn values<'a>(table: &LogprobTable<'a>) -> impl Iterator<Item = f32> + use<'a> {
    table.rows.iter().map(|row| row.logprob.unwrap_or(f32::NAN))
}

/// The JSON libraries that SGLang uses. They encode strings equally and small numbers differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonLibrary {
    /// orjson: `0.00001`, `1e-6`.
    Orjson,
    /// Python's `json`: `1e-05`, `1e-06`.
    Stdlib,
}

impl JsonLibrary {
    /// The library for a reply, or for an event of a stream. SGLang 0.5.6 encodes replies with Python's `json`, and events with orjson.
    pub(super) fn new(dialect: Dialect, event: bool) -> Self {
        match dialect {
            Dialect::Sglang056 if !event => Self::Stdlib,
            _ => Self::Orjson,
        }
    }

    /// Appends the shortest text that parses to `value`; `null` if it is not finite.
    pub(super) fn float(self, out: &mut Vec<u8>, value: f64) {
        if !value.is_finite() {
            return out.extend_from_slice(b"null");
        }
        let mut buffer = zmij::Buffer::new();
        let digits = buffer.format_finite(value);
        match self {
            Self::Orjson => out.extend_from_slice(digits.as_bytes()),
            Self::Stdlib => stdlib(out, value, digits),
        }
    }
}

/// Encodes a float as Python does: with an exponent below 1e-4 (orjson: below 1e-5), which has at least two digits.
fn stdlib(out: &mut Vec<u8>, value: f64, digits: &str) {
    if let Some((mantissa, exponent)) = digits.split_once('e') {
        let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
        let exponent: i32 = exponent.parse().expect("an exponent is an integer");
        let sign = if exponent < 0 { '-' } else { '+' };
        out.extend_from_slice(format!("{mantissa}e{sign}{:02}", exponent.abs()).as_bytes());
    } else if value != 0.0 && value.abs() < 1e-4 {
        let (sign, rest) = if value < 0.0 { ("-", &digits[1..]) } else { ("", digits) };
        let significant = rest.trim_start_matches(['0', '.']);
        let exponent = rest.len() - 1 - significant.len();
        let (first, more) = significant.split_at(1);
        let point = if more.is_empty() { "" } else { "." };
        out.extend_from_slice(format!("{sign}{first}{point}{more}e-{exponent:02}").as_bytes());
    } else {
        out.extend_from_slice(digits.as_bytes());
    }
}

/// Appends a JSON string. Quotes, backslashes and control characters are escaped; other characters are UTF-8.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string is JSON and a Vec takes all of it");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(library: JsonLibrary, value: f64) -> String {
        let mut out = Vec::new();
        library.float(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn floats_have_the_same_text_as_from_orjson() {
        let orjson = [
            (f64::from(-1.848_282_5_f32), "-1.8482824563980103"),
            (f64::from(f32::MIN), "-3.4028234663852886e+38"),
            (-7.271793037944008e-6, "-7.271793037944008e-6"),
            (0.00015820324188098311, "0.00015820324188098311"),
            (1e-5, "0.00001"),
            (1.5e-10, "1.5e-10"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (f64::NAN, "null"),
            (f64::NEG_INFINITY, "null"),
        ];
        for (value, expected) in orjson {
            assert_eq!(encoded(JsonLibrary::Orjson, value), expected);
        }
    }

    #[test]
    fn floats_have_the_same_text_as_from_python() {
        let python = [
            (f64::from(f32::MIN), "-3.4028234663852886e+38"),
            (-7.271793037944008e-6, "-7.271793037944008e-06"),
            (0.00015820324188098311, "0.00015820324188098311"),
            (1e-5, "1e-05"),
            (-1.5e-5, "-1.5e-05"),
            (9.9e-5, "9.9e-05"),
            (1e-6, "1e-06"),
            (1e-4, "0.0001"),
            (1.5e-10, "1.5e-10"),
            (1e-100, "1e-100"),
            (1e16, "1e+16"),
            (0.0, "0.0"),
        ];
        for (value, expected) in python {
            assert_eq!(encoded(JsonLibrary::Stdlib, value), expected);
        }
    }
}
