//! A stream of the engine's own chat endpoint on its way to the client. It is pulled, and its ids become turns as it ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame};

use super::recorder::PassthroughRecorder;
use crate::api::openai_chat::sglext::Listener;
use crate::budget::Share;
use crate::engine::client::ReplyBody;
use crate::engine::forwarded::Failed;
use crate::error::BoxError;
use crate::generation::active::Recording;
use crate::serve::proxy_state::ProxyState;

/// Bytes held back that are not counted.
const UNCOUNTED: usize = 64 * 1024;

/// The stream. Dropped when the ids have come, it still records them; before, the generation passes unseen.
pub struct PassthroughStream {
    state: Arc<ProxyState>,
    upstream: ReplyBody,
    listener: Listener,
    /// Gone once the reply has ended.
    recorder: Option<PassthroughRecorder>,
    /// What the client gets next; with [`PassthroughStream::recording`] it waits until the turns that it ends are on disk.
    out: Vec<u8>,
    recording: Option<Recording>,
    /// What is held back takes this of the budget.
    share: Share,
    limit: usize,
    ended: bool,
    failed: Failed,
}

impl std::fmt::Debug for PassthroughStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PassthroughStream")
            .field("listener", &self.listener)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl PassthroughStream {
    /// A stream that `recorder` records.
    pub(super) fn new(upstream: ReplyBody, recorder: PassthroughRecorder) -> Self {
        let state = Arc::clone(&recorder.state);
        Self {
            upstream,
            listener: Listener::new(recorder.asked.wanted, recorder.asked.n),
            recorder: Some(recorder),
            out: Vec::new(),
            recording: None,
            share: state.budget.reply(),
            limit: usize::try_from(state.config.limits.max_reply_bytes).unwrap_or(usize::MAX),
            ended: false,
            failed: Failed::default(),
            state,
        }
    }

    /// The next bytes for the client.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(recording) = &mut self.recording {
                ready!(recording.as_mut().poll(cx));
                self.recording = None;
            }
            // clients leave when all choices have ended, and the ids come behind that
            if !self.out.is_empty() && !self.listener.is_closing() {
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
            recorder.first();
        }
        let read = catch_unwind(AssertUnwindSafe(|| self.listener.push(data, &mut self.out)));
        if read.is_err() {
            self.state.metrics.panics.inc();
        }
        let held = self.listener.pending() + if self.listener.is_closing() { self.out.len() } else { 0 };
        // those of the usual size are not worth the counting
        let counted = if held < UNCOUNTED { 0 } else { held };
        if read.is_err() || held > self.limit || self.share.resize(counted).is_err() {
            self.out.extend_from_slice(&self.listener.give_up());
            // what was held goes on, and the generation passes unseen
            self.recorder = None;
            let _ = self.share.resize(0);
        }
        if self.listener.has_ids() || self.listener.is_done() {
            self.record();
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.out.extend_from_slice(&self.listener.rest());
        self.record();
    }

    fn record(&mut self) {
        let engine_ids = self.listener.take();
        let acks = self
            .recorder
            .take()
            .zip(engine_ids)
            .map(|(recorder, engine_ids)| recorder.record(engine_ids))
            .unwrap_or_default();
        if acks.iter().any(|ack| !ack.is_done()) {
            let wait = Arc::clone(&self.state.generator.log_wait);
            self.recording = Some(Box::pin(async move { wait.wait(acks).await }));
        }
    }
}

impl Drop for PassthroughStream {
    fn drop(&mut self) {
        // a client that has left, perhaps behind the ids
        self.record();
    }
}
