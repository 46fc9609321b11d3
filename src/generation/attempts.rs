// SPDX-License-Identifier: Apache-2.0
//! The attempts of a streamed generation. A further reply replaces the first one if that refuses what tokentap forced, or ends with an abort
//! of the trainer.
//!
//! It works on events as they arrive, before they are parsed, measured and recorded.

use std::task::{Context, Poll, ready};

use super::active::ActiveGeneration;
use super::continuation::StreamContinuation;
use super::request::RequestHead;
use super::resumption::{JoinOutcome, Resumption, count_passed};
use super::unforced::{UnforcedReply, retry_unforced};
use crate::engine::sglang::refusal::refuses;
use crate::engine::sglang::resume::{ResumeObstacle, without_finish};
use crate::engine::transport::client::ReplyBody;
use crate::engine::transport::sse::SseEvent;

/// The attempts of a stream.
pub(super) struct Attempts {
    /// The head of the request, until the first event, which may refuse what is forced. `None` if nothing is forced.
    first: Option<RequestHead>,
    /// How the generation is continued after an abort; `None` if it is not.
    resumption: Option<Box<Resumption>>,
    replacement: Option<Box<Replacement>>,
}

/// A reply that replaces the current one, until its first event with data.
struct Replacement {
    /// The reply, until its head arrives.
    awaited: Option<AwaitedReply>,
    /// The last event of the replaced reply. The client gets it unchanged if no other reply begins.
    last: SseEvent,
    cause: Cause,
}

enum AwaitedReply {
    Unforced(UnforcedReply),
    Rest(StreamContinuation),
}

/// Why a reply is replaced.
#[derive(Debug, Clone, Copy)]
enum Cause {
    /// The engine refuses what is forced.
    Refused {
        /// An engine may keep the id of a request that it has refused (SGLang 0.5.12), and a second refusal is then about the id.
        keeps_id: bool,
    },
    /// The trainer aborted the generation.
    Aborted {
        /// The last event has tokens that earlier events do not have.
        has_new_tokens: bool,
    },
}

/// What an event of the upstream becomes.
pub(super) enum JoinedEvent {
    /// Events of the client.
    Events {
        /// The event that was held back, before `event`.
        before: Option<SseEvent>,
        /// The event; `None` if another reply comes first.
        event: Option<SseEvent>,
        /// The number of tokens of an aborted attempt that are in neither event, but in one that is held back.
        aborted_tokens: Option<usize>,
    },
    /// It belongs after tokens that the client has, but cannot be joined to them.
    Unjoinable,
    /// The rest cannot be read from here on. The client gets this event of the abort, and nothing after it.
    Ended(SseEvent),
}

impl From<SseEvent> for JoinedEvent {
    fn from(event: SseEvent) -> Self {
        Self::Events { before: None, event: Some(event), aborted_tokens: None }
    }
}

impl Attempts {
    /// The attempts of a generation whose first reply has begun. `head` is that of its request.
    pub(super) fn new(head: RequestHead, active: &mut ActiveGeneration) -> Self {
        let first = active.capture().plan().unforced.is_some().then_some(head);
        Self { first, resumption: active.resumption().take(), replacement: None }
    }

    /// Whether the head of another reply is awaited. Nothing more of the current one is read.
    pub(super) fn is_waiting(&self) -> bool {
        self.replacement.as_ref().is_some_and(|replacement| replacement.awaited.is_some())
    }

    /// Whether an earlier attempt has been joined.
    pub(super) fn has_continued(&self) -> bool {
        self.resumption.as_ref().is_some_and(|resumption| resumption.has_continued())
    }

