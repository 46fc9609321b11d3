// SPDX-License-Identifier: Apache-2.0
//! A session: a forest of turns with rewards, and its frozen versions.

mod annotations;
mod coverage;
mod exported;
mod publication;
mod replies;
mod rewards;
mod thinking;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::ledger::{Ack, AckOutcome, Change, Record};
use super::scores::SessionScores;
use super::turn::{Draft, SessionImages};
use super::view::upwards;
use super::{
    Cause, Digest, Fault, Fingerprint, HistoryChange, LazyForest, Prefix, Tags, Totals, Turn, TurnKey, Uid,
    UnexpandedPath,
};
use crate::images::{Image, ImageDigest};
pub use coverage::RecordedPrefix;
pub use exported::{ExportedRow, ExportedRows};
pub(super) use publication::{FinishedPath, FinishedPaths, Publication};
use replies::Replies;
pub use replies::{ReplyDigests, ReplyTurns};
use rewards::Rewards;
use thinking::ThinkingTotals;

/// Turns that are copied, or searched, per lock of a session.
pub(super) const PER_LOCK: usize = 512;

/// The latest turns that are searched for one that a retry replaces, or that `session_params` names.
const SEARCHED: usize = 4096;

/// A session. Turns are only ever added, so a version is a number of turns.
#[derive(Debug)]
pub struct Session {
    /// Its name.
    pub id: Arc<str>,
    /// Its position in the order of use; written only by the store.
    pub(super) tick: AtomicU64,
    /// Its position in the order of creation in this process. Numbers of turns are those of the session with this number only.
    pub number: u64,
    /// Distinguishes it from other sessions of the same name.
    pub birth: Uid,
    // locked for one access or insertion, never across an await
    state: Mutex<State>,
    // locked while new replies are indexed, never across an await; locked before `state`
    // `None` until a reply is indexed
    pub(super) replies: Mutex<Option<Box<Replies>>>,
    // locked while paths claim their turns and get their numbers; locked before the order and the state
    pub(super) publication: Mutex<Publication>,
    // locked while turns are read for it; locked before `state`
    pub(super) thinking: Mutex<ThinkingTotals>,
    /// Hashes of first prompts that were read, by rising numbers of their turns.
    pub(super) prompt_hashes: Mutex<SmallVec<[(u32, u64); 1]>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) forest: LazyForest,
    /// The start of the session: milliseconds since 1970.
    pub(super) created_ms: u64,
    /// The number of turns of each frozen version.
    pub(super) frozen: Vec<u32>,
    pub(super) rewards: Rewards,
    // empty after a change of turns or rewards, until it is read
    exported: OnceCell<ExportedRows>,
    pub(super) scores: SessionScores,
    pub(super) tags: Tags,
    pub(super) totals: Totals,
    /// The version that was open when a generation was not recorded.
    pub(super) incomplete: Option<u32>,
    /// A call was marked as the last.
    pub(super) done: bool,
    /// Evicted or deleted: nothing may be added any more.
    pub(super) removed: bool,
    /// Calls that are running.
    pub(super) running: u32,
    pub(super) bytes: u64,
    /// The pictures of its turns whose bytes are known.
    pub(super) images: SessionImages,
    /// The outcomes of the latest records with the bytes of pictures, unless those are known to be stored.
    image_records: BTreeMap<ImageDigest, AckOutcome>,
    pub(super) finished: Vec<FinishedPath>,
    /// The turns whose stored responses were deleted.
    pub(super) deleted_responses: BTreeSet<u32>,
    /// Whether the session has changes that its shared ledger lacks. It is not evicted then.
    pub(super) is_detached: bool,
    /// How often the ledger was healed in a way that may have changed the numbers of turns.
    pub(super) generation: u32,
}

/// A frozen version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frozen {
    /// Its number, from 1.
    pub version: u32,
    /// Its number of turns.
    pub turns: u32,
}

impl State {
    /// The last frozen version; version 0 without turns before the first freeze.
    pub(super) fn last_frozen(&self) -> Frozen {
        let version = u32::try_from(self.frozen.len()).unwrap_or(u32::MAX - 1);
        Frozen { version, turns: self.frozen.last().copied().unwrap_or(0) }
    }

    /// The version that later calls belong to.
    pub(super) fn open_version(&self) -> u32 {
        self.last_frozen().version + 1
    }

    /// The bytes of the session with its pictures, which other sessions may have too.
    pub(super) fn size(&self) -> u64 {
        self.bytes + self.images.values().map(|image| image.size).sum::<u64>()
    }

    /// Whether a record of the session has the bytes of a picture, or will have them unless the log rejects it.
    fn is_image_stored(&self, digest: ImageDigest) -> bool {
        let outcome = self.image_records.get(&digest).and_then(AckOutcome::is_stored);
        self.images.contains_key(&digest) && outcome != Some(false)
    }

