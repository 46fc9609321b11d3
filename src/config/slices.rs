// SPDX-License-Identifier: Apache-2.0
//! Settings for whole rows of logits.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

/// `--entropy-backend`: what measures slices of whole rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntropyBackend {
    /// The CPU.
    Cpu,
    /// A CUDA device, for slices that it measures faster; otherwise the CPU.
    Auto(CudaDevice),
    /// A CUDA device, for all slices; the CPU if it fails.
    Cuda(CudaDevice),
}

/// A CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CudaDevice {
    /// Its index among the devices that the process sees.
    Index(u32),
    /// `GPU-` and its UUID.
    Uuid(String),
}

impl FromStr for CudaDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(index) => Ok(Self::Index(index)),
            Err(_) if text.len() > 4 && text.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("gpu-")) => {
                Ok(Self::Uuid(text.to_owned()))
            }
            Err(_) => Err("a device is a number from 0 on, or a UUID as nvidia-smi -L says it, GPU-...".to_owned()),
        }
    }
}

impl fmt::Display for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

impl FromStr for EntropyBackend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, device) = text.split_once(':').unwrap_or((text, "0"));
        match kind {
            "cpu" if text == "cpu" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto(device.parse()?)),
            "cuda" => Ok(Self::Cuda(device.parse()?)),
            _ => Err("it is cpu, auto, cuda, auto:DEVICE or cuda:DEVICE".to_owned()),
        }
    }
}

/// The backend, and its memory.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Rows of logits")]
pub struct SliceConfig {
    /// Backend: cpu, auto:DEVICE (CUDA for slices of logits that it measures faster), cuda:DEVICE (for all slices of logits); a device is an index or a UUID, by default 0
    #[arg(long, env = "TOKENTAP_ENTROPY_BACKEND", value_name = "BACKEND", default_value = "cpu")]
    pub entropy_backend: EntropyBackend,
    /// The most bytes for rows on the device, and as many pinned on the host.
    #[arg(skip = 256_u64 << 20)]
    pub cuda_memory: u64,
    /// How long rows for the device wait to be measured together with others.
    #[arg(skip = Duration::from_micros(200))]
    pub cuda_deadline: Duration,
    /// Threads that measure whole rows; 0 is half of the cores, at most 4.
    #[arg(skip = 0_usize)]
    pub entropy_threads: usize,
    /// Bytes of rows that are received or measured; further rows wait.
    #[arg(skip = 64_u64 << 20)]
    pub slice_memory: u64,
    /// The largest slice of /v1/entropy, in bytes.
    #[arg(skip = 8_u64 << 30)]
    pub max_slice_bytes: u64,
}

/// Slices in files of other processes on the node.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Rows of logits")]
pub struct ShmConfig {
    /// Folder, such as one in shared memory, in which processes on this node leave logits for /v1/entropy
    #[arg(long, env = "TOKENTAP_SHM_DIR", value_name = "DIR", value_parser = folder)]
    pub shm_dir: Option<PathBuf>,
}

/// A folder that exists: a missing one would only be noticed by the first slice.
fn folder(text: &str) -> Result<PathBuf, String> {
    match std::fs::metadata(text) {
        Ok(found) if found.is_dir() => Ok(PathBuf::from(text)),
        Ok(_) => Err("it is not a folder".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl SliceConfig {
    /// How many threads measure rows.
    #[must_use]
    pub fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if self.entropy_threads > 0 { self.entropy_threads.min(1024) } else { (cores / 2).clamp(1, 4) }
    }
}