    /// Polls the reply that replaces the current one. Resolves to its body once its head arrives, else to the event that was held back.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        active: &mut ActiveGeneration,
    ) -> Poll<Result<ReplyBody, Option<SseEvent>>> {
        let Some(replacement) = &mut self.replacement else { return Poll::Ready(Err(None)) };
        let body = match &mut replacement.awaited {
            None => None,
            Some(AwaitedReply::Unforced(reply)) => ready!(reply.as_mut().poll(cx)),
            Some(AwaitedReply::Rest(reply)) => ready!(reply.poll(cx, active)),
        };
        replacement.awaited = None;
        let Some(body) = body else { return Poll::Ready(Err(self.give_up())) };
        let can_join = match replacement.cause {
            Cause::Refused { .. } => true,
            Cause::Aborted { .. } => self.resumption.as_mut().is_some_and(|resumption| resumption.begin_attempt()),
        };
        Poll::Ready(if can_join { Ok(body) } else { Err(self.end(ResumeObstacle::Unreadable, active)) })
    }

    /// Joins an event to those of earlier attempts.
    pub(super) fn join(&mut self, event: SseEvent, active: &mut ActiveGeneration) -> JoinedEvent {
        if event.is_done() {
            let before = self.end(ResumeObstacle::Unreadable, active);
            return JoinedEvent::Events { before, event: Some(event), aborted_tokens: None };
        }
        if event.data().is_none() {
            return event.into();
        }
        let event = match self.checked(event, active) {
            Some(event) => event,
            None => return JoinedEvent::Events { before: None, event: None, aborted_tokens: None },
        };
        let Some(mut resumption) = self.resumption.take() else { return event.into() };
        let Some(json) = event.data().filter(|json| json.first() == Some(&b'{')) else {
            self.resumption = Some(resumption);
            return event.into();
        };
        let outcome = resumption.join(json, || active.interrupted_by(), active.context());
        match outcome {
            JoinOutcome::Object(json) => {
                self.resumption = Some(resumption);
                let event = Some(json.map_or(event, SseEvent::of_json));
                JoinedEvent::Events { before: self.begin(), event, aborted_tokens: None }
            }
            JoinOutcome::Aborted(object, continuation) => {
                let before = self.begin();
                let reply = StreamContinuation::new(&resumption, continuation, active);
                self.resumption = Some(resumption);
                self.replacement = Some(Box::new(Replacement {
                    awaited: Some(AwaitedReply::Rest(reply)),
                    last: object.json.map_or(event, SseEvent::of_json),
                    cause: Cause::Aborted { has_new_tokens: object.new_tokens > 0 },
                }));
                JoinedEvent::Events { before, event: None, aborted_tokens: Some(object.new_tokens) }
            }
            // the engine refuses the continuation within the stream: the client has the event of the abort instead
            JoinOutcome::Error if self.replacement.is_some() => JoinedEvent::Events {
                before: None,
                event: self.end(ResumeObstacle::Refused, active),
                aborted_tokens: None,
            },
            JoinOutcome::Unreadable if resumption.has_continued() => {
                self.give_up().map_or(JoinedEvent::Unjoinable, JoinedEvent::Ended)
            }
            JoinOutcome::Error | JoinOutcome::Unreadable => event.into(),
        }
    }

    /// The event of an abort whose rest does not begin: the client no longer waits, or nothing more is parsed. A refusal is no longer needed.
    pub(super) fn abandon(&mut self) -> Option<SseEvent> {
        let Replacement { last, cause, .. } = *self.replacement.take()?;
        matches!(cause, Cause::Aborted { .. }).then_some(last)
    }

    /// The event that was held back, if no other reply begins, for this reason.
    pub(super) fn end(&mut self, obstacle: ResumeObstacle, active: &ActiveGeneration) -> Option<SseEvent> {
        if matches!(self.replacement.as_deref()?.cause, Cause::Aborted { .. }) {
            count_passed(&active.context().metrics, obstacle);
        }
        self.give_up()
    }

    /// The same, if the reason is counted already.
    fn give_up(&mut self) -> Option<SseEvent> {
        let Replacement { last, cause, .. } = *self.replacement.take()?;
        if matches!(cause, Cause::Aborted { .. }) {
            self.resumption = None;
        }
        Some(last)
    }

    /// Checks whether the first event of a reply refuses the request. Returns the event that goes on; `None` if the request is sent again.
    fn checked(&mut self, event: SseEvent, active: &mut ActiveGeneration) -> Option<SseEvent> {
        if let Some(head) = self.first.take() {
            if !event.data().is_some_and(refuses) {
                active.capture_mut().plan_mut().drop_bodies();
                return Some(event);
            }
            let (reply, keeps_id) = retry_unforced(&head, active);
            if let Some(resumption) = &mut self.resumption {
                resumption.prevent(ResumeObstacle::Refused);
            }
            self.replacement = Some(Box::new(Replacement {
                awaited: Some(AwaitedReply::Unforced(reply)),
                last: event,
                cause: Cause::Refused { keeps_id },
            }));
            return None;
        }
        let unforced = self.replacement.take_if(|replacement| matches!(replacement.cause, Cause::Refused { .. }));
        Some(match unforced.map(|replacement| *replacement) {
            Some(Replacement { last, cause: Cause::Refused { keeps_id: true }, .. })
                if event.data().is_some_and(refuses) =>
            {
                last
            }
            _ => event,
        })
    }

    /// The rest has begun: returns the event of the abort without its finish reason, if it has new tokens.
    fn begin(&mut self) -> Option<SseEvent> {
        let Replacement { last, cause, .. } = *self.replacement.take()?;
        let Cause::Aborted { has_new_tokens: true } = cause else { return None };
        last.data().and_then(|json| without_finish(json).ok()).map(SseEvent::of_json)
    }
}
