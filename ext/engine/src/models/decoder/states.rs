//! The states that a sequence keeps of layers without keys and values, and how a step changes them.
//!
//! A scan reads a sequence token by token, in a fixed order of operations, so that a prompt gives the same bits
//! whole, in parts and beside others. A state changes in place. So that it can go back to an earlier token, a
//! sequence also keeps an older state, and what scans have read since: they read that again when it goes on.

use std::ops::Range;
use std::sync::Arc;

use super::batch::{Batch, Past};
use super::config::DecoderConfig;
use crate::{Error, Result};
use kernels::cpu::{for_each_item, Isa};
use kernels::paged::PAGE;

/// So many of the last tokens can be taken back one by one.
const TRAIL: usize = 32;
/// States are saved for the prefix cache at the end of prompts, where these part from others, and after so many tokens.
const APART: usize = 4 * PAGE;

/// Where a model's states lie in the numbers that a sequence keeps.
#[derive(Debug)]
pub struct StateLayout {
    /// By layer: the states of each of its scans.
    slots: Vec<Vec<usize>>,
    ranges: Vec<Range<usize>>,
    /// How many numbers there are.
    total: usize,
}

impl StateLayout {
    /// `None` where no layer keeps a state.
    pub fn new(config: &DecoderConfig) -> Option<Self> {
        let sizes = config.state.as_ref()?.sizes();
        let (mut slots, mut ranges, mut total) = (Vec::new(), Vec::new(), 0);
        for layer in 0..config.layer_count {
            let mut own = Vec::new();
            if config.sublayers(layer).state {
                for &size in &sizes {
                    own.push(ranges.len());
                    ranges.push(total..total + size);
                    total += size;
                }
            }
            slots.push(own);
        }
        Some(Self {
            slots,
            ranges,
            total,
        })
    }

    /// What one state of all layers takes.
    pub fn bytes(&self) -> usize {
        self.total * size_of::<f32>()
    }
}

/// All that a sequence keeps of one scan per layer.
pub struct SequenceState {
    layout: Arc<StateLayout>,
    /// After `length` tokens, unless it is `stale`.
    current: Vec<f32>,
    length: usize,
    /// Whether `current` is to be made again, of `base` and the rows of `trail`.
    stale: bool,
    /// After `base_length` tokens.
    base: Vec<f32>,
    base_length: usize,
    /// By slot: what its scan has read since.
    trail: Vec<Vec<f32>>,
    trail_rows: usize,
    /// The step under way: how much of the trail it reads first, whether its rows go there too, and after how many of
    /// them copies are taken, one after the other.
    again: usize,
    records: bool,
    marks: Vec<usize>,
    marked: Vec<f32>,
    /// How long the beginning is that others have too, such as instructions: worth a state of its own.
    common: usize,
    /// How long the latest saved beginning is, and all that the prefix cache has not taken yet.
    saved_length: usize,
    saved: Vec<(usize, Arc<[f32]>)>,
}

impl SequenceState {
    /// Of a sequence of so many tokens, after which its state was saved, or of none. Others have begun with `common`
    /// tokens.
    pub fn new(
        layout: &Arc<StateLayout>,
        saved: Option<Arc<[f32]>>,
        length: usize,
        common: usize,
    ) -> Self {
        Self {
            layout: layout.clone(),
            current: match saved {
                Some(saved) => saved.to_vec(),
                None => vec![0.0; layout.total],
            },
            length,
            stale: false,
            base: Vec::new(),
            base_length: 0,
            trail: vec![Vec::new(); layout.ranges.len()],
            trail_rows: 0,
            again: 0,
            records: false,
            marks: Vec::new(),
            marked: Vec::new(),
            common,
            saved_length: length,
            saved: Vec::new(),
        }
    }

    /// How much memory it takes for each number of a state.
    pub const COPIES: usize = 2;

    /// Before a step reads so many more rows, of which the last `doubtful` may be taken back. `ends` says that a
    /// prompt ends with the others.
    pub(super) fn prepare(&mut self, rows: usize, doubtful: usize, ends: bool) {
        if self.stale {
            self.current.clear();
            self.current.extend_from_slice(&self.base);
        } else if self.base_length + self.trail_rows != self.length
            || self.trail_rows + rows > TRAIL
            || self.base.is_empty()
        {
            self.base.clear();
            self.base.extend_from_slice(&self.current);
            self.base_length = self.length;
            self.trail_rows = 0;
        }
        self.again = if self.stale { self.trail_rows } else { 0 };
        self.records = self.trail_rows + rows <= TRAIL;
        // What a step that fails leaves is of no use.
        self.stale = true;
        let known = rows.saturating_sub(doubtful);
        let boundary = (self.length + known) / PAGE * PAGE;
        let worth = ends || boundary >= self.saved_length + APART;
        let parts = self.common > self.length && self.common <= boundary;
        let ends = worth && boundary > self.length.max(self.saved_length);
        let worthy = [(parts, self.common), (ends, boundary)].into_iter();
        let worthy = worthy.filter(|(worth, _)| *worth && known > 1);
        self.marks.clear();
        self.marks.extend(worthy.map(|(_, at)| at - self.length));
        self.marks.dedup();
        let copies = self.marks.len() * self.layout.total;
        self.marked.resize(copies, 0.0);
    }

