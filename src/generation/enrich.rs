// SPDX-License-Identifier: Apache-2.0
//! The members that are appended to the `meta_info` of a reply.

use std::io::Write;

use crate::engine::plan::EntropyRequest;
use crate::engine::reason::Reason;
use crate::entropy::Estimator;
use crate::generation::entropy_lists::{ListContent, STATS};
use crate::generation::sequence::Sequence;
use crate::json::Edit;
use crate::session::EntropyMethod;

/// `entropy_info`: how the numbers were obtained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EntropyInfo {
    /// Any token has an entropy.
    pub measured: bool,
    /// Every entropy is exact.
    pub exact: bool,
    /// The estimator of the published entropies.
    pub estimator: Estimator,
    /// The temperature of the distribution that the entropies describe, if known.
    pub temperature: Option<f64>,
    /// k of the widest row.
    pub width: usize,
    /// The desired k, if a smaller one was requested.
    pub lowered_from: Option<u32>,
    /// Vocabulary size, if known.
    pub vocab: Option<u32>,
    /// Mean of the measured entropies, in nats.
    pub mean: Option<f64>,
    /// Why entropies or the temperature are missing.
    pub reason: Option<Reason>,
}

impl EntropyInfo {
    fn source(&self) -> &'static str {
        match (self.measured, self.exact) {
            (false, _) => "none",
            (true, true) => "exact",
            (true, false) => "top_k",
        }
    }

    /// The part that is recorded with the turn.
    #[must_use]
    pub(crate) fn measured(&self) -> EntropyMethod {
        EntropyMethod {
            source: self.source().into(),
            estimator: self.estimator.name().into(),
            temperature: self.temperature,
            // the rows of exact entropies were read for other numbers
            top_k: self.top_k().filter(|_| !self.exact).and_then(|k| u32::try_from(k).ok()),
            reason: self.reason.map(|reason| reason.name().into()),
        }
    }

    /// k of the widest row, if there are entropies and rows.
    fn top_k(&self) -> Option<usize> {
        Some(self.width).filter(|width| self.measured && *width > 0)
    }

    /// Writes the object.
    fn write(&self, out: &mut Vec<u8>) {
        text(out, &["{\"source\":\"", self.source(), "\",\"estimator\":\"", self.estimator.name()]);
        text(out, &["\",\"unit\":\"nats\",\"temperature\":"]);
        float(out, self.temperature);
        text(out, &[",\"top_k\":"]);
        integer(out, self.top_k());
        if let Some(k) = self.lowered_from {
            text(out, &[",\"top_k_lowered_from\":"]);
            integer(out, Some(k));
        }
        text(out, &[",\"vocab_size\":"]);
        integer(out, self.vocab);
        text(out, &[",\"mean\":"]);
        float(out, self.mean);
        if let Some(reason) = self.reason {
            text(out, &[",\"reason\":\"", reason.name(), "\""]);
        }
        out.push(b'}');
    }
}

fn text(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

/// Writes an integer, or null.
fn integer(out: &mut Vec<u8>, value: Option<impl itoa::Integer>) {
    match value {
        Some(value) => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

/// Writes a float as `Display` does, without an exponent and without a decimal point after a whole number; null if it is not finite.
fn float(out: &mut Vec<u8>, value: Option<f64>) {
    let Some(value) = value.filter(|value| value.is_finite()) else { return out.extend_from_slice(b"null") };
    let mut buffer = zmij::Buffer::new();
    let text = buffer.format_finite(value);
    if text.contains('e') {
        write!(out, "{value}").expect("writing to memory never fails");
    } else {
        out.extend_from_slice(text.strip_suffix(".0").unwrap_or(text).as_bytes());
    }
}

/// The expected length of `entropy_info` in bytes.
const INFO_LENGTH: usize = 192;

/// Adds the members to an object whose lists hold `content`. `info` is `Some` for the object with the finish reason.
pub(crate) fn add(
    sequence: &Sequence,
    content: ListContent,
    entropy_request: &EntropyRequest,
    info: Option<&EntropyInfo>,
    edit: &mut Edit<'_>,
) {
    let list = sequence.lists.entropy.text(content);
    // with room for the next member
    edit.append_with("output_token_entropy", list.len() + 2 + INFO_LENGTH + 16, |out| bracketed(list, out));
    if let Some(info) = info {
        edit.append_with("entropy_info", INFO_LENGTH, |out| info.write(out));
    }
    for (name, text) in members(sequence, content, entropy_request) {
        edit.append(name, &text);
    }
}

/// The requested intervals and statistics of all tokens of a sequence, to be recorded with its turn.
#[must_use]
pub(crate) fn details(sequence: &Sequence, entropy_request: &EntropyRequest) -> Vec<(&'static str, String)> {
    let text = |text| String::from_utf8(text).expect("numbers, commas and names are ASCII");
    let members = members(sequence, ListContent::Full, entropy_request).into_iter();
    members.filter(|_| sequence.tokens > 0).map(|(name, value)| (name, text(value))).collect()
}

/// The members that are added on request.
fn members(
    sequence: &Sequence,
    content: ListContent,
    entropy_request: &EntropyRequest,
) -> Vec<(&'static str, Vec<u8>)> {
    let lists = &sequence.lists;
    let mut members = Vec::new();
    if entropy_request.bounds {
        for (name, list) in ["output_token_entropy_lower", "output_token_entropy_upper"].into_iter().zip(&lists.bounds)
        {
            let mut text = Vec::with_capacity(list.text(content).len() + 2);
            bracketed(list.text(content), &mut text);
            members.push((name, text));
        }
    }
    if entropy_request.stats {
        let mut stats = vec![b'{'];
        for (at, (name, list)) in STATS.iter().zip(&lists.stats).enumerate() {
            stats.extend_from_slice(if at == 0 { b"\"" } else { b",\"" });
            stats.extend_from_slice(name.as_bytes());
            stats.extend_from_slice(b"\":[");
            stats.extend_from_slice(list.text(content));
            stats.push(b']');
        }
        stats.push(b'}');
        members.push(("output_token_stats", stats));
    }
    members
}

/// Writes a list whose text has no brackets.
fn bracketed(list: &[u8], out: &mut Vec<u8>) {
    out.push(b'[');
    out.extend_from_slice(list);
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn float_is_written_as_display_does(value in prop_oneof![any::<f64>(), -2_f64..20.0, Just(1.0), Just(0.0), Just(-0.0), Just(1e21)]) {
            let mut out = Vec::new();
            float(&mut out, Some(value));
            let expected = if value.is_finite() { value.to_string() } else { "null".to_owned() };
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
