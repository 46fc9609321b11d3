// SPDX-License-Identifier: Apache-2.0
//! `grpc.health.v1.Health`: the readiness of `/readyz` over gRPC.

use std::sync::Arc;

use futures_util::stream;
use tokio::sync::watch;
use tonic::server::NamedService;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::entropy::EntropyService;
use super::trajectories::TrajectoriesService;
use super::{ReplyStream, generate};
use crate::serve::connection::Phase;
use crate::serve::grpc::pb::entropy_server::EntropyServer;
use crate::serve::grpc::pb::generate_server::GenerateServer;
use crate::serve::grpc::pb::trajectories_server::TrajectoriesServer;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::Port;

/// Reports whether the port or one of its services serves.
#[derive(Debug)]
pub(super) struct HealthService {
    pub(super) proxy: Arc<Proxy>,
    pub(super) port: Port,
}

impl HealthService {
    /// Trajectories and Entropy also work while the engine is down. The other services need it.
    fn needs(&self, service: &str) -> Result<Needs, Status> {
        match service {
            "" | <GenerateServer<generate::GenerateService>>::NAME => Ok(Needs { engine: true, sessions: true }),
            <EntropyServer<EntropyService>>::NAME => Ok(Needs { engine: false, sessions: false }),
            <TrajectoriesServer<TrajectoriesService>>::NAME if self.port == Port::Control => {
                Ok(Needs { engine: false, sessions: true })
            }
            _ => Err(Status::not_found(format!("there is no service {service:?} on this port"))),
        }
    }
}

/// The requirements of a service.
#[derive(Debug, Clone, Copy)]
struct Needs {
    engine: bool,
    /// Restored sessions.
    sessions: bool,
}

fn response(needs: Needs, ready: bool, restoring: bool, phase: Phase) -> HealthCheckResponse {
    let serves = phase == Phase::Serving && (ready || !needs.engine) && !(restoring && needs.sessions);
    let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status.into() }
}

/// The state of a watch call.
struct HealthWatch {
    needs: Needs,
    ready: watch::Receiver<bool>,
    restoring: watch::Receiver<bool>,
    phase: watch::Receiver<Phase>,
    /// The last response.
    last: Option<HealthCheckResponse>,
}

impl HealthWatch {
    async fn next(&mut self) -> Option<HealthCheckResponse> {
        loop {
            let (ready, restoring) = (*self.ready.borrow_and_update(), *self.restoring.borrow_and_update());
            let now = response(self.needs, ready, restoring, *self.phase.borrow_and_update());
            if self.last.as_ref() != Some(&now) {
                self.last = Some(now);
                return Some(now);
            }
            let changed = tokio::select! {
                changed = self.ready.changed() => changed,
                changed = self.restoring.changed() => changed,
                changed = self.phase.changed() => changed,
            };
            // an error means that the server has ended
            changed.ok()?;
        }
    }
}

#[async_trait]
impl Health for HealthService {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let needs = self.needs(&request.get_ref().service)?;
        let (ready, phase) = (*self.proxy.ready.borrow(), *self.proxy.phase.borrow());
        let restoring = self.proxy.sessions.restoration().progress().is_some();
        Ok(Response::new(response(needs, ready, restoring, phase)))
    }

    type WatchStream = ReplyStream<HealthCheckResponse>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let needs = self.needs(&request.get_ref().service)?;
        let (ready, phase) = (self.proxy.ready.clone(), self.proxy.phase.clone());
        let restoring = self.proxy.sessions.restoration().watch();
        let watching = HealthWatch { needs, ready, restoring, phase, last: None };
        let responses = stream::unfold(watching, |mut watching| async move {
            let now = watching.next().await?;
            Some((Ok(now), watching))
        });
        Ok(Response::new(Box::pin(responses)))
    }
}
