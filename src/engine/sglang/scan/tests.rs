// SPDX-License-Identifier: Apache-2.0
//! Compares the scanner with `serde_json`, on valid and on malformed lists.

mod oracle;
mod recorded;
mod spelling;

use super::*;
use oracle::{Columns, bits, document};
use proptest::prelude::*;

type RowsFn = fn(&[u8], usize, &mut Rows) -> Result<usize, Malformed>;
type TriplesFn = fn(&[u8], usize, &mut Vec<f32>, &mut Vec<u32>) -> Result<usize, Malformed>;
type IdsFn = fn(&[u8], usize, &mut Vec<u32>) -> Result<usize, Malformed>;
const IDS: [IdsFn; 2] = [ids, ids_portable];
const ROWS: [RowsFn; 2] = [rows, rows_portable];
const TRIPLES: [TriplesFn; 2] = [triples, triples_portable];

/// The bytes after an array in a reply: enough for the vector path to read the array's last triple.
const TAIL: &str =
    r#","completion_tokens":1,"cached_tokens":0,"e2e_latency":0.5,"weight_version":"default"},"index":0}    "#;

fn read_rows(read: RowsFn, bytes: &[u8], at: usize) -> Result<(Vec<Vec<u32>>, usize), Malformed> {
    let mut out = Rows::new();
    let end = read(bytes, at, &mut out)?;
    Ok(((0..out.len()).map(|i| bits(out.row(i))).collect(), end))
}

fn read_triples(read: TriplesFn, bytes: &[u8], at: usize) -> Result<(Columns, usize), Malformed> {
    let (mut logprobs, mut ids) = (vec![], vec![]);
    let end = read(bytes, at, &mut logprobs, &mut ids);
    assert_eq!(logprobs.len(), ids.len(), "the columns are of the same length, whatever the result");
    Ok(((bits(&logprobs), ids), end?))
}

/// Compares every reader with `serde_json` on the array at `bytes[start]`.
fn agree(bytes: &[u8], start: usize) {
    // A separate allocation, so that valgrind detects a read past the last byte.
    let bytes = &*Box::<[u8]>::from(bytes);
    let shown = || String::from_utf8_lossy(&bytes[start..]).into_owned();
    let foreign = oracle::foreign(bytes);
    let array = document(&bytes[start..]);
    let wanted = array.as_ref().and_then(|(array, end)| Some((oracle::rows(array)?, start + end)));
    for read in ROWS {
        match (read_rows(read, bytes, start + 1), &wanted) {
            (Ok(got), Some(wanted)) => assert_eq!(&got, wanted, "{}", shown()),
            (Err(error), None) => assert!(error.at <= bytes.len(), "{error} in {}", shown()),
            (Ok(_), None) => assert!(foreign, "{} is refused by serde_json", shown()),
            (Err(error), Some(_)) => panic!("{error}, but serde_json accepts {}", shown()),
        }
    }
    let wanted = array.as_ref().and_then(|(array, end)| Some((oracle::triples(array)?, start + end)));
    for read in TRIPLES {
        match (read_triples(read, bytes, start + 1), &wanted) {
            (Ok(got), Some(wanted)) => assert_eq!(&got, wanted, "{}", shown()),
            (Err(error), None) => assert!(error.at <= bytes.len(), "{error} in {}", shown()),
            (Ok(_), None) => assert!(foreign, "{} is refused by serde_json", shown()),
            (Err(error), Some(_)) => panic!("{error}, but serde_json accepts {}", shown()),
        }
    }
    let wanted = array.as_ref().and_then(|(array, end)| Some((oracle::ids(array)?, start + end)));
    let [vector, portable] = IDS.map(|read| {
        let mut got = vec![];
        let end = read(bytes, start + 1, &mut got);
        (got, end)
    });
    assert_eq!(vector, portable, "with and without vector instructions: {}", shown());
    assert_eq!(vector.1.ok().map(|end| (vector.0, end)), wanted, "{}", shown());
    if !foreign {
        let wanted = array.as_ref().and_then(|(array, end)| Some((oracle::numbers(array)?, start + end)));
        let mut got = vec![];
        let end = numbers(bytes, start + 1, &mut got);
        assert_eq!(end.ok().map(|end| (bits(&got), end)), wanted, "{}", shown());
        let wanted = array.as_ref().and_then(|(array, end)| Some((oracle::lists(array)?, start + end)));
        let mut got = Rows::new();
        let end = lists(bytes, start + 1, &mut got);
        let rows = (0..got.len()).map(|at| bits(got.row(at))).collect();
        assert_eq!(end.ok().map(|end| (rows, end)), wanted, "{}", shown());
    }
}

