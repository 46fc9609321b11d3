// SPDX-License-Identifier: Apache-2.0
//! Generates logprob lists in all formats that a server may print, and mutations of them.

use proptest::prelude::*;

/// Texts that look like the surrounding syntax, or have escapes.
pub(super) const TEXTS: [&str; 14] = [
    "null",
    r#""""#,
    r#""]]""#,
    r#""\\""#,
    r#""\"""#,
    r#""\\\"]""#,
    r#"",null],[""#,
    r#""[[-1.5,7,null]]""#,
    r#""'\\,""#,
    r#"" \n\t\r\b\f\/""#,
    r#""\u00e9\uD83D\uDE80\u0000""#,
    "\"주는 🚀 \u{7f}\u{ffff}\"",
    r#""\\u12""#,
    r#""                                                                        ""#,
];

/// An array: the text of its elements, and the white space around them.
#[derive(Debug, Clone)]
pub(super) struct List {
    elements: Vec<String>,
    blank: &'static str,
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.elements.len()
    }

    /// The list of the first `count` elements.
    pub(super) fn head(&self, count: usize) -> Self {
        Self { elements: self.elements[..count].to_vec(), blank: self.blank }
    }

    pub(super) fn join(&self) -> String {
        // No white space after the first bracket and before the last, so that a shorter list is a prefix of a longer one.
        format!("[{}]", self.elements.join(&format!("{0},{0}", self.blank)))
    }
}

/// Like `output_top_logprobs`.
pub(super) fn nested() -> impl Strategy<Value = List> {
    list(
        |blank| prop_oneof![1 => Just("null".to_owned()), 9 => elements(blank, 6).prop_map(move |row| array(&row, blank))],
    )
}

/// Like `output_token_logprobs`.
pub(super) fn flat() -> impl Strategy<Value = List> {
    list(triple)
}

pub(super) fn either() -> impl Strategy<Value = List> {
    prop_oneof![nested(), flat()]
}

fn list<S: Strategy<Value = String> + 'static>(element: fn(&'static str) -> S) -> impl Strategy<Value = List> {
    prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t ")].prop_flat_map(move |blank| {
        prop::collection::vec(element(blank), 0..8).prop_map(move |elements| List { elements, blank })
    })
}

fn elements(blank: &'static str, most: usize) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(triple(blank), 0..most)
}

fn array(elements: &[String], blank: &str) -> String {
    format!("[{blank}{}{blank}]", elements.join(&format!("{blank},{blank}")))
}

fn triple(blank: &'static str) -> impl Strategy<Value = String> {
    (logprob(), id(), text()).prop_map(move |(logprob, id, text)| array(&[logprob, id, text], blank))
}

/// Ids of all lengths up to nine digits.
pub(super) fn ids() -> impl Strategy<Value = Vec<String>> {
    let id = (1..10_u32).prop_flat_map(|digits| 0..10_u32.pow(digits)).prop_map(|id| id.to_string());
    let usual = (0..200_000_u32).prop_map(|id| id.to_string());
    prop::collection::vec(prop_oneof![6 => usual, 1 => id], 0..100)
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![8 => 0..200_000u32, 1 => any::<u32>()].prop_map(|id| id.to_string())
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just("null".to_owned()),
        1 => prop::sample::select(TEXTS.as_slice()).prop_map(str::to_owned),
        1 => any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        1 => any::<String>().prop_map(|text| escaped(&text)),
    ]
}

/// `text` as Python's `json` prints it by default: ASCII only.
fn escaped(text: &str) -> String {
    let units: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    format!("\"{units}\"")
}

fn logprob() -> impl Strategy<Value = String> {
    prop_oneof![
        1 => Just("null".to_owned()),
        1 => Just("-3.4028234663852886e+38".to_owned()),
        6 => (-20f32..0.0).prop_map(|value| format!("{:?}", f64::from(value))),
        1 => (-0.001f32..0.0).prop_map(|value| format!("{:?}", f64::from(value))),
        1 => (-3000f32..0.0).prop_map(|value| format!("{value:?}")),
        2 => any_f32().prop_map(|value| python(f64::from(value))),
        1 => any::<f64>().prop_filter("JSON has no infinity", |value| value.is_finite()).prop_map(|value| format!("{value:?}")),
        2 => "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?",
        2 => "-?[0-9]\\.[0-9]{1,22}",
        4 => (any_f32(), -20f32..0.0, any::<bool>(), -3i64..=3, 0..40usize).prop_map(|(any, usual, pick, ulps, digits)| {
            tie(if pick { any } else { usual }, ulps, digits)
        }),
    ]
}

fn any_f32() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("JSON has no infinity", |value| value.is_finite())
}

/// Python's format: the exponent has a sign and two digits.
fn python(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let power: i32 = power.parse().unwrap();
            let sign = if power < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", power.abs())
        }
        None => text,
    }
}

/// A decimal near the middle between an f32 and the next: `ulps` f64 steps from the middle, with this many digits.
fn tie(value: f32, ulps: i64, digits: usize) -> String {
    let middle = (f64::from(value) + f64::from(f32::from_bits(value.to_bits() ^ 1))) / 2.0;
    let near = f64::from_bits(middle.to_bits().saturating_add_signed(ulps));
    if near.abs() < 1e15 { format!("{near:.digits$}") } else { format!("{near:.digits$e}") }
}

/// A change to the bytes of a list.
#[derive(Debug, Clone)]
pub(super) enum Mutation {
    Replace(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    CutOff(prop::sample::Index),
}

impl Mutation {
    pub(super) fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Replace(at, byte) => *at.get_mut(bytes) = *byte,
            Self::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Self::Remove(at) => drop(bytes.remove(at.index(bytes.len()))),
            Self::CutOff(at) => bytes.truncate(at.index(bytes.len())),
        }
    }
}

pub(super) fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let byte =
        || prop_oneof![3 => prop::sample::select(b"[],-+.0159eEnul\"\\ \n\t/:{}NI".as_slice()), 1 => any::<u8>()];
    let one = prop_oneof![
        4 => (any::<prop::sample::Index>(), byte()).prop_map(|(at, byte)| Mutation::Replace(at, byte)),
        2 => (any::<prop::sample::Index>(), byte()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        2 => any::<prop::sample::Index>().prop_map(Mutation::Remove),
        1 => any::<prop::sample::Index>().prop_map(Mutation::CutOff),
    ];
    prop::collection::vec(one, 1..4)
}
