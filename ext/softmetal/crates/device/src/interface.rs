//! The device as the stand-in for objc2-metal calls it. Every function here takes living objects of the right kind.

use std::ffi::c_void;
use std::sync::{Arc, Once};

use softmetal_interface::{
    Bytes, Constant, Interface, Place, Raw, Sink, COMMITTED, COMPLETED, ERROR,
};

use crate::commands::{Argument, Command, CommandBuffer, Handler, Span, Status};
use crate::library::{Library, Pipeline};
use crate::memory::{self, Allocation};
use crate::objects::{self, Object};
use crate::{machine, report};

static INTERFACE: Interface = Interface {
    retain: objects::retain,
    release: objects::release,
    buffer,
    buffer_with_bytes,
    length,
    contents,
    allocated,
    library,
    function,
    pipeline,
    maximum_threads,
    fence,
    queue,
    command_buffer,
    commit,
    wait,
    status,
    error,
    on_completion,
    encoder,
    set_pipeline,
    set_buffer,
    set_bytes,
    set_threadgroup_length,
    dispatch,
    barrier,
    wait_for_fence,
    update_fence,
    copy,
    fill,
    end,
    counts,
};

/// The most that `setBytes` takes.
const MOST_BYTES: usize = 4096;

#[no_mangle]
pub extern "C" fn softmetal_interface() -> &'static Interface {
    static ONCE: Once = Once::new();
    extern "C" fn at_exit() {
        report::write_counts();
    }
    ONCE.call_once(|| {
        machine::report_faults();
        // SAFETY: the function lives as long as the library, which stays loaded.
        unsafe { libc::atexit(at_exit) };
    });
    &INTERFACE
}

fn give(object: Option<Object>) -> Raw {
    object.map_or(std::ptr::null(), Object::give)
}

fn give_or_say(object: Result<Object, String>, problem: &Sink) -> Raw {
    let object = object.inspect_err(|text| {
        report::finding(text.clone());
        problem.put(text);
    });
    give(object.ok())
}

/// A buffer of the host's; the copies of `setBytes` do not count.
fn counted(allocation: Allocation) -> Object {
    report::count("buffers");
    Object::Buffer(Arc::new(allocation))
}

unsafe extern "C" fn buffer(length: usize, private: bool) -> Raw {
    give(Allocation::new(length, private).map(counted))
}

unsafe extern "C" fn buffer_with_bytes(bytes: Bytes) -> Raw {
    // SAFETY: the caller lends the bytes.
    let bytes = unsafe { bytes.get() };
    give(Allocation::with_bytes(bytes).map(counted))
}

unsafe extern "C" fn length(buffer: Raw) -> usize {
    // SAFETY: see the head of this file.
    unsafe { objects::buffer(buffer) }.length()
}

unsafe extern "C" fn contents(buffer: Raw) -> *mut c_void {
    // SAFETY: see the head of this file.
    unsafe { objects::buffer(buffer) }.contents().cast()
}

unsafe extern "C" fn allocated() -> usize {
    memory::allocated()
}

unsafe extern "C" fn library(source: Bytes) -> Raw {
    // SAFETY: the caller lends the text.
    let source = String::from_utf8_lossy(unsafe { source.get() });
    Object::Library(Library::new(&source)).give()
}

unsafe extern "C" fn function(
    library: Raw,
    name: Bytes,
    constants: *const Constant,
    count: usize,
    problem: &Sink,
) -> Raw {
    // SAFETY: see the head of this file; the caller lends the name and so many constants.
    let (library, name, constants) = unsafe {
        let constants = if count == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(constants, count)
        };
        let constants = constants
            .iter()
            .map(|constant| (constant.index, constant.value.get().to_vec()));
        (
            objects::library(library),
            String::from_utf8_lossy(name.get()),
            constants.collect(),
        )
    };
    give_or_say(
        library.function(&name, constants).map(Object::Function),
        problem,
    )
}

unsafe extern "C" fn pipeline(function: Raw, problem: &Sink) -> Raw {
    // SAFETY: see the head of this file.
    let pipeline = Pipeline::new(unsafe { objects::function(function) });
    give_or_say(
        pipeline.map(|pipeline| Object::Pipeline(Arc::new(pipeline))),
        problem,
    )
}

unsafe extern "C" fn maximum_threads(pipeline: Raw) -> usize {
    // SAFETY: see the head of this file.
    unsafe { objects::pipeline(pipeline) }.maximum_threads
}

unsafe extern "C" fn fence() -> Raw {
    Object::Fence(Arc::default()).give()
}

unsafe extern "C" fn queue() -> Raw {
    Object::Queue(Arc::default()).give()
}

unsafe extern "C" fn command_buffer(queue: Raw) -> Raw {
    // SAFETY: see the head of this file.
    let queue = unsafe { objects::queue(queue) }.clone();
    Object::CommandBuffer(Arc::new(CommandBuffer::new(queue))).give()
}

