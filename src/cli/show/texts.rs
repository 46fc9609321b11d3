// SPDX-License-Identifier: Apache-2.0
//! The texts of token ids, decoded by the engine's tokenizer in bounded requests.

use std::collections::HashMap;

use crate::cli::control::ControlClient;
use crate::engine::sglang::tokenize::{DETOKENIZE, detokenize_body, detokenized};

/// The maximum number of lists of ids in a request.
const BATCH: usize = 512;

/// The maximum number of requests that test whether the tokenizer drops leading spaces.
const TESTS: usize = 32;

/// Replaces bytes that are not valid UTF-8.
pub(super) const LOST: char = '\u{fffd}';

/// Decodes ids, until the first failure.
#[derive(Debug)]
pub(super) struct Texts<'a> {
    client: &'a ControlClient,
    problem: Option<String>,
    /// The id that is decoded before others, for tokenizers that drop the leading space of a text.
    anchor: Option<u32>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(client: &'a ControlClient) -> Self {
        Self { client, problem: None, anchor: None }
    }

    /// Why texts are missing.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The text of each of these different ids alone. `path` are the ids in their order.
    pub(super) async fn alone(&mut self, ids: &[u32], path: &[u32]) -> HashMap<u32, String> {
        self.find_anchor(path).await;
        let lists: Vec<Vec<u32>> = ids.iter().map(|id| vec![*id]).collect();
        ids.iter().copied().zip(self.joint(&lists).await).collect()
    }

    /// The texts of neighbouring ids. Fewer than `lists` after a failure.
    pub(super) async fn joint(&mut self, lists: &[Vec<u32>]) -> Vec<String> {
        let mut texts = Vec::new();
        for batch in lists.chunks(BATCH) {
            let anchored = |list: &Vec<u32>| self.anchor.into_iter().chain(list.iter().copied()).collect::<Vec<_>>();
            let mut batch: Vec<Vec<u32>> = batch.iter().map(anchored).collect();
            batch.extend(self.anchor.map(|anchor| vec![anchor]));
            let Some(mut found) = self.decode(&batch).await else { break };
            let before = if self.anchor.is_some() { found.pop().unwrap_or_default() } else { String::new() };
            texts.extend(found.into_iter().map(|text| match text.strip_prefix(&before) {
                Some(rest) => rest.to_owned(),
                None => text,
            }));
        }
        texts
    }

    /// Tests with a few neighbouring ids whether the tokenizer drops the leading space of a text.
    async fn find_anchor(&mut self, path: &[u32]) {
        let Some(&first) = path.first() else { return };
        for few in path.chunks(8).take(TESTS) {
            let joint = [&[first], few].concat();
            let lists: Vec<Vec<u32>> = joint.iter().map(|id| vec![*id]).chain([joint.clone()]).collect();
            let Some(mut texts) = self.decode(&lists).await else { return };
            let joint = texts.pop().unwrap_or_default();
            // tokens that share characters do not show it, nor do texts without a space inside
            if !joint.contains(LOST) && joint.trim().contains(' ') {
                self.anchor = (joint.len() > texts.concat().len()).then_some(first);
                return;
            }
        }
    }

    async fn decode(&mut self, lists: &[Vec<u32>]) -> Option<Vec<String>> {
        if self.problem.is_some() {
            return None;
        }
        let decoded = self.request(lists).await;
        decoded.map_err(|problem| self.problem = Some(problem)).ok()
    }

    async fn request(&self, lists: &[Vec<u32>]) -> Result<Vec<String>, String> {
        let read = async { self.client.body(self.client.post(DETOKENIZE, detokenize_body(lists)).await?).await };
        let bytes = self.client.in_time(read).await?;
        let texts = detokenized(&bytes)?;
        let fits = texts.len() == lists.len();
        fits.then_some(texts).ok_or_else(|| "the reply has another number of texts".to_owned())
    }
}
