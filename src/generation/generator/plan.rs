// SPDX-License-Identifier: Apache-2.0
//! Plans a request: checks it with the guard, decides what the engine is asked for, reserves its ids, and creates the capture of its reply.

use std::sync::Arc;

use tokio::time::Instant;

use super::Generator;
use crate::budget::Stopped;
use crate::engine::capabilities::{Capabilities, Product, StreamMode};
use crate::engine::plan::{GuardLimits, Plan, PlanInputs};
use crate::engine::sglang::guard;
use crate::engine::sglang::request::GenerateRequest;
use crate::engine::sglang::resume::{ResumableRequest, ResumeObstacle};
use crate::engine::sglang::routes::{self, Route};
use crate::engine::sglang::tokenize::TextPrompt;
use crate::error::Error;
use crate::generation::active::{ABORT_TIMEOUT, ActiveGeneration};
use crate::generation::capture::{Capture, ChatCapture};
use crate::generation::entropy_request::entropy_request;
use crate::generation::in_flight::InFlight;
use crate::generation::recorder::{RecordContext, Recorder};
use crate::generation::request::{ClientCall, EngineChat, RequestId};
use crate::generation::resumption::Resumption;
use crate::generation::retries::AttemptContext;
use crate::generation::settings::{AbortPolicy, EntropyMode};
use crate::long_work::{BodyLength, on_body};
use crate::session::{self, Chat, Policy};

/// A request that is ready to be sent.
pub(super) struct PlannedRequest {
    /// The endpoint of the engine, for metrics.
    pub route: Route,
    /// The capture of the reply, which also has the body. Dropping it after the request was sent aborts the request.
    pub active: ActiveGeneration,
    /// An earlier attempt used the request's id, and the engine may not have freed it yet.
    pub engine_may_hold_rid: bool,
    /// A text prompt whose ids the record needs.
    pub text_prompt: Option<TextPrompt>,
    /// The client gets an echo of the prompt's ids, which are recorded.
    pub client_gets_echo: bool,
    /// When it was planned. What is left before it is sent: the record's beginning, and room for a prompt of text.
    pub now: Instant,
}

impl Generator {
    /// Plans a request for /generate. `chat` is the conversation that its turns continue.
    pub(super) async fn plan_generate(
        &self,
        call: &ClientCall,
        generate: Box<GenerateRequest>,
        chat: Option<Box<Chat>>,
        attempt: Option<AttemptContext>,
        rid: &RequestId,
    ) -> Result<PlannedRequest, Error> {
        let upstream = Arc::clone(&self.upstream.borrow());
        let settings = &self.context.settings;
        let assigns_rid = call.signals.rid.is_none();
        // the ids are only copied
        let length = BodyLength::Request(generate.bytes_besides_ids());
        let plan = on_body(length, || self.plan(&upstream, &generate, assigns_rid, call)).await?;
        if let Some(known) = plan.rid.as_ref().or_else(|| plan.rids.first().map(|(known, _)| known)) {
            // never set before: an attempt has one plan
            let _ = rid.set(Arc::clone(known));
        }
        if let (true, Some(reason)) = (settings.is_strict && plan.entropy_request.wanted, plan.unavailable_reason()) {
            return Err(Error::Strict { reason: reason.name().to_owned() });
        }
        let is_repeat = attempt.as_ref().is_some_and(|attempt| attempt.is_repeat);
        let mut flight = self.reserve_rids(&plan, is_repeat).await?;
        if !plan.knows_rids() {
            // without an assigned id the client's header has one, which the engine may use
            flight.add_unknown_rids(!assigns_rid);
        }
        // an id that tokentap assigns is never used twice
        let engine_may_hold_rid = is_repeat && (!assigns_rid || !generate.rids().is_empty());
        let now = Instant::now();
        let image_memory = match settings.records && generate.has_media() {
            true => match call.work.take(generate.images.decoded_bytes()) {
                // the generation itself has room, so only the pictures of the record are left out
                Err(Stopped::TooLarge { .. }) => None,
                taken => Some(taken?),
            },
            false => None,
        };
        let recorder = || {
            let context = RecordContext::for_generate(&generate, &upstream, Arc::clone(&self.policy));
            let context = context.with_columns(&plan, self.experts(&upstream), settings.entropy.top_logprobs);
            let settings = || self.image_settings.borrow().clone();
            let context = context.with_images(&generate, image_memory, settings);
            self.recorder(call, RecordContext { chat, ..context }, attempt, now)
        };
        let recorder = if settings.records { Some(on_body(length, recorder).await) } else { None };
        let client_gets_echo = generate.return_prompt_token_ids && upstream.echoes_prompt;
        let mut text_prompt = settings.records.then(|| TextPrompt::from_request(&generate)).flatten();
        if let Some(text) = text_prompt.as_mut().filter(|_| !plan.echo && !client_gets_echo) {
            match text.reserve(&call.work) {
                // the generation itself has room, so only the prompt of the record is left out
                Err(Stopped::TooLarge { .. }) => text_prompt = None,
                reserved => reserved?,
            }
        }
        let resumes = settings.on_abort == AbortPolicy::Resume;
        let resumption = resumes.then(|| resumption(call, &generate, &plan, &upstream, &self.policy));
        let capture = Capture::new(plan, flight, recorder, Arc::clone(&self.context), &upstream, now);
        let mut active = ActiveGeneration::new(capture, call.signals.authorization.clone());
        if let Some(resumption) = resumption {
            active.set_resumption(resumption);
        }
        Ok(PlannedRequest { route: routes::GENERATE, active, engine_may_hold_rid, text_prompt, client_gets_echo, now })
    }