    /// Remembers whether the log stores the pictures of a turn, so that a later turn stores those that it rejects.
    pub(super) fn track_image_record(&mut self, turn: &Turn, ack: Ack) -> Ack {
        let mut stored = turn.about.images.iter().flat_map(|images| images.stored()).peekable();
        if stored.peek().is_none() {
            return ack;
        }
        let (ack, outcome) = ack.observe();
        self.image_records.extend(stored.map(|image| (image.digest, outcome.clone())));
        self.image_records.retain(|_, outcome| outcome.is_stored() != Some(true));
        ack
    }

    /// The number of the turn with this uid, if it is one of the latest.
    fn turn_with(&self, uid: Uid) -> Option<u32> {
        let latest = self.forest.turns().iter().rev().take(SEARCHED);
        latest.into_iter().find(|turn| turn.about.uid == uid).map(|turn| turn.id)
    }

    /// The turn of an earlier attempt of the same call: it has the same request id, which a client that repeats a call has chosen, and the
    /// same parent, prompt, sampling parameters and index, no later turn continues or replaces it, and no other turn is like that. Equality
    /// without the id would be that of another sample, which the client may have. The latest turns are searched.
    fn attempt(&self, parent: Option<u32>, prompt_keys: &[u32], draft: &Draft) -> Option<u32> {
        let latest = || self.forest.turns().iter().rev().take(SEARCHED);
        let used: HashSet<u32> =
            latest().flat_map(|turn| turn.parent.iter().chain(&turn.about.supersedes)).copied().collect();
        let is_equal = |turn: &&Arc<Turn>| {
            turn.about.cause != Cause::Unplaced
                && (turn.about.rid.is_some() && turn.about.rid == draft.about.rid)
                && (turn.parent, turn.prompt_keys()) == (parent, prompt_keys)
                && (turn.about.index, &turn.about.sampling) == (draft.about.index, &draft.about.sampling)
                && !used.contains(&turn.id)
        };
        let mut equal = latest().filter(is_equal);
        match (equal.next(), equal.next()) {
            (Some(attempt), None) => Some(attempt.id),
            _ => None,
        }
    }

    /// Adds a placed turn, and its tags to those of the session. It takes `shared` bytes less, because other turns have the same values.
    /// Returns the bytes that it takes.
    pub(super) fn push(&mut self, turn: Arc<Turn>, shared: u64) -> u64 {
        let tags = self.tags.merged(&turn.about.tags).map_or(0, |tags| {
            // shorter values give nothing back, so that the bytes of a turn are never negative
            let grown = tags.bytes().saturating_sub(self.tags.bytes());
            self.tags = tags;
            grown as u64
        });
        self.totals.add(&turn);
        self.exported.take();
        let bytes = turn.bytes().saturating_sub(shared) + tags + self.forest.push(turn);
        self.bytes += bytes;
        bytes
    }

    /// Whether nothing was added after the last frozen version: no turn, and no mark of an unrecorded generation.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.last() == Some(&self.forest.next_id()) && self.incomplete != Some(self.open_version())
    }
}

impl Session {
    pub(super) fn new(id: Arc<str>, number: u64, birth: Uid, created_ms: u64) -> Self {
        let state = State { created_ms, ..State::default() };
        let (state, publication, replies) = (Mutex::new(state), Mutex::default(), Mutex::default());
        let (tick, thinking, prompt_hashes) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Self { id, number, birth, tick, state, publication, replies, thinking, prompt_hashes }
    }

    /// Moves the turns and their indexes out of the session.
    pub(super) fn take_contents(&mut self) -> (Option<Box<Replies>>, State) {
        let replies = self.replies.get_mut();
        let state = self.state.get_mut();
        (std::mem::take(replies), std::mem::take(state))
    }

    /// The record of a change of the session.
    pub(super) fn record(&self, change: Change) -> Record {
        Record { session: Arc::clone(&self.id), birth: self.birth, change }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The turns that may have sampled each of these messages. `digests` computes the digests of a turn's reply, once per turn.
    pub fn sampled(
        &self,
        messages: &[ReplyDigests],
        digests: impl Fn(&Turn) -> Option<ReplyDigests>,
    ) -> Vec<ReplyTurns> {
        let mut replies = self.replies.lock();
        let replies = replies.get_or_insert_default();
        let turns = self.state().forest.turns().len();
        while replies.count() < turns {
            let end = turns.min(replies.count() + PER_LOCK);
            let new = self.state().forest.turns()[replies.count()..end].to_vec();
            replies.read(&new, &digests);
        }
        messages.iter().map(|message| replies.turns_of(message)).collect()
    }

    /// The number of turns that [`Session::sampled`] would index first; `usize::MAX` while it runs on another thread.
    #[must_use]
    pub fn unread_replies(&self) -> usize {
        let Some(read) = self.replies.try_lock().map(|replies| replies.as_ref().map_or(0, |replies| replies.count()))
        else {
            return usize::MAX;
        };
        self.state().forest.turns().len().saturating_sub(read)
    }

    /// The turn with this number.
    #[must_use]
    pub fn turn(&self, id: u32) -> Option<Arc<Turn>> {
        self.state().forest.turns().get(id as usize).map(Arc::clone)
    }

    /// Numbers over its turns.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.state().totals.clone()
    }

