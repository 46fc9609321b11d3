// SPDX-License-Identifier: Apache-2.0
//! `tokentap serve`: runs the proxy beside an SGLang server.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::app::App;
use crate::cli::descriptors;
use crate::cli::progress::Progress;
use crate::config::Config;
use crate::serve::connection::Phase;

/// The time between two updates of the progress bar.
const REDRAW: Duration = Duration::from_millis(100);

/// Serves until a signal. The first SIGTERM or SIGINT starts the drain, and the second ends the process at once.
///
/// # Errors
/// A line for the user when it cannot start.
pub async fn run(mut config: Config) -> Result<(), String> {
    catch_sigxfsz()?;
    descriptors::fit_limits(&mut config.limits);
    let (phase, watched) = watch::channel(Phase::Serving);
    let app = App::bind(config, watched).await?;
    tokio::spawn(Signals::catch()?.advance(phase));
    log_start(&app)?;
    show_restoration(&app);
    let cut = app.run().await?;
    if cut == 0 {
        tracing::info!("drained");
    } else {
        tracing::warn!(connections = cut, "ended with connections still open");
    }
    Ok(())
}

/// Shows a progress bar while sessions are restored from the log.
pub(super) fn show_restoration(app: &App) {
    let sessions = Arc::clone(&app.proxy().sessions);
    let Some(begun) = sessions.restoration().progress() else { return };
    tokio::spawn(async move {
        let progress = Progress::bytes("restoring sessions", Some(begun.total));
        while let Some(now) = sessions.restoration().progress() {
            progress.set(now.read);
            tokio::time::sleep(REDRAW).await;
        }
    });
}

fn log_start(app: &App) -> Result<(), String> {
    let [data, control] = app.urls().map_err(|error| error.to_string())?;
    let config = &app.proxy().config;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        %data,
        %control,
        upstream = %config.upstream,
        top_logprobs = config.entropy.top_logprobs,
        backend = app.proxy().generator.context.cpu.name(),
        "tokentap listens"
    );
    if !config.control_listen.ip().is_loopback() && config.keys.control_token().is_none() {
        tracing::warn!("--control-token is none: every client that reaches the control port may use it");
    }
    Ok(())
}

/// The number of the signal of a write beyond the file size limit.
const SIGXFSZ: i32 = 25;

/// Catches SIGXFSZ, so that a write beyond the file size limit (`ulimit -f`) returns an error, as on a full disk. By default the signal
/// ends the process, and a log that cannot be written must not fail a request.
///
/// # Errors
/// A line for the user.
pub fn catch_sigxfsz() -> Result<(), String> {
    // tokio never removes its handler, so the stream of signals can be dropped
    signal(SignalKind::from_raw(SIGXFSZ)).map(drop).map_err(|error| signal_error(&error))
}

fn signal_error(error: &std::io::Error) -> String {
    format!("signals cannot be received: {error}")
}

/// Receives SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers of both signals. Call this before tokentap logs its ports, because an uncaught signal ends the process.
    ///
    /// # Errors
    /// A line for the user.
    pub fn catch() -> Result<Self, String> {
        let caught = |kind| signal(kind).map_err(|error| signal_error(&error));
        Ok(Self { terminate: caught(SignalKind::terminate())?, interrupt: caught(SignalKind::interrupt())? })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Advances `phase` with each signal: to [`Phase::Draining`], then to [`Phase::Ending`].
    pub async fn advance(mut self, phase: watch::Sender<Phase>) {
        for next in [Phase::Draining, Phase::Ending] {
            self.next().await;
            let consequence = match next {
                Phase::Draining => "running requests may end",
                _ => "running requests are ended",
            };
            // a server without connections logs its end at once, on another thread
            tracing::info!(phase = consequence, "signal");
            phase.send_replace(next);
        }
    }
}