    /// Plans a chat for the engine's own endpoint: nothing is measured.
    pub(super) async fn plan_chat(
        &self,
        call: &ClientCall,
        chat: EngineChat,
        attempt: Option<AttemptContext>,
        engine_may_hold_rid: bool,
    ) -> Result<PlannedRequest, Error> {
        let upstream = Arc::clone(&self.upstream.borrow());
        let plan = Plan::for_engine_chat(upstream.traits().product, chat.body.clone(), chat.n, chat.rid.clone());
        let mut flight = self.reserve_rids(&plan, engine_may_hold_rid).await?;
        if plan.rids.len() < plan.n {
            flight.add_unknown_rids(true);
        }
        let context = RecordContext::for_engine_chat(&chat, &upstream, Arc::clone(&self.policy));
        let now = Instant::now();
        let recorder = self.recorder(call, context, attempt, now);
        let route = chat.route;
        let uncaptured = self.uncaptured.begin(route.endpoint, Some(Arc::clone(&call.session)));
        let capture = Capture::new(plan, flight, Some(recorder), Arc::clone(&self.context), &upstream, now);
        let capture = capture.with_chat(ChatCapture::new(chat, uncaptured));
        let active = ActiveGeneration::new(capture, call.signals.authorization.clone());
        Ok(PlannedRequest { route, active, engine_may_hold_rid, text_prompt: None, client_gets_echo: false, now })
    }

    /// Checks a request with the guard and plans it.
    fn plan(
        &self,
        upstream: &Capabilities,
        request: &GenerateRequest,
        assigns_rid: bool,
        call: &ClientCall,
    ) -> Result<Plan, Error> {
        let settings = &self.context.settings;
        let product = upstream.traits().product;
        let limits = settings.entropy.limits;
        if settings.is_guarded {
            let limits = GuardLimits {
                generates: upstream.generates,
                vocab_size: upstream.vocab_size,
                max_top_logprobs: upstream.max_top_logprobs(limits.max_top_logprobs),
            };
            product.check(request, limits).map_err(|refusal| self.guard_error(refusal))?;
        }
        let shape = product.shape(request);
        let inputs = PlanInputs {
            entropy_request: entropy_request(request, &settings.entropy)?,
            is_always_wanted: settings.entropy.mode == EntropyMode::Always,
            limits,
            assigns_rid,
            records: settings.records,
            shape,
            failures: self.failures_since_probe(shape),
            columns: self.columns(request, upstream, call),
        };
        let mut plan = product.plan(request, upstream, inputs);
        if plan.body.as_ptr() != request.bytes.as_ptr() {
            // the budget has counted the request already; this is a copy
            plan.body = call.work.take(plan.body.len())?.hold(plan.body);
        }
        Ok(plan)
    }

    /// Reserves the request's ids. Unless the guard is off, none of them may be in flight. After a disconnected attempt (`is_repeat`) it
    /// first waits for that attempt's aborts to release them.
    async fn reserve_rids(&self, plan: &Plan, is_repeat: bool) -> Result<InFlight, Error> {
        let rids = plan.rids.iter().map(|(rid, _)| rid);
        let flights = &self.context.flights;
        if is_repeat {
            let mut aborting = self.context.aborting.subscribe();
            let free = aborting.wait_for(|_| !rids.clone().any(|rid| flights.is_live(rid)));
            // the outcome of the wait does not matter: the next lines check again
            let _ = Box::pin(tokio::time::timeout(ABORT_TIMEOUT, free)).await;
        }
        if !self.context.settings.is_guarded {
            return Ok(flights.start(rids.map(Arc::clone)));
        }
        flights.try_start(rids).map_err(|live| self.guard_error(guard::rid_in_use(&live.0)))
    }

    /// Creates the recorder of the reply.
    fn recorder(
        &self,
        call: &ClientCall,
        mut context: RecordContext,
        attempt: Option<AttemptContext>,
        now: Instant,
    ) -> Recorder {
        context.labels = call.labels.clone();
        context.engine = self.context.engines.single();
        let mut recorded = session::Call::new(Arc::clone(&self.sessions), Arc::clone(&call.session));
        recorded.set_tags(call.tags.clone());
        if call.signals.is_last {
            recorded.mark_last();
        }
        if let Some(attempt) = attempt {
            if call.signals.is_retry && !attempt.is_repeat {
                recorded.mark_retry();
            }
            recorded.track_turns(attempt.turns, attempt.superseded);
        }
        Recorder::new(recorded, context, now)
    }
}

/// How a generation is continued if a trainer aborts it.
fn resumption(
    call: &ClientCall,
    request: &GenerateRequest,
    plan: &Plan,
    upstream: &Capabilities,
    policy: &Arc<Policy>,
) -> Resumption {
    let is_sglang = upstream.product.is_some_and(|traits| traits.product == Product::Sglang);
    let repeats = match upstream.streaming {
        _ if !is_sglang => None,
        _ if request.stream != Some(true) => Some(true),
        Some(StreamMode::Cumulative) => Some(true),
        Some(StreamMode::Incremental) => Some(false),
        Some(StreamMode::IncrementalIds) | None => None,
    };
    // the engine adds its defaults to each request
    let counts_tokens = upstream.preferred.as_ref().is_none_or(|preferred| preferred.count_tokens);
    let resumable = match counts_tokens {
        true => Err(ResumeObstacle::Member),
        false => ResumableRequest::try_new(request, plan.body.clone()),
    };
    Resumption::new(resumable, repeats, call.head.clone(), Arc::clone(policy))
}
