//! `grpc.health.v1.Health`: what `/readyz` says.

use std::sync::Arc;

use futures_util::stream;
use tokio::sync::watch;
use tonic::server::NamedService;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::entropy::Measuring;
use super::services::Port;
use super::trajectories::Recorded;
use super::{Answers, generate};
use crate::grpc::pb::entropy_server::EntropyServer;
use crate::grpc::pb::generate_server::GenerateServer;
use crate::grpc::pb::trajectories_server::TrajectoriesServer;
use crate::http::Parts;
use crate::server::Phase;

/// Whether the port, or one of its services, serves.
#[derive(Debug)]
pub(super) struct Readiness {
    pub(super) parts: Arc<Parts>,
    pub(super) port: Port,
}

impl Readiness {
    /// Trajectories can be read and logits be measured while the engine is away; everything else cannot do without it.
    fn needs_engine(&self, service: &str) -> Result<bool, Status> {
        match service {
            "" | <GenerateServer<generate::Generation>>::NAME => Ok(true),
            <EntropyServer<Measuring>>::NAME => Ok(false),
            <TrajectoriesServer<Recorded>>::NAME if self.port == Port::Control => Ok(false),
            _ => Err(Status::not_found(format!("there is no service {service:?} on this port"))),
        }
    }
}

fn said(needs_engine: bool, ready: bool, phase: Phase) -> HealthCheckResponse {
    let serves = phase == Phase::Serving && (ready || !needs_engine);
    let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status.into() }
}

/// What of a watch is left: the two states, and what was said last.
struct Watching {
    needs_engine: bool,
    ready: watch::Receiver<bool>,
    phase: watch::Receiver<Phase>,
    last: Option<HealthCheckResponse>,
}

impl Watching {
    async fn next(&mut self) -> Option<HealthCheckResponse> {
        loop {
            let now = said(self.needs_engine, *self.ready.borrow_and_update(), *self.phase.borrow_and_update());
            if self.last.as_ref() != Some(&now) {
                self.last = Some(now);
                return Some(now);
            }
            let changed = tokio::select! {
                changed = self.ready.changed() => changed,
                changed = self.phase.changed() => changed,
            };
            // whoever knew has gone
            changed.ok()?;
        }
    }
}

#[async_trait]
impl Health for Readiness {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let needs_engine = self.needs_engine(&request.get_ref().service)?;
        let (ready, phase) = (*self.parts.ready.borrow(), *self.parts.phase.borrow());
        Ok(Response::new(said(needs_engine, ready, phase)))
    }

    type WatchStream = Answers<HealthCheckResponse>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let needs_engine = self.needs_engine(&request.get_ref().service)?;
        let (ready, phase) = (self.parts.ready.clone(), self.parts.phase.clone());
        let watching = Watching { needs_engine, ready, phase, last: None };
        let answers = stream::unfold(watching, |mut watching| async move {
            let now = watching.next().await?;
            Some((Ok(now), watching))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}