    /// The picture of its turns with this digest, if its bytes are known.
    #[must_use]
    pub fn image(&self, digest: ImageDigest) -> Option<Arc<Image>> {
        self.state().images.get(&digest).map(Arc::clone)
    }

    /// Those of these pictures whose bytes are known.
    #[must_use]
    pub fn images(&self, digests: impl IntoIterator<Item = ImageDigest>) -> BTreeMap<ImageDigest, Arc<Image>> {
        let state = self.state();
        let known = |digest| state.images.get(&digest).map(|image| (digest, Arc::clone(image)));
        digests.into_iter().filter_map(known).collect()
    }

    /// The latest turn of the engine's request `rid`, if it is one of the latest turns of the session.
    #[must_use]
    pub fn sampled_by(&self, rid: &str) -> Option<Arc<Turn>> {
        let state = self.state();
        let latest = state.forest.turns().iter().rev().take(SEARCHED);
        latest.into_iter().find(|turn| turn.about.rid.as_deref() == Some(rid)).map(Arc::clone)
    }

    /// The turn of the stored response with this key, and whether the response was deleted.
    #[must_use]
    pub fn stored(&self, key: TurnKey) -> Option<(Arc<Turn>, bool)> {
        let mut state = self.state();
        let turn = Arc::clone(state.forest.stored(key)?);
        let is_deleted = state.deleted_responses.contains(&turn.id);
        Some((turn, is_deleted))
    }

    /// The latest turns, at most `count`, the latest first.
    #[must_use]
    pub fn latest(&self, count: usize) -> Vec<Arc<Turn>> {
        self.state().forest.turns().iter().rev().take(count).map(Arc::clone).collect()
    }

    /// The change that a call made to the conversations of the session; see [`Prefix`].
    #[must_use]
    pub fn history_change(&self, prefixes: &[Prefix], call: &Fingerprint, continues: bool) -> Option<HistoryChange> {
        self.state().forest.history_change(prefixes, call, continues)
    }

    /// The turns that answer this conversation: the latest trainable ones, then the latest others with sampled tokens, at most 64. Turns
    /// without a place are left out, because the tokens before them are unknown.
    #[must_use]
    pub fn answers(&self, conversation: Digest) -> Vec<Arc<Turn>> {
        self.state().forest.answers(conversation).map(Arc::clone).collect()
    }

    /// The turns from the root to `leaf`. Turns are only ever added, so the lock may be released between the parts.
    pub(super) fn path(&self, leaf: u32) -> Vec<Arc<Turn>> {
        let (mut path, mut next) = (Vec::new(), Some(leaf));
        while let Some(leaf) = next {
            let state = self.state();
            path.extend(upwards(state.forest.turns(), leaf).take(PER_LOCK).map(Arc::clone));
            next = path.last().and_then(|turn: &Arc<Turn>| turn.parent);
        }
        path.reverse();
        path
    }

    /// All tokens from the root to the end of this turn.
    #[must_use]
    pub fn tokens(&self, turn: u32) -> Vec<u32> {
        let path = self.path(turn);
        let length = path.iter().map(|turn| turn.prompt.len() + turn.response.len()).sum();
        let mut tokens = Vec::with_capacity(length);
        for turn in path {
            tokens.extend_from_slice(&turn.prompt);
            tokens.extend_from_slice(&turn.response);
        }
        tokens
    }

    /// The tokens from the root to the end of this turn as an engine gets them: of each picture only the placeholder.
    #[must_use]
    pub fn unexpanded(&self, turn: u32) -> UnexpandedPath {
        let path = self.path(turn);
        let most = path.iter().map(|turn| turn.prompt.len() + turn.response.len()).sum();
        let mut unexpanded = UnexpandedPath { ids: Vec::with_capacity(most), ..UnexpandedPath::default() };
        path.iter().for_each(|turn| unexpanded.append(turn));
        unexpanded
    }

    /// For each of [`Session::tokens`], whether it was sampled.
    #[must_use]
    pub fn mask(&self, turn: u32) -> Vec<bool> {
        let path = self.path(turn);
        let flags = |turn: Arc<Turn>| [vec![false; turn.prompt.len()], vec![true; turn.response.len()]].concat();
        path.into_iter().flat_map(flags).collect()
    }

