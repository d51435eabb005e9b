//! The states of sequences on a GPU: slots of one tensor, so that one launch reaches those of all sequences of a step.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::states::{StateLayout, TRAIL};
use crate::{Error, Result};
use kernels::recording;
use kernels::scan::slots_are_used;

/// So many slots are added at least.
const LEAST_SLOTS: usize = 4;

/// A state that was saved, where it was computed.
#[derive(Clone, Debug)]
pub struct SavedState(Tensor);

impl SavedState {
    /// Of numbers on the host.
    pub fn of_host(numbers: Vec<f32>) -> Result<Self> {
        let count = numbers.len();
        Ok(Self(Tensor::from_vec(numbers, count, &Device::Cpu)?))
    }

    pub fn values(&self) -> Result<Vec<f32>> {
        Ok(self.0.flatten_all()?.to_vec1()?)
    }
}

impl PartialEq for SavedState {
    fn eq(&self, other: &Self) -> bool {
        self.0.id() == other.0.id()
    }
}

/// All states of a model's sequences.
pub struct StateMemory {
    layout: Arc<StateLayout>,
    /// f32 `[slots, numbers]`
    states: Tensor,
    free: Vec<u32>,
    /// By scan, once it has run: the last rows that it has read of each sequence, f32 `[trails, rows · width]`.
    trails: Vec<Option<Tensor>>,
    trail_count: usize,
    free_trails: Vec<u32>,
}

impl StateMemory {
    /// `None` on the CPU, where each sequence has its own.
    pub fn new(layout: &Arc<StateLayout>, device: &Device) -> Result<Option<Self>> {
        if !slots_are_used(device) {
            return Ok(None);
        }
        Ok(Some(Self {
            states: zeros(1, width(layout), device)?,
            free: vec![0],
            trails: vec![None; layout.scans()],
            trail_count: 0,
            free_trails: Vec::new(),
            layout: layout.clone(),
        }))
    }

    /// A slot that nobody has; what lies there is of no use.
    pub fn take(&mut self) -> Result<u32> {
        if self.free.is_empty() {
            let count = self.states.dim(0)?;
            let added = LEAST_SLOTS.max(count / 2);
            self.states = extended(&self.states, count + added)?;
            self.free
                .extend((count..count + added).rev().map(|slot| slot as u32));
        }
        self.free.pop().ok_or_else(missing)
    }

    pub fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub fn take_trail(&mut self) -> u32 {
        self.free_trails.pop().unwrap_or_else(|| {
            self.trail_count += 1;
            self.trail_count as u32 - 1
        })
    }

    pub fn give_back_trail(&mut self, trail: u32) {
        self.free_trails.push(trail);
    }

    pub fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        let state = self.copied(from)?;
        self.set(to, &state)
    }

    pub fn clear(&mut self, slot: u32) -> Result<()> {
        let fresh = zeros(1, width(&self.layout), self.states.device())?;
        self.set(slot, &fresh)
    }

    pub fn load(&mut self, slot: u32, saved: &SavedState) -> Result<()> {
        let saved = saved.0.to_device(self.states.device())?;
        self.set(slot, &saved.reshape((1, ()))?)
    }

    pub fn save(&self, slot: u32) -> Result<SavedState> {
        Ok(SavedState(self.copied(slot)?))
    }

    /// All states, and where those of a scan begin in a slot; then its trails.
    pub fn of_scan(&mut self, number: usize, inputs: usize) -> Result<(&Tensor, usize, &Tensor)> {
        let first = self.layout.range(number).start;
        let device = self.states.device();
        let trail = self.trails.get_mut(number).ok_or_else(missing)?;
        let trail = match trail {
            Some(trail) => {
                grow(trail, self.trail_count)?;
                trail
            }
            None => trail.insert(zeros(self.trail_count.max(1), TRAIL * inputs, device)?),
        };
        Ok((&self.states, first, trail))
    }

    /// Where a launch that is made again finds states and trails, which have room for all sequences then. `None` where a
    /// scan has not run yet.
    pub fn addresses(&mut self) -> Result<Option<Vec<u64>>> {
        let mut addresses = vec![recording::address(&self.states)?];
        for trail in &mut self.trails {
            let Some(trail) = trail else {
                return Ok(None);
            };
            grow(trail, self.trail_count)?;
            addresses.push(recording::address(trail)?);
        }
        Ok(Some(addresses))
    }

    pub fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// One slot alone; candle's own copy would be of all.
    fn copied(&self, slot: u32) -> Result<Tensor> {
        let copy = zeros(1, width(&self.layout), self.states.device())?;
        copy.slice_set(&self.states.narrow(0, slot as usize, 1)?, 0, 0)?;
        Ok(copy)
    }

    fn set(&mut self, slot: u32, state: &Tensor) -> Result<()> {
        Ok(self.states.slice_set(state, 0, slot as usize)?)
    }
}

/// Of a slot; one that keeps nothing has a number all the same.
fn width(layout: &StateLayout) -> usize {
    layout.numbers().max(1)
}

fn zeros(rows: usize, width: usize, device: &Device) -> Result<Tensor> {
    Ok(Tensor::zeros((rows, width), DType::F32, device)?)
}

/// The same rows, and more of them.
fn extended(rows: &Tensor, count: usize) -> Result<Tensor> {
    let more = zeros(count, rows.dim(1)?, rows.device())?;
    more.slice_set(rows, 0, 0)?;
    Ok(more)
}

/// Reserves at least so many rows.
fn grow(rows: &mut Tensor, count: usize) -> Result<()> {
    let there = rows.dim(0)?;
    if there < count {
        *rows = extended(rows, count.max(there + there / 2))?;
    }
    Ok(())
}

fn missing() -> Error {
    Error::Internal("there is no place for a state".into())
}
