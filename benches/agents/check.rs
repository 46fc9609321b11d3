// SPDX-License-Identifier: Apache-2.0
//! Checks what tokentap recorded: all turns of a session are on one path, with the sampled tokens.

use serde_json::Value;

use crate::Extent;
use crate::script::{self, Script};
use crate::tap::{Tap, ask, get};

/// The prompts of a session, of which each continues the one before.
pub struct Prompts {
    ids: Vec<u64>,
    /// Where each prompt ends.
    ends: Vec<usize>,
}

impl Prompts {
    pub fn last(&self) -> usize {
        *self.ends.last().unwrap()
    }

    pub fn mean(&self) -> usize {
        self.ends.iter().sum::<usize>() / self.ends.len()
    }

    /// The JSON text of the ids that each prompt adds.
    pub fn texts(&self) -> Vec<Vec<u8>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let text = |(start, end): (usize, &usize)| {
            let ids: Vec<String> = self.ids[start..*end].iter().map(u64::to_string).collect();
            format!("{}{}", if start > 0 { "," } else { "" }, ids.join(",")).into_bytes()
        };
        starts.zip(&self.ends).map(text).collect()
    }
}

/// Checks that all turns except the first of a session reused the tokens of the turn before.
pub fn prompts(before: &str, after: &str, extent: Extent) {
    let count = |metrics: &str, how: &str| {
        let name = format!("tokentap_chat_prompts_total{{how=\"{how}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(name.as_str()));
        line.unwrap_or_else(|| panic!("no metric {name}")).parse::<f64>().unwrap() as usize
    };
    let rise = |how: &str| count(after, how) - count(before, how);
    assert_eq!(rise("whole"), extent.sessions, "the first turn of each session is rendered as a whole");
    assert_eq!(rise("extended"), extent.sessions * (extent.turns - 1), "each other turn extends the turn before");
    assert_eq!(rise("retokenised") + rise("foreign"), 0, "no sampled text is encoded again");
}

/// Checks that a session has one path with all turns, and returns the prompts.
pub async fn trajectory(tap: &Tap, session: &str, script: &Script, turns: usize) -> Prompts {
    let (status, body) = ask(tap.control, &get(&format!("/v1/sessions/{session}/trajectories"))).await.unwrap();
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    let exported: Value = serde_json::from_slice(&body).unwrap();
    let rows = exported["trajectories"]
        .as_array()
        .unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&body[..2000.min(body.len())])));
    assert_eq!(rows.len(), 1, "the session has one path");
    let numbers = |name: &str| -> Vec<u64> {
        rows[0][name].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    let (ids, mask) = (numbers("token_ids"), numbers("loss_mask"));
    assert_eq!(ids.len(), mask.len());
    let mut ends = Vec::new();
    for (at, trained) in mask.iter().enumerate() {
        if *trained == 1 && at > 0 && mask[at - 1] == 0 {
            ends.push(at);
        }
    }
    assert_eq!(ends.len(), turns, "all turns are trained");
    let renderer = script::tokenizer();
    let replies: Vec<Vec<u64>> = (0..script::REPLIES)
        .map(|number| script::reply_tokens(&renderer, number).into_iter().map(u64::from).collect())
        .collect();
    for end in &ends {
        let reply = &replies[end % script::REPLIES];
        assert_eq!(ids[*end..end + reply.len()], reply[..], "the sampled tokens of a turn");
        assert!(mask[*end..end + reply.len()].iter().all(|trained| *trained == 1));
    }
    let sampled: usize = ends.iter().map(|end| replies[end % script::REPLIES].len()).sum();
    assert_eq!(mask.iter().sum::<u64>() as usize, sampled, "only sampled tokens are trained");
    assert!(script.reply_tokens > 0);
    Prompts { ids, ends }
}
