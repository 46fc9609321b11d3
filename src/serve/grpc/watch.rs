//! `Trajectories.Watch`: three event streams, each driven by the client's reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tonic::Status;

use super::pb::{WatchReply, watch_reply::What, watch_request};
use super::sample::sample;
use super::session::{ended_turn, refused, wide};
use super::{ReplyStream, pb, status};
use crate::export::Annotate;
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::control::v1::{self, Problem};
use crate::serve::offload::offload_export;
use crate::session::{Classes, CommittedTurn, Consumer, FleetCursor, Store, StreamedPath};

/// The number of finished paths that are looked up at a time.
const BATCH: usize = 64;

fn reply_of(what: What) -> WatchReply {
    WatchReply { what: Some(what), cursor: String::new() }
}

/// Finished paths that were looked up and not sent yet.
#[derive(Debug, Default)]
struct PathQueue {
    /// The number of the last path that was sent or reported as missed.
    after: u64,
    /// The numbers, in ascending order, and the sessions of the paths.
    found: VecDeque<(u64, Arc<str>)>,
}

/// An item of a queue.
#[derive(Debug, PartialEq, Eq)]
enum QueueItem {
    /// The number of paths that no longer exist.
    Missed(u64),
    /// The path with this number, of this session.
    Path(u64, Arc<str>),
}

impl Iterator for PathQueue {
    type Item = QueueItem;

    fn next(&mut self) -> Option<QueueItem> {
        let (number, session) = self.found.pop_front()?;
        let missed = number - self.after - 1;
        if missed > 0 {
            self.after = number - 1;
            self.found.push_front((number, session));
            return Some(QueueItem::Missed(missed));
        }
        self.after = number;
        Some(QueueItem::Path(number, session))
    }
}

/// The finished paths after a cursor.
struct PathStream {
    state: Arc<TrainerState>,
    annotate: Annotate,
    classes: Classes,
    changed: watch::Receiver<u64>,
    queue: PathQueue,
}

impl PathStream {
    async fn next(&mut self) -> Option<WatchReply> {
        loop {
            match self.queue.next() {
                // a later call that continues at this cursor does not report them again
                Some(QueueItem::Missed(missed)) => {
                    return Some(WatchReply {
                        cursor: v1::finished::format_cursor(&self.state.sessions, self.queue.after),
                        ..reply_of(What::Missed(missed))
                    });
                }
                Some(QueueItem::Path(number, session)) => {
                    let (store, annotate) = (Arc::clone(&self.state.sessions), Arc::clone(&self.annotate));
                    let classes = self.classes;
                    let reply = offload_export(move || reply(&store, &annotate, (number, &session), classes));
                    return Some(reply.await);
                }
                None => {}
            }
            // marked as seen before the lookup, so that a path that finishes in between wakes the stream
            self.changed.borrow_and_update();
            self.queue.found = self.state.sessions.finished_after(self.queue.after, BATCH).into();
            if self.queue.found.is_empty() {
                self.changed.changed().await.ok()?;
            } else {
                // a cursor must refer to the same path after a crash
                v1::wait_written(&self.state, self.state.sessions.written()).await;
            }
        }
    }
}

/// Replies a path with its cursor, or the reason if its session is gone or the classes exclude it.
fn reply(store: &Store, annotate: &Annotate, (number, session): (u64, &str), classes: Classes) -> WatchReply {
    let cursor = v1::finished::format_cursor(store, number);
    let what = match store.session(session).and_then(|session| session.finished(number, classes)) {
        Some(Ok(path)) => What::Path(sample(&path, annotate)),
        Some(Err(excluded)) => What::Refused(refused(&excluded)),
        None => {
            let reason = v1::finished::gone_reason(store, session).to_owned();
            What::Gone(pb::Gone { session: session.to_owned(), reason })
        }
    };
    WatchReply { what: Some(what), cursor }
}

/// Streams each finished path once, after the cursor of the request.
pub(super) async fn finished(
    state: &Arc<TrainerState>,
    request: &watch_request::Finished,
) -> Result<ReplyStream<WatchReply>, Status> {
    let classes = v1::samples::classes(&request.classes).map_err(|problem| status::problem(&problem))?;
    if state.sessions.sharing().is_some() {
        return shared(state, request, classes).await.map_err(|problem| status::problem(&problem));
    }
    let after = match &*request.since {
        "" => 0,
        since => v1::finished::parse_cursor(&state.sessions, since).map_err(|problem| status::problem(&problem))?,
    };
    let changed = state.sessions.watch_finished();
    let annotate = v1::sessions::annotate(state);
    let queue = PathQueue { after, ..PathQueue::default() };
    let paths = PathStream { state: Arc::clone(state), annotate, classes, changed, queue };
    Ok(stream::unfold(paths, |mut paths| async move { Some((Ok(paths.next().await?), paths)) }).boxed())
}

/// The finished paths of a fleet after a cursor. The ledger is asked again after a while when nothing is new.
struct SharedPathStream {
    state: Arc<TrainerState>,
    annotate: Annotate,
    classes: Classes,
    cursor: FleetCursor,
    found: VecDeque<StreamedPath>,
}

