// SPDX-License-Identifier: Apache-2.0
//! The two ports: their listeners, their TLS and what they share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::api::Apis;
use crate::config::{Config, TlsFiles, control_connections};
use crate::metrics::Metrics;
use crate::serve::connection::{ListenDrops, Listener, Phase, ServerLimits, Tls, listen, serve};
use crate::serve::proxy::Proxy;
use crate::serve::request_info::Port;
use crate::serve::{SharedState, port};

/// The listeners.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) data: Listener,
    pub(super) control: Listener,
}

impl Ports {
    /// Binds both ports, and loads their certificates.
    ///
    /// # Errors
    /// A line for the user.
    pub(super) fn bind(config: &Config, metrics: &Arc<Metrics>) -> Result<Self, String> {
        let bound = |flag, addr| listen(addr).map_err(|error| format!("{flag} {addr}: {error}"));
        let data = bound("--listen", config.listen)?;
        let control = bound("--control-listen", config.control_listen)?;
        let with_tls = |listener, files: Option<TlsFiles>, port| {
            let tls = files.map(|files| Tls::load(&files, port, metrics).map(Arc::new)).transpose()?;
            Ok::<_, String>(Listener { listener, tls, drops: Some(ListenDrops::new(Arc::clone(metrics))) })
        };
        Ok(Self {
            data: with_tls(data, config.tls.data(), "data")?,
            control: with_tls(control, config.tls.control(), "control")?,
        })
    }
}

/// What the routes of both ports share.
pub(super) fn shared_state(proxy: &Arc<Proxy>, apis: Apis, limits: &ServerLimits) -> SharedState {
    SharedState {
        proxy: Arc::clone(proxy),
        apis: Arc::new(apis),
        permits: Arc::new(Semaphore::new(proxy.config.limits.max_requests.min(Semaphore::MAX_PERMITS))),
        cutting: Arc::clone(&limits.cutting),
    }
}

/// The running control port.
pub(super) struct ControlPort {
    stop: watch::Sender<Phase>,
    task: JoinHandle<usize>,
}

/// Serves the control port on a task. `limits` are those of the data port.
pub(super) fn spawn_control(listener: Listener, shared: &SharedState, limits: &ServerLimits) -> ControlPort {
    let (stop, stopped) = watch::channel(Phase::Serving);
    let limits = ServerLimits {
        drain: Duration::from_secs(1),
        cutting: Arc::default(),
        connections: control_connections(limits.connections),
        ..limits.clone()
    };
    let routes = port(shared, Port::Control, stopped.clone());
    ControlPort { stop, task: tokio::spawn(serve(listener, routes, limits, stopped)) }
}

impl ControlPort {
    /// Drains the port and closes it.
    pub(super) async fn close(self) {
        // an error means that all receivers were dropped, so no task must be notified
        let _ = self.stop.send(Phase::Draining);
        let _ = self.task.await;
    }
}
