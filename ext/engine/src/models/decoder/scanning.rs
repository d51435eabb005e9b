//! How a step runs the scans of a layer: on the CPU in lanes, on a GPU in one launch.

use std::ops::Range;

use candle_core::{DType, Tensor};

use super::batch::{Batch, Past};
use super::states::{HostPiece, SequenceState};
use crate::{Error, Result};
use kernels::cpu::{for_each_item, Isa};
use kernels::packed_weight::with_values;
use kernels::scan::{slots_are_used, Piece, Scan, SlotStates, StepTable};

/// One lane of one sequence.
struct Task<'a> {
    lane: usize,
    piece: HostPiece<'a>,
    inputs: &'a [f32],
    outputs: &'a mut [f32],
}

impl Task<'_> {
    fn run(&mut self, isa: Isa, scan: &Scan) {
        let (width, outputs) = (scan.inputs(), scan.lane_outputs());
        let HostPiece {
            state,
            again,
            marks,
        } = &mut self.piece;
        if !again.is_empty() {
            let mut unused = vec![0.0; again.len() / width * outputs];
            scan.run(isa, self.lane, state, again, &mut unused);
        }
        let (mut inputs, mut given, mut read) = (self.inputs, &mut *self.outputs, 0);
        for (rows, copy) in marks {
            let (first, rest) = inputs.split_at((*rows - read) * width);
            let (of_first, of_rest) = given.split_at_mut((*rows - read) * outputs);
            scan.run(isa, self.lane, state, first, of_first);
            copy.copy_from_slice(state);
            (inputs, given, read) = (rest, of_rest, *rows);
        }
        scan.run(isa, self.lane, state, inputs, given);
    }
}

/// What a step of these sequences does with their states, where these are on a GPU.
pub(super) fn table(
    states: &[&mut SequenceState],
    batch: &Batch,
    like: &Tensor,
) -> Result<StepTable> {
    let pieces = states.iter().zip(ranges(batch));
    let pieces = pieces.map(|(state, rows)| state.piece(rows));
    StepTable::new(&pieces.collect::<Result<Vec<_>>>()?, like.device())
}

fn ranges(batch: &Batch) -> impl Iterator<Item = Range<usize>> + '_ {
    let ranges = batch.boundaries.windows(2);
    ranges.map(|pair| pair[0] as usize..pair[1] as usize)
}