unsafe extern "C" fn commit(command_buffer: Raw) {
    // SAFETY: see the head of this file.
    unsafe { objects::command_buffer(command_buffer) }.commit();
}

unsafe extern "C" fn wait(command_buffer: Raw) {
    // SAFETY: see the head of this file.
    unsafe { objects::command_buffer(command_buffer) }.wait();
}

unsafe extern "C" fn status(command_buffer: Raw) -> usize {
    // SAFETY: see the head of this file.
    match unsafe { objects::command_buffer(command_buffer) }.status() {
        Status::NotEnqueued => 0,
        Status::Committed => COMMITTED,
        Status::Completed => COMPLETED,
        Status::Error => ERROR,
    }
}

unsafe extern "C" fn error(command_buffer: Raw, text: &Sink) -> bool {
    // SAFETY: see the head of this file.
    let error = unsafe { objects::command_buffer(command_buffer) }.error();
    if let Some(error) = &error {
        text.put(error);
    }
    error.is_some()
}

unsafe extern "C" fn on_completion(
    command_buffer: Raw,
    call: unsafe extern "C" fn(*mut c_void),
    context: *mut c_void,
) {
    // SAFETY: see the head of this file.
    unsafe { objects::command_buffer(command_buffer) }.on_completion(Handler { call, context });
}

unsafe extern "C" fn encoder(command_buffer: Raw, concurrent: bool) -> Raw {
    // SAFETY: see the head of this file.
    let command_buffer = unsafe { objects::command_buffer(command_buffer) };
    Object::Encoder(command_buffer.encoder(concurrent)).give()
}

unsafe extern "C" fn set_pipeline(encoder: Raw, pipeline: Raw) {
    // SAFETY: see the head of this file.
    unsafe { objects::recorder(encoder).set_pipeline(objects::pipeline(pipeline).clone()) };
}

unsafe extern "C" fn set_buffer(encoder: Raw, place: Place, index: usize) {
    // SAFETY: see the head of this file; null is nil.
    unsafe {
        let buffer = (!place.buffer.is_null()).then(|| objects::buffer(place.buffer).clone());
        let argument = buffer.map(|buffer| Argument::Buffer(buffer, place.offset));
        objects::recorder(encoder).set_argument(index, argument);
    }
}

unsafe extern "C" fn set_bytes(encoder: Raw, bytes: Bytes, index: usize) {
    if bytes.length == 0 || bytes.length > MOST_BYTES {
        report::finding(format!(
            "setBytes with {} bytes, not 1 to {MOST_BYTES}",
            bytes.length
        ));
    }
    // SAFETY: see the head of this file; the caller lends the bytes.
    unsafe {
        objects::recorder(encoder).set_argument(index, Argument::of_bytes(bytes.get()));
    }
}

unsafe extern "C" fn set_threadgroup_length(encoder: Raw, length: usize, index: usize) {
    // SAFETY: see the head of this file.
    unsafe { objects::recorder(encoder) }.set_threadgroup_length(index, length);
}

unsafe extern "C" fn dispatch(encoder: Raw, grid: &[usize; 3], group_size: &[usize; 3]) {
    // SAFETY: see the head of this file.
    unsafe { objects::recorder(encoder) }.dispatch(*grid, *group_size);
}

unsafe extern "C" fn barrier(encoder: Raw) {
    // SAFETY: see the head of this file.
    unsafe { objects::recorder(encoder) }.record(Command::Barrier);
}

unsafe extern "C" fn wait_for_fence(encoder: Raw, fence: Raw) {
    // SAFETY: see the head of this file.
    unsafe { objects::recorder(encoder).record(Command::Wait(objects::fence(fence).clone())) };
}

unsafe extern "C" fn update_fence(encoder: Raw, fence: Raw) {
    // SAFETY: see the head of this file.
    unsafe { objects::recorder(encoder).record(Command::Update(objects::fence(fence).clone())) };
}

/// # Safety
/// The place's buffer lives.
unsafe fn span(place: Place, bytes: usize) -> Span {
    Span {
        // SAFETY: as promised above.
        buffer: unsafe { objects::buffer(place.buffer) }.clone(),
        offset: place.offset,
        bytes,
    }
}

unsafe extern "C" fn copy(encoder: Raw, from: Place, to: Place, bytes: usize) {
    // SAFETY: see the head of this file.
    unsafe {
        let (from, to) = (span(from, bytes), span(to, bytes));
        objects::recorder(encoder).record(Command::Copy { from, to });
    }
}

unsafe extern "C" fn fill(encoder: Raw, place: Place, bytes: usize, value: u8) {
    // SAFETY: see the head of this file.
    unsafe {
        let target = span(place, bytes);
        objects::recorder(encoder).record(Command::Fill { target, value });
    }
}

unsafe extern "C" fn end(encoder: Raw) {
    // SAFETY: see the head of this file.
    unsafe { objects::recorder(encoder) }.end();
}

unsafe extern "C" fn counts(text: &Sink) {
    text.put(&report::counts());
}
