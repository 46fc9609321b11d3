// SPDX-License-Identifier: Apache-2.0
//! Sends the appends of this process in groups.
//!
//! A group is one pipeline and one `WAIT`. While it runs, the next group is collected.

use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, RedisError, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::Shared;
use super::connection::{Connected, Failure, Trouble, is_missing_script};
use super::node::{State, connected};
use super::script::{Call, MARK};
use crate::session::ledger::{Appended, LedgerError};

/// Appends that wait at most.
const QUEUE: usize = 8192;
/// Kibibytes of the appends that wait or are sent, at most.
const QUEUE_KIB: u32 = 64 << 10;
/// Appends in a group at most.
const GROUP: usize = 512;
/// Bytes of a group, after which it takes no more appends.
const GROUP_BYTES: usize = 4 << 20;
/// The time limit of `WAIT` after one that fell short, so that a replica that is down delays one group only.
const SHORT_WAIT: Duration = Duration::from_millis(50);

/// The queue of appends to a primary.
#[derive(Debug, Clone)]
pub(super) struct Appender {
    requests: mpsc::Sender<Request>,
    room: Arc<Semaphore>,
}

/// A task of the connection for appends, with its share of the queue.
#[derive(Debug)]
pub(super) struct Request {
    task: Task,
    room: Option<OwnedSemaphorePermit>,
}

enum Task {
    Append(Call, oneshot::Sender<Result<Appended, LedgerError>>),
    /// Whether the replicas confirm all earlier writes. With a key of the primary.
    Confirm(Vec<u8>, oneshot::Sender<Result<bool, LedgerError>>),
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Append(..) => "Append",
            Self::Confirm(..) => "Confirm",
        })
    }
}

/// A queue and its receiver.
pub(super) fn queue() -> (Appender, mpsc::Receiver<Request>) {
    let (requests, receiver) = mpsc::channel(QUEUE);
    (Appender { requests, room: Arc::new(Semaphore::new(QUEUE_KIB as usize)) }, receiver)
}

impl Appender {
    pub(super) async fn append(&self, call: Call) -> Result<Appended, LedgerError> {
        let kib = u32::try_from(call.bytes().div_ceil(1024)).unwrap_or(u32::MAX).clamp(1, QUEUE_KIB);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.ok();
        let (sender, answer) = oneshot::channel();
        self.send(Request { task: Task::Append(call, sender), room }, answer).await
    }

    pub(super) async fn confirm(&self, mark: Vec<u8>) -> Result<bool, LedgerError> {
        let (sender, answer) = oneshot::channel();
        self.send(Request { task: Task::Confirm(mark, sender), room: None }, answer).await
    }

    async fn send<T>(
        &self,
        request: Request,
        answer: oneshot::Receiver<Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        let closed = || LedgerError::Unavailable("the connection is closed".into());
        self.requests.send(request).await.map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }
}

/// Sends groups until all senders are dropped.
pub(super) async fn run(mut requests: mpsc::Receiver<Request>, mut state: watch::Receiver<State>, shared: Arc<Shared>) {
    let mut short = false;
    while let Some(first) = requests.recv().await {
        let mut group = Group::default();
        group.push(first);
        while group.appends.len() < GROUP && group.bytes < GROUP_BYTES {
            let Ok(next) = requests.try_recv() else { break };
            group.push(next);
        }
        match connected(&mut state).await {
            Ok(connected) => group.send(&connected, &shared, &mut short).await,
            Err(error) => group.fail(&error),
        }
    }
}

#[derive(Default)]
struct Group {
    appends: Vec<PendingAppend>,
    confirms: Vec<oneshot::Sender<Result<bool, LedgerError>>>,
    mark: Option<Vec<u8>>,
    bytes: usize,
    room: Vec<OwnedSemaphorePermit>,
}

impl Group {
    fn push(&mut self, request: Request) {
        match request.task {
            // a caller that has left got a time-out, so this append may or may not be stored
            Task::Append(_, answer) if answer.is_closed() => return,
            Task::Append(call, answer) => {
                self.bytes += call.bytes();
                self.appends.push((call, answer));
            }
            Task::Confirm(mark, answer) => {
                self.mark = Some(mark);
                self.confirms.push(answer);
            }
        }
        self.room.extend(request.room);
    }

    fn fail(self, error: &LedgerError) {
        // a caller that has left needs no answer
        for (_, answer) in self.appends {
            let _ = answer.send(Err(error.clone()));
        }
        for answer in self.confirms {
            let _ = answer.send(Err(error.clone()));
        }
    }

    async fn send(mut self, connected: &Connected, shared: &Shared, short: &mut bool) {
        if self.appends.is_empty() && self.confirms.is_empty() {
            return;
        }
        if !self.appends.is_empty() {
            shared.observer.group_sent(self.appends.len(), self.bytes);
        }
        let options = &shared.options;
        // `WAIT` waits for the writes of its connection only, and deletions are sent on another one
        let mark = self.mark.take();
        let mut pipeline = Pipeline::with_capacity(self.appends.len() + 1);
        for (call, _) in &self.appends {
            pipeline.add_command(call.by_hash());
        }
        if let Some(mark) = mark {
            // by its text, because it is rare
            pipeline.add_command(Call::new(&MARK).key(mark).by_text());
        }
        let limit = if *short { SHORT_WAIT } else { options.timeout * 3 / 4 };
        let mut wait = redis::cmd("WAIT");
        wait.arg(options.replicas).arg(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1));

