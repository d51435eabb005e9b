//! Compute devices by name, opened once each.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

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

/// GPUs are probed up to this index.
const MOST_GPUS: usize = 64;

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
            candle_core::DeviceLocation::Metal { gpu_id } => Self::Metal(gpu_id),
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

    /// Metal, then CUDA, then the CPU: the first that really opens.
    pub fn best() -> Self {
        [Self::Metal(0), Self::Cuda(0)]
            .into_iter()
            .find(|device| device.open().is_ok())
            .unwrap_or(Self::Cpu)
    }

    /// Every device that opens here.
    pub fn available() -> Vec<Self> {
        let gpus = |make: fn(usize) -> Self| {
            (0..MOST_GPUS)
                .map(make)
                .take_while(|device| device.open().is_ok())
        };
        let mut devices = vec![Self::Cpu];
        devices.extend(gpus(Self::Cuda));
        devices.extend(gpus(Self::Metal));
        devices
    }

    /// The candle device, or why there is none and what to do about it.
    pub fn open(self) -> Result<candle_core::Device> {
        if self == Self::Cpu {
            return Ok(candle_core::Device::Cpu);
        }
        let mut guard = OPENED.lock().unwrap_or_else(|e| e.into_inner());
        let opened = guard.get_or_insert_with(HashMap::new);
        if let Some((process, device)) = opened.get(&self) {
            if *process == std::process::id() {
                return Ok(device.clone());
            }
            return Err(Error::Device(format!(
                "{self} was opened before this process was forked, and a GPU does not survive a fork. \
                 Load the model in the child (Puma: on_worker_boot), or use the CPU"
            )));
        }
        let device = self.connect()?;
        opened.insert(self, (std::process::id(), device.clone()));
        Ok(device)
    }

    pub fn synchronize(self) -> Result<()> {
        Ok(self.open()?.synchronize()?)
    }

    fn connect(self) -> Result<candle_core::Device> {
        let connected = match self {
            Self::Cpu => Ok(candle_core::Device::Cpu),
            Self::Cuda(_) if !cfg!(feature = "cuda") => {
                return Err(Error::Device(format!(
                    "{self} is not available: red-candle was built without CUDA. \
                     Reinstall with: gem install red-candle -- --features cuda"
                )))
            }
            Self::Metal(_) if !cfg!(target_os = "macos") => {
                return Err(Error::Device(format!(
                    "{self} is not available: Metal exists on macOS only. Use \"cuda\" or \"cpu\""
                )))
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(index) => crate::kernels::cuda::device::open(index),
            #[cfg(not(feature = "cuda"))]
            Self::Cuda(index) => candle_core::Device::new_cuda(index),
            Self::Metal(index) => candle_core::Device::new_metal(index),
        };
        connected.map_err(|error| {
            let advice = match self {
                Self::Cuda(_) => "check the NVIDIA driver and the index with nvidia-smi",
                _ => "check that this Mac has a GPU of that index",
            };
            Error::Device(format!("{self} cannot be opened ({error}): {advice}"))
        })
    }
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
    #[cfg(all(not(feature = "cuda"), not(target_os = "macos")))]
    fn what_the_build_lacks_is_said_with_the_fix() {
        let message = Device::Cuda(0).open().unwrap_err().to_string();
        assert!(message.contains("built without CUDA") && message.contains("--features cuda"));
        assert_eq!(Device::best(), Device::Cpu);
        assert_eq!(Device::available(), [Device::Cpu]);
    }
}
