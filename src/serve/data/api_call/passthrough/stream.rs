//! Forwards a stream of the engine's own chat endpoint, driven by the client's reads. Its token ids become turns when it ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame};

use super::recorder::PassthroughRecorder;
use crate::api::openai_chat::sglext::SglextFilter;
use crate::budget::Share;
use crate::engine::transport::client::ReplyBody;
use crate::engine::transport::forwarded::BodyFailure;
use crate::error::BoxError;
use crate::generation::active::DurabilityWait;
use crate::serve::proxy_state::ProxyState;

/// Buffered bytes that are not counted against the budget.
const UNCOUNTED: usize = 64 * 1024;

/// The stream. If it is dropped after the ids arrived, it still records them; before, the generation counts as uncaptured.
pub(super) struct PassthroughStream {
    state: Arc<ProxyState>,
    upstream: ReplyBody,
    filter: SglextFilter,
    /// `None` once the reply has ended.
    recorder: Option<PassthroughRecorder>,
    /// The next bytes for the client. While `recording` is set, they wait until the turns that they complete are on disk.
    out: Vec<u8>,
    recording: Option<DurabilityWait>,
    /// The share of the memory budget that buffered bytes take.
    share: Share,
    limit: usize,
    ended: bool,
    failed: BodyFailure,
}

impl std::fmt::Debug for PassthroughStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PassthroughStream")
            .field("filter", &self.filter)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl PassthroughStream {
    /// Creates a stream that `recorder` records.
    pub(super) fn new(upstream: ReplyBody, recorder: PassthroughRecorder) -> Self {
        let state = Arc::clone(&recorder.state);
        Self {
            upstream,
            filter: SglextFilter::new(recorder.request.sglext, recorder.request.n),
            recorder: Some(recorder),
            out: Vec::new(),
            recording: None,
            share: state.budget.reply(),
            limit: usize::try_from(state.config.limits.max_reply_bytes).unwrap_or(usize::MAX),
            ended: false,
            failed: BodyFailure::default(),
            state,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(recording) = &mut self.recording {
                ready!(recording.as_mut().poll(cx));
                self.recording = None;
            }
            // a client may disconnect when all choices have ended, but the ids come later: hold these bytes until then
            if !self.out.is_empty() && !self.filter.awaits_ids() {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.out).into()))));
            }
            if let Some(error) = ready!(self.failed.poll(cx)) {
                return Poll::Ready(Some(Err(error)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.upstream).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.read_frame(&data);
                    }
                }
                Some(Err(error)) => {
                    self.state.metrics.upstream_errors.with_label_values(&["reset"]).inc();
                    self.end();
                    self.failed.set(error);
                }
                None => self.end(),
            }
        }
    }

    fn read_frame(&mut self, data: &Bytes) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record_first_bytes();
        }
        let read = catch_unwind(AssertUnwindSafe(|| self.filter.push(data, &mut self.out)));
        if read.is_err() {
            self.state.metrics.panics.inc();
        }
        let held = self.filter.pending_bytes() + if self.filter.awaits_ids() { self.out.len() } else { 0 };
        // small buffers are not worth the cost of counting
        let counted = if held < UNCOUNTED { 0 } else { held };
        if read.is_err() || held > self.limit || self.share.resize(counted).is_err() {
            self.out.extend_from_slice(&self.filter.stop_parsing());
            // the buffered bytes are forwarded, and the generation counts as uncaptured
            self.recorder = None;
            let _ = self.share.resize(0);
        }
        if self.filter.has_ids() || self.filter.is_done() {
            self.record();
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.out.extend_from_slice(&self.filter.take_pending());
        self.record();
    }

    fn record(&mut self) {
        let engine_ids = self.filter.take_ids();
        let acks = self
            .recorder
            .take()
            .zip(engine_ids)
            .map(|(recorder, engine_ids)| recorder.record(engine_ids))
            .unwrap_or_default();
        if acks.iter().any(|ack| !ack.is_done()) {
            let wait = Arc::clone(&self.state.generator.context.log_wait);
            self.recording = Some(Box::pin(async move { wait.wait(acks).await }));
        }
    }
}

impl http_body::Body for PassthroughStream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.poll_next(cx)
    }
}

impl Drop for PassthroughStream {
    fn drop(&mut self) {
        // the client has disconnected, perhaps after the ids arrived
        self.record();
    }
}
