//! Whole rows of logits: how much room they have, and what measures them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::units::{bytes, duration};

/// What measures entropies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EntropyBackend {
    /// A CUDA device that is named, for slices of whole rows that it measures faster; else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device, for everything, as long as there is one.
    Cuda,
}

/// A CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CudaDevice {
    /// Its place among those that the process sees.
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

/// What measures rows of logits, and in how much memory.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Rows of logits")]
pub struct SliceConfig {
    /// What measures: auto (a CUDA device only if --cuda-device names one), cpu, cuda (top-k too)
    #[arg(long, env = "TOKENTAP_ENTROPY_BACKEND", value_name = "BACKEND", default_value = "auto")]
    pub entropy_backend: EntropyBackend,
    /// The CUDA device, by index or UUID
    #[arg(long, env = "TOKENTAP_CUDA_DEVICE", value_name = "DEVICE")]
    pub cuda_device: Option<CudaDevice>,
    /// Memory for rows on the device, and as much pinned on the host
    #[arg(long, env = "TOKENTAP_CUDA_MEMORY", value_name = "BYTES", default_value = "256MiB", value_parser = bytes)]
    pub cuda_memory: u64,
    /// How long rows for the device wait for others to be measured with
    #[arg(long, env = "TOKENTAP_CUDA_DEADLINE", value_name = "TIME", default_value = "200us", value_parser = deadline)]
    pub cuda_deadline: Duration,
    /// Threads that measure whole rows; 0 is half of the cores, at most 4
    #[arg(long, env = "TOKENTAP_ENTROPY_THREADS", value_name = "N", default_value = "0")]
    pub entropy_threads: usize,
    /// Memory for rows that are coming in or being measured; more wait
    #[arg(long, env = "TOKENTAP_SLICE_MEMORY", value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    pub slice_memory: u64,
    /// The largest slice of /v1/entropy
    #[arg(long, env = "TOKENTAP_MAX_SLICE_BYTES", value_name = "BYTES", default_value = "8GiB", value_parser = bytes)]
    pub max_slice_bytes: u64,
}

/// A time that those who wait for it do not notice.
fn deadline(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time > Duration::from_millis(100) {
        return Err("at most 100ms: every request whose rows are the first to come waits for so long".to_owned());
    }
    Ok(time)
}

/// Slices that other processes on the node leave in files; `tokentap entropy` names its file itself.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Rows of logits")]
pub struct ShmConfig {
    /// Folder of files, such as in shared memory, in which processes on this node leave slices for /v1/entropy
    #[arg(long, env = "TOKENTAP_SHM_DIR", value_name = "DIR", value_parser = folder)]
    pub shm_dir: Option<PathBuf>,
}

/// A folder that is there: one that is not would only show with the first slice.
fn folder(text: &str) -> Result<PathBuf, String> {
    match std::fs::metadata(text) {
        Ok(found) if found.is_dir() => Ok(PathBuf::from(text)),
        Ok(_) => Err("it is no folder".to_owned()),
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
