// SPDX-License-Identifier: Apache-2.0
//! Sends a planned request, and sends it again where a refusal may have another cause than the request.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::Generator;
use super::plan::PlannedRequest;
use crate::engine::reason::Reason;
use crate::engine::sglang::resume::ResumeObstacle;
use crate::engine::sglang::routes::Route;
use crate::engine::transport::client::Reply;
use crate::engine::upstream::send;
use crate::error::Error;
use crate::generation::active::ActiveGeneration;
use crate::generation::request::{ClientCall, RequestHead};
use crate::traces::Failure;

/// Pauses, in milliseconds, before a refused id is sent again: the engine answers an abort at once, but frees the id some scheduler steps
/// later.
const RID_RETRY_PAUSES_MS: [u64; 5] = [20, 40, 80, 160, 320];

impl Generator {
    /// Sends a request, and looks up the ids of a text prompt that the reply will not echo.
    pub(super) async fn send(
        &self,
        call: &ClientCall,
        planned: PlannedRequest,
    ) -> Result<(Reply, ActiveGeneration), Error> {
        let PlannedRequest { route, mut active, engine_may_hold_rid, text_prompt, client_gets_echo, now } = planned;
        let expects_echo = client_gets_echo || active.capture().plan().echo;
        let (reply, prompts) = match text_prompt {
            Some(mut prompt) if expects_echo => {
                let reply = self.send_to_engine(route, &call.head, &mut active, engine_may_hold_rid, now).await?;
                // the request may have been sent again without the echo
                let is_echoed = client_gets_echo || active.capture().plan().echo;
                let looks_up = !is_echoed && prompt.reserve(&call.work).is_ok();
                (reply, if looks_up { Box::pin(prompt.tokenize(&self.context.engines.any())).await? } else { None })
            }
            // on the heap, because few requests need both and their state is large
            Some(prompt) => {
                let engine = self.context.engines.any();
                let sent = Box::pin(self.send_to_engine(route, &call.head, &mut active, engine_may_hold_rid, now));
                tokio::try_join!(sent, Box::pin(prompt.tokenize(&engine)))?
            }
            None => (self.send_to_engine(route, &call.head, &mut active, engine_may_hold_rid, now).await?, None),
        };
        if let (Some(prompts), Some(recorder)) = (prompts, active.capture_mut().recorder()) {
            recorder.set_prompt_ids(prompts);
        }
        Ok((reply, active))
    }

    /// Sends the request, and sends it again without forced logprobs if those may have made it fail. If `engine_may_hold_rid`, a refusal
    /// may mean that the engine has not yet freed the id of an earlier attempt.
    async fn send_to_engine(
        &self,
        route: Route,
        head: &RequestHead,
        active: &mut ActiveGeneration,
        engine_may_hold_rid: bool,
        mut now: Instant,
    ) -> Result<Reply, Error> {
        active.mark_sent();
        let mut pauses = RID_RETRY_PAUSES_MS.iter().filter(|_| engine_may_hold_rid);
        let first = loop {
            let reply = self.send_once(route, head, active, now).await?;
            match pauses.next().filter(|_| reply.status() == StatusCode::BAD_REQUEST) {
                Some(pause) => Box::pin(tokio::time::sleep(Duration::from_millis(*pause))).await,
                None => break reply,
            }
            now = Instant::now();
        };
        let status = first.status();
        let forced = active.capture().plan().unforced.is_some();
        if !forced || !matches!(status, StatusCode::BAD_REQUEST | StatusCode::INTERNAL_SERVER_ERROR) {
            return Ok(first);
        }
        self.context.metrics.unforced_retries.with_label_values(&[status.as_str()]).inc();
        let is_renamed = active.capture_mut().give_up(Reason::Refused);
        if let Some(resumption) = active.resumption() {
            resumption.prevent(ResumeObstacle::Refused);
        }
        let plan = active.capture_mut().plan_mut();
        // an engine may keep the client's id when it refuses a request (SGLang 0.5.12); a second refusal is then about the id
        let keeps_id = status == StatusCode::BAD_REQUEST && !is_renamed && !plan.rids.is_empty();
        let refusal = keeps_id.then_some(first);
        // it replaces the forced body, so no room is asked for
        plan.body = self.context.budget.hold(std::mem::take(&mut plan.body));
        let second = Box::pin(self.send_once(route, head, active, Instant::now())).await?;
        if let Some(refusal) = refusal.filter(|_| second.status() == StatusCode::BAD_REQUEST) {
            return Ok(refusal);
        }
        let shape = active.capture().plan().shape;
        if status == StatusCode::INTERNAL_SERVER_ERROR && second.status().is_success() && shape.is_delicate() {
            tracing::warn!(
                grammar = shape.grammar,
                greedy = shape.greedy,
                "the engine fails on requests of this shape when logprobs are forced; they are not forced until the next probe"
            );
            self.refused_shapes.lock().insert(shape);
        }
        Ok(second)
    }

    /// Sends the body of the plan once.
    async fn send_once(
        &self,
        route: Route,
        head: &RequestHead,
        active: &mut ActiveGeneration,
        now: Instant,
    ) -> Result<Reply, Error> {
        let call = head.call(active.capture().plan().body.clone());
        let reply = send(self.context.engines.upstream(), &self.context.metrics, route, call, now).await;
        reply.inspect_err(|error| {
            active.mark_ended();
            active.capture().fail_span(Failure::Status(error.status()));
        })
    }
}
