//! `tokentap serve`: run beside an SGLang server.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::app::App;
use crate::config::Config;
use crate::server::Phase;

/// Serves until a signal says otherwise: the first SIGTERM or SIGINT drains, the second ends at once.
///
/// # Errors
/// A line for the user when it cannot start.
pub async fn run(config: Config) -> Result<(), String> {
    let (phase, watched) = watch::channel(Phase::Serving);
    let app = App::bind(config, watched).await?;
    announce(&app)?;
    tokio::spawn(signals(phase));
    let cut = app.run().await;
    if cut == 0 {
        tracing::info!("drained");
    } else {
        tracing::warn!(connections = cut, "ended with connections still open");
    }
    Ok(())
}

fn announce(app: &App) -> Result<(), String> {
    let place = |addr: std::io::Result<std::net::SocketAddr>| addr.map_err(|error| error.to_string());
    let config = &app.parts().config;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        data = %format_args!("http://{}", place(app.data_addr())?),
        control = %format_args!("http://{}", place(app.control_addr())?),
        upstream = %config.upstream,
        top_logprobs = config.entropy.top_logprobs,
        backend = app.parts().tools.backend.name(),
        "tokentap listens"
    );
    Ok(())
}

/// Moves the phase forward with each signal.
pub async fn signals(phase: watch::Sender<Phase>) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be received");
        return;
    };
    for next in [Phase::Draining, Phase::Ending] {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        phase.send_replace(next);
        tracing::info!(?next, "signal");
    }
}
