//! Command buffers: what encoders record, and when it runs.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use crate::encoders::Encoders;
use crate::execution;
use crate::library::Pipeline;
use crate::memory::Allocation;
use crate::settings::settings;
use crate::{lock, report, shadow};

#[derive(Clone)]
pub enum Argument {
    Buffer(Arc<Allocation>, usize),
    /// What `setBytes` copied.
    Bytes(Arc<[u128]>),
}

impl Argument {
    /// Between forbidden pages, like any other buffer, only where accesses are watched: it is slow.
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        if settings().check {
            return Allocation::with_bytes(bytes)
                .map(|allocation| Self::Buffer(Arc::new(allocation), 0));
        }
        let words = bytes.chunks(16).map(|chunk| {
            let mut word = [0xff; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            u128::from_ne_bytes(word)
        });
        Some(Self::Bytes(words.collect()))
    }
}

#[derive(Clone, Default)]
pub struct Dispatch {
    pub pipeline: Option<Arc<Pipeline>>,
    pub arguments: Vec<Option<Argument>>,
    pub threadgroup_lengths: Vec<usize>,
    pub grid: [usize; 3],
    pub group_size: [usize; 3],
}

/// Bytes of a buffer.
pub struct Span {
    pub buffer: Arc<Allocation>,
    pub offset: usize,
    pub bytes: usize,
}

pub enum Command {
    Dispatch(Box<Dispatch>),
    Barrier,
    Copy { from: Span, to: Span },
    Fill { target: Span, value: u8 },
    Wait(Arc<Fence>),
    Update(Arc<Fence>),
}

/// The encoders that come before the one that waits.
#[derive(Default)]
pub struct Fence {
    pub before: Mutex<Encoders>,
}

pub struct Encoder {
    pub concurrent: bool,
    commands: Mutex<Vec<Command>>,
}

impl Encoder {
    pub fn take_commands(&self) -> Vec<Command> {
        std::mem::take(&mut *lock(&self.commands))
    }
}

/// An encoder and what is bound in it.
pub struct Recorder {
    encoder: Arc<Encoder>,
    bound: Mutex<Dispatch>,
}

fn set<T: Clone + Default>(list: &mut Vec<T>, index: usize, value: T) {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    list[index] = value;
}

impl Recorder {
    pub fn record(&self, command: Command) {
        let dropped = match command {
            Command::Barrier => settings().plants.no_barriers,
            Command::Wait(_) => settings().plants.no_fences,
            _ => false,
        };
        if matches!(command, Command::Barrier) {
            report::count("barriers");
        }
        if !dropped {
            lock(&self.encoder.commands).push(command);
        }
    }

    /// It may outlive its commands, in the pool of its thread.
    pub fn end(&self) {
        *lock(&self.bound) = Dispatch::default();
    }

    pub fn set_pipeline(&self, pipeline: Arc<Pipeline>) {
        lock(&self.bound).pipeline = Some(pipeline);
    }

    pub fn set_argument(&self, index: usize, argument: Option<Argument>) {
        set(&mut lock(&self.bound).arguments, index, argument);
    }

    pub fn set_threadgroup_length(&self, index: usize, length: usize) {
        set(&mut lock(&self.bound).threadgroup_lengths, index, length);
    }

    pub fn dispatch(&self, grid: [usize; 3], group_size: [usize; 3]) {
        let bound = lock(&self.bound).clone();
        let dispatch = Dispatch {
            grid,
            group_size,
            ..bound
        };
        if settings().plants.twice {
            self.record(Command::Dispatch(Box::new(dispatch.clone())));
        }
        self.record(Command::Dispatch(Box::new(dispatch)));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    NotEnqueued,
    Committed,
    Completed,
    Error,
}

/// Something the host wants to be called with its context.
pub struct Handler {
    pub call: unsafe extern "C" fn(*mut c_void),
    pub context: *mut c_void,
}

// SAFETY: Metal calls handlers on threads of its own, so their contexts may go there.
unsafe impl Send for Handler {}

struct State {
    status: Status,
    /// The commands that the host knew to be complete when it was committed; see `shadow::Order`.
    completed: u32,
    /// Its last command, once it ran.
    last: u32,
    error: Option<String>,
    encoders: Vec<Arc<Encoder>>,
    handlers: Vec<Handler>,
}

pub struct CommandBuffer {
    queue: Arc<Queue>,
    state: Mutex<State>,
}

#[derive(Default)]
pub struct Queue {
    committed: Mutex<VecDeque<Arc<CommandBuffer>>>,
}

/// So many command buffers may be in flight.
const IN_FLIGHT: usize = 64;

impl CommandBuffer {
    pub fn new(queue: Arc<Queue>) -> Self {
        report::count("command buffers");
        let state = State {
            status: Status::NotEnqueued,
            completed: 0,
            last: 0,
            error: None,
            encoders: Vec::new(),
            handlers: Vec::new(),
        };
        Self {
            queue,
            state: Mutex::new(state),
        }
    }

