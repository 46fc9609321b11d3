//! The optional device: it is opened in the background, and gets the rows that are worth the copy.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use super::SliceShape;
use crate::config::{EntropyBackend, SliceConfig};
use crate::entropy::{Backend, Cpu, Logits, RowStats, TokenStats, TopK};
use crate::logits::cuda::{Cuda, NAME, Settings, Unavailable, WIDTH, calibrate, record_backends};
use crate::metrics::Metrics;

/// The smallest slice for the device, in bytes: the CPU measures a smaller one in less time than a launch takes.
const LEAST_BYTES: usize = 4 << 20;

/// How long a caller waits that requires the device.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long shutdown waits for a device that is being opened.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

/// Which rows the device measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceShare {
    /// All rows, including top-k rows.
    All,
    /// Only slices of whole rows that the device measures faster than the CPU.
    Worthwhile,
}

/// The device that the settings ask for, if any. The only visible GPU is usually the engine's, so tokentap opens none by default.
pub(super) fn wanted(config: &SliceConfig) -> Option<(Settings, DeviceShare)> {
    let (device, share) = match &config.entropy_backend {
        EntropyBackend::Cpu => return None,
        EntropyBackend::Auto(device) => (device, DeviceShare::Worthwhile),
        EntropyBackend::Cuda(device) => (device, DeviceShare::All),
    };
    let device = Some(device.clone());
    Some((Settings { device, memory: config.cuda_memory, deadline: config.cuda_deadline }, share))
}

/// A device that may be opening, open or unavailable.
#[derive(Debug, Clone)]
pub(super) struct Device {
    opened: Arc<OnceLock<OpenDevice>>,
    share: DeviceShare,
    /// Closed once opening has succeeded or failed.
    opening: watch::Receiver<()>,
}

#[derive(Debug)]
struct OpenDevice {
    cuda: Cuda,
    /// The smallest slice that the device measures, in bytes.
    least_bytes: usize,
}

impl Device {
    /// Begins to open the device. Until it is open, and if that fails, [`Device::any`] returns `None`.
    pub(super) fn open(settings: Settings, share: DeviceShare, threads: usize, metrics: &Arc<Metrics>) -> Self {
        let (open_until, opening) = watch::channel(());
        let device = Self { opened: Arc::default(), share, opening };
        let (opened, metrics) = (Arc::clone(&device.opened), Arc::clone(metrics));
        let open = move || {
            match try_open(&settings, share, threads, &metrics) {
                Ok(Some(ready)) => {
                    // this is the only thread that sets it
                    let _ = opened.set(ready);
                }
                Ok(None) => {
                    tracing::info!("the CPU measures whole rows faster than the CUDA device, which is closed")
                }
                Err(error) => tracing::warn!(%error, "no CUDA device; rows are measured on the CPU"),
            }
            drop(open_until);
        };
        if let Err(error) = std::thread::Builder::new().name("cuda-open".to_owned()).spawn(open) {
            tracing::warn!(%error, "no thread to open the CUDA device; rows are measured on the CPU");
        }
        device
    }

    /// Waits until opening has succeeded or failed, at most a minute.
    pub(super) async fn wait_opened(&self) {
        if !self.opens_within(OPEN_TIMEOUT).await {
            tracing::warn!("the CUDA device did not open within a minute; rows are measured on the CPU until it does");
        }
    }

    /// Waits before the process ends. A driver that is still being loaded would otherwise lose its memory while it runs.
    pub(super) async fn close(&self) {
        if !self.opens_within(SHUTDOWN_WAIT).await {
            tracing::warn!("the process ends while the CUDA device is being opened");
        }
    }

    /// Resolves to true once opening has succeeded or failed.
    async fn opens_within(&self, limit: Duration) -> bool {
        let mut opening = self.opening.clone();
        // the sender sends nothing: it is dropped when opening ends
        tokio::time::timeout(limit, opening.changed()).await.is_ok()
    }

    /// Which rows it measures.
    pub(super) fn share(&self) -> DeviceShare {
        self.share
    }

    /// The device, if it is usable and these rows are large enough for it.
    pub(super) fn for_rows(&self, rows: SliceShape) -> Option<&Cuda> {
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

/// Opens a device; `None` if it is slower than the CPU.
fn try_open(
    settings: &Settings,
    share: DeviceShare,
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
        (DeviceShare::All, _) => 0,
        (DeviceShare::Worthwhile, Some(rows)) => LEAST_BYTES.max(crossover_bytes(rows)),
        (DeviceShare::Worthwhile, None) => return Ok(None),
    };
    record_backends(metrics, &cpu, true, share == DeviceShare::All);
    let info = cuda.info();
    tracing::info!(
        device = info.name,
        uuid = info.uuid,
        driver = info.driver,
        rows = crossover.rows,
        top_k = crossover.top_k,
        "the CUDA device is open; rows and top_k are the row counts from which it is faster than the CPU"
    );
    Ok(Some(OpenDevice { cuda, least_bytes }))
}

fn crossover_bytes(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX).saturating_mul(2 * WIDTH)
}

/// The backend that measures top-k rows on the device, and on the CPU while the device is not usable.
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

    /// These rows are small and in the memory of a request: the CPU measures them.
    fn rows(&self, logits: &Logits<'_>, out: &mut Vec<RowStats>) {
        self.cpu.rows(logits, out);
    }
}

/// Runs a call that blocks. On a runtime thread, its other tasks move to another thread first.
fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}
