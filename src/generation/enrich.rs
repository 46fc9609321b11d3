//! The members that are appended to the `meta_info` of a reply.

use crate::entropy::Estimator;
use crate::generation::entropy_request::EntropyRequest;
use crate::generation::measure::{ListContent, STATS};
use crate::generation::reason::Reason;
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
            reason: self.reason.map(|reason| reason.name().into()),
        }
    }

    fn json(&self) -> String {
        let number = |value: Option<f64>| {
            value.filter(|value| value.is_finite()).map_or("null".to_owned(), |value| value.to_string())
        };
        let count = |value: Option<usize>| value.map_or("null".to_owned(), |value| value.to_string());
        let reason = self.reason.map(|reason| format!(",\"reason\":\"{}\"", reason.name())).unwrap_or_default();
        let lowered = self.lowered_from.map(|k| format!(",\"top_k_lowered_from\":{k}")).unwrap_or_default();
        format!(
            "{{\"source\":\"{}\",\"estimator\":\"{}\",\"unit\":\"nats\",\"temperature\":{},\"top_k\":{}{lowered},\
             \"vocab_size\":{},\"mean\":{}{reason}}}",
            self.source(),
            self.estimator.name(),
            number(self.temperature),
            count(Some(self.width).filter(|width| self.measured && *width > 0)),
            count(self.vocab.map(|vocab| vocab as usize)),
            number(self.mean),
        )
    }
}

/// Adds the members to an object whose lists hold `content`. `info` is `Some` for the object with the finish reason.
pub(crate) fn add(
    sequence: &Sequence,
    content: ListContent,
    entropy_request: &EntropyRequest,
    info: Option<&EntropyInfo>,
    edit: &mut Edit<'_>,
) {
    edit.append("output_token_entropy", &bracketed(sequence.lists.entropy.text(content)));
    if let Some(info) = info {
        edit.append("entropy_info", info.json().as_bytes());
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
        members.push(("output_token_entropy_lower", bracketed(lists.bounds[0].text(content))));
        members.push(("output_token_entropy_upper", bracketed(lists.bounds[1].text(content))));
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

fn bracketed(list: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(list.len() + 2);
    text.push(b'[');
    text.extend_from_slice(list);
    text.push(b']');
    text
}
