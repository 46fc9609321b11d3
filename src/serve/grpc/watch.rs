//! What happens, as it happens: three streams, each pulled by whoever watches.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tonic::Status;

use super::pb::{WatchReply, watch_reply::What, watch_request};
use super::sample::sample;
use super::session::{ended, wide};
use super::{Answers, pb, status};
use crate::export::Annotate;
use crate::serve::control::offload::offload_export;
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::control::v1::{self, Problem};
use crate::session::{Ended, Store};

/// Finished paths that are looked up at once.
const BATCH: usize = 64;

fn said(what: What) -> WatchReply {
    WatchReply { what: Some(what), cursor: String::new() }
}

/// Finished paths that have been looked up and are to be given out, and where that has got to.
#[derive(Debug, Default)]
struct Queue {
    /// The number of the last path that was given out, or is known to be missing.
    after: u64,
    /// Numbers and sessions; numbers rise.
    found: VecDeque<(u64, Arc<str>)>,
}

/// What is next in a queue.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// So many paths will not come.
    Missed(u64),
    /// The path with this number, of this session.
    Path(u64, Arc<str>),
}

impl Iterator for Queue {
    type Item = Next;

    fn next(&mut self) -> Option<Next> {
        let (number, session) = self.found.pop_front()?;
        let missed = number - self.after - 1;
        if missed > 0 {
            self.after = number - 1;
            self.found.push_front((number, session));
            return Some(Next::Missed(missed));
        }
        self.after = number;
        Some(Next::Path(number, session))
    }
}

/// Finished paths behind a cursor.
struct Paths {
    state: Arc<TrainerState>,
    annotate: Annotate,
    changed: watch::Receiver<u64>,
    queue: Queue,
}

impl Paths {
    async fn next(&mut self) -> Option<WatchReply> {
        loop {
            match self.queue.next() {
                // whoever goes on from here is not told again
                Some(Next::Missed(missed)) => {
                    return Some(WatchReply {
                        cursor: v1::finished::cursor(&self.state.sessions, self.queue.after),
                        ..said(What::Missed(missed))
                    });
                }
                Some(Next::Path(number, session)) => {
                    let (store, annotate) = (Arc::clone(&self.state.sessions), Arc::clone(&self.annotate));
                    return Some(offload_export(move || reply(&store, &annotate, number, &session)).await);
                }
                None => {}
            }
            // looked at before the store is, so that nothing that finishes in between is slept over
            self.changed.borrow_and_update();
            self.queue.found = self.state.sessions.finished_after(self.queue.after, BATCH).into();
            if self.queue.found.is_empty() {
                self.changed.changed().await.ok()?;
            } else {
                // a cursor must mean the same after a crash
                v1::written(&self.state, self.state.sessions.written()).await;
            }
        }
    }
}

/// A path with its cursor; of one whose session is gone, only that.
fn reply(store: &Store, annotate: &Annotate, number: u64, session: &str) -> WatchReply {
    let cursor = v1::finished::cursor(store, number);
    let what = match store.session(session).and_then(|session| session.finished(number)) {
        Some(path) => What::Path(sample(&path, annotate)),
        None => {
            let reason = v1::finished::reason(store, session).to_owned();
            What::Gone(pb::Gone { session: session.to_owned(), reason })
        }
    };
    WatchReply { what: Some(what), cursor }
}

/// Each finished path once, from behind the cursor `since` on.
pub(super) fn finished(state: &Arc<TrainerState>, since: &str) -> Result<Answers<WatchReply>, Status> {
    let after = match since {
        "" => 0,
        since => v1::finished::number(&state.sessions, since).map_err(|problem| status::problem(&problem))?,
    };
    let changed = state.sessions.watch_finished();
    let annotate = v1::sessions::annotate(state);
    let queue = Queue { after, ..Queue::default() };
    let paths = Paths { state: Arc::clone(state), annotate, changed, queue };
    Ok(stream::unfold(paths, |mut paths| async move { Some((Ok(paths.next().await?), paths)) }).boxed())
}

/// Each turn from now on; of one session, unless `session` is empty.
pub(super) fn turns(state: &TrainerState, session: String) -> Answers<WatchReply> {
    let turns = state.sessions.watch_turns();
    let next = |(mut turns, session): (broadcast::Receiver<Ended>, String)| async move {
        loop {
            let what = match turns.recv().await {
                Ok((of, turn)) if session.is_empty() || *session == *of => match turn.upgrade() {
                    Some(turn) => What::Turn(ended(&of, &turn)),
                    // its session went before this was read
                    None => What::Missed(1),
                },
                Ok(_) => continue,
                Err(RecvError::Lagged(missed)) => What::Missed(missed),
                Err(RecvError::Closed) => return None,
            };
            return Some((Ok(said(what)), (turns, session)));
        }
    };
    stream::unfold((turns, session), next).boxed()
}

/// The entropies of one sequence until it ends.
pub(super) fn entropies(state: &TrainerState, of: &watch_request::Entropies) -> Result<Answers<WatchReply>, Status> {
    let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let followed = state.entropies.follow(&of.rid, of.index.map(place));
    let followed = followed.ok_or_else(|| status::problem(&Problem::no_entropies()))?;
    let next = |state: Option<(crate::generation::entropy_store::Followed, usize)>| async move {
        let (followed, since) = state?;
        let progress = followed.more(since).await;
        let what = What::Progress(pb::Progress {
            index: wide(followed.index),
            entropy: progress.entropy,
            next: wide(progress.next),
            finished: progress.finished,
            finish_reason: progress.finish_reason,
        });
        let rest = (!progress.finished).then_some((followed, progress.next));
        Some((Ok(said(what)), rest))
    };
    Ok(stream::unfold(Some((followed, place(of.since))), next).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_between_numbers_is_told_once() {
        let path = |number: u64| (number, Arc::from("s"));
        let mut queue = Queue { after: 2, found: [path(3), path(7), path(8)].into() };
        let told: Vec<Next> = queue.by_ref().collect();
        let path = |number| Next::Path(number, "s".into());
        assert_eq!(told, [path(3), Next::Missed(3), path(7), path(8)]);
        assert_eq!((queue.after, queue.next()), (8, None));
    }
}
