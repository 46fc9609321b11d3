//! Finds the driver and a device, or the reason why none can be used.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::{DriverError, result, sys};

use crate::config::CudaDevice;

/// The oldest driver that reads PTX ISA 8.0.
const OLDEST_DRIVER: i32 = 12_000;
/// The PTX is for `sm_80`.
const LEAST_CAPABILITY: i32 = 8;

/// Why there is no device.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unavailable {
    /// The library cannot be loaded.
    #[error("there is no CUDA driver: libcuda.so.1 is not found")]
    NoLibrary,
    /// The library lacks functions, or something else made the bindings give up.
    #[error("the CUDA driver is broken: {0}")]
    Broken(String),
    /// A call failed.
    #[error("the CUDA driver answers {call} with error {code}")]
    Failed {
        /// What was asked.
        call: &'static str,
        /// The driver's own number.
        code: u32,
    },
    /// A driver without a device.
    #[error("the CUDA driver knows no device")]
    NoDevice,
    /// An old driver.
    #[error("the driver is for CUDA {}.{}; 12.0 (driver 525) or newer is needed", .0 / 1000, .0 % 1000 / 10)]
    DriverTooOld(i32),
    /// An old device.
    #[error("{name} has compute capability {major}.{minor}; 8.0 or newer is needed")]
    DeviceTooOld {
        /// The device.
        name: String,
        /// Of its capability.
        major: i32,
        /// Of its capability.
        minor: i32,
    },
    /// No such device.
    #[error("--cuda-device {wanted}: there is no such device; the driver knows {known}")]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// Too little memory for a single slot, or too much for the device.
    #[error("memory of the device: {0}")]
    Memory(String),
    /// A batch that does not end.
    #[error("the device neither answers nor fails")]
    Hangs,
    /// Both backends were asked the same and said different things.
    #[error("the device and the CPU differ by {0:e} nat on the same rows")]
    Disagree(f64),
}

impl Unavailable {
    /// A call that failed. The code is printed as a number: a driver may know codes that the bindings have no name for.
    pub(super) fn of(call: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| Self::Failed { call, code: error.0 as u32 }
    }
}

/// A device that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its place among those that this process sees.
    pub ordinal: usize,
    /// What its maker calls it.
    pub name: String,
    /// `GPU-…`, which names it whatever the process sees.
    pub uuid: String,
    /// The newest CUDA of the driver: 12040 is 12.4.
    pub driver: i32,
}

/// Looks for a device; the first one where none is named.
///
/// # Errors
/// [`Unavailable`] if none exists.
pub fn find(wanted: Option<&CudaDevice>) -> Result<DeviceInfo, Unavailable> {
    // before any other call: each of them ends in a panic where the library is missing
    // SAFETY: it loads a library by name and runs its initialisers, as every user of CUDA does.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoLibrary);
    }
    guarded(|| look(wanted))
}

/// Calls into a driver that may lack functions.
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
    // one that is broken hides no other
    let (devices, broken): (Vec<_>, Vec<_>) = (0..count).map(|at| device(at, driver)).partition(Result::is_ok);
    let devices: Vec<_> = devices.into_iter().flatten().collect();
    if devices.is_empty() {
        return Err(broken.into_iter().find_map(Result::err).unwrap_or(Unavailable::NoDevice));
    }
    let known = || devices.iter().map(|(found, _)| format!("{} {}", found.ordinal, found.uuid)).collect::<Vec<_>>();
    let (found, (major, minor)) = devices
        .iter()
        .find(|(found, _)| match wanted {
            None => true,
            Some(CudaDevice::Index(index)) => found.ordinal == *index as usize,
            Some(CudaDevice::Uuid(uuid)) => found.uuid.eq_ignore_ascii_case(uuid),
        })
        .ok_or_else(|| Unavailable::Unknown {
            wanted: wanted.map(ToString::to_string).unwrap_or_default(),
            known: known().join(", "),
        })?;
    if *major < LEAST_CAPABILITY {
        return Err(Unavailable::DeviceTooOld { name: found.name.clone(), major: *major, minor: *minor });
    }
    Ok(found.clone())
}

fn device(at: i32, driver: i32) -> Result<(DeviceInfo, (i32, i32)), Unavailable> {
    use sys::CUdevice_attribute_enum::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let device = result::device::get(at).map_err(Unavailable::of("cuDeviceGet"))?;
    let name = result::device::get_name(device).map_err(Unavailable::of("cuDeviceGetName"))?;
    let uuid = result::device::get_uuid(device).map_err(Unavailable::of("cuDeviceGetUuid"))?;
    // SAFETY: the driver has just given this device.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    let capability = attribute(MAJOR).and_then(|major| Ok((major, attribute(MINOR)?)));
    let capability = capability.map_err(Unavailable::of("cuDeviceGetAttribute"))?;
    let bytes = uuid.bytes.map(|byte| format!("{:02x}", byte as u8)).concat();
    let parts = [&bytes[..8], &bytes[8..12], &bytes[12..16], &bytes[16..20], &bytes[20..]];
    let ordinal = usize::try_from(at).expect("counted from 0");
    Ok((DeviceInfo { ordinal, name, uuid: format!("GPU-{}", parts.join("-")), driver }, capability))
}
