// SPDX-License-Identifier: Apache-2.0
//! The gRPC services of a port.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::MapErr;
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_health::pb::health_server::HealthServer;
use tower::Service;

use super::call_slots::CallSlots;
use super::entropy::{EntropyService, LARGEST_SLICE};
use super::generate::GenerateService;
use super::health::HealthService;
use super::pb::entropy_server::EntropyServer;
use super::pb::generate_server::GenerateServer;
use super::pb::trajectories_server::TrajectoriesServer;
use super::read_timeout::MessageReadTimeout;
use super::reply_bodies::{ChunkedMessages, StreamShutdown};
use super::trajectories::TrajectoriesService;
use super::{pb, status};
use crate::budget::Share;
use crate::engine::sglang::routes;
use crate::engine::transport::failure::UploadError;
use crate::serve::body::Upload;
use crate::serve::connection::Phase;
use crate::serve::control::v1;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::{Access, Port, PortRequest, Protocol, RequestInfo};

/// The future of a call's reply.
type ReplyFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

type Trajectories = TrajectoriesServer<TrajectoriesService>;
type Entropy = EntropyServer<EntropyService>;
type Generate = GenerateServer<GenerateService>;
type Health = HealthServer<HealthService>;

/// The request body of a call, with a read timeout.
type RequestBody = MapErr<Upload, fn(UploadError) -> Status>;

/// The reflection service, whose type cannot be named.
type Reflection = Arc<dyn Fn(Request<RequestBody>) -> ReplyFuture + Send + Sync>;

/// The name of the reflection service.
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";

/// The bytes of a GenerateRequest besides its JSON body.
const FRAME: u64 = 1024;

/// Classifies a call.
pub(crate) fn classify(port: Port, path: &str) -> RequestInfo {
    let (service, method) = split(path);
    let open = |endpoint| RequestInfo::open(port, Protocol::Grpc, endpoint);
    if service == Health::NAME {
        return RequestInfo { is_probe: true, ..open("/grpc.health.v1.Health") };
    }
    let generates = service == Generate::NAME && method == "Generate";
    let endpoint = match (service, method) {
        _ if generates => routes::GENERATE.endpoint,
        (Trajectories::NAME, "List") => "/tokentap.v1.Trajectories/List",
        (Trajectories::NAME, "Get") => "/tokentap.v1.Trajectories/Get",
        (Trajectories::NAME, "Watch") => "/tokentap.v1.Trajectories/Watch",
        (Trajectories::NAME, "Export") => "/tokentap.v1.Trajectories/Export",
        (Trajectories::NAME, "Samples") => "/tokentap.v1.Trajectories/Samples",
        (Entropy::NAME, "Compute") => "/tokentap.v1.Entropy/Compute",
        (REFLECTION, _) => "/grpc.reflection.v1.ServerReflection",
        _ => "other",
    };
    RequestInfo {
        access: if port == Port::Control { Access::Control } else { Access::Agent },
        needs_permit: generates,
        needs_sessions: matches!(service, Trajectories::NAME | Generate::NAME),
        ..open(endpoint)
    }
}

/// Splits a path into service and method.
fn split(path: &str) -> (&str, &str) {
    path.trim_start_matches('/').split_once('/').unwrap_or((path, ""))
}

