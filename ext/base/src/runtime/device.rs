//! Compute devices by name, opened once each.

pub mod cuda;
mod suited;

pub use suited::{ensure_activations, free_bytes, placed, slowest, zeros};

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use crate::runtime::autorelease::pooled;
use crate::runtime::log;
use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    Cpu,
    Cuda(usize),
    Metal(usize),
}

/// candle gives every opened GPU an identity of its own and refuses to mix tensors of two, so each
/// is opened once. The process is part of the key: a GPU context does not survive `fork`.
static OPENED: Mutex<Option<HashMap<Device, (u32, candle_core::Device)>>> = Mutex::new(None);

/// What [`Device::available`] found, and in which process.
static FOUND: Mutex<Option<(u32, Vec<Device>)>> = Mutex::new(None);

/// GPUs are probed up to this index.
const MOST_GPUS: usize = 64;

/// Something on a device, and the process that put it there.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    device: Device,
    process: u32,
}

impl Home {
    pub fn here(device: Device) -> Self {
        Self {
            device,
            process: std::process::id(),
        }
    }

    /// Waits until memory released there is really free; plain memory always is.
    pub fn settle(self) -> Result<()> {
        match self.device {
            Device::Cpu => Ok(()),
            gpu => gpu.synchronize(),
        }
    }

    /// A `Device` error in a forked child, unless it lies in plain memory.
    pub fn check(self) -> Result<()> {
        if self.device == Device::Cpu || self.process == std::process::id() {
            Ok(())
        } else {
            Err(forked(self.device))
        }
    }
}

fn forked(device: Device) -> Error {
    Error::Device(format!(
        "{device} was used before this process was forked, and a GPU does not survive a fork. \
         Load the model in the child (Puma: on_worker_boot) and leave GPUs alone in the parent, or use the CPU"
    ))
}

impl Device {
    /// Understands `cpu`, `cuda`, `cuda:1`, `metal`, `metal:0` and `best`.
    pub fn parse(name: &str) -> Result<Self> {
        let unknown = || {
            Error::Device(format!(
                "unknown device {name:?}: use \"cpu\", \"cuda\", \"cuda:1\", \"metal\" or \"best\""
            ))
        };
        let lower = name.trim().to_ascii_lowercase();
        let (kind, index) = match lower.split_once(':') {
            Some((kind, index)) => (kind, index.parse().map_err(|_| unknown())?),
            None => (lower.as_str(), 0),
        };
        match (kind, index) {
            ("cpu", 0) => Ok(Self::Cpu),
            ("cuda" | "gpu", index) => Ok(Self::Cuda(index)),
            ("metal" | "mps", index) => Ok(Self::Metal(index)),
            ("best", 0) => Ok(Self::best()),
            _ => Err(unknown()),
        }
    }

    /// The name of an opened candle device.
    pub fn of(device: &candle_core::Device) -> Self {
        match device.location() {
            candle_core::DeviceLocation::Cpu => Self::Cpu,
            candle_core::DeviceLocation::Cuda { gpu_id } => Self::Cuda(gpu_id),
            place @ candle_core::DeviceLocation::Metal { .. } => Self::Metal(metal_index(place)),
        }
    }