    /// After such a step.
    pub(super) fn advance(&mut self, rows: usize) {
        let copies = self.marked.chunks_exact(self.layout.total.max(1));
        for (mark, copy) in self.marks.drain(..).zip(copies) {
            self.saved_length = self.length + mark;
            self.saved.push((self.saved_length, Arc::from(copy)));
        }
        self.marked = Vec::new();
        if self.records {
            self.trail_rows += rows;
        }
        self.length += rows;
        self.stale = false;
    }

    /// Goes back to the state after `length` tokens, or, where that one is missing, after fewer; returns how many.
    pub(super) fn go_back(&mut self, length: usize) -> usize {
        if !self.stale && length == self.length {
            return length;
        }
        if !self.base.is_empty() && length >= self.base_length {
            let rows = length - self.base_length;
            // In between nothing is known of the tokens.
            self.trail_rows = if rows <= self.trail_rows { rows } else { 0 };
            self.stale = true;
            self.length = self.base_length + self.trail_rows;
        } else {
            self.current.fill(0.0);
            self.base.clear();
            (self.trail_rows, self.length, self.stale) = (0, 0, false);
        }
        if self.saved_length > self.length {
            self.saved_length = 0;
            self.saved.clear();
        }
        self.length
    }

    /// The beginnings whose states are to be kept, and these.
    pub(super) fn take_saved(&mut self) -> Vec<(usize, Arc<[f32]>)> {
        std::mem::take(&mut self.saved)
    }

    /// The state after all tokens, unless it is to be made again.
    pub(super) fn into_current(self) -> Option<Arc<[f32]>> {
        (!self.stale).then(|| Arc::from(self.current))
    }

    /// The numbers after all tokens, for comparisons.
    pub fn values(&self) -> Option<&[f32]> {
        (!self.stale).then_some(&self.current)
    }
}

/// What leads from a state to the next, in lanes that know nothing of each other, such as heads.
pub trait Scan: Sync {
    /// The width of its inputs.
    fn inputs(&self) -> usize;

    fn lanes(&self) -> usize;

    /// The width of what a lane gives; all lanes' results lie side by side.
    fn lane_outputs(&self) -> usize;

    /// Reads the rows of `inputs`, each of the whole width, one after the other: changes the state of a lane, and writes
    /// its row of `outputs` for each. The result must not depend on how many rows there are.
    fn run(&self, isa: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]);
}

/// One lane of one sequence.
struct Task<'a> {
    lane: usize,
    state: &'a mut [f32],
    /// What is read first, for the state alone.
    again: &'a [f32],
    inputs: &'a [f32],
    outputs: &'a mut [f32],
    /// After so many rows the state is copied there; the first ones first.
    marks: Vec<(usize, &'a mut [f32])>,
}

impl Task<'_> {
    fn run(&mut self, isa: Isa, scan: &dyn Scan) {
        let (width, outputs) = (scan.inputs(), scan.lane_outputs());
        if !self.again.is_empty() {
            let mut unused = vec![0.0; self.again.len() / width * outputs];
            scan.run(isa, self.lane, self.state, self.again, &mut unused);
        }
        let (mut inputs, mut given, mut read) = (self.inputs, &mut *self.outputs, 0);
        for (rows, copy) in &mut self.marks {
            let (first, rest) = inputs.split_at((*rows - read) * width);
            let (of_first, of_rest) = given.split_at_mut((*rows - read) * outputs);
            scan.run(isa, self.lane, self.state, first, of_first);
            copy.copy_from_slice(self.state);
            (inputs, given, read) = (rest, of_rest, *rows);
        }
        scan.run(isa, self.lane, self.state, inputs, given);
    }
}

