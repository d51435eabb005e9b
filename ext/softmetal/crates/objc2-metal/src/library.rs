//! Libraries, functions and pipelines.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString, NSUInteger};
use softmetal_interface::{runtime, Bytes, Constant, Raw, Sink};

use crate::{object, raw, result, MTLDataType, MTLMathFloatingPointFunctions, MTLMathMode};

crate::classes!(MTLCompileOptions MTLFunctionConstantValues);

impl MTLCompileOptions {
    pub fn new() -> Retained<Self> {
        Retained::soft_new(())
    }

    pub fn setMathMode(&self, _mode: MTLMathMode) {}

    pub fn setMathFloatingPointFunctions(&self, _functions: MTLMathFloatingPointFunctions) {}

    pub fn setFastMathEnabled(&self, _enabled: bool) {}
}

pub trait MTLFunction {}

pub trait MTLLibrary {
    fn newFunctionWithName(
        &self,
        name: &NSString,
    ) -> Option<Retained<ProtocolObject<dyn MTLFunction>>>;
    fn newFunctionWithName_constantValues_error(
        &self,
        name: &NSString,
        values: &MTLFunctionConstantValues,
    ) -> Result<Retained<ProtocolObject<dyn MTLFunction>>, Retained<NSError>>;
}

fn function(
    library: &ProtocolObject<dyn MTLLibrary>,
    name: &NSString,
    values: &[Constant],
) -> (Raw, String) {
    let name = name.to_string();
    // SAFETY: the library, the name and the values are alive.
    Sink::collect(|sink| unsafe {
        let name = Bytes::of(name.as_bytes());
        (runtime().function)(raw(library), name, values.as_ptr(), values.len(), sink)
    })
}

impl MTLLibrary for ProtocolObject<dyn MTLLibrary> {
    fn newFunctionWithName(
        &self,
        name: &NSString,
    ) -> Option<Retained<ProtocolObject<dyn MTLFunction>>> {
        object(function(self, name, &[]).0)
    }

    fn newFunctionWithName_constantValues_error(
        &self,
        name: &NSString,
        values: &MTLFunctionConstantValues,
    ) -> Result<Retained<ProtocolObject<dyn MTLFunction>>, Retained<NSError>> {
        let values = values.lock();
        let constants: Vec<Constant> = values
            .iter()
            .map(|(index, value)| Constant {
                index: *index,
                value: Bytes::of(value),
            })
            .collect();
        result(function(self, name, &constants))
    }
}

/// Indices and bytes.
type Constants = Vec<(usize, Vec<u8>)>;

impl MTLFunctionConstantValues {
    pub fn new() -> Retained<Self> {
        Retained::soft_new(Mutex::new(Constants::new()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Constants> {
        let constants = self.0.soft_body::<Mutex<Constants>>();
        constants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub unsafe fn setConstantValue_type_atIndex(
        &self,
        value: NonNull<c_void>,
        kind: MTLDataType,
        index: NSUInteger,
    ) {
        let bytes = match kind {
            MTLDataType::Bool => 1,
            MTLDataType::UShort => 2,
            MTLDataType::Float | MTLDataType::UInt => 4,
            MTLDataType::ULong => 8,
            other => panic!("no function constants of {other:?} so far"),
        };
        // SAFETY: the caller lends a value of that type.
        let value = unsafe { std::slice::from_raw_parts(value.as_ptr().cast::<u8>(), bytes) };
        let mut constants = self.lock();
        constants.retain(|(other, _)| *other != index);
        constants.push((index, value.to_vec()));
    }
}

pub trait MTLComputePipelineState {
    fn maxTotalThreadsPerThreadgroup(&self) -> NSUInteger;
    fn threadExecutionWidth(&self) -> NSUInteger {
        32
    }
}

impl MTLComputePipelineState for ProtocolObject<dyn MTLComputePipelineState> {
    fn maxTotalThreadsPerThreadgroup(&self) -> NSUInteger {
        // SAFETY: the pipeline is alive.
        unsafe { (runtime().maximum_threads)(raw(self)) }
    }
}
