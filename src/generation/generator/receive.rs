// SPDX-License-Identifier: Apache-2.0
//! Begins to read a reply: as a stream, as a whole, or without parsing it.

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, header, response};

use super::Generator;
use crate::engine::reason::Reason;
use crate::engine::transport::client::Reply;
use crate::engine::transport::headers;
use crate::engine::upstream::failed;
use crate::error::Error;
use crate::generation::active::ActiveGeneration;
use crate::generation::buffered::{BufferedReply, collect};
use crate::generation::continuation::complete;
use crate::generation::event::{EventAccess, GenerationEvent, UnparsedReason};
use crate::generation::events::{Events, Generation};
use crate::generation::log_wait;
use crate::generation::request::RequestHead;
use crate::generation::stream::EventStream;
use crate::long_work::{BodyLength, on_body};
use crate::session::Fault;
use crate::traces::Failure;

impl Generator {
    /// Begins to read the reply to `request`. A reply that does not stream is read, measured and recorded completely.
    pub(super) async fn receive(
        &self,
        reply: Reply,
        mut active: ActiveGeneration,
        reads: EventAccess,
        request: RequestHead,
    ) -> Result<Generation, Error> {
        let (mut head, body) = reply.into_parts();
        headers::end_hop(&mut head.headers);
        if head.status != StatusCode::OK {
            active.mark_ended();
            active.capture_mut().fail(head.status);
            return Ok(Generation::unparsed(head, &self.context.metrics, Bytes::new(), body));
        }
        let is_stream = headers::is_event_stream(&head.headers);
        let plan = active.capture_mut().plan_mut();
        // the first event of a stream may refuse what is forced
        plan.drop_body();
        if !is_stream {
            plan.drop_bodies();
        }
        let limit = self.context.settings.entropy.limits.max_reply_bytes;
        if active.capture().is_chat() && head.headers.contains_key(header::CONTENT_ENCODING) {
            // its ids cannot be read
            active.capture_mut().cut(Fault::Unreadable);
            return Ok(Generation::unparsed_active(head, active, body));
        }
        let passes = match reads {
            // a stream names the ids that a disconnected client's abort needs
            EventAccess::Pieces => !is_stream || active.capture().plan().knows_rids(),
            EventAccess::Bytes => !is_stream,
            EventAccess::Fields => false,
        };
        if passes && !active.capture().reads_reply() && active.resumption().is_none() {
            return Ok(Generation::unparsed_active(head, active, body));
        }
        if is_stream {
            head.headers.remove(header::CONTENT_LENGTH);
            let stream = EventStream::new(body, active, reads, limit, request);
            return Ok(Generation { head, events: Events::Stream(Box::new(stream)) });
        }
        let strict = self.context.settings.is_strict && active.capture().plan().entropy_request.wanted;
        let buffered = collect(body, limit, self.context.budget.reply()).await;
        active.mark_ended();
        let buffered = buffered.map_err(|failure| failed(&self.context.metrics, failure));
        let buffered = buffered.inspect_err(|error| active.capture().fail_span(Failure::Status(error.status())));
        match buffered? {
            BufferedReply::All(body) => {
                let body = match active.resumption().take() {
                    // on the heap, because few replies need it
                    Some(resumption) => Box::pin(complete(*resumption, body, &mut active, limit)).await,
                    None => body,
                };
                self.measure_whole(head, body, active, reads).await
            }
            BufferedReply::Passing { reason, .. } if strict => {
                let error = Error::Strict { reason: reason.name().to_owned() };
                active.capture().fail_span(Failure::Status(error.status()));
                Err(error)
            }
            BufferedReply::Passing { reason, head: read, rest } => {
                active.capture_mut().skip(reason);
                active.capture_mut().incomplete();
                Ok(Generation::unparsed(head, &self.context.metrics, read, rest))
            }
        }
    }

    /// Measures and records a reply that does not stream, and waits until it is durable.
    async fn measure_whole(
        &self,
        mut head: response::Parts,
        body: Bytes,
        mut active: ActiveGeneration,
        reads: EventAccess,
    ) -> Result<Generation, Error> {
        let (event, is_readable) = on_body(BodyLength::Reply(body.len()), || {
            let event = |parsed| GenerationEvent::whole(body.clone(), parsed, reads);
            match active.guarded(|capture| capture.decode_whole(&body, reads).map(event)) {
                Some(event) => (event, true),
                // a failure of tokentap loses entropies, not text
                None => match GenerationEvent::outline(body.clone(), reads) {
                    Ok(event) => (event, false),
                    Err(_) => (GenerationEvent::unparsed(body.clone(), UnparsedReason::Unreadable), false),
                },
            }
        })
        .await;
        if !is_readable {
            active.capture_mut().cut(Fault::Unreadable);
            active.capture_mut().incomplete();
        }
        let is_confirmed = active.wait_until_durable().await;
        let observed = active.capture().observed();
        let refuse = |error: Error| {
            active.capture().fail_span(Failure::Status(error.status()));
            Ok(Generation::failed(error, Some(observed)))
        };
        if !is_confirmed {
            return refuse(log_wait::unconfirmed());
        }
        if let Some(error) = active.interruption() {
            return refuse(error);
        }
        let plan = active.capture().plan();
        if self.context.settings.is_strict && plan.entropy_request.wanted {
            // a 200 without a finished sequence is not a reply to this request
            let unread = !is_readable || observed.finished == 0 && !plan.items.is_empty();
            let missing = if unread { Some(Reason::Unreadable) } else { observed.missing };
            if let Some(reason) = missing {
                return refuse(Error::Strict { reason: reason.name().to_owned() });
            }
        }
        let event = event.counted(&body, |changed| self.context.budget.hold(changed));
        head.headers.remove(header::CONTENT_LENGTH);
        Ok(Generation { head, events: Events::Whole { event: Some(Arc::new(event)), observed: Some(observed) } })
    }
}
