// SPDX-License-Identifier: Apache-2.0
//! The scanner of logprob lists, with and without vector instructions.

use tokentap::engine::sglang::scan;
use tokentap::logprobs::Rows;

use super::grammar::shown;

#[path = "../../../src/engine/sglang/scan/tests/oracle.rs"]
mod oracle;

/// Bytes after a list: enough for the vector path to handle the last triple.
const TAIL: &[u8] =
    br#","completion_tokens":1,"cached_tokens":0,"e2e_latency":0.5,"weight_version":"default"},"index":0}    "#;

/// After a bracket, every scanner function accepts the bytes as a list exactly if `serde_json` does, with the same bits. With and without
/// vector instructions the results are equal, including the values read before an error.
pub fn scan(bytes: &[u8]) {
    agree(&[b"[", bytes].concat());
    agree(&[b"[", bytes, TAIL].concat());
}

fn agree(text: &[u8]) {
    // an allocation of exactly this length, so that the sanitizer detects a read after the last byte
    let text = &*Box::<[u8]>::from(text);
    let foreign = oracle::foreign(text);
    let array = oracle::document(text);
    let array = array.as_ref();

    let [rows, portable] = [scan::rows, scan::rows_portable].map(|read| {
        let mut out = Rows::new();
        let end = read(text, 1, &mut out);
        (end, bits(&out))
    });
    assert_eq!(rows, portable, "{}", shown(text));
    same(text, (rows.0.ok(), rows.1), array.and_then(|(array, end)| Some((*end, oracle::rows(array)?))), foreign);

    let [triples, portable] = [scan::triples, scan::triples_portable].map(|read| {
        let (mut logprobs, mut ids) = (Vec::new(), Vec::new());
        let end = read(text, 1, &mut logprobs, &mut ids);
        (end, (oracle::bits(&logprobs), ids))
    });
    assert_eq!(triples, portable, "{}", shown(text));
    let wanted = array.and_then(|(array, end)| Some((*end, oracle::triples(array)?)));
    same(text, (triples.0.ok(), triples.1), wanted, foreign);

    let [ids, portable] = [scan::ids, scan::ids_portable].map(|read| {
        let mut ids = Vec::new();
        (read(text, 1, &mut ids), ids)
    });
    assert_eq!(ids, portable, "{}", shown(text));
    same(text, (ids.0.ok(), ids.1), array.and_then(|(array, end)| Some((*end, oracle::ids(array)?))), false);

    let mut numbers = Vec::new();
    let end = scan::numbers(text, 1, &mut numbers).ok();
    let wanted = array.and_then(|(array, end)| Some((*end, oracle::numbers(array)?)));
    same(text, (end, oracle::bits(&numbers)), wanted, foreign);

    let mut lists = Rows::new();
    let end = scan::lists(text, 1, &mut lists).ok();
    same(text, (end, bits(&lists)), array.and_then(|(array, end)| Some((*end, oracle::lists(array)?))), foreign);

    cuts(text, foreign);
}

/// Cutting the rows leaves the reply that the engine would send for a smaller k.
fn cuts(text: &[u8], foreign: bool) {
    let read = |text: &[u8]| oracle::document(text).and_then(|(array, _)| oracle::rows(&array));
    let wanted = read(text);
    for keep in 0..3 {
        let mut ranges = Vec::new();
        let done = scan::cuts(text, 1, keep, &mut ranges);
        let Some(rows) = wanted.clone() else {
            assert!(done.is_err() || foreign, "{}", shown(text));
            continue;
        };
        let mut left = text.to_vec();
        ranges.into_iter().rev().for_each(|range| drop(left.drain(range)));
        let wanted = rows.into_iter().map(|row| row.into_iter().take(keep).collect()).collect();
        assert_eq!(read(&left), Some(wanted), "{} cut to {keep}", shown(text));
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    text: &[u8],
    got: (Option<usize>, T),
    wanted: Option<(usize, T)>,
    foreign: bool,
) {
    match (got, wanted) {
        ((Some(end), got), Some(wanted)) => assert_eq!((end, got), wanted, "{}", shown(text)),
        ((Some(_), _), None) => assert!(foreign, "accepted, but serde_json rejects {}", shown(text)),
        ((None, _), Some(_)) => panic!("rejected, but serde_json accepts {}", shown(text)),
        ((None, _), None) => {}
    }
}

fn bits(rows: &Rows) -> Vec<Vec<u32>> {
    rows.iter().map(oracle::bits).collect()
}
