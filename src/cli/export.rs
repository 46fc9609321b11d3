//! `tokentap export`: recorded sessions as a file for a trainer.

mod connection;
mod outcome;
mod recorded;
mod sidecar;
mod target;
#[cfg(not(feature = "tls"))]
#[path = "export/tls_disabled.rs"]
mod trust;
#[cfg(feature = "tls")]
mod trust;

use std::future::pending;
use std::pin::pin;

use bytes::Bytes;

use crate::cli::bar::{self, Bar};
use crate::cli::serve::Signals;
use crate::config::ExportArgs;
use crate::export::Format;
use outcome::Outcome;
use sidecar::Sidecar;
use target::Target;

/// A format's bytes, wherever they are made.
struct ExportSource {
    /// Bytes altogether, where they are known beforehand.
    length: Option<u64>,
    chunks: Chunks,
    outcome: Outcome,
}

enum Chunks {
    /// Here, as they are taken.
    Made(Box<dyn Iterator<Item = Bytes> + Send>),
    /// By a running tokentap.
    Sent(sidecar::Reply),
}

impl Chunks {
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        match self {
            Self::Made(chunks) => {
                // so that a signal is seen between two of them
                tokio::task::yield_now().await;
                Ok(chunks.next())
            }
            Self::Sent(reply) => reply.chunk().await,
        }
    }
}

/// Writes the file; a failed export leaves an existing file unchanged.
///
/// # Errors
/// A line for the user.
pub async fn run(args: ExportArgs) -> Result<(), String> {
    let format = Format::from_name(&args.format).ok_or_else(|| {
        let names: Vec<&str> = Format::ALL.into_iter().map(Format::name).collect();
        format!("--format cannot be '{}': it is one of {}", args.format, names.join(", "))
    })?;
    let mut source = match &args.data_dir {
        Some(dir) => recorded::open(dir, &args, format)?,
        None => Sidecar::try_new(&args)?.open(&args, format).await?,
    };
    let mut target = Target::create(&args.out)?;
    let bar = Bar::new(source.length);
    copy(&mut source.chunks, &mut target, &bar).await?;
    bar.clear();
    let bytes = target.finish()?;
    eprintln!("tokentap: {}, {} to {}", source.outcome, bar::size(bytes), target::name(&args.out));
    Ok(())
}

async fn copy(chunks: &mut Chunks, target: &mut Target, bar: &Bar) -> Result<(), String> {
    // only where something is to be tidied up: a signal that is caught does not end a process that waits for its reader
    let mut signals = target.is_temporary().then(Signals::catch).transpose()?;
    let mut stopped = pin!(async {
        match &mut signals {
            Some(signals) => signals.next().await,
            None => pending().await,
        }
    });
    loop {
        let chunk = tokio::select! {
            chunk = chunks.next() => chunk?,
            () = &mut stopped => return Err("interrupted; nothing was written".to_owned()),
        };
        let Some(chunk) = chunk else { return Ok(()) };
        target.write(&chunk)?;
        bar.add(chunk.len());
    }
}
