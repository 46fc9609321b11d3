//! The device beside the processor's threads: opened in the background, and given what is worth the way.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use tokio::sync::watch;

use super::Rows;
use crate::config::{EntropyBackend, SliceConfig};
use crate::entropy::{Backend, Cpu, Logits, RowStats, TokenStats, TopK};
use crate::logits::cuda::{Cuda, NAME, Settings, Unavailable, WIDTH, calibrate, record_backends};
use crate::metrics::Metrics;

/// Below this a slice is measured before the device has been told of it.
const LEAST_BYTES: usize = 4 << 20;

/// How long somebody waits who would rather have the device.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the end of the process waits for a device that is being opened.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

/// Everything, or what is faster there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Every row, top-k rows too.
    All,
    /// Slices of whole rows that the device measures faster.
    Worthwhile,
}

/// Which device the settings ask for, if they do. The only card there is to be seen is usually the engine's own, so by itself none
/// is opened.
pub(super) fn wanted(config: &SliceConfig) -> Option<(Settings, Share)> {
    let settings =
        Settings { device: config.cuda_device.clone(), memory: config.cuda_memory, deadline: config.cuda_deadline };
    match config.entropy_backend {
        EntropyBackend::Cuda => Some((settings, Share::All)),
        EntropyBackend::Auto if config.cuda_device.is_some() => Some((settings, Share::Worthwhile)),
        EntropyBackend::Auto | EntropyBackend::Cpu => None,
    }
}

/// A device that may be there.
#[derive(Debug, Clone)]
pub(super) struct Device {
    opened: Arc<OnceLock<OpenDevice>>,
    share: Share,
    /// Closed once it is known whether there is one.
    opening: watch::Receiver<()>,
    /// The same for a thread.
    open: Receiver<()>,
}

#[derive(Debug)]
struct OpenDevice {
    cuda: Cuda,
    /// Slices from so many bytes on.
    least_bytes: usize,
}

impl Device {
    /// Begins to open the device. Until it is open, and if that fails, `get` returns `None`.
    pub(super) fn open(settings: Settings, share: Share, threads: usize, metrics: &Arc<Metrics>) -> Self {
        let (open_until, opening) = watch::channel(());
        let (done, open) = bounded(0);
        let device = Self { opened: Arc::default(), share, opening, open };
        let (opened, metrics) = (Arc::clone(&device.opened), Arc::clone(metrics));
        let open = move || {
            match try_open(&settings, share, threads, &metrics) {
                Ok(Some(ready)) => {
                    // this is the only thread that sets it
                    let _ = opened.set(ready);
                }
                Ok(None) => {
                    tracing::info!("the CPU measures whole rows faster than the CUDA device, which is let go of")
                }
                Err(error) => tracing::warn!(%error, "no CUDA device; the CPU measures"),
            }
            drop((open_until, done));
        };
        if let Err(error) = std::thread::Builder::new().name("cuda-open".to_owned()).spawn(open) {
            tracing::warn!(%error, "no thread to open a CUDA device; the CPU measures");
        }
        device
    }

    /// Waits until it is open, or known not to be.
    pub(super) async fn wait_opened(&self) {
        let mut opening = self.opening.clone();
        // the sender says nothing and goes
        if tokio::time::timeout(OPEN_TIMEOUT, opening.changed()).await.is_err() {
            tracing::warn!("the CUDA device has not been opened in a minute; until it is the CPU measures");
        }
    }

    /// The same for a thread that is about to end the process, and waits for no driver for long: one that is still being loaded would have
    /// its memory taken from under it.
    pub(super) fn wait_opened_blocking(&self) {
        // nothing is ever sent: it is closed, or the time is over
        let _ = self.open.recv_timeout(SHUTDOWN_WAIT);
    }

    /// What it is given.
    pub(super) fn share(&self) -> Share {
        self.share
    }

    /// The device that is to measure these rows, if one is.
    pub(super) fn of(&self, rows: Rows) -> Option<&Cuda> {
        let opened = self.usable()?;
        (rows.bytes() >= opened.least_bytes).then_some(&opened.cuda)
    }

    /// The device, if it is open, for rows in one of its slots.
    pub(super) fn any(&self) -> Option<&Cuda> {
        self.opened.get().map(|opened| &opened.cuda)
    }

    fn usable(&self) -> Option<&OpenDevice> {
        self.opened.get().filter(|opened| !opened.cuda.is_lost())
    }
}

/// Opens a device; `None` where there is one that is not worth the way.
fn try_open(
    settings: &Settings,
    share: Share,
    threads: usize,
    metrics: &Arc<Metrics>,
) -> Result<Option<OpenDevice>, Unavailable> {
    let cpu = Cpu::new();
    let cuda = Cuda::open(settings, metrics)?;
    let crossover = calibrate(&cuda, cpu, threads)?;
    for (work, rows) in [("rows", crossover.rows), ("top_k", crossover.top_k)] {
        if let Some(rows) = rows {
            metrics.slices.crossover.with_label_values(&[work]).set(i64::try_from(rows).unwrap_or(i64::MAX));
        }
    }
    let least_bytes = match (share, crossover.rows) {
        (Share::All, _) => 0,
        (Share::Worthwhile, Some(rows)) => LEAST_BYTES.max(crossover_bytes(rows)),
        (Share::Worthwhile, None) => return Ok(None),
    };
    record_backends(metrics, &cpu, true, share == Share::All);
    let found = cuda.found();
    tracing::info!(
        device = found.name,
        uuid = found.uuid,
        driver = found.driver,
        rows = crossover.rows,
        top_k = crossover.top_k,
        "a CUDA device measures rows; it is faster from so many on"
    );
    Ok(Some(OpenDevice { cuda, least_bytes }))
}

fn crossover_bytes(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX).saturating_mul(2 * WIDTH)
}

/// The backend of top-k rows where the device is to measure them; the CPU's, as long as it cannot.
#[derive(Debug)]
pub(super) struct DeviceBackend {
    pub(super) device: Device,
    pub(super) cpu: Cpu,
    pub(super) metrics: Arc<Metrics>,
}

impl Backend for DeviceBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn top_k(&self, batch: &TopK<'_>, out: &mut Vec<TokenStats>) {
        let done = self.device.usable().is_some_and(|opened| waiting(|| opened.cuda.try_top_k(batch, out)));
        if !done {
            let count = batch.rows.len() as u64;
            self.metrics.slices.fallbacks.with_label_values(&["no_device"]).inc_by(count);
            self.cpu.top_k(batch, out);
        }
    }

    /// What comes this way is small, and in the memory of a request.
    fn rows(&self, logits: &Logits<'_>, out: &mut Vec<RowStats>) {
        self.cpu.rows(logits, out);
    }
}

/// Runs what waits for another thread: where this one serves sockets, its sockets go to another.
fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}
