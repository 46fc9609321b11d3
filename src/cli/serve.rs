//! `tokentap serve`: run beside an SGLang server.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::app::App;
use crate::cli::descriptors;
use crate::config::Config;
use crate::serve::connection::Phase;

/// Serves until a signal: the first SIGTERM or SIGINT drains, the second ends at once.
///
/// # Errors
/// A line for the user when it cannot start.
pub async fn run(mut config: Config) -> Result<(), String> {
    outlive_full_files()?;
    descriptors::suffice(&mut config.limits);
    let (phase, watched) = watch::channel(Phase::Serving);
    let app = App::bind(config, watched).await?;
    tokio::spawn(Signals::catch()?.follow(phase));
    announce(&app)?;
    let cut = app.run().await?;
    if cut == 0 {
        tracing::info!("drained");
    } else {
        tracing::warn!(connections = cut, "ended with connections still open");
    }
    Ok(())
}

fn announce(app: &App) -> Result<(), String> {
    let [data, control] = app.urls().map_err(|error| error.to_string())?;
    let config = &app.parts().config;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        %data,
        %control,
        upstream = %config.upstream,
        top_logprobs = config.entropy.top_logprobs,
        backend = app.parts().tools.backend.name(),
        "tokentap listens"
    );
    if !config.control_listen.ip().is_loopback() && config.keys.control_token().is_none() {
        tracing::warn!("--control-token is none: every client that reaches the control port may use it");
    }
    Ok(())
}

/// SIGXFSZ.
const FILE_TOO_LARGE: i32 = 25;

/// From here on a file that may not grow (`ulimit -f`) is an error of its write, as a full disk is: by default its signal ends the
/// process, and a failing log must never cost a reply.
///
/// # Errors
/// A line for the user.
pub fn outlive_full_files() -> Result<(), String> {
    // what is caught once stays caught
    signal(SignalKind::from_raw(FILE_TOO_LARGE)).map(drop).map_err(|error| uncatchable(&error))
}

fn uncatchable(error: &std::io::Error) -> String {
    format!("signals cannot be received: {error}")
}

/// SIGTERM and SIGINT, caught from here on.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Begins to catch them. Call this before tokentap announces its ports, because a signal that is not caught ends the process.
    ///
    /// # Errors
    /// A line for the user.
    pub fn catch() -> Result<Self, String> {
        let caught = |kind| signal(kind).map_err(|error| uncatchable(&error));
        Ok(Self { terminate: caught(SignalKind::terminate())?, interrupt: caught(SignalKind::interrupt())? })
    }

    /// Waits for one of them.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Moves the phase forward with each signal.
    pub async fn follow(mut self, phase: watch::Sender<Phase>) {
        for next in [Phase::Draining, Phase::Ending] {
            self.next().await;
            phase.send_replace(next);
            tracing::info!(?next, "signal");
        }
    }
}
