// SPDX-License-Identifier: Apache-2.0
//! The optional device: it is opened in the background, and gets the rows that are worth the copy.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use super::SliceShape;
use crate::config::{EntropyBackend, SliceConfig};
use crate::entropy::Cpu;
use crate::logits::cuda::{Cuda, NAME, Settings, Unavailable, WIDTH, calibrate};
use crate::metrics::Metrics;

/// The smallest slice for the device, in bytes: the CPU measures a smaller one in less time than a launch takes.
const LEAST_BYTES: usize = 4 << 20;

/// How long a caller waits that requires the device.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long shutdown waits for a device that is being opened.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

/// Which slices the device measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceShare {
    /// All.
    All,
    /// Only those that the device measures faster than the CPU.
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
        let device = Self { opened: Arc::default(), opening };
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

    /// The device, if it is usable and these rows are large enough for it.
    pub(super) fn for_rows(&self, rows: SliceShape) -> Option<&Cuda> {
        let opened = self.opened.get().filter(|opened| !opened.cuda.is_lost())?;
        (rows.bytes() >= opened.least_bytes).then_some(&opened.cuda)
    }

    /// The device, if it is open, for rows in one of its slots.
    pub(super) fn any(&self) -> Option<&Cuda> {
        self.opened.get().map(|opened| &opened.cuda)
    }
}

/// Opens a device; `None` if it is slower than the CPU.
fn try_open(
    settings: &Settings,
    share: DeviceShare,
    threads: usize,
    metrics: &Arc<Metrics>,
) -> Result<Option<OpenDevice>, Unavailable> {
    let cuda = Cuda::open(settings, metrics)?;
    let crossover = calibrate(&cuda, Cpu::new(), threads)?;
    if let Some(rows) = crossover {
        metrics.slices.crossover.set(i64::try_from(rows).unwrap_or(i64::MAX));
    }
    let least_bytes = match (share, crossover) {
        (DeviceShare::All, _) => 0,
        (DeviceShare::Worthwhile, Some(rows)) => LEAST_BYTES.max(crossover_bytes(rows)),
        (DeviceShare::Worthwhile, None) => return Ok(None),
    };
    metrics.slices.backend.with_label_values(&[NAME]).set(1);
    let info = cuda.info();
    tracing::info!(
        device = info.name,
        uuid = info.uuid,
        driver = info.driver,
        rows = crossover,
        "the CUDA device is open; rows is the number of rows from which it is faster than the CPU"
    );
    Ok(Some(OpenDevice { cuda, least_bytes }))
}

fn crossover_bytes(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX).saturating_mul(2 * WIDTH)
}
