//! Buffers, residency and fences.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSRange, NSString, NSUInteger};
use softmetal_interface::runtime;

use crate::raw;

crate::classes!(MTLResidencySetDescriptor);

pub trait MTLAllocation {}

pub trait MTLResource: MTLAllocation {
    fn setLabel(&self, _label: Option<&NSString>) {}
}

pub trait MTLBuffer: MTLResource {
    fn length(&self) -> NSUInteger;
    fn contents(&self) -> NonNull<c_void>;
    fn didModifyRange(&self, _range: NSRange) {}
}

impl MTLAllocation for ProtocolObject<dyn MTLBuffer> {}
impl MTLResource for ProtocolObject<dyn MTLBuffer> {}
impl MTLBuffer for ProtocolObject<dyn MTLBuffer> {
    fn length(&self) -> NSUInteger {
        // SAFETY: the buffer is alive.
        unsafe { (runtime().length)(raw(self)) }
    }

    fn contents(&self) -> NonNull<c_void> {
        // SAFETY: the buffer is alive.
        let contents = unsafe { (runtime().contents)(raw(self)) };
        NonNull::new(contents).expect("the contents of a private buffer")
    }
}

pub(crate) type Residents = Vec<Retained<ProtocolObject<dyn MTLAllocation>>>;

pub trait MTLResidencySet {
    fn requestResidency(&self) {}
    fn commit(&self) {}
    fn addAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>);
    fn removeAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>);
    fn allocationCount(&self) -> NSUInteger;
    fn containsAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) -> bool;
}

fn residents(set: &ProtocolObject<dyn MTLResidencySet>) -> MutexGuard<'_, Residents> {
    let residents = set.soft_body::<Mutex<Residents>>();
    residents.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is(
    one: &Retained<ProtocolObject<dyn MTLAllocation>>,
    other: &ProtocolObject<dyn MTLAllocation>,
) -> bool {
    std::ptr::eq(Retained::as_ptr(one), other)
}

impl MTLResidencySet for ProtocolObject<dyn MTLResidencySet> {
    fn addAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
        if !self.containsAllocation(allocation) {
            residents(self).push(Retained::soft_from_ref(allocation));
        }
    }

    fn removeAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
        residents(self).retain(|one| !is(one, allocation));
    }

    fn allocationCount(&self) -> NSUInteger {
        residents(self).len()
    }

    fn containsAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) -> bool {
        residents(self).iter().any(|one| is(one, allocation))
    }
}

impl MTLResidencySetDescriptor {
    pub fn new() -> Retained<Self> {
        Retained::soft_new(())
    }
}

pub trait MTLFence {}
