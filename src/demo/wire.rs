// SPDX-License-Identifier: Apache-2.0
//! Encodes replies of `/generate` with the same bytes as SGLang.
//!
//! The encoder does not depend on the model, so benchmarks can encode replies of any size from any numbers.

mod json;
mod reply;

pub use reply::{Finish, Form, LogprobRow, LogprobTable, Logprobs, Mask, Meta, Reply, SideLogprobs, Span, Timing};

use super::options::Dialect;
use json::{JsonLibrary, JsonWriter};

/// The last event of every stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// The encoder of replies.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wire {
    /// The wire format.
    pub dialect: Dialect,
    /// Encode timings, as a server with `--enable-metrics` does (0.5.23 only).
    pub metrics: bool,
}

impl Wire {
    /// Appends the body of a reply to a single prompt.
    pub fn object(&self, out: &mut Vec<u8>, reply: &Reply<'_>) {
        self.write(out, reply, false);
    }

    /// Appends the body of a reply to a batch.
    pub fn batch<'a>(&self, out: &mut Vec<u8>, replies: impl IntoIterator<Item = Reply<'a>>) {
        out.push(b'[');
        for (at, reply) in replies.into_iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            self.write(out, &reply, false);
        }
        out.push(b']');
    }

    /// Appends one event of a stream.
    pub fn event(&self, out: &mut Vec<u8>, reply: &Reply<'_>) {
        out.extend_from_slice(b"data: ");
        self.write(out, reply, true);
        out.extend_from_slice(b"\n\n");
    }

    fn write(&self, out: &mut Vec<u8>, reply: &Reply<'_>, event: bool) {
        let mut writer = JsonWriter { out, library: JsonLibrary::new(self.dialect, event) };
        writer.raw("{\"text\":");
        writer.string(reply.text);
        writer.raw(",\"output_ids\":");
        writer.list(reply.output_ids, |writer, id| writer.integer(*id as usize));
        writer.raw(",\"meta_info\":{");
        match self.dialect {
            Dialect::Sglang0523 => self.meta(&mut writer, &reply.meta),
            Dialect::Sglang056 => meta_056(&mut writer, &reply.meta),
        }
        writer.raw("}");
        if let Some(ids) = reply.prompt_token_ids {
            writer.raw(",\"prompt_token_ids\":");
            writer.list(ids, |writer, id| writer.integer(*id as usize));
        }
        if let Some(index) = reply.index {
            writer.raw(",\"index\":");
            writer.integer(index);
        }
        writer.raw("}");
    }

    fn meta(&self, writer: &mut JsonWriter<'_>, meta: &Meta<'_>) {
        head(writer, meta, "num_retractions");
        if self.metrics {
            writer.raw("\"storage_prefetch_wait\":0.0,\"storage_staging_wait\":0.0,");
            seconds(writer, "forward_entry_time", meta.timing.forward_entry_time);
            seconds(writer, "prefill_finished_time", meta.timing.prefill_finished_time);
            seconds(writer, "queue_time", meta.timing.queue_time);
        }
        if let Some(logprobs) = &meta.logprobs {
            writer.logprobs(logprobs, true);
        }
        if let Some(masks) = meta.masks {
            sampling_masks(writer, masks, meta.masks_length);
        }
        writer.raw("\"reasoning_tokens\":0,");
        counts(writer, meta);
        if meta.finish.is_some() {
            writer.raw("\"weight_versions\":");
            writer.list(meta.weight_versions, |writer, span| {
                writer.raw("{\"version\":");
                writer.string(&span.version);
                writer.raw(&format!(",\"start\":{},\"end\":{}}}", span.start, span.end));
            });
            writer.raw(",");
        }
        match meta.cached_tokens {
            0 => writer.raw("\"cached_tokens_details\":null,"),
            cached => writer.raw(&format!("\"cached_tokens_details\":{{\"device\":{cached},\"host\":0}},")),
        }
        if let Some(experts) = meta.experts {
            writer.raw("\"routed_experts\":");
            writer.string(experts);
            writer.raw(",");
        }
        if let Some(exact) = meta.exact {
            writer.raw("\"output_token_entropy\":");
            writer.list(exact, |writer, value| match value {
                Some(value) => writer.float(f64::from(*value)),
                None => writer.raw("null"),
            });
            writer.raw(",");
        }
        writer.raw("\"dp_rank\":null");
        self.times(writer, meta);
    }

    /// Writes the members after `dp_rank`, each with a comma before it. `response_sent_to_client_ts` is the last member of the first event.
    /// With metrics the last event repeats it among the other times.
    fn times(&self, writer: &mut JsonWriter<'_>, meta: &Meta<'_>) {
        let timing = &meta.timing;
        let sent = ("response_sent_to_client_ts", timing.response_sent_to_client_ts);
        if meta.finish.is_some() {
            member(writer, "e2e_latency", timing.request_finished_ts - timing.request_received_ts);
        }
        if meta.finish.is_some() && self.metrics {
            member(writer, "request_received_ts", timing.request_received_ts);
            member(writer, "first_token_latency", timing.prefill_finished_time - timing.request_received_ts);
            member(writer, "api_server_dispatch_finish_ts", timing.api_server_dispatch_finish_ts);
            if !meta.first {
                member(writer, sent.0, sent.1);
            }
            member(writer, "request_finished_ts", timing.request_finished_ts);
            // the throughput is measured between tokens, so it needs at least two
            if meta.completion_tokens > 1 {
                let spent = (timing.request_finished_ts - timing.prefill_finished_time).max(1e-9);
                member(writer, "decode_throughput", (meta.completion_tokens - 1) as f64 / spent);
            }
        }
        if meta.first {
            member(writer, sent.0, sent.1);
        }
    }
}

