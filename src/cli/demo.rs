// SPDX-License-Identifier: Apache-2.0
//! `tokentap demo`: runs tokentap with an embedded engine instead of SGLang.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::App;
use crate::chat::model::Chats;
use crate::cli::{descriptors, print, serve};
use crate::config::{Config, MoeShape};
use crate::demo::experts::{EXPERTS, EXPERTS_PER_TOKEN, LAYERS};
use crate::demo::{Engine, EngineOptions, Model, Streaming};
use crate::serve::connection::{Phase, ServerLimits, serve as accept};
use crate::tokenizer::Renderer;

/// The context of the demo engine, in tokens. The prompts of coding agents begin with some 20,000 tokens.
const CONTEXT_TOKENS: usize = 1 << 18;

/// The maximum time that the demo waits for the chat renderer before it prints the example requests.
const CHATS_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the engine and tokentap, prints example requests, and serves until a signal.
///
/// # Errors
/// A line for the user when one of them cannot start.
pub async fn run(mut config: Config) -> Result<(), String> {
    serve::catch_sigxfsz()?;
    descriptors::fit_limits(&mut config.limits);
    let options = EngineOptions {
        streaming: Streaming::Incremental,
        context_length: CONTEXT_TOKENS,
        routed_experts: true,
        ..EngineOptions::default()
    };
    config.columns.moe_shape.get_or_insert(MoeShape([LAYERS, EXPERTS_PER_TOKEN, EXPERTS].map(|number| number as u32)));
    let (stop, stopped) = watch::channel(Phase::Serving);
    let (addr, engine) =
        engine(Engine::new(options), stopped).await.map_err(|error| format!("the demo engine: {error}"))?;
    config.upstream = format!("http://{addr}");
    let (phase, watched) = watch::channel(Phase::Serving);
    let app = App::bind(config, watched).await?.with_renderer(Renderer::new(Model::folder()));
    let [data, control] = app.urls().map_err(|error| error.to_string())?;
    let (mut ready, mut chats) = (app.proxy().upstream.clone(), app.proxy().chats.clone());
    tokio::spawn(async move {
        // the requests work after the probe, and chats after the tokenizer was read; without a chat renderer the timeout ends the wait
        if ready.wait_for(|found| found.original_logprobs.is_some()).await.is_ok() {
            let rendered = chats.wait_for(|chats| matches!(**chats, Chats::Rendered(_)));
            drop(tokio::time::timeout(CHATS_TIMEOUT, rendered).await);
            print(&guide(&data, &control));
        }
    });
    serve::show_restoration(&app);
    tokio::spawn(serve::Signals::catch()?.advance(phase));
    let served = app.run().await;
    stop.send_replace(Phase::Ending);
    engine.abort();
    served.map(drop)
}

/// Serves an engine on a free loopback port.
///
/// # Errors
/// When the port cannot be bound.
pub async fn engine(
    engine: Arc<Engine>,
    phase: watch::Receiver<Phase>,
) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<usize>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let service = tower::service_fn(move |request| {
        let engine = Arc::clone(&engine);
        async move { Ok::<_, Infallible>(engine.handle(request).await) }
    });
    let limits = ServerLimits {
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        read_timeout: Duration::from_secs(60),
        connections: 1024,
        drain: Duration::from_secs(1),
        cutting: Arc::default(),
    };
    Ok((addr, tokio::spawn(accept(listener, service, limits, phase))))
}

/// The text with the example requests.
fn guide(data: &str, control: &str) -> String {
    // curl trusts only the CAs of the system
    let curl = if data.starts_with("https:") {
        "With curl, add --cacert FILE with the CA of the certificate.\n\n"
    } else {
        ""
    };
    let json = "-H 'content-type: application/json' -d";
    format!(
        "tokentap runs in front of a tiny language model; everything but the model is real.\n\n{curl}\
         A chat in the session visit:\n\n\
         curl -s {data}/sessions/visit/v1/chat/completions {json} '{{\"model\":\"demo\",\"messages\":[{{\"role\":\"user\",\"content\":\"How far does the light go?\"}}],\"temperature\":0.7,\"seed\":21,\"max_tokens\":48,\"chat_template_kwargs\":{{\"enable_thinking\":false}}}}'\n\n\
         Its trajectory, for a trainer:\n\n\
         curl -s {control}/v1/samples {json} '{{\"sessions\":[\"visit\"],\"format\":\"jsonl\",\"text\":true}}'\n\n\
         The entropy of each token:\n\n\
         curl -s {data}/generate {json} '{{\"text\":\"The lamp\",\"rid\":\"demo-1\",\"sampling_params\":{{\"max_new_tokens\":8,\"temperature\":0.8}}}}'\n\n\
         The same as a stream, with certified bounds:\n\n\
         curl -sN {data}/generate {json} '{{\"text\":\"The lamp\",\"stream\":true,\"entropy_options\":{{\"bounds\":true}},\"sampling_params\":{{\"max_new_tokens\":4}}}}'\n\n\
         The entropies of a request while it runs:\n\n\
         curl -s '{control}/v1/requests/demo-1/entropy?since=4'\n\n\
         The page: {control}/\n\
         Metrics: {control}/metrics   Stop: Ctrl-C\n"
    )
}
