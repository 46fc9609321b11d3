// SPDX-License-Identifier: Apache-2.0
//! The turns of one session as a forest.
//!
//! A call attaches to the deepest turn whose tokens, from its root on, are a prefix of the call's prompt. A prompt that departs from
//! earlier turns begins a branch. A turn is never refused, merged or moved. Turns are in commit order, so a parent has a lower number
//! than its children.

mod branch;
mod conversation;
mod exported;
mod lazy;
mod leaves;
mod radix;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use radix::{Part, ROOT, RadixTree};

use super::{Cause, Digest, Turn, TurnKey};
use conversation::ConversationIndex;
pub use conversation::{Fingerprint, HistoryChange, Prefix};
pub(super) use exported::ExportedLeaf;
use exported::ExportedLeaves;
pub(super) use lazy::LazyForest;
use leaves::TurnCounts;

/// The turns of a session. The indexes are B-trees: a hash map that grows moves all entries, while the session is locked.
#[derive(Debug, Default)]
pub(super) struct Forest {
    turns: Vec<Arc<Turn>>,
    /// The prompts of all turns.
    stems: Vec<Stem>,
    /// The prompts of roots.
    roots: Stems,
    places: Vec<TurnLinks>,
    tokens: RadixTree,
    /// By a parent and the node of `tokens` at which a prompt ends: the index of the prompt in `stems`.
    prompts: BTreeMap<(Option<u32>, u32), u32>,
    conversations: ConversationIndex,
    /// The turns of stored responses, by their keys.
    stored: BTreeMap<Digest, u32>,
    /// Turns that a later turn replaces.
    superseded: HashSet<u32>,
    exported: ExportedLeaves,
    counts: TurnCounts,
}

/// The place of a turn.
#[derive(Debug, Default)]
struct TurnLinks {
    /// The prompts that continue it.
    children: Stems,
    /// The node of `tokens` at which it ends; [`ROOT`] if its tokens are not known from its root on.
    end: u32,
    /// The turn before it that sampled the same prompt after the same parent.
    sample_before: Option<u32>,
    /// The first turn of its path.
    root: u32,
    /// The sampled tokens of its path.
    sampled_tokens: u64,
    /// The turns that continue it and are trained in an export of the default classes, or lead to such turns.
    trained_children: u32,
}

/// The prompts after a turn, or those of the roots: the first and the last one. Each has the index of the next.
#[derive(Debug, Clone, Copy, Default)]
struct Stems(Option<(u32, u32)>);

/// Turns that sampled the same prompt after the same parent.
#[derive(Debug)]
struct Stem {
    /// The first turn, whose prompt the others share.
    first: u32,
    /// The latest turn; each has the turn before it.
    last: u32,
    /// The next prompt after the same parent.
    next: Option<u32>,
    /// Whether one of the turns has a sampled token.
    is_sampled: bool,
}

/// The place of a prompt in the forest.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placement {
    /// The turn it continues.
    pub(super) parent: Option<u32>,
    /// Tokens of the prompt that end with that turn.
    pub(super) known: usize,
    /// A turn that sampled the same prompt after the same parent.
    pub(super) same: Option<Arc<Turn>>,
    /// How it relates to the turns of the forest.
    pub(super) cause: Cause,
    /// The latest turn of the conversation that the call changed, if it changed one.
    pub(super) predecessor: Option<u32>,
}

impl Forest {
    /// All turns by their numbers.
    pub(super) fn turns(&self) -> &[Arc<Turn>] {
        &self.turns
    }

    /// The turns that answer this conversation: the latest trainable ones, then the latest others with sampled tokens, at most 64.
    pub(super) fn answers(&self, conversation: Digest) -> impl Iterator<Item = &Arc<Turn>> {
        self.conversations.answers(conversation).map(|turn| &self.turns[turn as usize])
    }

    /// The change that a call made to the recorded conversations; `None` if they do not show one.
    pub(super) fn history_change(
        &self,
        prefixes: &[Prefix],
        call: &Fingerprint,
        continues: bool,
    ) -> Option<HistoryChange> {
        self.conversations.history_change(&self.turns, prefixes, call, continues)
    }

    /// The turn of the stored response with this key.
    pub(super) fn stored(&self, key: TurnKey) -> Option<&Arc<Turn>> {
        self.stored.get(&key.digest()).map(|turn| &self.turns[*turn as usize])
    }

    /// The number of the next turn.
    pub(super) fn next_id(&self) -> u32 {
        u32::try_from(self.turns.len()).expect("a session has fewer turns than tokens fit into memory")
    }