fn meta_056(writer: &mut JsonWriter<'_>, meta: &Meta<'_>) {
    head(writer, meta, "total_retractions");
    if let Some(logprobs) = &meta.logprobs {
        writer.logprobs(logprobs, false);
    }
    counts(writer, meta);
    writer.out.pop();
    if meta.finish.is_some() {
        member(writer, "e2e_latency", meta.timing.request_finished_ts - meta.timing.request_received_ts);
    }
    if meta.first {
        member(writer, "response_sent_to_client_ts", meta.timing.response_sent_to_client_ts);
    }
}

fn head(writer: &mut JsonWriter<'_>, meta: &Meta<'_>, retractions: &str) {
    writer.raw("\"id\":");
    writer.string(meta.id);
    writer.raw(",\"finish_reason\":");
    match meta.finish {
        None => writer.raw("null"),
        Some(Finish::StopToken(id)) => writer.raw(&format!("{{\"type\":\"stop\",\"matched\":{id}}}")),
        Some(Finish::StopString(text)) => {
            writer.raw("{\"type\":\"stop\",\"matched\":");
            writer.string(text);
            writer.raw("}");
        }
        Some(Finish::Length(length)) => writer.raw(&format!("{{\"type\":\"length\",\"length\":{length}}}")),
        Some(Finish::Abort) => {
            writer.raw("{\"type\":\"abort\",\"message\":\"Aborted\",\"status_code\":null,\"err_type\":null}");
        }
    }
    writer.raw(&format!(",\"prompt_tokens\":{},\"weight_version\":", meta.prompt_tokens));
    writer.string(meta.weight_version);
    writer.raw(&format!(",\"{retractions}\":{},", meta.retractions));
}

fn counts(writer: &mut JsonWriter<'_>, meta: &Meta<'_>) {
    let Meta { completion_tokens, cached_tokens, .. } = meta;
    writer.raw(&format!("\"completion_tokens\":{completion_tokens},\"cached_tokens\":{cached_tokens},"));
}

/// Writes the three members of sampling masks. `length` is the number of all tokens so far.
fn sampling_masks(writer: &mut JsonWriter<'_>, masks: &[Mask], length: usize) {
    writer.raw("\"output_token_sampling_mask\":");
    writer.list(masks, |writer, mask| writer.list(&mask.ids, |writer, id| writer.integer(*id as usize)));
    writer.raw(",\"output_token_sampling_logprobs\":");
    writer.list(masks, |writer, mask| match mask.whole {
        true => writer.list(&mask.logprobs, |writer, logprob| writer.float(f64::from(*logprob))),
        false => writer.float(f64::from(mask.logprobs[0])),
    });
    writer.raw(&format!(",\"output_token_sampling_mask_length\":{length},"));
}

fn seconds(writer: &mut JsonWriter<'_>, name: &str, value: f64) {
    writer.raw(&format!("\"{name}\":"));
    writer.float(value);
    writer.raw(",");
}

fn member(writer: &mut JsonWriter<'_>, name: &str, value: f64) {
    writer.raw(&format!(",\"{name}\":"));
    writer.float(value);
}

