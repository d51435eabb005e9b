//! Work that is recorded once and replayed as one launch, by CUDA's graphs.
//!
//! A stream that records takes down whatever any thread gives it, so recording has a stream of its own: a
//! second device over the same memory, which our kernels launch on while their thread records. Replaying
//! happens on the stream that everything else runs on.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::take;
use std::sync::Mutex;

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::result::{graph as driver, memcpy_htod_async};
use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CUgraphInstantiate_flags, CUgraphNodeType, CUstreamCaptureMode,
};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaSlice, DeviceRepr};
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaDevice, DeviceLocation, Result, Tensor};

use super::device::address;
use super::memory::Memory;

/// What a thread that records launches on, and what must live as long as the recording.
struct Recorder {
    device: CudaDevice,
    kept: Vec<Box<dyn Any + Send>>,
    /// Where results lie, while launches are taken down and not made.
    memory: Option<Memory>,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Launches that can be made again. What they read and write has the same addresses each time.
pub struct Recording {
    graph: CudaGraph,
    device: CudaDevice,
    /// After the graph, which reads it.
    _kept: Vec<Box<dyn Any + Send>>,
}

// SAFETY: the graph is only used by who has the recording, one thread at a time.
unsafe impl Send for Recording {}

/// The device that launches of this thread go to, where it is not the one that tensors lie on.
pub(super) fn device() -> Option<CudaDevice> {
    RECORDER.with_borrow(|recorder| recorder.as_ref().map(|recorder| recorder.device.clone()))
}

/// Memory for what a launch writes. That of a recording is its own: allocations that are recorded would stand between
/// launches and keep them from overlapping.
///
/// # Safety
///
/// The memory holds anything: it must be written before it is read.
pub(super) unsafe fn alloc<T: DeviceRepr>(
    device: &CudaDevice,
    count: usize,
) -> Result<CudaSlice<T>> {
    let memory = RECORDER.with_borrow(|recorder| match recorder {
        Some(recorder) if recorder.device.id() == device.id() => recorder.memory.clone(),
        _ => None,
    });
    match memory {
        // SAFETY: the caller promises to write the memory before it is read.
        Some(memory) if count > 0 => unsafe { memory.alloc(count) },
        // SAFETY: the caller promises to write the memory before it is read.
        _ => unsafe { device.alloc(count) },
    }
}

/// Whether a tensor was there before the thread began to record, if it does: no launch of the recording writes it.
pub(super) fn is_older(tensor: &Tensor) -> bool {
    let device = tensor.device().as_cuda_device();
    self::device().is_none_or(|own| device.is_ok_and(|device| device.id() != own.id()))
}

/// Keeps what a launch reads as long as it may be replayed.
pub(super) fn keep(make: impl FnOnce() -> Box<dyn Any + Send>) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder {
            recorder.kept.push(make());
        }
    });
}

/// Ends recording on its thread, whatever happened.
struct Session<'a> {
    device: &'a CudaDevice,
    captures: bool,
}

impl<'a> Session<'a> {
    fn begin(device: &'a CudaDevice) -> Self {
        RECORDER.set(Some(Recorder {
            device: device.clone(),
            kept: Vec::new(),
            memory: None,
        }));
        Self {
            device,
            captures: false,
        }
    }

    fn capture(&mut self, memory: Memory) -> Result<()> {
        RECORDER.with_borrow_mut(|recorder| {
            if let Some(recorder) = recorder {
                recorder.kept.clear();
                recorder.memory = Some(memory);
            }
        });
        // Memory is taken meanwhile, from another stream.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.device.cuda_stream().begin_capture(mode).w()?;
        self.captures = true;
        Ok(())
    }

    fn end(&mut self) -> Result<Option<CudaGraph>> {
        self.captures = false;
        let none = CUgraphInstantiate_flags(0);
        self.device.cuda_stream().end_capture(none).w()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.captures {
            let _ = self.end();
        }
        // Work that failed may have launched something that reads what its caller frees now, on the stream of others.
        let _ = self.device.synchronize();
        RECORDER.set(None);
    }
}

impl Recording {
    /// Does `work` and records how. Its steps must depend on nothing but what lies in tensors of `device` that `work` is
    /// made of.
    pub fn new<E: From<candle_core::Error>>(
        device: &CudaDevice,
        mut work: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        // One at a time: they share the stream that records.
        static ALL: Mutex<Option<HashMap<usize, (CudaDevice, Memory)>>> = Mutex::new(None);
        let mut guard = ALL.lock().unwrap_or_else(|e| e.into_inner());
        let (own, memory) = match guard.get_or_insert_default().get(&ordinal(device)) {
            Some(both) => both.clone(),
            None => {
                let own = CudaDevice::new_with_stream(ordinal(device))?;
                let both = (own, Memory::new(device)?);
                guard
                    .get_or_insert_default()
                    .insert(ordinal(device), both.clone());
                both
            }
        };
        device.synchronize()?;
        let mut session = Session::begin(&own);
        // Compiles and loads what the launches need, which can't be done while they are recorded.
        work()?;
        own.synchronize()?;
        session.capture(memory)?;
        let worked = work();
        let graph = session.end()?;
        worked?;
        let graph = match graph {
            Some(graph) if is_sound(&graph)? => graph,
            _ => Err(candle_core::Error::Msg(
                "the work copies from the host, which can't be recorded".into(),
            ))?,
        };
        let kept = RECORDER
            .with_borrow_mut(|recorder| recorder.as_mut().map(|recorder| take(&mut recorder.kept)));
        Ok(Self {
            graph,
            device: device.clone(),
            _kept: kept.unwrap_or_default(),
        })
    }

    /// Does the work again, with what lies in its tensors now.
    pub fn replay(&self) -> Result<()> {
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().w()?;
        // SAFETY: the graph is alive, and what it reads and writes is kept.
        unsafe { driver::launch(self.graph.cu_graph_exec(), stream.cu_stream()) }.w()
    }
}

fn ordinal(device: &CudaDevice) -> usize {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => gpu_id,
        _ => 0,
    }
}

/// Whether it copies nothing: a copy from the host would read what lies there later.
fn is_sound(graph: &CudaGraph) -> Result<bool> {
    let mut count = 0;
    // SAFETY: the graph is alive; without a place for nodes only their number is told.
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &mut count) }
        .result()
        .w()?;
    let mut nodes = vec![std::ptr::null_mut(); count];
    // SAFETY: there is room for as many nodes as were counted.
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &mut count) }
        .result()
        .w()?;
    for node in nodes {
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is one of the graph's.
        unsafe { sys::cuGraphNodeGetType(node, &mut kind) }
            .result()
            .w()?;
        match kind {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY
            | CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => return Ok(false),
            _ => {}
        }
    }
    Ok(true)
}

/// Writes the first elements of a tensor, u32.
pub fn write(tensor: &Tensor, words: &[u32]) -> Result<()> {
    if words.len() > tensor.elem_count() {
        candle_core::bail!("{} words do not fit", words.len());
    }
    let stream = tensor.device().as_cuda_device()?.cuda_stream();
    stream.context().bind_to_thread().w()?;
    let to = address(tensor)?;
    // SAFETY: the words fit; memory of the host that is not pinned has been read when the call returns.
    unsafe { memcpy_htod_async(to, words, stream.cu_stream()) }.w()
}
