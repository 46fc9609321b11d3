// SPDX-License-Identifier: Apache-2.0
//! The tokens of a prompt whose values in a token column are recorded.

use super::Session;
use crate::columns::Column;
use crate::session::view::upwards;
use crate::session::{RequestedAdapter, Span};

/// What a session has recorded of the beginning of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordedPrefix {
    /// The tokens that are those of a recorded path.
    pub tokens: usize,
    /// How many of them a later turn need not report again: all before the first without a value in the column.
    pub covered: usize,
    /// The values that the last turn with the column has for a token, if all tokens have the same number.
    pub values: Option<u64>,
}

impl Session {
    /// The recorded beginning of `prompt`, its ids or the keys of its pictures, and how far the column `name` covers it. A gap counts only if the request has the policy that
    /// sampled its tokens, by the epochs of the base weights and of the adapter: the engine would report the values of other weights.
    #[must_use]
    pub fn recorded_prefix(
        &self,
        prompt: &[u32],
        name: &str,
        epoch: u64,
        adapter: Option<&RequestedAdapter>,
    ) -> RecordedPrefix {
        let mut state = self.state();
        let (Some(parent), tokens) = state.forest.parent(prompt) else { return RecordedPrefix::default() };
        // the last token of a turn is processed with the next one
        let mut end = tokens;
        let mut covered = None;
        for turn in upwards(state.forest.turns(), parent) {
            let response = end - turn.response.len();
            let column = Column::named(&turn.about.columns, name);
            let until = column.and_then(|column| response.checked_add_signed(column.tokens.end as isize));
            if let (Some(column), Some(until)) = (column, until) {
                let covered = covered.unwrap_or_else(|| until.min(tokens.saturating_sub(1)));
                return RecordedPrefix { tokens, covered, values: column.values() };
            }
            // epochs that another process counted cannot be compared
            let is_current = |span: &Span| {
                let sampled = span.adapter.as_ref().map(|adapter| (&adapter.name, adapter.epoch, adapter.until));
                let is_same = sampled == adapter.map(|adapter| (&adapter.name, adapter.epoch, adapter.epoch));
                span.process.is_none() && (span.epoch, span.until) == (epoch, epoch) && is_same
            };
            if !turn.about.policy.iter().all(is_current) {
                covered.get_or_insert(end.saturating_sub(1));
            }
            end = response - turn.prompt.len();
        }
        RecordedPrefix { tokens, covered: covered.unwrap_or(0), values: None }
    }
}

#[cfg(test)]
mod tests {
    use crate::columns::{Column, NumberType, Shape};
    use crate::session::tests::{BOUNDLESS, store};
    use crate::session::{Call, Draft, RecordedPrefix, RequestedAdapter, Span, TurnMetadata};

    #[tokio::test]
    async fn prefix_is_covered_up_to_the_first_gap_of_the_epoch() {
        let store = store(BOUNDLESS);
        let mut call = Call::new(std::sync::Arc::clone(&store), "s".into());
        let mut turn = |prompt: &[u32], response: &[u32], epoch: u64, covers: bool| {
            let sampled = i32::try_from(response.len()).unwrap();
            let column = || Column {
                name: "c".into(),
                number: NumberType::U8,
                tokens: -1..sampled - 1,
                shape: Shape::Fixed([2, 3].into()),
                data: vec![0; 6 * response.len()].into(),
            };
            let (weight_version, version, process) = (None, None, None);
            let span = Span {
                start: 0,
                end: sampled as u32,
                epoch,
                until: epoch,
                weight_version,
                version,
                process,
                adapter: None,
            };
            let columns = Vec::from_iter(covers.then(column));
            let about = TurnMetadata { columns, policy: vec![span], ..TurnMetadata::default() };
            let draft = Draft { prompt: Some(prompt.into()), response: response.into(), about, ..Draft::default() };
            let _ = call.commit(draft);
        };
        let of = |prompt: &[u32], name: &str, epoch| {
            let prefix = store.session("s").unwrap().recorded_prefix(prompt, name, epoch, None);
            let RecordedPrefix { tokens, covered, .. } = prefix;
            (tokens, covered)
        };
        turn(&[1, 2], &[3, 4], 7, true);
        assert_eq!(of(&[1, 2, 3, 4, 5], "c", 7), (4, 3), "the last token comes with the next turn");
        assert_eq!(of(&[1, 2, 3, 4], "c", 7), (4, 3));
        assert_eq!(of(&[1, 2, 9], "c", 7), (0, 0), "another path");
        assert_eq!(of(&[1, 2, 3, 4, 5], "d", 7), (4, 0), "a gap from the first token on");
        turn(&[1, 2, 3, 4, 5], &[6, 7], 7, false);
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8], "c", 7), (7, 3), "the gap is closed");
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8], "c", 8), (7, 6), "the weights are others now");
        let adapter = RequestedAdapter { name: "a".into(), epoch: 0 };
        let prefix = store.session("s").unwrap().recorded_prefix(&[1, 2, 3, 4, 5, 6, 7, 8], "c", 7, Some(&adapter));
        let expected = RecordedPrefix { tokens: 7, covered: 6, values: Some(6) };
        assert_eq!(prefix, expected, "the base weights alone sampled the turn");
        turn(&[1, 2, 3, 4, 5, 6, 7, 8], &[9], 8, true);
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "c", 8), (9, 8));
    }
}
