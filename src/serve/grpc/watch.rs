// SPDX-License-Identifier: Apache-2.0
//! `Trajectories.Watch`: three event streams, each driven by the client's reads.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::broadcast::{self, error::RecvError};
use tonic::Status;

use super::messages::{ended_turn, refused, sample, wide};
use super::pb::{WatchReply, watch_reply::What, watch_request};
use super::{ReplyStream, pb};
use crate::export::Annotate;
use crate::generation::entropy_store::SequenceFollower;
use crate::long_work::offload_export;
use crate::serve::control::v1::samples::classes;
use crate::serve::control::v1::sessions::annotate;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::session::{
    Classes, CommittedTurn, FinishedCursor, FinishedError, FinishedItem, FinishedLimits, ListedPath, NoPath,
};

/// The number of finished paths that are listed at a time.
const BATCH: usize = 64;

/// The time between two questions to a ledger for new finished paths.
const POLL: Duration = Duration::from_millis(500);

fn reply_of(what: What) -> WatchReply {
    WatchReply { what: Some(what), cursor: String::new() }
}

/// The finished paths after a cursor.
struct PathStream {
    proxy: Arc<Proxy>,
    annotate: Annotate,
    classes: Classes,
    cursor: FinishedCursor,
    /// Those that were listed and not sent yet.
    listed: VecDeque<FinishedItem>,
}

impl PathStream {
    async fn next(&mut self) -> Result<WatchReply, FinishedError> {
        loop {
            match self.listed.pop_front() {
                // a later call that continues at this cursor does not report them again
                Some(FinishedItem::Missed { count, cursor }) => {
                    let unlisted = || What::Gone(pb::Gone { session: String::new(), reason: "unlisted".to_owned() });
                    let what = count.map_or_else(unlisted, What::Missed);
                    return Ok(WatchReply { what: Some(what), cursor: cursor.to_string() });
                }
                Some(FinishedItem::Path(path)) => {
                    let (annotate, classes) = (Arc::clone(&self.annotate), self.classes);
                    return Ok(offload_export(move || reply(&path, &annotate, classes)).await);
                }
                None => {}
            }
            let limits = FinishedLimits { paths: Some(BATCH), ..FinishedLimits::default() };
            let list = self.proxy.sessions.finished(&self.cursor, limits).await?;
            if list.items.is_empty() {
                self.proxy.sessions.wait_finished(&list.end, POLL).await;
            } else {
                // a cursor must refer to the same path after a crash
                self.proxy.wait_written(list.written).await;
            }
            (self.cursor, self.listed) = (list.end, list.items.into());
        }
    }
}

/// Replies a path with its cursor, or the reason if its session is gone or the classes exclude it.
fn reply(listed: &ListedPath, annotate: &Annotate, classes: Classes) -> WatchReply {
    let what = match listed.path(classes) {
        Ok(path) => What::Path(sample(&path, annotate)),
        Err(NoPath::Excluded(excluded)) => What::Refused(refused(&excluded)),
        Err(NoPath::Gone(reason)) => {
            What::Gone(pb::Gone { session: listed.session.to_string(), reason: reason.to_owned() })
        }
    };
    WatchReply { what: Some(what), cursor: listed.cursor.to_string() }
}

/// Streams each finished path once, after the cursor of the request.
pub(super) async fn finished(
    proxy: &Arc<Proxy>,
    request: &watch_request::Finished,
) -> Result<ReplyStream<WatchReply>, Status> {
    let classes = classes(&request.classes)?;
    let since = Some(&*request.since).filter(|since| !since.is_empty());
    let cursor = proxy.sessions.cursor(since).await.map_err(Problem::from)?;
    let annotate = annotate(proxy);
    let paths = PathStream { proxy: Arc::clone(proxy), annotate, classes, cursor, listed: VecDeque::new() };
    let next = |paths: Option<PathStream>| async move {
        let mut paths = paths?;
        match paths.next().await {
            Ok(reply) => Some((Ok(reply), Some(paths))),
            // the client continues after its last cursor
            Err(error) => Some((Err(Problem::from(error).into()), None)),
        }
    };
    Ok(stream::unfold(Some(paths), next).boxed())
}

/// Streams each turn from now on: of one session, or of all if `session` is empty.
pub(super) fn turns(proxy: &Proxy, session: String) -> ReplyStream<WatchReply> {
    let turns = proxy.sessions.watch_turns();
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
pub(super) fn entropies(proxy: &Proxy, sequence: &watch_request::Entropies) -> Result<ReplyStream<WatchReply>, Status> {
    let narrow = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let followed = proxy.generator.context.entropies.follow(&sequence.rid, sequence.index.map(narrow));
    let followed = followed.ok_or_else(Problem::no_entropies)?;
    let next = |state: Option<(SequenceFollower, usize)>| async move {
        let (followed, since) = state?;
        let progress = followed.more(since).await;
        let what = What::Progress(pb::Progress {
            index: wide(followed.index),
            entropy: progress.entropy,
            next: wide(progress.next),
            finished: progress.finished,
            finish_reason: progress.finish_reason.map(Cow::into_owned),
        });
        let rest = (!progress.finished).then_some((followed, progress.next));
        Some((Ok(reply_of(what)), rest))
    };
    Ok(stream::unfold(Some((followed, narrow(sequence.since))), next).boxed())
}
