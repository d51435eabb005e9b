//! Captures, of which there are none.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSURL};

use crate::{MTLCaptureDestination, MTLDevice};

crate::classes!(MTLCaptureManager MTLCaptureDescriptor);

impl MTLCaptureManager {
    pub unsafe fn sharedCaptureManager() -> Retained<Self> {
        Retained::<Self>::soft_new(()).soft_autoreleased()
    }

    pub fn startCaptureWithDescriptor_error(
        &self,
        _descriptor: &MTLCaptureDescriptor,
    ) -> Result<(), Retained<NSError>> {
        Err(NSError::soft_new("the software device captures nothing").soft_autoreleased())
    }
}

impl MTLCaptureDescriptor {
    pub fn new() -> Retained<Self> {
        Retained::soft_new(())
    }

    pub fn setDestination(&self, _destination: MTLCaptureDestination) {}

    pub fn set_capture_device(&self, _device: &ProtocolObject<dyn MTLDevice>) {}

    pub fn setOutputURL(&self, _url: Option<&NSURL>) {}
}