/// Calls `agree` on `array` with its end near and far from the end of the buffer.
fn agree_anywhere(array: &str) {
    agree(array.as_bytes(), 0);
    agree(format!("{array}{TAIL}").as_bytes(), 0);
    agree(format!(r#"{{"meta_info":{{"x":{array}{TAIL}"#).as_bytes(), 18);
}

#[test]
fn numbers_in_every_spelling() {
    let accepted = "0 -0 0.0 -0.0 5 -5 12 -12.5 -1.2345678806304932 -0.12345670163631439 -0.00043097484740428627 1e-6 \
        1e-06 -1.5e-10 -1.5E-10 0.00001 -1.1920928244535389e-07 -3.4028234663852886e+38 -3.4028234663852886e38 1e39 \
        -1234.5 -12345.5 -999.99999999999999999 0.00000762939453125 0.0000076293945312499999 1e-46 1e-400 0e999 \
        -0.00000000000000000001 18446744073709551616 123456789012345678901234567890 0.0e-9999999999999999999999 \
        1.00000017881393432617187499 1.000000178813934326171875 1.00000017881393432617187501 null 2.5e+0 0.1e01 \
        1111111111111111111111111111111111111111 -1.1111111111111111111111111111111111111111 -12.345678901234567890123456 \
        -0.0000000000000000000000000000000000000000";
    let refused = "00 01 -01.5 00.5 -00.5 0123.5 . .5 5. -.5 - -- +1 1e 1e+ 1e- 1.e5 1.5.5 -1.2-3 0x10 1_0 nul nulll true \
        \"1\" [1] 1e400 -1e999999999999999999999999 -nan nan inf --1.5 -1.5- 1,5 NaNs -NaN Infinit";
    for number in accepted.split(' ') {
        assert!(document(number.as_bytes()).is_some(), "{number} is JSON");
        agree_anywhere(&format!("[[{number},5,null]]"));
        agree_anywhere(&format!("[[[{number},5,null],[{number},151935,\"x\"]],null]"));
        agree_anywhere(&format!("[{number},null, {number}]"));
        agree_anywhere(&format!("[[{number}, {number},null],{number},[],null]"));
    }
    for number in refused.split(' ') {
        agree_anywhere(&format!("[1,{number}]"));
        agree_anywhere(&format!("[[1,{number}],{number}]"));
        for array in [format!("[[[{number},5,null]]]{TAIL}"), format!("[[{number},5,null]]{TAIL}")] {
            agree(array.as_bytes(), 0);
            assert!(ROWS.iter().all(|read| read_rows(*read, array.as_bytes(), 1).is_err()), "{array}");
            assert!(TRIPLES.iter().all(|read| read_triples(*read, array.as_bytes(), 1).is_err()), "{array}");
        }
    }
}

#[test]
fn nan_and_infinities_of_other_engines_are_accepted() {
    let array = b"[[[NaN,1,null],[Infinity,2,null],[-Infinity, 3, null],[null,4,null]]]";
    let wanted = bits(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    for read in ROWS {
        assert_eq!(read_rows(read, array, 1), Ok((vec![wanted.clone()], array.len())));
    }
    for read in TRIPLES {
        assert_eq!(read_triples(read, array, 2), Ok(((wanted.clone(), vec![1, 2, 3, 4]), array.len() - 1)));
    }
}

#[test]
fn ids_in_every_spelling() {
    let spellings = "0 1 12345678 123456789 4294967295 4294967296 99999999999999999999 00 01 000151935 -1 1.0 1.5 1e3 \
        1e400 -0 - null \"1\" [1] 12a 1.";
    for id in spellings.split(' ') {
        agree_anywhere(&format!("[[-1.25,{id},null],[-1.5,7,null]]"));
        agree_anywhere(&format!("[[[-1.25,{id},null],[-1.5,7,null]]]"));
        agree_anywhere(&format!("[{id},7]"));
    }
}

#[test]
fn texts_in_every_spelling() {
    for text in spelling::TEXTS {
        assert!(document(text.as_bytes()).is_some(), "{text} is JSON");
        agree_anywhere(&format!("[[[-1.25,7,{text}],[-0.5,8,null]],[[-1.25,7,{text}]]]"));
    }
    for text in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#""\x""#, r#""\u12g4""#, "\"\t\"", "\"", "''", "7"]
    {
        agree_anywhere(&format!("[[[-1.25,7,{text}]]]"));
    }
    agree(b"[[[-1.25,7,\"\xff\"]]]", 0);
    agree(b"[[[-1.25,7,\"\xe2\x82\"]]]", 0);
}

#[test]
fn structures_agree_with_serde_json() {
    let shapes = "[] [null] [null,null] [[]] [[],null] [[null]] [,] [,null] [null,] [null,,null] [[,]] [[[]]] [{}] \
        [[[-1.5,7]]] [[[-1.5,7,null,null]]] [[[-1.5,7,null],]] [[[-1.5,7,null]],] [[[-1.5,7,null]] [[[-1.5,7,null]]} \
        [[-1.5,7,null]] [[[-1.5,7,null][-1.5,7,null]]] [[[-1.5,7,null]][[-1.5,7,null]]] [[-1.5,7,null][-1.5,7,null]] \
        [[[-1.5;7,null]]] [1,2,,3] [1,2,] [1";
    for shape in shapes.split(' ') {
        agree_anywhere(shape);
        agree_anywhere(shape.replace('[', " [ ").replace(',', " ,\n").replace(']', "\t] ").trim_start());
    }
}

#[test]
fn any_start_index_is_safe() {
    let array = br#"[[[-1.2345678806304932,12345,null],[-2.5,7,"]]"]],null]"#;
    for at in (0..=array.len() + 2).chain([usize::MAX - 1, usize::MAX]) {
        for read in ROWS {
            let _ = read_rows(read, array, at);
        }
        for read in TRIPLES {
            let _ = read_triples(read, array, at);
        }
        for read in IDS {
            let _ = read(array, at, &mut vec![]);
        }
        let _ = cuts(array, at, 1, &mut vec![]);
    }
}

#[test]
fn cuts_leave_the_first_entries() {
    let cut = |array: &str, keep| {
        let (mut ranges, mut left) = (vec![], array.to_owned());
        cuts(array.as_bytes(), 1, keep, &mut ranges).unwrap();
        ranges.into_iter().rev().for_each(|range| left.replace_range(range, ""));
        left
    };
    let array = r#"[null,[[-1,2,null] , [-2,3,"],["] ],[[-1,2,null]],[]]"#;
    assert_eq!(cut(array, 1), "[null,[[-1,2,null]],[[-1,2,null]],[]]");
    assert_eq!(cut(array, 2), array);
    assert_eq!(cut(array, 0), "[null,[],[],[]]");
    assert_eq!(cuts(b"[[[-1,2,null],[-1,2]]]", 1, 1, &mut vec![]), Err(Malformed { at: 19 }));
}

proptest! {
    #[test]
    fn lists_read_as_serde_json_reads_them(list in spelling::nested()) {
        agree_anywhere(&list.join());
    }

    #[test]
    fn columns_read_as_serde_json_reads_them(list in spelling::flat()) {
        agree_anywhere(&list.join());
    }

    #[test]
    fn token_ids_read_as_serde_json_reads_them(list in prop::collection::vec(any::<u32>(), 0..20)) {
        agree_anywhere(&serde_json::to_string(&list).unwrap());
    }

    #[test]
    fn token_ids_in_usual_formats_read_as_serde_json_reads_them(
        list in spelling::ids(),
        separator in prop::sample::select(vec![",", ", ", ",  ", " , "]),
        mutations in spelling::mutations(),
    ) {
        let list = format!("[{}]", list.join(separator));
        agree_anywhere(&list);
        for tail in ["", TAIL] {
            let mut bytes = format!("{list}{tail}").into_bytes();
            mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
            if bytes.first() == Some(&b'[') {
                agree(&bytes, 0);
            }
        }
    }

    #[test]
    fn token_ids_from_any_start_are_equal_without_vector_instructions(list in spelling::ids(), start in any::<prop::sample::Index>()) {
        let list = format!("[{}]", list.join(", "));
        let at = start.index(list.len());
        let [vector, portable] = IDS.map(|read| {
            let mut got = vec![];
            (read(list.as_bytes(), at, &mut got), got)
        });
        prop_assert_eq!(vector, portable);
    }

    #[test]
    fn mutated_lists_are_read_as_serde_json_reads_them(list in spelling::either(), mutations in spelling::mutations()) {
        for tail in ["", TAIL] {
            let mut bytes = format!("{}{tail}", list.join()).into_bytes();
            mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
            if bytes.first() == Some(&b'[') {
                agree(&bytes, 0);
            }
        }
    }

    #[test]
    fn truncated_list_is_malformed(list in spelling::either(), at in any::<prop::sample::Index>()) {
        let whole = list.join();
        let bytes = Box::<[u8]>::from(&whole.as_bytes()[..1 + at.index(whole.len() - 1)]);
        for read in ROWS {
            prop_assert!(read_rows(read, &bytes, 1).is_err());
        }
        for read in TRIPLES {
            prop_assert!(read_triples(read, &bytes, 1).is_err());
        }
        prop_assert!(cuts(&bytes, 1, 1, &mut vec![]).is_err());
    }

    #[test]
    fn growing_list_can_be_resumed(list in spelling::nested(), grown in any::<prop::sample::Index>()) {
        let part = list.head(grown.index(list.len() + 1));
        let (whole, part) = (list.join() + TAIL, part.join() + TAIL);
        for read in ROWS {
            let (mut resumed, mut at_once) = (Rows::new(), Rows::new());
            let end = read(part.as_bytes(), 1, &mut resumed).unwrap();
            // An empty list resumes after its `[`, others at the former `]`, where a comma is now.
            let at = if resumed.is_empty() { 1 } else { end - 1 };
            prop_assert_eq!(read(whole.as_bytes(), at, &mut resumed), read(whole.as_bytes(), 1, &mut at_once));
            prop_assert_eq!(resumed.len(), at_once.len());
            for i in 0..resumed.len() {
                prop_assert_eq!(bits(resumed.row(i)), bits(at_once.row(i)));
            }
        }
    }

    #[test]
    fn cuts_leave_the_reply_to_a_smaller_k(list in spelling::nested(), keep in 1usize..4) {
        let whole = list.join();
        let (mut ranges, mut left) = (vec![], whole.clone());
        prop_assert_eq!(cuts(whole.as_bytes(), 1, keep, &mut ranges), Ok(whole.len()));
        ranges.into_iter().rev().for_each(|range| left.replace_range(range, ""));
        let (mut wanted, _) = document(whole.as_bytes()).unwrap();
        for row in wanted.as_array_mut().unwrap() {
            if let Some(row) = row.as_array_mut() {
                row.truncate(keep);
            }
        }
        prop_assert_eq!(document(left.as_bytes()), Some((wanted, left.len())));
    }
}
