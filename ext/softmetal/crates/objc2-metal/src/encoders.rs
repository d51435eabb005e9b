//! Encoders of compute and blit commands.

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSRange, NSString};
use softmetal_interface::{runtime, Bytes, Place};

use crate::{raw, MTLBarrierScope, MTLBuffer, MTLComputePipelineState, MTLFence, MTLSize};

fn place(buffer: &ProtocolObject<dyn MTLBuffer>, offset: usize) -> Place {
    Place {
        buffer: raw(buffer),
        offset,
    }
}

pub trait MTLCommandEncoder {
    fn endEncoding(&self);

    fn setLabel(&self, _label: Option<&NSString>) {}

    fn pushDebugGroup(&self, _label: &NSString) {}

    fn popDebugGroup(&self) {}
}

impl MTLCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn endEncoding(&self) {
        // SAFETY: the encoder is alive.
        unsafe { (runtime().end)(raw(self)) };
    }
}

impl MTLCommandEncoder for ProtocolObject<dyn MTLBlitCommandEncoder> {
    fn endEncoding(&self) {
        // SAFETY: the encoder is alive.
        unsafe { (runtime().end)(raw(self)) };
    }
}

pub trait MTLComputeCommandEncoder: MTLCommandEncoder {
    fn setComputePipelineState(&self, state: &ProtocolObject<dyn MTLComputePipelineState>);
    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    );
    unsafe fn setBytes_length_atIndex(&self, bytes: NonNull<c_void>, length: usize, index: usize);
    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize);
    fn dispatchThreads_threadsPerThreadgroup(&self, threads: MTLSize, group: MTLSize);
    fn dispatchThreadgroups_threadsPerThreadgroup(&self, groups: MTLSize, group: MTLSize);
    fn memoryBarrierWithScope(&self, scope: MTLBarrierScope);
    fn waitForFence(&self, fence: &ProtocolObject<dyn MTLFence>);
    fn updateFence(&self, fence: &ProtocolObject<dyn MTLFence>);
}

impl MTLComputeCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn setComputePipelineState(&self, state: &ProtocolObject<dyn MTLComputePipelineState>) {
        // SAFETY: both are alive.
        unsafe { (runtime().set_pipeline)(raw(self), raw(state)) };
    }

    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    ) {
        let nil = Place {
            buffer: std::ptr::null(),
            offset,
        };
        let place = buffer.map_or(nil, |buffer| place(buffer, offset));
        // SAFETY: both are alive.
        unsafe { (runtime().set_buffer)(raw(self), place, index) };
    }

    unsafe fn setBytes_length_atIndex(&self, bytes: NonNull<c_void>, length: usize, index: usize) {
        let start = bytes.as_ptr().cast_const().cast();
        // SAFETY: the caller lends so many bytes.
        unsafe { (runtime().set_bytes)(raw(self), Bytes { start, length }, index) };
    }

    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize) {
        // SAFETY: the encoder is alive.
        unsafe { (runtime().set_threadgroup_length)(raw(self), length, index) };
    }

    fn dispatchThreads_threadsPerThreadgroup(&self, threads: MTLSize, group: MTLSize) {
        let grid = [threads.width, threads.height, threads.depth];
        let group_size = [group.width, group.height, group.depth];
        // SAFETY: the encoder is alive.
        unsafe { (runtime().dispatch)(raw(self), &grid, &group_size) };
    }

    fn dispatchThreadgroups_threadsPerThreadgroup(&self, groups: MTLSize, group: MTLSize) {
        let threads = MTLSize {
            width: groups.width * group.width,
            height: groups.height * group.height,
            depth: groups.depth * group.depth,
        };
        self.dispatchThreads_threadsPerThreadgroup(threads, group);
    }

    fn memoryBarrierWithScope(&self, scope: MTLBarrierScope) {
        assert_eq!(scope, MTLBarrierScope::Buffers, "there are only buffers");
        // SAFETY: the encoder is alive.
        unsafe { (runtime().barrier)(raw(self)) };
    }

    fn waitForFence(&self, fence: &ProtocolObject<dyn MTLFence>) {
        // SAFETY: both are alive.
        unsafe { (runtime().wait_for_fence)(raw(self), raw(fence)) };
    }

    fn updateFence(&self, fence: &ProtocolObject<dyn MTLFence>) {
        // SAFETY: both are alive.
        unsafe { (runtime().update_fence)(raw(self), raw(fence)) };
    }
}

pub trait MTLBlitCommandEncoder: MTLCommandEncoder {
    unsafe fn copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        &self,
        from: &ProtocolObject<dyn MTLBuffer>,
        from_offset: usize,
        to: &ProtocolObject<dyn MTLBuffer>,
        to_offset: usize,
        bytes: usize,
    );
    fn fillBuffer_range_value(
        &self,
        buffer: &ProtocolObject<dyn MTLBuffer>,
        range: NSRange,
        value: u8,
    );
    fn waitForFence(&self, fence: &ProtocolObject<dyn MTLFence>);
    fn updateFence(&self, fence: &ProtocolObject<dyn MTLFence>);
}

impl MTLBlitCommandEncoder for ProtocolObject<dyn MTLBlitCommandEncoder> {
    unsafe fn copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        &self,
        from: &ProtocolObject<dyn MTLBuffer>,
        from_offset: usize,
        to: &ProtocolObject<dyn MTLBuffer>,
        to_offset: usize,
        bytes: usize,
    ) {
        let (from, to) = (place(from, from_offset), place(to, to_offset));
        // SAFETY: all three are alive.
        unsafe { (runtime().copy)(raw(self), from, to, bytes) };
    }

    fn fillBuffer_range_value(
        &self,
        buffer: &ProtocolObject<dyn MTLBuffer>,
        range: NSRange,
        value: u8,
    ) {
        let place = place(buffer, range.location);
        // SAFETY: both are alive.
        unsafe { (runtime().fill)(raw(self), place, range.length, value) };
    }

    fn waitForFence(&self, fence: &ProtocolObject<dyn MTLFence>) {
        // SAFETY: both are alive.
        unsafe { (runtime().wait_for_fence)(raw(self), raw(fence)) };
    }

    fn updateFence(&self, fence: &ProtocolObject<dyn MTLFence>) {
        // SAFETY: both are alive.
        unsafe { (runtime().update_fence)(raw(self), raw(fence)) };
    }
}