    pub fn kind(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda(_) => "cuda",
            Self::Metal(_) => "metal",
        }
    }

    pub fn index(self) -> usize {
        match self {
            Self::Cpu => 0,
            Self::Cuda(index) | Self::Metal(index) => index,
        }
    }

    /// Metal, then CUDA, then the CPU: the first that really opens. Why a GPU of this build does not is
    /// logged once.
    pub fn best() -> Self {
        static SAID: AtomicBool = AtomicBool::new(false);
        for device in [Self::Metal(0), Self::Cuda(0)] {
            match device.open() {
                Ok(_) => return device,
                Err(error) if device.is_compiled_in() && !SAID.swap(true, Ordering::AcqRel) => {
                    let message = format!("the CPU is the best device: {error}");
                    if lost_by_fork() {
                        log::warn(message)
                    } else {
                        log::info(message)
                    }
                }
                Err(_) => {}
            }
        }
        Self::Cpu
    }

    /// Every device that opens here. GPUs that are not in use are closed again, since an open one takes
    /// memory; later calls get the same answer.
    pub fn available() -> Vec<Self> {
        let mut found = FOUND.lock().unwrap_or_else(|e| e.into_inner());
        match &*found {
            Some((process, devices)) if *process == std::process::id() => devices.clone(),
            _ => {
                let devices = Self::probe();
                *found = Some((std::process::id(), devices.clone()));
                devices
            }
        }
    }

    fn probe() -> Vec<Self> {
        let gpus =
            |make: fn(usize) -> Self| (0..MOST_GPUS).map(make).take_while(|device| device.opens());
        let mut devices = vec![Self::Cpu];
        devices.extend(gpus(Self::Metal));
        devices.extend(gpus(Self::Cuda));
        devices
    }

    fn opens(self) -> bool {
        let opened = OPENED.lock().unwrap_or_else(|e| e.into_inner());
        match opened.as_ref().and_then(|opened| opened.get(&self)) {
            Some((process, _)) => *process == std::process::id(),
            None => !any_lost(opened.as_ref()) && self.connect().is_ok(),
        }
    }

    /// The candle device, or why there is none and what to do about it.
    pub fn open(self) -> Result<candle_core::Device> {
        if self == Self::Cpu {
            return Ok(candle_core::Device::Cpu);
        }
        let mut guard = OPENED.lock().unwrap_or_else(|e| e.into_inner());
        if any_lost(guard.as_ref()) {
            return Err(forked(self));
        }
        let opened = guard.get_or_insert_with(HashMap::new);
        if let Some((_, device)) = opened.get(&self) {
            return Ok(device.clone());
        }
        let device = self.connect()?;
        opened.insert(self, (std::process::id(), device.clone()));
        Ok(device)
    }

    pub fn is_compiled_in(self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Cuda(_) => cfg!(feature = "cuda"),
            Self::Metal(_) => cfg!(feature = "metal"),
        }
    }

    /// Waits for what was given to the device so far, by any thread.
    pub fn synchronize(self) -> Result<()> {
        pooled(|| match self.open()? {
            // candle's own clears the fences of what other threads encode meanwhile, and their next work would not wait
            // for it.
            #[cfg(feature = "metal")]
            candle_core::Device::Metal(metal) => Ok(metal.flush_and_wait_current()?),
            device => Ok(device.synchronize()?),
        })
    }

    fn connect(self) -> Result<candle_core::Device> {
        let connected = match self {
            Self::Cpu => Ok(candle_core::Device::Cpu),
            Self::Cuda(_) if !self.is_compiled_in() => {
                return Err(Error::Device(cuda::missing_from_build(self)))
            }
            Self::Metal(_) if !self.is_compiled_in() => {
                return Err(Error::Device(format!(
                    "{self} is not available: Metal exists on macOS only. Use \"cuda\" or \"cpu\""
                )))
            }
            Self::Cuda(index) => cuda::open(index),
            Self::Metal(index) => pooled(|| open_metal(index)),
        };
        connected.map_err(|error| {
            // Ours has no backtrace in its text.
            let error = Error::from(error).to_string();
            Error::Device(match self {
                Self::Cuda(index) => cuda::explain(index, &error, cuda::count()),
                _ => format!(
                    "{self} cannot be opened ({error}): check that this Mac has a GPU of that index"
                ),
            })
        })
    }
}

/// candle names a Metal device by its number in the system's registry, which is not the index it was opened by.
fn metal_index(place: candle_core::DeviceLocation) -> usize {
    let opened = OPENED.lock().unwrap_or_else(|e| e.into_inner());
    let known = opened.iter().flatten();
    let found = known
        .filter(|(_, (_, device))| device.location() == place)
        .map(|(device, _)| device.index());
    found.min().unwrap_or(0)
}

/// candle takes a device out of a list without a look at its length, and panics.
#[cfg(feature = "metal")]
fn open_metal(index: usize) -> candle_core::Result<candle_core::Device> {
    let count = candle_metal_kernels::metal::Device::all().len();
    if index < count {
        candle_core::Device::new_metal(index)
    } else {
        candle_core::bail!("Metal devices here: {count}")
    }
}

#[cfg(not(feature = "metal"))]
fn open_metal(index: usize) -> candle_core::Result<candle_core::Device> {
    candle_core::Device::new_metal(index)
}

/// Whether the parent of this process had a GPU open.
fn lost_by_fork() -> bool {
    any_lost(OPENED.lock().unwrap_or_else(|e| e.into_inner()).as_ref())
}

fn any_lost(opened: Option<&HashMap<Device, (u32, candle_core::Device)>>) -> bool {
    opened.is_some_and(|opened| {
        opened
            .values()
            .any(|(process, _)| *process != std::process::id())
    })
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            gpu => write!(f, "{}:{}", gpu.kind(), gpu.index()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_printed() {
        for (name, device) in [
            ("cpu", Device::Cpu),
            ("CUDA", Device::Cuda(0)),
            ("cuda:3", Device::Cuda(3)),
            ("metal:0", Device::Metal(0)),
        ] {
            assert_eq!(Device::parse(name).unwrap(), device);
        }
        assert_eq!(Device::Cuda(3).to_string(), "cuda:3");
        for name in ["", "tpu", "cuda:", "cuda:-1", "cpu:1", "cuda:1:2"] {
            assert!(
                matches!(Device::parse(name), Err(Error::Device(_))),
                "{name}"
            );
        }
    }

    #[test]
    #[cfg(all(not(feature = "cuda"), not(feature = "metal")))]
    fn what_the_build_lacks_is_said_with_the_fix() {
        let message = Device::Cuda(0).open().unwrap_err().to_string();
        assert!(message.contains("built without CUDA") && message.contains("--features cuda"));
        assert_eq!(Device::best(), Device::Cpu);
        assert_eq!(Device::available(), [Device::Cpu]);
    }

    #[test]
    fn what_lies_on_a_gpu_is_lost_in_a_forked_child() {
        let lost = Home {
            device: Device::Cuda(1),
            process: std::process::id() + 1,
        };
        let message = lost.check().unwrap_err().to_string();
        assert!(message.contains("cuda:1") && message.contains("fork"));
        for kept in [
            Home::here(Device::Cuda(1)),
            Home {
                device: Device::Cpu,
                ..lost
            },
        ] {
            assert!(kept.check().is_ok());
        }
    }
}
