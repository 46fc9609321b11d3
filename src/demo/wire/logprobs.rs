//! The logprob members of `meta_info`.

use std::io::Write;

use base64_simd::STANDARD;

use super::number::{JsonLibrary, string};

/// A token and its logprob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogprobRow {
    /// The logprob, natural logarithm. `None` for a token without one, such as the first token of a prompt; encoded as `null`.
    pub logprob: Option<f32>,
    /// The token id.
    pub id: u32,
}

/// Groups of rows, one group of equal size for each position. The first positions may have no group.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogprobTable<'a> {
    /// The number of positions at the start without a group; encoded as `null`.
    pub null_prefix: usize,
    /// The number of rows in a group.
    pub width: usize,
    /// The groups of the positions after the prefix, `width` rows each.
    pub rows: &'a [LogprobRow],
}

/// The encoding of top logprobs. Only SGLang 0.5.23 has the flat forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// A list of rows for each position.
    #[default]
    Nested,
    /// One list of values and one of ids.
    Flat,
    /// The same lists as little-endian float32 and int32 in base64.
    FlatBase64,
}

/// Logprobs of the prompt or of the output.
#[derive(Debug, Clone, Copy, Default)]
pub struct SideLogprobs<'a> {
    /// One row for each token.
    pub tokens: &'a [LogprobRow],
    /// The most probable tokens, if requested.
    pub top: Option<LogprobTable<'a>>,
    /// The encoding of `top`.
    pub form: Form,
    /// The logprobs of the ids in `token_ids_logprob`, if requested.
    pub ids: Option<LogprobTable<'a>>,
}

/// The logprobs of the prompt and the output, for a request with `return_logprob`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Logprobs<'a> {
    /// The prompt.
    pub input: SideLogprobs<'a>,
    /// The output, or its new part in an incremental stream.
    pub output: SideLogprobs<'a>,
    /// The number of all output tokens so far, also in incremental streams.
    pub output_length: usize,
    /// The text of every id, for `return_text_in_logprobs`.
    pub texts: Option<&'a [String]>,
}

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