    /// Finds the place of a call with this prompt: its ids, or its keys if it has pictures. `changes` are the changes that its messages show.
    /// The first that no earlier call made is its cause.
    pub(super) fn place(&self, prompt: &[u32], changes: &[HistoryChange]) -> Placement {
        let (parent, known) = self.parent(prompt);
        let rest = &prompt[known..];
        let stems = self.stems(parent);
        let same = self.shared(parent, rest).map(Arc::clone);
        let mut change = None;
        let cause = match (&same, parent) {
            (Some(_), _) => Cause::Sample,
            (None, Some(parent)) if stems.is_empty() => self.continues(parent, rest),
            (None, None) if stems.is_empty() => Cause::First,
            (None, _) => {
                change = changes.iter().find(|change| !self.was_made_before(change, prompt));
                let cause = self.branches(parent, rest, change.map(|change| change.cause));
                cause.unwrap_or(if parent.is_some() { Cause::Forks } else { Cause::NewConversation })
            }
        };
        let change = change.filter(|change| change.cause == cause && cause != Cause::ResponseEdited);
        let predecessor = change.and_then(|change| change.turn);
        Placement { parent, known, same, cause, predecessor }
    }

    /// The turn that a call with this prompt continues, and the number of tokens up to its end.
    pub(super) fn parent(&self, prompt: &[u32]) -> (Option<u32>, usize) {
        let (parent, known) = self.tokens.deepest(&self.turns, prompt);
        match parent.map(|turn| &self.turns[turn as usize]).filter(|turn| turn.response.is_empty()) {
            // the prompt is sampled again
            Some(empty) if known == prompt.len() => (empty.parent, known - empty.prompt.len()),
            _ => (parent, known),
        }
    }

    /// The first turn that sampled this prompt after this parent.
    pub(super) fn shared(&self, parent: Option<u32>, prompt: &[u32]) -> Option<&Arc<Turn>> {
        let node = self.tokens.find(&self.turns, self.end(parent), prompt)?;
        let stem = self.prompts.get(&(parent, node))?;
        let first = self.stems[*stem as usize].first;
        Some(&self.turns[first as usize])
    }

    /// Adds a turn. Its number is [`Forest::next_id`], and its parent was added before.
    pub(super) fn push(&mut self, turn: Arc<Turn>) {
        debug_assert_eq!(turn.id, self.next_id());
        let is_first = turn.parent.is_some_and(|parent| self.stems(Some(parent)).is_empty());
        self.counts.add(&turn, is_first);
        self.conversations.insert(&turn);
        if let Some(key) = turn.stored_key() {
            // a client that chooses request ids cannot replace a response of another
            self.stored.entry(key.digest()).or_insert(turn.id);
        }
        self.turns.push(Arc::clone(&turn));
        let parent = turn.parent.map(|parent| &self.places[parent as usize]);
        let (root, before) = parent.map_or((turn.id, 0), |parent| (parent.root, parent.sampled_tokens));
        let sampled_tokens = before + turn.response.len() as u64;
        self.places.push(TurnLinks { end: ROOT, root, sampled_tokens, ..TurnLinks::default() });
        if turn.about.cause != Cause::Unplaced {
            self.index(&turn);
        }
        self.update_exported(&turn, is_first);
    }

    /// Makes a turn known to [`Forest::place`].
    fn index(&mut self, turn: &Turn) {
        let from = self.end(turn.parent);
        let prompt = self.tokens.insert(&self.turns, from, turn.id, Part::Prompt);
        let sample_before = self.add_sample(turn, prompt);
        let end = self.tokens.insert(&self.turns, prompt, turn.id, Part::Response);
        // a turn that failed before its first token is never a parent: it would add nothing but its fault
        if !turn.response.is_empty() || turn.about.fault.is_none() {
            self.tokens.end(&self.turns, end, turn.id);
        }
        let place = &mut self.places[turn.id as usize];
        (place.end, place.sample_before) = (end, sample_before);
    }

    /// Adds a turn to those that sampled the same prompt, which ends at the node `prompt`. Returns the one before it.
    fn add_sample(&mut self, turn: &Turn, prompt: u32) -> Option<u32> {
        let is_sampled = !turn.response.is_empty();
        if let Some(stem) = self.prompts.get(&(turn.parent, prompt)) {
            let stem = &mut self.stems[*stem as usize];
            stem.is_sampled |= is_sampled;
            return Some(std::mem::replace(&mut stem.last, turn.id));
        }
        let new = u32::try_from(self.stems.len()).expect("there are fewer prompts than turns");
        self.prompts.insert((turn.parent, prompt), new);
        self.stems.push(Stem { first: turn.id, last: turn.id, next: None, is_sampled });
        let stems = match turn.parent {
            Some(parent) => &mut self.places[parent as usize].children,
            None => &mut self.roots,
        };
        let last = stems.0.map(|(_, last)| last);
        stems.0 = Some((stems.0.map_or(new, |(first, _)| first), new));
        if let Some(last) = last {
            self.stems[last as usize].next = Some(new);
        }
        None
    }

