// SPDX-License-Identifier: Apache-2.0
//! Forwards an upstream body to the client unchanged.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::client::ReplyBody;
use super::reply_body::ReplyError;
use crate::error::BoxError;
use crate::metrics::Metrics;

/// An upstream body with the bytes that were read already, and with the time limits of its route.
#[derive(Debug)]
pub struct ForwardedBody {
    head: Bytes,
    body: ReplyBody,
    idle: Option<IdleTimer>,
    deadline: Option<Pin<Box<Sleep>>>,
    metrics: Arc<Metrics>,
}

impl ForwardedBody {
    /// A body without time limits.
    #[must_use]
    pub fn unlimited(metrics: &Arc<Metrics>, head: Bytes, body: ReplyBody) -> Self {
        let metrics = Arc::clone(metrics);
        Self { head, body, idle: None, deadline: None, metrics }
    }

    /// A body that must not pause longer than `idle`, and must end by `deadline`.
    #[must_use]
    pub fn limited(metrics: &Arc<Metrics>, body: ReplyBody, idle: Option<Duration>, deadline: Option<Instant>) -> Self {
        let deadline = deadline.map(|at| Box::pin(tokio::time::sleep_until(at)));
        Self { idle: idle.map(IdleTimer::new), deadline, ..Self::unlimited(metrics, Bytes::new(), body) }
    }

    fn count(&self, kind: &str) {
        self.metrics.upstream_errors.with_label_values(&[kind]).inc();
    }
}

impl http_body::Body for ForwardedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.head.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.head)))));
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.count("timeout");
            return Poll::Ready(Some(Err("the reply took longer than six times --upstream-timeout".into())));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                if let Some(idle) = &mut self.idle {
                    idle.reset();
                }
                // the upstream is not at fault if the client's body failed
                if matches!(&frame, Some(Err(error)) if !matches!(error, ReplyError::Upload(_))) {
                    self.count("reset");
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => match &mut self.idle {
                Some(idle) => {
                    ready!(idle.poll(cx));
                    self.count("timeout");
                    Poll::Ready(Some(Err("the reply paused for longer than --upstream-timeout".into())))
                }
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.head.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}

/// A timer that expires when it is not reset within its limit.
#[derive(Debug)]
struct IdleTimer {
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl IdleTimer {
    fn new(limit: Duration) -> Self {
        Self { limit, sleep: Box::pin(tokio::time::sleep(limit)) }
    }

    fn reset(&mut self) {
        self.sleep.as_mut().reset(Instant::now() + self.limit);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.sleep.as_mut().poll(cx)
    }
}