impl Past<'_> {
    /// What a scan of a layer, of which there may be several, gives for `[tokens, inputs]` rows.
    pub fn scan(
        &mut self,
        (layer, slot): (usize, usize),
        scan: &dyn Scan,
        inputs: &[f32],
        batch: &Batch,
    ) -> Result<Vec<f32>> {
        let lost = || Error::Internal(format!("layer {layer} has no state"));
        let (width, lanes, lane_width) = (scan.inputs(), scan.lanes(), scan.lane_outputs());
        let ranges = batch.boundaries.windows(2);
        let ranges: Vec<Range<usize>> = ranges
            .map(|pair| pair[0] as usize..pair[1] as usize)
            .collect();
        let mut outputs = vec![0.0; batch.ids.len() * lanes * lane_width];
        let (mut fresh, mut tasks) = (Vec::new(), Vec::new());
        let mut pieces = Vec::new();
        match self {
            Self::None(_, layout) => {
                let layout = layout.as_ref().ok_or_else(lost)?;
                let number = *layout.slots[layer].get(slot).ok_or_else(lost)?;
                let size = layout.ranges[number].len();
                fresh.resize(size * ranges.len(), 0.0);
                let states = fresh.chunks_mut(size.max(1));
                pieces.extend(states.map(|state| (state, &[][..], Vec::new())));
            }
            Self::Paged { states, .. } => {
                if states.len() < ranges.len() {
                    return Err(lost());
                }
                for state in states.iter_mut() {
                    let number = *state.layout.slots[layer].get(slot).ok_or_else(lost)?;
                    let range = state.layout.ranges[number].clone();
                    let again = &state.trail[number][..state.again * width];
                    let copies = state.marked.chunks_exact_mut(state.layout.total.max(1));
                    let marks = state.marks.iter().copied().zip(copies);
                    let marks = marks.map(|(rows, copy)| (rows, &mut copy[range.clone()]));
                    let marks: Vec<_> = marks.collect();
                    pieces.push((&mut state.current[range], again, marks));
                }
            }
        }
        let mut rest = &mut outputs[..];
        for (range, (state, again, marks)) in ranges.iter().zip(pieces) {
            let (piece, others) = rest.split_at_mut(range.len() * lanes * lane_width);
            rest = others;
            if range.is_empty() {
                continue;
            }
            let size = state.len() / lanes;
            let mut copies: Vec<_> = marks
                .into_iter()
                .map(|(rows, copy)| (rows, copy.chunks_mut(size.max(1))))
                .collect();
            let parts = piece.chunks_mut(range.len() * lane_width);
            let mut states = state;
            for (lane, outputs) in parts.enumerate() {
                // Of a convolution of one token nothing is kept.
                let (state, others) = std::mem::take(&mut states).split_at_mut(size);
                states = others;
                tasks.push(Task {
                    lane,
                    state,
                    again,
                    inputs: &inputs[range.start * width..range.end * width],
                    outputs,
                    marks: copies
                        .iter_mut()
                        .filter_map(|(rows, copies)| Some((*rows, copies.next()?)))
                        .collect(),
                });
            }
        }
        let elements = tasks.iter().map(|task| {
            let rows = (task.again.len() + task.inputs.len()) / width;
            task.state.len() * rows
        });
        let (isa, cost) = (
            Isa::current()?,
            elements.sum::<usize>() / tasks.len().max(1),
        );
        for_each_item(&mut tasks, cost, |task| task.run(isa, scan));
        drop(tasks);
        self.record((layer, slot), inputs, width, &ranges);
        Ok(side_by_side(outputs, &ranges, lanes, lane_width))
    }

    /// Notes what a scan has read.
    fn record(
        &mut self,
        (layer, slot): (usize, usize),
        inputs: &[f32],
        width: usize,
        ranges: &[Range<usize>],
    ) {
        let Self::Paged { states, .. } = self else {
            return;
        };
        for (state, range) in states.iter_mut().zip(ranges).filter(|(one, _)| one.records) {
            let trail = &mut state.trail[state.layout.slots[layer][slot]];
            trail.truncate(state.trail_rows * width);
            trail.extend_from_slice(&inputs[range.start * width..range.end * width]);
        }
    }
}

/// From one lane after the other to the lanes of each row, for every piece.
fn side_by_side(
    outputs: Vec<f32>,
    ranges: &[Range<usize>],
    lanes: usize,
    width: usize,
) -> Vec<f32> {
    if ranges.iter().all(|range| range.len() <= 1) {
        return outputs;
    }
    let mut rows = vec![0.0; outputs.len()];
    for range in ranges {
        let part = range.start * lanes * width..range.end * lanes * width;
        for (row, out) in rows[part.clone()].chunks_mut(lanes * width).enumerate() {
            for (lane, out) in out.chunks_mut(width).enumerate() {
                let from = part.start + (lane * range.len() + row) * width;
                out.copy_from_slice(&outputs[from..from + width]);
            }
        }
    }
    rows
}
