//! Executes what encoders recorded, one command after the other.

use std::sync::{Mutex, MutexGuard};

use crate::commands::{Argument, Command, Dispatch, Encoder, Span};
use crate::library::{Pipeline, Place};
use crate::machine::{Launch, Machine, Moment, MAXIMUM_LANES, THREADGROUP_BYTES};
use crate::memory;
use crate::report::{self, Work};
use crate::settings::settings;
use crate::shadow::{self, Order};

/// Metal has so many places for buffers.
const BUFFERS: usize = 31;

#[derive(Default)]
pub struct Executor {
    machine: Option<Box<Machine>>,
    encoders: u32,
}

/// The one of this process, for one thread at a time.
pub struct Turn(MutexGuard<'static, Option<Executor>>);

pub fn executor() -> Turn {
    static EXECUTOR: Mutex<Option<Executor>> = Mutex::new(None);
    let mut guard = crate::lock(&EXECUTOR);
    guard.get_or_insert_with(Executor::default);
    Turn(guard)
}

impl std::ops::Deref for Turn {
    type Target = Executor;

    fn deref(&self) -> &Executor {
        self.0.as_ref().expect("made with the turn")
    }
}

impl std::ops::DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut Executor {
        self.0.as_mut().expect("made with the turn")
    }
}

impl Executor {
    /// `completed` is what was complete when the encoder's command buffer was committed.
    pub fn run(&mut self, encoder: &Encoder, completed: u32) -> Result<(), String> {
        self.encoders += 1;
        let mut order = Order {
            encoder: self.encoders,
            completed,
            ..Order::default()
        };
        for command in encoder.take_commands() {
            self.step(command, &mut order)?;
            if !encoder.concurrent {
                order.barrier = shadow::last_command();
            }
        }
        Ok(())
    }