    pub fn encoder(&self, concurrent: bool) -> Recorder {
        report::count("encoders");
        let encoder = Arc::new(Encoder {
            concurrent,
            commands: Mutex::default(),
        });
        let mut state = lock(&self.state);
        if state.status != Status::NotEnqueued {
            report::finding("an encoder for a command buffer that is committed".to_string());
        }
        state.encoders.push(encoder.clone());
        Recorder {
            encoder,
            bound: Mutex::default(),
        }
    }

    pub fn on_completion(&self, handler: Handler) {
        lock(&self.state).handlers.push(handler);
    }

    /// For the host, which then knows what is complete.
    pub fn status(&self) -> Status {
        let state = lock(&self.state);
        if matches!(state.status, Status::Completed | Status::Error) {
            shadow::complete(state.last);
        }
        state.status
    }

    fn is_pending(&self) -> bool {
        lock(&self.state).status == Status::Committed
    }

    pub fn error(&self) -> Option<String> {
        lock(&self.state).error.clone()
    }

    pub fn commit(self: &Arc<Self>) {
        let before = {
            let mut state = lock(&self.state);
            state.completed = shadow::completed();
            std::mem::replace(&mut state.status, Status::Committed)
        };
        if before != Status::NotEnqueued {
            return report::finding("a command buffer is committed twice".to_string());
        }
        let pending = {
            let mut committed = lock(&self.queue.committed);
            committed.push_back(self.clone());
            committed.len()
        };
        if settings().eager {
            self.queue.run_until(Some(self));
        } else if pending > IN_FLIGHT {
            self.queue.run_until(None);
        }
    }

    pub fn wait(self: &Arc<Self>) {
        report::count("host waits");
        if self.status() == Status::NotEnqueued {
            return report::finding(
                "the host waits for a command buffer that is not committed".to_string(),
            );
        }
        self.queue.run_until(Some(self));
        self.status();
    }

    fn execute(&self, executor: &mut execution::Executor) {
        let (encoders, completed) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.encoders), state.completed)
        };
        let error = encoders
            .iter()
            .find_map(|encoder| executor.run(encoder, completed).err());
        if let Some(message) = &error {
            report::finding(format!("command buffer error: {message}"));
        }
        let handlers = {
            let mut state = lock(&self.state);
            state.status = if error.is_some() {
                Status::Error
            } else {
                Status::Completed
            };
            state.error = error;
            state.last = shadow::last_command();
            std::mem::take(&mut state.handlers)
        };
        // Before a handler runs: other threads go on as soon as it has told them.
        if !handlers.is_empty() {
            self.status();
        }
        for handler in handlers {
            // SAFETY: the host gave both together, and this is the only call.
            unsafe { (handler.call)(handler.context) };
        }
    }
}

impl Queue {
    /// Runs committed command buffers in their order: up to one of them, or just the first.
    fn run_until(&self, last: Option<&Arc<CommandBuffer>>) {
        let mut executor = execution::executor();
        loop {
            if last.is_some_and(|last| !last.is_pending()) {
                return;
            }
            let Some(next) = lock(&self.committed).pop_front() else {
                return;
            };
            next.execute(&mut executor);
            if last.is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static SEEN: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn see(_: *mut c_void) {
        SEEN.store(shadow::completed(), Ordering::SeqCst);
    }

    fn committed(queue: &Arc<Queue>) -> Arc<CommandBuffer> {
        let buffer = Arc::new(CommandBuffer::new(queue.clone()));
        buffer.commit();
        buffer
    }

    #[test]
    fn work_is_complete_when_the_host_can_know_and_not_before() {
        let queue = Arc::new(Queue::default());
        let first = shadow::tests::ran("first");
        let unheard = committed(&queue);
        queue.run_until(Some(&unheard));
        let late = committed(&queue);
        assert!(shadow::completed() < first && lock(&late.state).completed < first);
        assert_eq!(unheard.status(), Status::Completed);
        assert_eq!(shadow::completed(), first);

        let second = shadow::tests::ran("second");
        let heard = Arc::new(CommandBuffer::new(queue.clone()));
        heard.on_completion(Handler {
            call: see,
            context: std::ptr::null_mut(),
        });
        heard.commit();
        queue.run_until(Some(&heard));
        assert_eq!(SEEN.load(Ordering::SeqCst), second);
        assert_eq!(lock(&committed(&queue).state).completed, second);

        let third = shadow::tests::ran("third");
        committed(&queue).wait();
        assert_eq!(shadow::completed(), third);
    }
}
