//! The members that a reply gains, appended last to its `meta_info`.

use crate::entropy::Estimator;
use crate::generation::entropy_request::EntropyRequest;
use crate::generation::measure::STATS;
use crate::generation::reason::Reason;
use crate::generation::sequence::{Content, Sequence};
use crate::json::Edit;
use crate::session::Measured;

/// `entropy_info`: how the numbers were obtained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Info {
    /// Any token has a number.
    pub measured: bool,
    /// Every number is exact.
    pub exact: bool,
    /// Which number is published.
    pub estimator: Estimator,
    /// Of the distribution that the numbers describe, where it is known.
    pub temperature: Option<f64>,
    /// k of the widest row.
    pub width: usize,
    /// The k that was wanted, where a smaller one was asked.
    pub lowered_from: Option<u32>,
    /// Vocabulary size, where it is known.
    pub vocab: Option<u32>,
    /// Mean of the numbers there are, in nats.
    pub mean: Option<f64>,
    /// Why there are no numbers, or no temperature.
    pub reason: Option<Reason>,
}

impl Info {
    fn source(&self) -> &'static str {
        match (self.measured, self.exact) {
            (false, _) => "none",
            (true, true) => "exact",
            (true, false) => "top_k",
        }
    }

    /// What is recorded of it.
    #[must_use]
    pub fn measured(&self) -> Measured {
        Measured {
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
            "{{\"source\":\"{}\",\"estimator\":\"{}\",\"unit\":\"nats\",\"temperature\":{},\"top_k\":{}{lowered},\"vocab_size\":{},\"mean\":{}{reason}}}",
            self.source(),
            self.estimator.name(),
            number(self.temperature),
            count(Some(self.width).filter(|width| self.measured && *width > 0)),
            count(self.vocab.map(|vocab| vocab as usize)),
            number(self.mean),
        )
    }
}

/// Adds the members to an object that holds this much; `info` is given with the one that has a finish reason.
pub fn add(
    sequence: &Sequence,
    content: Content,
    entropy_request: &EntropyRequest,
    info: Option<&Info>,
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

/// Intervals and statistics of all tokens of a sequence, where they were asked for: what its turn keeps of them.
#[must_use]
pub fn details(sequence: &Sequence, entropy_request: &EntropyRequest) -> Vec<(&'static str, String)> {
    let text = |text| String::from_utf8(text).expect("numbers, commas and names are ASCII");
    let members = members(sequence, Content::Full, entropy_request).into_iter();
    members.filter(|_| sequence.tokens > 0).map(|(name, value)| (name, text(value))).collect()
}

/// The members that are added on request.
fn members(sequence: &Sequence, content: Content, entropy_request: &EntropyRequest) -> Vec<(&'static str, Vec<u8>)> {
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