/// The time between two questions for new finished paths.
const POLL: Duration = Duration::from_millis(500);

async fn shared(
    state: &Arc<TrainerState>,
    request: &watch_request::Finished,
    classes: Classes,
) -> Result<ReplyStream<WatchReply>, Problem> {
    let sharing = state.sessions.sharing().expect("sessions are shared");
    let start = sharing.stream_start().await.map_err(|error| v1::ledger_problem(&error))?;
    let cursor = match &*request.since {
        "" => start,
        since => v1::finished::parse_fleet_cursor(&start, since)?,
    };
    let annotate = v1::sessions::annotate(state);
    let paths = SharedPathStream { state: Arc::clone(state), annotate, classes, cursor, found: VecDeque::new() };
    let next = |paths: Option<SharedPathStream>| async move {
        let mut paths = paths?;
        match paths.next().await {
            Ok(reply) => Some((Ok(reply), Some(paths))),
            // the client continues after its last cursor
            Err(problem) => Some((Err(status::problem(&problem)), None)),
        }
    };
    Ok(stream::unfold(Some(paths), next).boxed())
}

impl SharedPathStream {
    async fn next(&mut self) -> Result<WatchReply, Problem> {
        loop {
            if let Some(path) = self.found.pop_front() {
                let (annotate, classes) = (Arc::clone(&self.annotate), self.classes);
                return Ok(offload_export(move || shared_reply(&path, &annotate, classes)).await);
            }
            let sharing = self.state.sessions.sharing().expect("sessions are shared");
            let page = sharing.finished_after(&self.state.sessions, &self.cursor, Consumer::default(), BATCH).await;
            let page = page.map_err(|error| v1::ledger_problem(&error))?;
            // a ledger that has lost all data has other streams
            let start = sharing.stream_start().await.map_err(|error| v1::ledger_problem(&error))?;
            v1::finished::check_fleet(&start, &page.cursor)?;
            if page.trimmed {
                let gone = pb::Gone { session: String::new(), reason: "unlisted".to_owned() };
                let reply = WatchReply { what: Some(What::Gone(gone)), cursor: self.cursor.to_string() };
                (self.cursor, self.found) = (page.cursor, page.paths.into());
                return Ok(reply);
            }
            self.cursor = page.cursor;
            self.found = page.paths.into();
            if self.found.is_empty() {
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

/// Replies a path of a shared session.
fn shared_reply(path: &StreamedPath, annotate: &Annotate, classes: Classes) -> WatchReply {
    let (found, gone) = match &path.found {
        Ok((session, number)) => (session.finished(*number, classes), "deleted"),
        Err(reason) => (None, *reason),
    };
    let what = match found {
        Some(Ok(path)) => What::Path(sample(&path, annotate)),
        Some(Err(excluded)) => What::Refused(refused(&excluded)),
        None => What::Gone(pb::Gone { session: path.session.to_string(), reason: gone.to_owned() }),
    };
    WatchReply { what: Some(what), cursor: path.cursor.to_string() }
}

/// Streams each turn from now on: of one session, or of all if `session` is empty.
pub(super) fn turns(state: &TrainerState, session: String) -> ReplyStream<WatchReply> {
    let turns = state.sessions.watch_turns();
    let next = |(mut turns, session): (broadcast::Receiver<CommittedTurn>, String)| async move {
        loop {
            let what = match turns.recv().await {
                Ok((of, turn)) if session.is_empty() || *session == *of => match turn.upgrade() {
                    Some(turn) => What::Turn(ended_turn(&of, &turn)),
                    // its session was dropped before the client read this turn
                    None => What::Missed(1),
                },
                Ok(_) => continue,
                Err(RecvError::Lagged(missed)) => What::Missed(missed),
                Err(RecvError::Closed) => return None,
            };
            return Some((Ok(reply_of(what)), (turns, session)));
        }
    };
    stream::unfold((turns, session), next).boxed()
}

/// Streams the entropies of one sequence until it ends.
pub(super) fn entropies(
    state: &TrainerState,
    of: &watch_request::Entropies,
) -> Result<ReplyStream<WatchReply>, Status> {
    let narrow = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let followed = state.entropies.follow(&of.rid, of.index.map(narrow));
    let followed = followed.ok_or_else(|| status::problem(&Problem::no_entropies()))?;
    let next = |state: Option<(crate::generation::entropy_store::SequenceFollower, usize)>| async move {
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
        Some((Ok(reply_of(what)), rest))
    };
    Ok(stream::unfold(Some((followed, narrow(of.since))), next).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_between_path_numbers_is_reported_once() {
        let path = |number: u64| (number, Arc::from("s"));
        let mut queue = PathQueue { after: 2, found: [path(3), path(7), path(8)].into() };
        let items: Vec<QueueItem> = queue.by_ref().collect();
        let path = |number| QueueItem::Path(number, "s".into());
        assert_eq!(items, [path(3), QueueItem::Missed(3), path(7), path(8)]);
        assert_eq!((queue.after, queue.next()), (8, None));
    }
}