/// Encodes `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    json::string(&mut out, text);
    String::from_utf8(out).expect("JSON is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(logprob: f32, id: u32) -> LogprobRow {
        LogprobRow { logprob: Some(logprob), id }
    }

    /// The rows of a recorded reply, which ends with a stop string after two greedy tokens.
    fn recorded() -> ([LogprobRow; 2], [LogprobRow; 4]) {
        let tokens = [row(-1.701_862_9, 134_794), row(-0.214_208_54, 11_498)];
        let top = [tokens[0], row(-1.723_612_4, 144_304), tokens[1], row(-2.476_297_4, 142_166)];
        (tokens, top)
    }

    fn reply<'a>(side: SideLogprobs<'a>, input: SideLogprobs<'a>, finish: &'a Finish, spans: &'a [Span]) -> Reply<'a> {
        let logprobs = Logprobs { input, output: side, output_length: 2, texts: None };
        let meta = Meta {
            id: "8a9f",
            finish: Some(finish),
            prompt_tokens: 5,
            completion_tokens: 2,
            cached_tokens: 4,
            weight_version: "default",
            weight_versions: spans,
            retractions: 0,
            logprobs: Some(logprobs),
            masks: None,
            masks_length: 0,
            experts: None,
            exact: None,
            timing: Timing::default(),
            first: true,
        };
        Reply { text: "주는_", output_ids: &[134_794, 11_498], meta, prompt_token_ids: None, index: None }
    }

    #[test]
    fn reply_has_the_same_bytes_as_the_recording() {
        let (tokens, top) = recorded();
        let table = |null_prefix, rows| Some(LogprobTable { null_prefix, width: 2, rows });
        let output = SideLogprobs { tokens: &tokens, top: table(0, &top), ..SideLogprobs::default() };
        let finish = Finish::StopString("work".into());
        let spans = [Span { version: "default".into(), start: 0, end: 2 }];
        let newer = r#"{"text":"주는_","output_ids":[134794,11498],"meta_info":{"id":"8a9f","finish_reason":{"type":"stop","matched":"work"},"prompt_tokens":5,"weight_version":"default","num_retractions":0,"input_token_logprobs":[],"output_token_logprobs":[[-1.7018629312515259,134794,null],[-0.21420854330062866,11498,null]],"output_token_logprobs_length":2,"input_top_logprobs":[],"output_top_logprobs":[[[-1.7018629312515259,134794,null],[-1.7236124277114868,144304,null]],[[-0.21420854330062866,11498,null],[-2.476297378540039,142166,null]]],"reasoning_tokens":0,"completion_tokens":2,"cached_tokens":4,"weight_versions":[{"version":"default","start":0,"end":2}],"cached_tokens_details":{"device":4,"host":0},"dp_rank":null,"e2e_latency":0.0,"response_sent_to_client_ts":0.0}}"#;
        let empty = SideLogprobs { top: table(0, &[]), ..SideLogprobs::default() };
        let mut out = Vec::new();
        Wire::default().object(&mut out, &reply(output, empty, &finish, &spans));
        assert_eq!(String::from_utf8(out).unwrap(), newer);

        let older = r#"{"text":"주는_","output_ids":[134794,11498],"meta_info":{"id":"8a9f","finish_reason":{"type":"stop","matched":"work"},"prompt_tokens":5,"weight_version":"default","total_retractions":0,"input_token_logprobs":[[null,374,null]],"output_token_logprobs":[[-1.7018629312515259,134794,null],[-0.21420854330062866,11498,null]],"input_top_logprobs":[null],"output_top_logprobs":[[[-1.7018629312515259,134794,null],[-1.7236124277114868,144304,null]],[[-0.21420854330062866,11498,null],[-2.476297378540039,142166,null]]],"completion_tokens":2,"cached_tokens":4,"e2e_latency":0.0,"response_sent_to_client_ts":0.0}}"#;
        let last = [LogprobRow { logprob: None, id: 374 }];
        let input = SideLogprobs { tokens: &last, top: table(1, &[]), ..SideLogprobs::default() };
        let wire = Wire { dialect: Dialect::Sglang056, metrics: false };
        let mut out = Vec::new();
        wire.object(&mut out, &reply(output, input, &finish, &spans));
        assert_eq!(String::from_utf8(out).unwrap(), older);
    }

    #[test]
    fn batch_is_an_array_and_event_is_an_sse_data_line() {
        let finish = Finish::Length(2);
        let one = Reply {
            index: Some(3),
            prompt_token_ids: Some(&[1, 2]),
            ..reply(SideLogprobs::default(), SideLogprobs::default(), &finish, &[])
        };
        let mut batch = Vec::new();
        Wire::default().batch(&mut batch, [one, one]);
        let batch: serde_json::Value = serde_json::from_slice(&batch).unwrap();
        assert_eq!(batch.as_array().map(Vec::len), Some(2));
        let mut event = Vec::new();
        Wire::default().event(&mut event, &one);
        let event = String::from_utf8(event).unwrap();
        assert!(event.starts_with("data: {\"text\":"), "{event}");
        assert!(event.ends_with("},\"prompt_token_ids\":[1,2],\"index\":3}\n\n"), "{event}");
    }

    #[test]
    fn large_reply_is_valid_json_in_each_form() {
        let tokens: Vec<LogprobRow> = (0..4096).map(|i| row(-(i as f32) / 777.7, i % 151_936)).collect();
        let rows: Vec<LogprobRow> = (0..4096 * 20).map(|i| row(-(i as f32) / 7777.7, i % 151_936)).collect();
        let top = Some(LogprobTable { null_prefix: 0, width: 20, rows: &rows });
        let finish = Finish::Length(4096);
        for form in [Form::Nested, Form::Flat, Form::FlatBase64] {
            let side = SideLogprobs { tokens: &tokens, top, form, ids: None };
            let started = std::time::Instant::now();
            let mut out = Vec::new();
            Wire::default().object(&mut out, &reply(side, SideLogprobs::default(), &finish, &[]));
            eprintln!("{form:?}: {} bytes in {:?}", out.len(), started.elapsed());
            assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&out).is_ok());
        }
    }
}
