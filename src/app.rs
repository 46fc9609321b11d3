// SPDX-License-Identifier: Apache-2.0
//! The composition root: binds the ports, builds the proxy, spawns its tasks and drains. No other file depends on all parts.

mod apis;
mod archive;
mod build;
mod chat;
mod drain;
mod image_settings;
mod ports;
mod restoration;
pub(crate) mod sessions;
pub mod settings;
mod tasks;
mod traces;
mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::api::{Api, Apis};
use crate::archive::Storage;
use crate::config::Config;
use crate::entropy::Cpu;
use crate::metrics::Metrics;
use crate::serve::connection::{Phase, serve};
use crate::serve::proxy::Proxy;
use crate::serve::request_info::Port;
use crate::session::ledger::log::Directory;
use crate::tokenizer::Renderer;
use crate::traces::Exporter;
use build::{Built, EngineSenders};
use drain::DrainClock;
use ports::Ports;
use traces::Exporting;

/// A proxy whose ports are bound.
#[derive(Debug)]
pub struct App {
    ports: Ports,
    proxy: Arc<Proxy>,
    /// The APIs of the data port, except SGLang's native API.
    apis: Apis,
    engine: EngineSenders,
    /// The log from which sessions are restored while the ports are open.
    directory: Option<Directory>,
    /// The archive of finished paths.
    archive: Option<Storage>,
    /// Sends the spans of generations to the collector.
    exporter: Option<Exporter>,
    /// An embedded chat renderer, which is used instead of the engine's tokenizer files.
    renderer: Option<Arc<Renderer>>,
}

impl App {
    /// Binds the ports and builds the proxy.
    ///
    /// # Errors
    /// A line for the user.
    pub async fn bind(mut config: Config, phase: watch::Receiver<Phase>) -> Result<Self, String> {
        let metrics = Arc::new(Metrics::new(Cpu::new().name()));
        let ports = Ports::bind(&config, &metrics)?;
        // with port 0 the system has chosen one
        config.listen = ports.data.listener.local_addr().map_err(|error| format!("--listen: {error}"))?;
        let archive = config.archive.archive.as_deref().map(Storage::open).transpose();
        let archive = archive.map_err(|error| format!("--archive: {error}"))?;
        let Built { proxy, engine, directory, exporter } = build::build(config, phase, metrics)?;
        Ok(Self { ports, apis: apis::apis(&proxy), proxy, engine, directory, archive, exporter, renderer: None })
    }

    /// Serves until the drain has ended. Returns the number of connections that were still open and were closed.
    ///
    /// # Errors
    /// A line for the user when sessions cannot be restored, or the shared ledger cannot be used.
    pub async fn run(self) -> Result<usize, String> {
        let Self { ports, proxy, apis, engine, directory, archive, exporter, renderer } = self;
        let limits = settings::connections(&proxy.config);
        let shared = ports::shared_state(&proxy, apis, &limits);

        let (restored, is_restored) = watch::channel(directory.is_none());
        // a ledger of another schema must refuse the process before it writes to its own log
        let restoring = async {
            if let Err(error) = proxy.sessions.first_ledger_answer().await {
                return format!("--ledger: {error}");
            }
            restoration::restore(Arc::clone(&proxy), directory, restored).await
        };
        let tasks = tasks::spawn(&proxy, engine, renderer, &ports, &is_restored);
        let archiving = archive.map(|storage| archive::start(&proxy, storage, &is_restored));
        let exporting = exporter.map(Exporting::start);
        let clock = DrainClock::start(&proxy);
        let Ports { data, control } = ports;
        // the control port serves probes and metrics until the last request has ended
        let control = ports::spawn_control(control, &shared, &limits);

        let phase = proxy.phase.clone();
        let serving = serve(data, crate::serve::port(&shared, Port::Data, phase.clone()), limits, phase);
        let cut = tokio::select! {
            cut = serving => Ok(cut),
            error = restoring => Err(error),
        };

        drain::finish(&proxy, archiving, control, clock).await;
        if let Some(exporting) = exporting {
            exporting.finish().await;
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        proxy.slices.close().await;
        cut
    }

    /// Renders chats with `renderer`, unless `--tokenizer` is set.
    #[must_use]
    pub fn with_renderer(mut self, renderer: Renderer) -> Self {
        self.renderer = Some(Arc::new(renderer)).filter(|_| self.proxy.config.chat.tokenizer.is_none());
        self
    }

    /// Adds an API, which serves the requests to `path` on the data port.
    #[must_use]
    pub fn with_api(mut self, path: &'static str, api: Arc<dyn Api>) -> Self {
        self.apis = self.apis.with(path, api);
        self
    }

    /// The paths of the APIs on the data port, without SGLang's native API.
    pub fn api_paths(&self) -> impl Iterator<Item = &'static str> {
        self.apis.paths()
    }

    /// The address of the data port.
    ///
    /// # Errors
    /// If the system does not return the address.
    pub fn data_addr(&self) -> std::io::Result<SocketAddr> {
        self.ports.data.listener.local_addr()
    }

    /// The address of the control port.
    ///
    /// # Errors
    /// If the system does not return the address.
    pub fn control_addr(&self) -> std::io::Result<SocketAddr> {
        self.ports.control.listener.local_addr()
    }

    /// The URLs of the data port and the control port.
    ///
    /// # Errors
    /// If the system does not return the address.
    pub fn urls(&self) -> std::io::Result<[String; 2]> {
        Ok([self.ports.data.url()?, self.ports.control.url()?])
    }

    /// The proxy behind the ports.
    #[must_use]
    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }
}