    /// The node of `tokens` at which a turn ends.
    fn end(&self, turn: Option<u32>) -> u32 {
        turn.map_or(ROOT, |turn| self.places[turn as usize].end)
    }

    fn stems(&self, parent: Option<u32>) -> Stems {
        parent.map_or(self.roots, |parent| self.places[parent as usize].children)
    }

    /// The cause of the first continuation of a turn.
    fn continues(&self, parent: u32, rest: &[u32]) -> Cause {
        let about = &self.turns[parent as usize].about;
        let length = about.finish.as_deref() == Some("length");
        match rest.is_empty() {
            true => Cause::Resumes,
            false if length => Cause::ExtendsLength,
            false => Cause::Extends,
        }
    }
}

impl Stems {
    fn is_empty(self) -> bool {
        self.0.is_none()
    }

    /// The index of the first prompt.
    fn first(self) -> Option<u32> {
        self.0.map(|(first, _)| first)
    }
}

/// The number of leading tokens that two lists have in common.
fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::session::{Fault, TurnMetadata};

    /// Commits a call as a store would.
    pub(crate) fn add(forest: &mut Forest, prompt: &[u32], response: &[u32], finish: &str) -> Cause {
        let place = forest.place(prompt, &[]);
        let about = TurnMetadata {
            cause: place.cause,
            finish: Some(finish.into()),
            fault: (finish == "abort").then_some(Fault::Aborted),
            ..TurnMetadata::default()
        };
        forest.push(Arc::new(Turn {
            id: forest.next_id(),
            parent: place.parent,
            prompt: place.same.map_or_else(|| prompt[place.known..].into(), |same| Arc::clone(&same.prompt)),
            response: response.into(),
            logprobs: response.iter().map(|id| -(*id as f32)).collect(),
            entropy: response.iter().map(|id| *id as f32).collect(),
            about,
        }));
        place.cause
    }

    #[test]
    fn conversation_without_branches_is_one_path() {
        let mut forest = Forest::default();
        assert_eq!(add(&mut forest, &[1, 2], &[3, 4], "stop"), Cause::First);
        assert_eq!(add(&mut forest, &[1, 2, 3, 4, 5], &[6], "stop"), Cause::Extends);
        assert_eq!(add(&mut forest, &[1, 2, 3, 4, 5, 6, 7], &[8], "stop"), Cause::Extends);
        let turns: Vec<_> = forest.turns().iter().map(|turn| (turn.parent, turn.prompt.to_vec())).collect();
        assert_eq!(turns, [(None, vec![1, 2]), (Some(0), vec![5]), (Some(1), vec![7])]);
    }

    #[test]
    fn every_branch_has_a_cause() {
        let mut forest = Forest::default();
        add(&mut forest, &[1, 2, 9, 9], &[3, 4, 5], "stop");
        let mut cause = |prompt: &[u32]| add(&mut forest, prompt, &[100], "stop");
        assert_eq!(cause(&[1, 2, 9, 9]), Cause::Sample);
        assert_eq!(cause(&[1, 2, 9, 9, 3, 4, 5, 6]), Cause::Extends);
        assert_eq!(cause(&[1, 2, 9, 9, 3, 4, 5, 7]), Cause::Forks);
        assert_eq!(cause(&[1, 2, 9, 9, 3, 4, 5, 7]), Cause::Sample);
        assert_eq!(cause(&[1, 2, 9, 9, 3, 4, 99, 6]), Cause::StopReplaced);
        assert_eq!(cause(&[1, 2, 9, 9, 3, 77, 5, 6]), Cause::ResponseEdited);
        assert_eq!(cause(&[1, 2, 9, 9, 3]), Cause::RolledBack);
        assert_eq!(cause(&[1, 2, 8, 9, 3, 4, 5]), Cause::NewConversation, "three equal tokens can be a coincidence");
        assert_eq!(cause(&[1, 55, 55, 55, 55, 55]), Cause::NewConversation);
        assert_eq!(cause(&[42]), Cause::NewConversation);
    }

    #[test]
    fn every_sample_of_a_prompt_is_compared() {
        let mut forest = Forest::default();
        add(&mut forest, &[1, 2], &[3, 4, 5], "stop");
        add(&mut forest, &[1, 2], &[3, 6, 7, 8], "length");
        for at in 0..100 {
            add(&mut forest, &[1, 2], &[100 + at, 4, 5], "stop");
        }
        let cause = |prompt: &[u32]| forest.place(prompt, &[]).cause;
        assert_eq!(cause(&[1, 2, 3, 4, 99, 6]), Cause::StopReplaced);
        assert_eq!(cause(&[1, 2, 3, 6, 7, 99]), Cause::ResponseEdited, "that response did not end by a stop token");
        assert_eq!(cause(&[1, 2, 3, 4]), Cause::RolledBack);
        assert_eq!(cause(&[1, 2, 3, 77]), Cause::ResponseEdited);
        assert_eq!(cause(&[1, 2, 100, 4, 99]), Cause::StopReplaced);
        assert_eq!(cause(&[1, 2, 300, 4, 99]), Cause::ResponseEdited);
    }

    #[test]
    fn every_prompt_after_a_turn_is_compared() {
        let mut forest = Forest::default();
        let long = [7, 8, 7, 8, 7, 8, 7, 8, 9];
        add(&mut forest, &[1, 2, 3, 4], &long, "stop");
        add(&mut forest, &[1, 2, 3, 4], &[30, 31], "abort");
        add(&mut forest, &[1, 2, 3, 4], &long, "stop");
        for at in 0..100 {
            add(&mut forest, &[1, 200 + at], &[5, 6], "stop");
        }
        let cause = |prompt: &[u32]| forest.place(prompt, &[]).cause;
        assert_eq!(cause(&[1, 2, 3]), Cause::RolledBack);
        assert_eq!(cause(&[&[1, 2, 3, 40][..], &long, &[5]].concat()), Cause::HistoryEdited);
        assert_eq!(cause(&[1, 2, 3, 4, 30, 99]), Cause::ResponseEdited, "an aborted response has no stop token");
        assert_eq!(cause(&[1, 2, 3, 4, 7, 8, 7, 8, 7, 8, 7, 8, 99]), Cause::StopReplaced);
    }

    #[test]
    fn replaced_stop_token_is_found_where_samples_diverge() {
        let mut forest = Forest::default();
        // the tree has a node before each last token
        add(&mut forest, &[1], &[2, 3, 4], "stop");
        add(&mut forest, &[1], &[2, 3, 5], "length");
        add(&mut forest, &[1], &[6], "stop");
        let cause = |prompt: &[u32]| forest.place(prompt, &[]).cause;
        assert_eq!(cause(&[1, 2, 3, 9]), Cause::StopReplaced);
        assert_eq!(cause(&[1, 9]), Cause::ResponseEdited, "nothing but a stop token was sampled");
        // and where they diverge afterwards
        add(&mut forest, &[1, 2, 30], &[31], "stop");
        assert_eq!(forest.place(&[1, 2, 3, 9], &[]).cause, Cause::StopReplaced);
        assert_eq!(forest.place(&[1, 2, 9], &[]).cause, Cause::ResponseEdited);
    }

    #[test]
    fn long_response_after_a_changed_prompt_shows_an_edited_history() {
        let long = [7, 8, 7, 8, 7, 8, 7, 8, 9];
        let mut forest = Forest::default();
        add(&mut forest, &[1, 2], &long, "stop");
        assert_eq!(add(&mut forest, &[&[1, 3][..], &[7, 8], &long, &[4]].concat(), &[5], "stop"), Cause::HistoryEdited);
        assert_eq!(add(&mut forest, &[&[1, 4][..], &long[..8], &[4]].concat(), &[5], "stop"), Cause::NewConversation);
        add(&mut forest, &[&[1, 2][..], &long, &[30, 31]].concat(), &long, "stop");
        let behind = [&[1, 2][..], &long, &[30, 32], &long, &[6]].concat();
        assert_eq!(add(&mut forest, &behind, &[5], "stop"), Cause::HistoryEdited);
        assert_eq!(forest.turns().last().unwrap().parent, Some(0));
    }

    #[test]
    fn cut_off_turn_can_be_resumed() {
        let mut forest = Forest::default();
        add(&mut forest, &[1, 2], &[3], "abort");
        assert_eq!(add(&mut forest, &[1, 2, 3], &[4], "length"), Cause::Resumes);
        assert_eq!(forest.turns()[1].parent, Some(0));
        assert!(forest.turns()[1].prompt.is_empty());
        assert_eq!(add(&mut forest, &[1, 2, 3, 4, 5], &[6], "stop"), Cause::ExtendsLength);
        assert_eq!(
            add(&mut forest, &[1, 2, 3, 4], &[6], "stop"),
            Cause::RolledBack,
            "the length-stopped turn was continued before"
        );
    }

    #[test]
    fn among_equal_turns_a_trainable_then_the_latest_is_continued() {
        let mut forest = Forest::default();
        for finish in ["stop", "stop", "abort"] {
            add(&mut forest, &[1], &[2], finish);
        }
        add(&mut forest, &[1, 2, 3], &[4], "stop");
        assert_eq!(forest.turns()[3].parent, Some(1));
        assert!(Arc::ptr_eq(&forest.turns()[0].prompt, &forest.turns()[2].prompt), "one prompt is kept once");
    }

    #[test]
    fn reply_without_tokens_is_continued_or_sampled_again() {
        let mut forest = Forest::default();
        assert_eq!(add(&mut forest, &[1, 2], &[], "stop"), Cause::First);
        assert_eq!(add(&mut forest, &[1, 2], &[], "stop"), Cause::Sample);
        assert_eq!(add(&mut forest, &[1, 2, 3, 4], &[], "stop"), Cause::Extends);
        assert_eq!(add(&mut forest, &[1, 2, 3, 4], &[5], "stop"), Cause::Sample);
        assert_eq!(add(&mut forest, &[1, 2, 3, 4, 6], &[7], "stop"), Cause::Extends);
        let parents: Vec<_> = forest.turns().iter().map(|turn| turn.parent).collect();
        assert_eq!(parents, [None, None, Some(1), Some(1), Some(2)]);
        // a turn that ends with the same tokens and sampled some of them comes first
        add(&mut forest, &[1], &[2], "abort");
        assert_eq!(add(&mut forest, &[1, 2, 9], &[10], "stop"), Cause::Extends);
        assert_eq!(forest.turns().last().unwrap().parent, Some(5));
    }

    #[test]
    fn failed_turn_without_tokens_is_never_a_parent() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[], "abort");
        assert_eq!(add(&mut forest, &[1], &[2], "stop"), Cause::Sample);
        assert_eq!(forest.turns()[1].parent, None);
        assert_eq!(add(&mut forest, &[], &[2], "stop"), Cause::RolledBack);
    }

    #[test]
    fn search_for_trained_turns_is_divided_into_steps() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[2], "stop");
        for at in 0..20 {
            add(&mut forest, &[1, 2, at % 3], &[7, at], "abort");
        }
        let parts = |forest: &Forest| {
            let mut search = forest.descendants(0).expect("it is trained");
            std::iter::from_fn(|| Some(forest.finds_trained(&mut search, 6))).take(4).collect::<Vec<_>>()
        };
        assert_eq!(parts(&forest), [None, None, None, Some(false)]);
        add(&mut forest, &[1, 2, 0, 7, 0, 9], &[8], "stop");
        assert!(parts(&forest).contains(&Some(true)));
        assert!(forest.descendants(1).is_none(), "it is not trained");
    }

    #[test]
    fn answers_are_bounded_and_trainable_ones_come_first() {
        let mut forest = Forest::default();
        let conversation = Digest::of(b"a");
        let mut answer = |finish: &str, fault: Option<Fault>| {
            let about = TurnMetadata {
                finish: Some(finish.into()),
                fault,
                chat: Some(Box::new(crate::session::Chat { conversation, ..Default::default() })),
                ..TurnMetadata::default()
            };
            let (id, none) = (forest.next_id(), Box::default());
            let response = [id].into();
            forest.push(Arc::new(Turn {
                id,
                parent: None,
                prompt: [1].into(),
                response,
                logprobs: none,
                entropy: Box::default(),
                about,
            }));
            forest.answers(conversation).map(|turn| turn.id).collect::<Vec<_>>()
        };
        assert_eq!(answer("stop", None), [0]);
        assert_eq!(answer("abort", Some(Fault::Aborted)), [0, 1]);
        assert_eq!(answer("stop", Some(Fault::IdsMismatch)), [0, 1], "its tokens are not the sampled ones");
        assert_eq!(answer("stop", None), [3, 0, 1]);
        for _ in 0..100 {
            answer("stop", None);
        }
        assert_eq!(answer("abort", Some(Fault::Aborted)), (40..104).rev().collect::<Vec<_>>());
    }
}
