// SPDX-License-Identifier: Apache-2.0
//! Finds the driver and a device, or the reason why none can be used.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::{DriverError, result, sys};

use crate::config::CudaDevice;

/// The oldest driver that reads PTX ISA 8.0.
const OLDEST_DRIVER: i32 = 12_000;
/// The PTX is for `sm_80`.
const LEAST_CAPABILITY: i32 = 8;

/// Why no device can be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unavailable {
    /// The library cannot be loaded.
    #[error("no CUDA driver: libcuda.so.1 was not found")]
    NoLibrary,
    /// The library lacks functions, or the bindings panicked for another reason.
    #[error("the CUDA driver is broken: {0}")]
    Broken(String),
    /// A call failed.
    #[error("the CUDA driver returned error {code} for {call}")]
    Failed {
        /// The function.
        call: &'static str,
        /// The error code of the driver.
        code: u32,
    },
    /// The driver has no device.
    #[error("the CUDA driver found no device")]
    NoDevice,
    /// The driver is too old.
    #[error("the driver is for CUDA {}.{}; 12.0 (driver 525) or newer is needed", .0 / 1000, .0 % 1000 / 10)]
    DriverTooOld(i32),
    /// The device is too old.
    #[error("{name} has compute capability {major}.{minor}; 8.0 or newer is needed")]
    DeviceTooOld {
        /// The name of the device.
        name: String,
        /// The major part of its compute capability.
        major: i32,
        /// The minor part of its compute capability.
        minor: i32,
    },
    /// The requested device does not exist.
    #[error("--entropy-backend: no device {wanted}; the driver reports {known}")]
    Unknown {
        /// The requested device.
        wanted: String,
        /// The devices that exist.
        known: String,
    },
    /// Too little memory for a single slot, or too much for the device.
    #[error("memory of the device: {0}")]
    Memory(String),
    /// A batch did not finish in time.
    #[error("the device hangs")]
    Hangs,
    /// Both backends measured the same rows with different results.
    #[error("the device and the CPU differ by {0:e} nat on the same rows")]
    Disagree(f64),
}

impl Unavailable {
    /// Maps the error of `call`. The code stays a number: a newer driver may return codes that the bindings have no name for.
    pub(super) fn of(call: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| Self::Failed { call, code: error.0 as u32 }
    }
}

/// A device that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its index among the devices visible to this process.
    pub ordinal: usize,
    /// The product name.
    pub name: String,
    /// `GPU-…`, which does not depend on the visible devices.
    pub uuid: String,
    /// The newest CUDA version that the driver supports: 12040 is 12.4.
    pub driver: i32,
}

/// Finds the requested device, or the first one.
///
/// # Errors
/// [`Unavailable`] if it does not exist or cannot be used.
pub fn find(wanted: Option<&CudaDevice>) -> Result<DeviceInfo, Unavailable> {
    // first, since every other call panics if the library is missing
    // SAFETY: it loads a library by name and runs its initialisers, as every user of CUDA does.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoLibrary);
    }
    guarded(|| look(wanted))
}

/// Runs a driver call, and converts a panic into an error: the bindings panic if the driver lacks a function.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, Unavailable>) -> Result<T, Unavailable> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("its bindings panicked").lines().next().unwrap_or_default();
        Err(Unavailable::Broken(text.to_owned()))
    })
}

fn look(wanted: Option<&CudaDevice>) -> Result<DeviceInfo, Unavailable> {
    result::init().map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Unavailable::NoDevice,
        _ => Unavailable::of("cuInit")(error),
    })?;
    let mut driver = 0;
    // SAFETY: it writes one integer to the given address.
    unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result().map_err(Unavailable::of("cuDriverGetVersion"))?;
    if driver < OLDEST_DRIVER {
        return Err(Unavailable::DriverTooOld(driver));
    }
    let count = result::device::get_count().map_err(Unavailable::of("cuDeviceGetCount"))?;
    // a broken device does not hide the others
    let (devices, broken): (Vec<_>, Vec<_>) = (0..count).map(|at| device(at, driver)).partition(Result::is_ok);
    let devices: Vec<_> = devices.into_iter().flatten().collect();
    if devices.is_empty() {
        return Err(broken.into_iter().find_map(Result::err).unwrap_or(Unavailable::NoDevice));
    }
    let known = || devices.iter().map(|(info, _)| format!("{} {}", info.ordinal, info.uuid)).collect::<Vec<_>>();
    let (info, (major, minor)) = devices
        .iter()
        .find(|(info, _)| match wanted {
            None => true,
            Some(CudaDevice::Index(index)) => info.ordinal == *index as usize,
            Some(CudaDevice::Uuid(uuid)) => info.uuid.eq_ignore_ascii_case(uuid),
        })
        .ok_or_else(|| Unavailable::Unknown {
            wanted: wanted.map(ToString::to_string).unwrap_or_default(),
            known: known().join(", "),
        })?;
    if *major < LEAST_CAPABILITY {
        return Err(Unavailable::DeviceTooOld { name: info.name.clone(), major: *major, minor: *minor });
    }
    Ok(info.clone())
}

fn device(at: i32, driver: i32) -> Result<(DeviceInfo, (i32, i32)), Unavailable> {
    use sys::CUdevice_attribute_enum::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let device = result::device::get(at).map_err(Unavailable::of("cuDeviceGet"))?;
    let name = result::device::get_name(device).map_err(Unavailable::of("cuDeviceGetName"))?;
    let uuid = result::device::get_uuid(device).map_err(Unavailable::of("cuDeviceGetUuid"))?;
    // SAFETY: the driver has just returned this device.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    let capability = attribute(MAJOR).and_then(|major| Ok((major, attribute(MINOR)?)));
    let capability = capability.map_err(Unavailable::of("cuDeviceGetAttribute"))?;
    let bytes = uuid.bytes.map(|byte| format!("{:02x}", byte as u8)).concat();
    let parts = [&bytes[..8], &bytes[8..12], &bytes[12..16], &bytes[16..20], &bytes[20..]];
    let ordinal = usize::try_from(at).expect("indexes are not negative");
    Ok((DeviceInfo { ordinal, name, uuid: format!("GPU-{}", parts.join("-")), driver }, capability))
}
