//! A loaded shared object: its kernels, and its function constants, which are variables of it.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Constants;
use crate::machine::{Callbacks, Entry, CALLBACKS};

/// Laid out as in `runtime.hpp`.
#[repr(C)]
struct RawKernel {
    name: *const c_char,
    entry: Option<Entry>,
    maximum: c_uint,
    codes: *const c_int,
    guards: *const *const bool,
}

/// Laid out as in `runtime.hpp`.
#[repr(C)]
struct RawConstant {
    name: *const c_char,
    index: c_uint,
    bytes: usize,
    address: *mut c_void,
}

#[derive(Clone, Copy)]
pub enum Place {
    Buffer(usize),
    Threadgroup(usize),
}

/// Where a parameter comes from; one that a function constant removed comes from nowhere.
#[derive(Clone, Copy)]
pub struct Binding {
    pub place: Place,
    guard: *const bool,
}

impl Binding {
    /// By the constants of the pipeline that was activated last.
    pub fn exists(&self) -> bool {
        // SAFETY: objects stay loaded, and constants change only between dispatches.
        self.guard.is_null() || unsafe { *self.guard }
    }
}

// SAFETY: points into an object that stays loaded; see `exists`.
unsafe impl Send for Binding {}
// SAFETY: as above.
unsafe impl Sync for Binding {}

pub struct Kernel {
    pub entry: Entry,
    pub maximum: usize,
    pub bindings: Vec<Binding>,
}

struct Constant {
    name: String,
    index: usize,
    bytes: usize,
    address: *mut u8,
}

pub struct Object {
    kernels: HashMap<String, Kernel>,
    constants: Vec<Constant>,
    derive: unsafe extern "C" fn(),
}

// SAFETY: constants are set by the thread that executes, one at a time.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    pub fn load(file: &Path) -> Result<Self, String> {
        let path = CString::new(file.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the object was made by `compiler::build`, which gives it these symbols, and is never unloaded.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if handle.is_null() {
                return Err(CStr::from_ptr(libc::dlerror())
                    .to_string_lossy()
                    .into_owned());
            }
            let symbol = |name: &CStr| {
                let address = libc::dlsym(handle, name.as_ptr());
                (!address.is_null())
                    .then_some(address)
                    .ok_or_else(|| format!("no {name:?} in {}", file.display()))
            };
            symbol(c"softmetal_callbacks")?
                .cast::<*const Callbacks>()
                .write(&CALLBACKS);
            let derive = symbol(c"softmetal_derive")?;
            Ok(Self {
                kernels: kernels(symbol(c"softmetal_kernels")?.cast_const().cast()),
                constants: constants(symbol(c"softmetal_constants")?.cast_const().cast()),
                derive: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(derive),
            })
        }
    }

    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }

    pub fn check_constant(&self, index: usize, value: &[u8]) -> Result<(), String> {
        match self
            .constants
            .iter()
            .find(|constant| constant.index == index)
        {
            Some(constant) if constant.bytes != value.len() => Err(format!(
                "the constant {} has {} bytes, not {}",
                constant.name,
                constant.bytes,
                value.len()
            )),
            _ => Ok(()),
        }
    }

    pub fn set_constants(&self, values: &Constants) {
        for constant in &self.constants {
            let value = values.iter().find(|(index, _)| *index == constant.index);
            // SAFETY: the variable has so many bytes, which `check_constant` compared, and no kernel runs.
            unsafe {
                match value {
                    Some((_, value)) => constant
                        .address
                        .copy_from_nonoverlapping(value.as_ptr(), constant.bytes),
                    None => constant.address.write_bytes(0, constant.bytes),
                }
            }
        }
        // SAFETY: computes variables from those.
        unsafe { (self.derive)() };
    }
}

/// # Safety
/// The table ends with a row without a name.
unsafe fn kernels(mut raw: *const RawKernel) -> HashMap<String, Kernel> {
    let mut kernels = HashMap::new();
    // SAFETY: as promised above; codes end with a negative one, and guards are as many.
    unsafe {
        while !(*raw).name.is_null() {
            let mut bindings = Vec::new();
            let (mut code, mut guard) = ((*raw).codes, (*raw).guards);
            while *code >= 0 {
                let index = (*code & 0xff) as usize;
                let place = match *code >> 8 {
                    0 => Some(Place::Buffer(index)),
                    1 => Some(Place::Threadgroup(index)),
                    _ => None,
                };
                bindings.extend(place.map(|place| Binding {
                    place,
                    guard: *guard,
                }));
                (code, guard) = (code.add(1), guard.add(1));
            }
            if let Some(entry) = (*raw).entry {
                let maximum = (*raw).maximum as usize;
                kernels.insert(
                    text((*raw).name),
                    Kernel {
                        entry,
                        maximum,
                        bindings,
                    },
                );
            }
            raw = raw.add(1);
        }
    }
    kernels
}

/// # Safety
/// The table ends with a row without a name.
unsafe fn constants(mut raw: *const RawConstant) -> Vec<Constant> {
    let mut constants = Vec::new();
    // SAFETY: as promised above.
    unsafe {
        while !(*raw).name.is_null() {
            constants.push(Constant {
                name: text((*raw).name),
                index: (*raw).index as usize,
                bytes: (*raw).bytes,
                address: (*raw).address.cast(),
            });
            raw = raw.add(1);
        }
    }
    constants
}

/// # Safety
/// The text ends with a zero.
unsafe fn text(name: *const c_char) -> String {
    // SAFETY: as promised above.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}
