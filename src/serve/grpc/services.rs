//! Which services a port has.

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
use super::chunked_messages::ChunkedMessages;
use super::entropy::{LARGEST_SLICE, Measuring};
use super::generate::GenerateService;
use super::health::HealthService;
use super::pb::entropy_server::EntropyServer;
use super::pb::generate_server::GenerateServer;
use super::pb::trajectories_server::TrajectoriesServer;
use super::read_timeout::MessageReadTimeout;
use super::stream_shutdown::StreamShutdown;
use super::trajectories::Recorded;
use super::{pb, status};
use crate::budget::Share;
use crate::engine::routes;
use crate::error::BoxError;
use crate::serve::body::Upload;
use crate::serve::connection::Phase;
use crate::serve::control::Control;
use crate::serve::control::v1;
use crate::serve::request_info::{Access, Port, Protocol, RequestInfo};

/// The answer to a call, when it is there.
type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

type Readings = TrajectoriesServer<Recorded>;
type Measurements = EntropyServer<Measuring>;
type Generations = GenerateServer<GenerateService>;
type Health = HealthServer<HealthService>;

/// What a caller sends: messages that must not pause for too long.
type Message = MapErr<Upload, fn(BoxError) -> Status>;

/// The service that says which services there are; its type has no name.
type Reflection = Arc<dyn Fn(Request<Message>) -> Answering + Send + Sync>;

/// What reflection calls itself.
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";

/// What a message takes besides the body of a request.
const FRAME: u64 = 1024;

/// What a call to a port is.
pub fn classify(port: Port, path: &str) -> RequestInfo {
    let (service, method) = split(path);
    let open = |endpoint| RequestInfo::open(port, Protocol::Grpc, endpoint);
    if service == Health::NAME {
        return RequestInfo { is_probe: true, ..open("/grpc.health.v1.Health") };
    }
    let generates = service == Generations::NAME && method == "Generate";
    let endpoint = match (service, method) {
        _ if generates => routes::GENERATE.endpoint,
        (Readings::NAME, "List") => "/tokentap.v1.Trajectories/List",
        (Readings::NAME, "Get") => "/tokentap.v1.Trajectories/Get",
        (Readings::NAME, "Watch") => "/tokentap.v1.Trajectories/Watch",
        (Readings::NAME, "Export") => "/tokentap.v1.Trajectories/Export",
        (Readings::NAME, "Samples") => "/tokentap.v1.Trajectories/Samples",
        (Measurements::NAME, "Compute") => "/tokentap.v1.Entropy/Compute",
        (REFLECTION, _) => "/grpc.reflection.v1.ServerReflection",
        _ => "other",
    };
    RequestInfo {
        access: if port == Port::Control { Access::Control } else { Access::Agent },
        needs_permit: generates,
        needs_sessions: matches!(service, Readings::NAME | Generations::NAME),
        ..open(endpoint)
    }
}

/// The service and the method of a path.
fn split(path: &str) -> (&str, &str) {
    path.trim_start_matches('/').split_once('/').unwrap_or((path, ""))
}

/// The services of one port. Cheap to clone.
#[derive(Clone)]
pub struct Services {
    states: Control,
    port: Port,
    end: watch::Receiver<Phase>,
    reflection: Reflection,
    places: Arc<CallSlots>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Services {
    /// The services of `port`; streams that have no end of their own end when `end` says [`Phase::Draining`].
    #[must_use]
    pub fn new(states: Control, port: Port, end: watch::Receiver<Phase>) -> Self {
        let places = Arc::new(CallSlots::new(Arc::clone(&states.proxy.metrics)));
        Self { states, port, end, reflection: reflection(port), places }
    }

    /// Answers a call that the layers let pass.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let Ok(reply) = self.call(split(&path), request).await;
        reply
    }

    fn call(&self, (name, method): (&str, &str), request: Request<Incoming>) -> Answering {
        let is_control = self.port == Port::Control;
        let endless = matches!(method, "Watch" | "ServerReflectionInfo");
        let largest = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let Control { proxy, trainers, readiness } = self.states.clone();
        let limits = &proxy.config.limits;
        let answering: Answering = match name {
            Readings::NAME if is_control => {
                let server = Readings::new(Recorded(trainers)).max_decoding_message_size(largest(v1::LARGEST));
                // agents may not keep trainers out
                let share = proxy.budget.reply();
                call(server, self.upload(request, Some(share)))
            }
            Readings::NAME => {
                let message = "Trajectories is on the control port, because an agent may not read what others did";
                return refuse(Status::unimplemented(message));
            }
            Generations::NAME if method != "Generate" => {
                return refuse(Status::unimplemented(format!("{name} has Generate, and no {method:?}")));
            }
            Generations::NAME => {
                let limit = largest(limits.max_request_bytes.saturating_add(FRAME));
                let server = Generations::new(GenerateService { state: Arc::clone(&proxy), port: self.port })
                    .max_decoding_message_size(limit);
                let answering = call(server, self.upload(request, Some(proxy.budget.request())));
                Box::pin(
                    async move { answering.await.map(|reply| reply.map(|body| Body::new(ChunkedMessages::new(body)))) },
                )
            }
            Measurements::NAME => {
                let place = match self.places.enter() {
                    Ok(place) => place,
                    Err(status) => return refuse(status),
                };
                let request =
                    request.map(|body| MessageReadTimeout::new(body, Arc::clone(&place), limits.client_body_timeout));
                let (slices, phase) = (Arc::clone(&trainers.slices), self.end.clone());
                let server = Measurements::new(Measuring { slices, place, phase });
                call(server.max_decoding_message_size(LARGEST_SLICE), request)
            }
            Health::NAME => call(Health::new(HealthService { readiness, port: self.port }), self.upload(request, None)),
            REFLECTION => (self.reflection)(self.upload(request, None)),
            _ => return refuse(Status::unimplemented(format!("there is no service {name:?}; reflection lists them"))),
        };
        if !endless {
            return answering;
        }
        let end = self.end.clone();
        Box::pin(
            async move { answering.await.map(|reply| reply.map(|body| Body::new(StreamShutdown::new(body, end)))) },
        )
    }

    /// What comes in; `share` is what its bytes take of the budget, where they are held.
    fn upload(&self, request: Request<Incoming>, share: Option<Share>) -> Request<Message> {
        let limit = self.states.proxy.config.limits.client_body_timeout;
        let told: fn(BoxError) -> Status = |error| status::upload(&error);
        request.map(|body| Upload::new(body, limit).counted(share).map_err(told))
    }
}

fn call<S, B>(mut server: S, request: Request<B>) -> Answering
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    let answering = server.call(request);
    Box::pin(async move { answering.await.map(status::with_http_status) })
}

fn refuse(status: Status) -> Answering {
    Box::pin(std::future::ready(Ok(status.into_http())))
}

fn reflection(port: Port) -> Reflection {
    let mut builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let everywhere = [Generations::NAME, Measurements::NAME, Health::NAME, REFLECTION];
    let here = (port == Port::Control).then_some(Readings::NAME);
    for name in everywhere.into_iter().chain(here) {
        builder = builder.with_service_name(name);
    }
    let server = builder.build_v1().expect("tests/codegen.rs and tonic-health made these descriptors");
    Arc::new(move |request| call(server.clone(), request))
}