        let (mut connection, mut waiting) = (connected.appends.clone(), connected.appends.clone());
        let answers = async {
            if pipeline.is_empty() {
                return Ok(Vec::new());
            }
            connected.limit(connection.send_all(&pipeline)).await
        };
        let waited = async {
            if options.replicas == 0 {
                return Ok(Value::Int(0));
            }
            connected.limit(waiting.send(&wait)).await
        };
        tokio::pin!(answers, waited);
        // in this order, so that WAIT is sent after the appends, and not only after their answers
        let (answers, early) = tokio::select! {
            biased;
            answers = &mut answers => (answers, None),
            waited = &mut waited => (answers.await, Some(waited)),
        };
        let answers = match answers {
            Ok(answers) => answers,
            Err(failure) => {
                if matches!(failure, Failure::Timeout) {
                    // the connection may hold appends that are still sent
                    connected.report(Trouble::Lost("appends had no answer in time".into()));
                }
                return self.fail(&connected.judge(&failure));
            }
        };
        let mut answers = answers.into_iter();
        let mut stored = Vec::new();
        let mut unknown = Vec::new();
        for (call, answer) in self.appends {
            match Outcome::from_answer(answers.next(), connected) {
                Outcome::Stored => stored.push(answer),
                Outcome::UnknownScript => unknown.push((call, answer)),
                Outcome::Other(result) => drop(answer.send(result)),
            }
        }
        if let Some(Value::ServerError(error)) = answers.next() {
            let error = connected.judge(&Failure::Error(RedisError::from(error)));
            for answer in self.confirms.drain(..) {
                drop(answer.send(Err(error.clone())));
            }
        }
        let waited = match early {
            Some(waited) => waited,
            None => waited.await,
        };
        let mut confirmed = confirmed(&waited, options.replicas);
        if !unknown.is_empty() {
            confirmed = resend(unknown, &mut stored, connected, &wait, options.replicas).await;
        }
        if let Err(failure) = &waited {
            // the appends are stored, so only the connection is judged
            connected.judge(failure);
        }
        *short = !confirmed;
        for answer in stored {
            drop(answer.send(Ok(Appended::Stored { replicated: confirmed })));
        }
        for answer in self.confirms {
            let result = match &waited {
                Ok(_) => Ok(confirmed),
                Err(failure) => Err(connected.judge(failure)),
            };
            drop(answer.send(result));
        }
    }
}

type PendingAppend = (Call, oneshot::Sender<Result<Appended, LedgerError>>);

/// Sends appends again with the text of the script, which the server did not know. Returns whether the replicas confirm them.
async fn resend(
    unknown: Vec<PendingAppend>,
    stored: &mut Vec<oneshot::Sender<Result<Appended, LedgerError>>>,
    connected: &Connected,
    wait: &redis::Cmd,
    replicas: u32,
) -> bool {
    let mut pipeline = Pipeline::with_capacity(unknown.len() + 1);
    for (call, _) in &unknown {
        pipeline.add_command(call.by_text());
    }
    if replicas > 0 {
        pipeline.add_command(wait.clone());
    }
    let mut connection = connected.appends.clone();
    match connected.limit(connection.send_all(&pipeline)).await {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for (_, answer) in unknown {
                match Outcome::from_answer(answers.next(), connected) {
                    Outcome::Stored => stored.push(answer),
                    Outcome::UnknownScript => {
                        drop(answer.send(Err(LedgerError::Refused("the server does not keep scripts".into()))));
                    }
                    Outcome::Other(result) => drop(answer.send(result)),
                }
            }
            confirmed(&Ok(answers.next().unwrap_or(Value::Int(0))), replicas)
        }
        Err(failure) => {
            let error = connected.judge(&failure);
            for (_, answer) in unknown {
                drop(answer.send(Err(error.clone())));
            }
            false
        }
    }
}

/// The outcome of an append, from the answer of the server.
enum Outcome {
    Stored,
    UnknownScript,
    Other(Result<Appended, LedgerError>),
}

impl Outcome {
    fn from_answer(answer: Option<Value>, connected: &Connected) -> Self {
        match answer {
            Some(Value::Int(1)) => Self::Stored,
            Some(Value::Int(0)) => Self::Other(Ok(Appended::Behind)),
            Some(Value::Int(-1)) => Self::Other(Ok(Appended::Gone)),
            Some(Value::ServerError(error)) => {
                let error = RedisError::from(error);
                if is_missing_script(&error) {
                    return Self::UnknownScript;
                }
                Self::Other(Err(connected.judge(&Failure::Error(error))))
            }
            _ => Self::Other(Err(LedgerError::Unreadable("an append has an unknown answer".into()))),
        }
    }
}

fn confirmed(waited: &Result<Value, Failure>, replicas: u32) -> bool {
    matches!(waited, Ok(Value::Int(count)) if *count >= i64::from(replicas))
}
