// SPDX-License-Identifier: Apache-2.0
//! Incremental detokenization, compared with the decoded text of all tokens.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokentap::tokenizer::{Detokenizer, Tokenizer};

use super::record;

/// The ids of tokens whose bytes are not valid text alone.
fn bytes(tokenizer: &Tokenizer) -> Vec<u32> {
    let fallback = (0x80..=0xff_u8).filter_map(|byte| tokenizer.token_to_id(&format!("<0x{byte:02X}>")));
    let plain = (0..tokenizer.vocab_size()).map(|id| u32::try_from(id).unwrap());
    let torn = plain.filter(|id| tokenizer.bytes(*id).is_some_and(|bytes| std::str::from_utf8(&bytes).is_err()));
    fallback.chain(torn.take(512)).collect()
}

/// Lists of ids of texts, of bytes and of special tokens, some of them empty.
fn pieces(tokenizer: &Tokenizer) -> impl Strategy<Value = Vec<Vec<u32>>> + use<> {
    let size = u32::try_from(tokenizer.vocab_size()).unwrap();
    let torn = bytes(tokenizer);
    let emoji = tokenizer.encode(" é👩\u{200d}👩 하 ﬁ\u{e000}  x").unwrap();
    let id = prop_oneof![
        4 => 0..size + 3,
        3 => 0..300_u32,
        4 => prop::sample::select(torn),
        4 => prop::sample::select(emoji.clone()),
    ];
    let piece = prop_oneof![6 => prop::collection::vec(id, 0..6), 1 => Just(emoji)];
    prop::collection::vec(piece, 0..12)
}

fn check(name: &str, tokenizer: &Tokenizer, cases: u32) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let split = (pieces(tokenizer), any::<bool>());
    let held = runner.run(&split, |(pieces, skip_special)| {
        let whole = tokenizer.decode(&pieces.concat(), skip_special).unwrap();
        let mut text = Detokenizer::new(skip_special);
        let mut put = String::new();
        for piece in &pieces {
            put += &text.push(tokenizer, piece).unwrap();
            prop_assert!(whole.starts_with(&put), "{put:?} is the beginning of {whole:?}");
        }
        put += &text.finish(tokenizer).unwrap();
        prop_assert_eq!(&put, &whole);
        // pushed one token at a time
        let mut text = Detokenizer::new(skip_special);
        let each: String = pieces.concat().iter().map(|id| text.push(tokenizer, &[*id]).unwrap()).collect();
        prop_assert_eq!(each + &text.finish(tokenizer).unwrap(), whole);
        Ok(())
    });
    held.unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Pushes `count` tokens that never complete a character, one by one.
fn torn(tokenizer: &Tokenizer, ids: &[u32], count: usize) -> Duration {
    let mut text = Detokenizer::new(true);
    let began = Instant::now();
    for id in ids.iter().cycle().take(count) {
        text.push(tokenizer, &[*id]).unwrap();
    }
    text.finish(tokenizer).unwrap();
    began.elapsed()
}

/// Checks that ten times as many tokens take about ten times as long, not a hundred. Several attempts allow for a busy machine.
fn costs_grow_with_the_tokens(name: &str, tokenizer: &Tokenizer) {
    let ids = bytes(tokenizer);
    let tries: Vec<_> = (0..5).map(|_| (torn(tokenizer, &ids, 4_000), torn(tokenizer, &ids, 40_000))).collect();
    assert!(tries.iter().any(|(few, many)| *many < 40 * *few), "{name}: for 4,000 and 40,000 tokens {tries:?}");
}

fn demo() -> Tokenizer {
    Tokenizer::from_bytes(&record::read(&record::demo().join("tokenizer.json"))).unwrap()
}

#[test]
fn streamed_text_equals_decoded_text_in_the_demo() {
    check("demo", &demo(), 2000);
}

#[test]
fn detokenizing_invalid_bytes_takes_linear_time() {
    costs_grow_with_the_tokens("demo", &demo());
}

#[test]
#[ignore = "needs what tests/templates/run.sh fetches"]
fn streamed_text_equals_decoded_text_of_models() {
    for name in record::tokenizers() {
        let file = record::fetched().join("tokenizers").join(&name).join("tokenizer.json");
        let tokenizer = Tokenizer::from_bytes(&record::read(&file)).unwrap();
        check(&name, &tokenizer, 300);
        costs_grow_with_the_tokens(&name, &tokenizer);
    }
}