    fn step(&mut self, command: Command, order: &mut Order) -> Result<(), String> {
        match command {
            Command::Dispatch(dispatch) => return self.dispatch(&dispatch, order),
            Command::Barrier => order.barrier = shadow::last_command(),
            Command::Copy { from, to } => return copy(&from, &to, order),
            Command::Fill { target, value } => return fill(&target, value, order),
            Command::Wait(fence) => order.before.unite(&crate::lock(&fence.before)),
            Command::Update(fence) => {
                let mut before = crate::lock(&fence.before);
                before.clone_from(&order.before);
                before.insert(order.encoder);
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, dispatch: &Dispatch, order: &Order) -> Result<(), String> {
        let pipeline = dispatch
            .pipeline
            .as_ref()
            .ok_or("a dispatch without a pipeline")?;
        let name = &pipeline.name;
        check_sizes(dispatch, pipeline).map_err(|problem| format!("{name}: {problem}"))?;
        let (mut buffers, bound) = addresses(dispatch, pipeline)?;
        pipeline.activate();
        let threadgroup_lengths = bind(dispatch, pipeline, &mut buffers);
        shadow::begin(name, order, bound);
        self.machine.get_or_insert_with(Machine::new).run(&Launch {
            kernel: name,
            entry: pipeline.entry,
            buffers,
            threadgroup_lengths,
            grid: dispatch.grid,
            group_size: dispatch.group_size,
        });
        report::ran(
            name,
            Work {
                dispatches: 1,
                ..shadow::end()
            },
        );
        Ok(())
    }
}

fn check_sizes(dispatch: &Dispatch, pipeline: &Pipeline) -> Result<(), String> {
    let lanes: usize = dispatch.group_size.iter().product();
    let most = pipeline.maximum_threads.min(MAXIMUM_LANES);
    if lanes == 0 || lanes > most {
        return Err(format!("{lanes} threads in a threadgroup, not 1 to {most}"));
    }
    if dispatch.grid.contains(&0) {
        return Err(format!("an empty grid {:?}", dispatch.grid));
    }
    let memory: usize = dispatch.threadgroup_lengths.iter().sum();
    if memory > THREADGROUP_BYTES {
        return Err(format!("{memory} bytes of threadgroup memory"));
    }
    if let Some(length) = dispatch
        .threadgroup_lengths
        .iter()
        .find(|length| **length % 16 != 0)
    {
        let name = &pipeline.name;
        report::finding(format!(
            "{name}: {length} bytes of threadgroup memory, not a multiple of 16"
        ));
    }
    Ok(())
}

/// Where each argument is, and the ranges of all buffers.
type Addresses = (Vec<*mut u8>, Vec<(usize, usize)>);

fn addresses(dispatch: &Dispatch, pipeline: &Pipeline) -> Result<Addresses, String> {
    let mut buffers = vec![memory::nothing(); BUFFERS];
    let mut bound = Vec::new();
    for (index, argument) in dispatch.arguments.iter().enumerate() {
        let Some(argument) = argument else {
            continue;
        };
        let name = &pipeline.name;
        let place = buffers
            .get_mut(index)
            .ok_or_else(|| format!("{name}: buffer argument {index}"))?;
        match argument {
            Argument::Bytes(bytes) => *place = bytes.as_ptr().cast_mut().cast(),
            Argument::Buffer(allocation, offset) => {
                let length = allocation.length();
                if *offset >= length {
                    report::finding(format!(
                        "{name}: argument {index} at byte {offset} of a buffer of {length}"
                    ));
                }
                *place = allocation.address().wrapping_add(*offset);
                bound.push(allocation.range());
            }
        }
    }
    Ok((buffers, bound))
}

/// Looks at what the kernel's parameters are bound to; the lengths of its threadgroup arguments.
fn bind(dispatch: &Dispatch, pipeline: &Pipeline, buffers: &mut [*mut u8]) -> Vec<usize> {
    let (nothing, name) = (memory::nothing(), &pipeline.name);
    let mut lengths = dispatch.threadgroup_lengths.clone();
    for binding in &pipeline.bindings {
        match binding.place {
            // It may still be set, for the kernel before.
            Place::Buffer(index) if !binding.exists() => buffers[index] = nothing,
            Place::Buffer(index) if buffers[index] == nothing => {
                report::finding(format!("{name}: buffer argument {index} is not set"));
            }
            Place::Buffer(_) => {}
            Place::Threadgroup(index) => {
                if lengths.get(index).is_none_or(|length| *length == 0) {
                    report::finding(format!(
                        "{name}: threadgroup argument {index} has no memory"
                    ));
                }
                lengths.resize(lengths.len().max(index + 1), 0);
            }
        }
    }
    lengths
}

impl Span {
    fn check(&self, what: &str) -> Result<*mut u8, String> {
        let end = self.offset.checked_add(self.bytes);
        if end.is_some_and(|end| end <= self.buffer.length()) {
            Ok(self.buffer.address().wrapping_add(self.offset))
        } else {
            Err(format!("{what} outside of its buffer"))
        }
    }
}

fn watch(name: &str, order: &Order, accesses: &[(&Span, bool)]) {
    shadow::begin(
        name,
        order,
        accesses
            .iter()
            .map(|(span, _)| span.buffer.range())
            .collect(),
    );
    if settings().check {
        for (span, write) in accesses {
            let address = span.buffer.range().0 + span.offset;
            shadow::access(address, span.bytes, *write, &Moment::BLIT);
        }
    }
    report::ran(
        name,
        Work {
            dispatches: 1,
            ..shadow::end()
        },
    );
}

fn copy(from: &Span, to: &Span, order: &Order) -> Result<(), String> {
    let (source, target) = (from.check("a copy")?, to.check("a copy")?);
    watch("blit copy", order, &[(from, false), (to, true)]);
    // SAFETY: both ranges were checked, and their buffers live.
    unsafe { std::ptr::copy(source, target, from.bytes) };
    Ok(())
}

fn fill(target: &Span, value: u8, order: &Order) -> Result<(), String> {
    let start = target.check("a fill")?;
    watch("blit fill", order, &[(target, true)]);
    // SAFETY: the range was checked, and its buffer lives.
    unsafe { std::ptr::write_bytes(start, value, target.bytes) };
    Ok(())
}