/// The services of one port. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Services {
    proxy: Arc<Proxy>,
    port: Port,
    phase: watch::Receiver<Phase>,
    reflection: Reflection,
    call_slots: Arc<CallSlots>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Services {
    /// The services of `port`. Endless streams end when `phase` becomes [`Phase::Draining`].
    pub(crate) fn new(proxy: Arc<Proxy>, port: Port, phase: watch::Receiver<Phase>) -> Self {
        let call_slots = Arc::new(CallSlots::new(Arc::clone(&proxy.metrics)));
        Self { proxy, port, phase, reflection: reflection(port), call_slots }
    }

    /// Serves a call that passed the layers.
    pub(crate) async fn handle(&self, received: PortRequest) -> Response<Body> {
        let PortRequest { record, mut request, .. } = received;
        // tonic passes the extensions to the services
        request.extensions_mut().insert(record);
        let path = request.uri().path().to_owned();
        let (name, method) = split(&path);
        let Ok(response) = self.call(name, method, request).await;
        response
    }

    fn call(&self, name: &str, method: &str, request: Request<Incoming>) -> ReplyFuture {
        let is_control = self.port == Port::Control;
        let is_endless = matches!(method, "Watch" | "ServerReflectionInfo");
        let max_size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let proxy = Arc::clone(&self.proxy);
        let limits = &self.proxy.config.limits;
        let reply: ReplyFuture = match name {
            Trajectories::NAME if is_control => {
                let server = Trajectories::new(TrajectoriesService(Arc::clone(&proxy)))
                    .max_decoding_message_size(max_size(v1::LARGEST));
                // a share of the whole budget, so that agents cannot block trainers
                let share = proxy.budget.reply();
                call(server, self.upload(request, Some(share)))
            }
            Trajectories::NAME => {
                let message =
                    "Trajectories is on the control port, because agents must not read each other's trajectories";
                return refuse(Status::unimplemented(message));
            }
            Generate::NAME if method != "Generate" => {
                return refuse(Status::unimplemented(format!("{name} has no method {method:?}, only Generate")));
            }
            Generate::NAME => {
                let limit = max_size(limits.max_request_bytes.saturating_add(FRAME));
                let server = Generate::new(GenerateService { proxy: Arc::clone(&proxy), port: self.port })
                    .max_decoding_message_size(limit);
                let reply = call(server, self.upload(request, Some(proxy.budget.request())));
                Box::pin(
                    async move { reply.await.map(|reply| reply.map(|body| Body::new(ChunkedMessages::new(body)))) },
                )
            }
            Entropy::NAME => {
                let slot = match self.call_slots.acquire() {
                    Ok(slot) => slot,
                    Err(status) => return refuse(status),
                };
                let request =
                    request.map(|body| MessageReadTimeout::new(body, Arc::clone(&slot), limits.client_body_timeout));
                let (slices, phase) = (Arc::clone(&proxy.slices), self.phase.clone());
                let server = Entropy::new(EntropyService { slices, slot, phase });
                call(server.max_decoding_message_size(LARGEST_SLICE), request)
            }
            Health::NAME => call(Health::new(HealthService { proxy, port: self.port }), self.upload(request, None)),
            REFLECTION => (self.reflection)(self.upload(request, None)),
            _ => return refuse(Status::unimplemented(format!("there is no service {name:?}; reflection lists them"))),
        };
        if !is_endless {
            return reply;
        }
        let phase = self.phase.clone();
        Box::pin(async move { reply.await.map(|reply| reply.map(|body| Body::new(StreamShutdown::new(body, phase)))) })
    }

    /// Adds the read timeout to the request body. `share` counts its bytes against the memory budget, if they are buffered.
    fn upload(&self, request: Request<Incoming>, share: Option<Share>) -> Request<RequestBody> {
        let limit = self.proxy.config.limits.client_body_timeout;
        let to_status: fn(UploadError) -> Status = status::upload_error;
        request.map(|body| Upload::new(body, limit).with_share(share).map_err(to_status))
    }
}

fn call<S, B>(mut server: S, request: Request<B>) -> ReplyFuture
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    let reply = server.call(request);
    Box::pin(async move { reply.await.map(status::with_http_status) })
}

fn refuse(status: Status) -> ReplyFuture {
    Box::pin(std::future::ready(Ok(status.into_http())))
}

fn reflection(port: Port) -> Reflection {
    let mut builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let on_both_ports = [Generate::NAME, Entropy::NAME, Health::NAME, REFLECTION];
    let on_control_port = (port == Port::Control).then_some(Trajectories::NAME);
    for name in on_both_ports.into_iter().chain(on_control_port) {
        builder = builder.with_service_name(name);
    }
    let server = builder.build_v1().expect("tests/codegen.rs and tonic-health generate valid descriptors");
    Arc::new(move |request| call(server.clone(), request))
}