impl Past<'_> {
    /// What a scan of a layer, of which there may be several, gives for `[tokens, inputs]` rows, in f32.
    pub fn scan(
        &mut self,
        at: (usize, usize),
        scan: &Scan,
        inputs: &Tensor,
        batch: &Batch,
    ) -> Result<Tensor> {
        let inputs = inputs.to_dtype(DType::F32)?.contiguous()?;
        if slots_are_used(inputs.device()) {
            return self.scan_slots(at, scan, &inputs, batch);
        }
        let outputs = with_values(&inputs, |values: &[f32]| {
            self.scan_lanes(at, scan, values, batch)
        })?;
        let shape = (batch.ids.len(), scan.outputs());
        Ok(Tensor::from_vec(outputs, shape, inputs.device())?)
    }

    fn scan_lanes(
        &mut self,
        at: (usize, usize),
        scan: &Scan,
        inputs: &[f32],
        batch: &Batch,
    ) -> Result<Vec<f32>> {
        let (width, lane_width) = (scan.inputs(), scan.lane_outputs());
        let ranges: Vec<Range<usize>> = ranges(batch).collect();
        let mut outputs = vec![0.0; batch.ids.len() * scan.outputs()];
        let (mut fresh, mut pieces) = (Vec::new(), Vec::new());
        match self {
            Self::None(..) => {
                let size = scan.state();
                fresh.resize(size * ranges.len(), 0.0);
                let mut rest = &mut fresh[..];
                for _ in &ranges {
                    let (state, others) = rest.split_at_mut(size);
                    rest = others;
                    pieces.push(HostPiece {
                        state,
                        again: &[],
                        marks: Vec::new(),
                    });
                }
            }
            Self::Paged { states, .. } => {
                if states.len() < ranges.len() {
                    return Err(Error::Internal("sequences have no states".into()));
                }
                for state in states.iter_mut() {
                    let number = state.layout().number(at)?;
                    pieces.push(state.host_piece(number, width)?);
                }
            }
        }
        let mut tasks = Vec::new();
        let mut rest = &mut outputs[..];
        for (range, piece) in ranges.iter().zip(pieces) {
            let (given, others) = rest.split_at_mut(range.len() * scan.outputs());
            rest = others;
            let rows = &inputs[range.start * width..range.end * width];
            if !range.is_empty() {
                let given = given.chunks_mut(range.len() * lane_width);
                tasks.extend(of_lanes(piece, scan.lanes(), rows, given));
            }
        }
        let elements = tasks.iter().map(|task| {
            let rows = (task.piece.again.len() + task.inputs.len()) / width;
            task.piece.state.len() * rows
        });
        let cost = elements.sum::<usize>() / tasks.len().max(1);
        let isa = Isa::current()?;
        for_each_item(&mut tasks, cost, |task| task.run(isa, scan));
        drop(tasks);
        if let Self::Paged { states, .. } = self {
            for (state, range) in states.iter_mut().zip(&ranges) {
                let number = state.layout().number(at)?;
                state.record(
                    number,
                    width,
                    &inputs[range.start * width..range.end * width],
                );
            }
        }
        Ok(side_by_side(outputs, &ranges, scan.lanes(), lane_width))
    }

    fn scan_slots(
        &mut self,
        at: (usize, usize),
        scan: &Scan,
        inputs: &Tensor,
        batch: &Batch,
    ) -> Result<Tensor> {
        match self {
            Self::None(kept) => {
                let sequences = batch.boundaries.len() - 1;
                if kept.scan_table.is_none() {
                    let pieces = ranges(batch).enumerate().map(|(slot, rows)| Piece {
                        rows,
                        again: 0,
                        slot: slot as u32,
                        trail: 0,
                        record: None,
                        marks: Vec::new(),
                    });
                    let pieces: Vec<Piece> = pieces.collect();
                    kept.scan_table = Some(StepTable::new(&pieces, inputs.device())?);
                }
                let table = kept.scan_table.as_ref();
                let shape = (sequences, scan.state().max(1));
                let states = Tensor::zeros(shape, DType::F32, inputs.device())?;
                let table = table.ok_or_else(|| Error::Internal("no table".into()))?;
                scan.forward(
                    inputs,
                    &SlotStates {
                        states: &states,
                        first: 0,
                        trails: None,
                        table,
                    },
                )
            }
            Self::Paged {
                pool,
                states,
                scan_table,
                ..
            } => {
                let Some(memory) = pool.state_memory() else {
                    return Err(Error::Internal("sequences have no states".into()));
                };
                let number = memory.layout().number(at)?;
                if scan_table.is_none() {
                    *scan_table = Some(table(states, batch, inputs)?);
                }
                let table = scan_table.as_ref();
                let table = table.ok_or_else(|| Error::Internal("no table".into()))?;
                let (slots, first, trails) = memory.of_scan(number, scan.inputs())?;
                scan.forward(
                    inputs,
                    &SlotStates {
                        states: slots,
                        first,
                        trails: Some((trails, 0)),
                        table,
                    },
                )
            }
        }
    }
}

/// The lanes of a sequence, each with its part of the state and of all copies.
fn of_lanes<'a>(
    piece: HostPiece<'a>,
    lanes: usize,
    inputs: &'a [f32],
    outputs: std::slice::ChunksMut<'a, f32>,
) -> Vec<Task<'a>> {
    let size = piece.state.len() / lanes;
    let marks = piece.marks.into_iter();
    let mut copies: Vec<_> = marks
        .map(|(rows, copy)| (rows, copy.chunks_mut(size.max(1))))
        .collect();
    let mut states = piece.state;
    let tasks = outputs.enumerate().map(|(lane, outputs)| {
        // Of a convolution of one token nothing is kept.
        let (state, others) = std::mem::take(&mut states).split_at_mut(size);
        states = others;
        let marks = copies.iter_mut();
        let marks = marks.filter_map(|(rows, copies)| Some((*rows, copies.next()?)));
        Task {
            lane,
            piece: HostPiece {
                state,
                again: piece.again,
                marks: marks.collect(),
            },
            inputs,
            outputs,
        }
    });
    tasks.collect()
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