    /// The turn that the draft becomes if it is added next.
    pub(super) fn place(&self, state: &mut State, mut draft: Draft) -> Turn {
        let id = state.forest.next_id();
        if !state.frozen.is_empty() || !state.tags.lacks(&draft.about.tags) {
            draft.about.tags = Tags::default();
        }
        let (parent, cause, prompt) = match &draft.prompt {
            Some(prompt) => {
                let chat = draft.about.chat.as_mut();
                let (number, mut changes) = chat
                    .map(|chat| (chat.session_number, std::mem::take(&mut chat.history_changes)))
                    .unwrap_or_default();
                if number != Some(self.number) {
                    // the turns are of a session of the same name that was removed, if there was one
                    changes.iter_mut().for_each(|change| change.turn = None);
                }
                let images = draft.about.images.take();
                let sent: Vec<_> =
                    images.iter().flat_map(|images| &images.list).map(|sent| Arc::clone(&sent.image)).collect();
                let keys = images.as_ref().map_or(&**prompt, |images| images.keys());
                let place = state.forest.place(keys, &changes);
                draft.about.predecessor = place.predecessor;
                let same = place.same.as_deref();
                if let Some(images) = images {
                    let same = same.and_then(|same| same.about.images.as_deref());
                    draft.about.images = images.after(place.known, same);
                }
                if let Some(stored) = draft.about.chat.as_mut().and_then(|chat| chat.stored.as_mut()) {
                    // a picture of an earlier turn may be known by its digest only
                    let new = draft.about.images.iter().flat_map(|images| &images.list);
                    let new: BTreeSet<_> = new.map(|image| image.image.digest).collect();
                    let is_kept =
                        |image: &&Image| new.contains(&image.digest) || state.images.contains_key(&image.digest);
                    let kept: Vec<_> = sent.iter().map(|image| &**image).filter(is_kept).collect();
                    if !kept.is_empty() {
                        *stored = Arc::new(stored.without_pictures(&kept));
                    }
                }
                let suffix = match (same, place.known) {
                    (Some(same), _) => Arc::clone(&same.prompt),
                    (None, 0) => Arc::clone(prompt),
                    (None, known) => prompt[known..].into(),
                };
                (place.parent, place.cause, suffix)
            }
            None => {
                draft.about.images = None;
                (None, Cause::Unplaced, Arc::default())
            }
        };
        if let Some(images) = &mut draft.about.images {
            images.mark_stored(|digest| state.is_image_stored(digest));
        }
        if let Some(chat) = draft.about.chat.as_mut().filter(|chat| chat.session_number != Some(self.number)) {
            chat.stored = chat.stored.take().filter(|stored| stored.shared.is_none() && stored.members_of.is_none());
        }
        if draft.is_retry
            && let Some(attempt) = {
                let keys = draft.about.images.as_ref().map_or(&*prompt, |images| images.keys());
                state.attempt(parent, keys, &draft)
            }
        {
            draft.about.supersedes.push(attempt);
        }
        let replaced = draft.supersedes.iter().filter_map(|uid| state.turn_with(*uid));
        draft.about.supersedes.extend(replaced);
        if cause == Cause::Unplaced {
            // a turn without its prompt cannot be trained
            draft.about.fault.get_or_insert(Fault::PromptUnknown);
        }
        draft.place(id, parent, cause, prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::SEARCHED;
    use crate::session::tests::{BOUNDLESS, store, turn};
    use crate::session::{Call, Draft, TurnMetadata};

    #[tokio::test]
    async fn request_is_found_among_the_latest_turns_only() {
        let store = store(BOUNDLESS);
        let mut call = Call::new(std::sync::Arc::clone(&store), "s".into());
        let about = TurnMetadata { rid: Some("r".into()), ..TurnMetadata::default() };
        let _ = call.commit(Draft { prompt: Some([1].into()), response: vec![2], about, ..Draft::default() });
        let session = store.session("s").expect("it has a turn");
        for id in 1..SEARCHED {
            turn(&store, "s", &[u32::try_from(id).unwrap() + 9], &[2]);
        }
        assert_eq!(session.sampled_by("r").map(|turn| turn.id), Some(0));
        turn(&store, "s", &[3], &[2]);
        assert_eq!(session.sampled_by("r"), None, "a session may have any number of turns");
    }

    #[tokio::test]
    async fn replies_are_unread_before_and_during_sampled() {
        let store = store(BOUNDLESS);
        for id in 0..3 {
            turn(&store, "s", &[1, id], &[2]);
        }
        let session = store.session("s").expect("it has turns");
        assert_eq!(session.unread_replies(), 3);
        session.sampled(&[], |_| {
            assert_eq!(session.unread_replies(), usize::MAX, "another call would wait");
            None
        });
        assert_eq!(session.unread_replies(), 0);
    }
}
