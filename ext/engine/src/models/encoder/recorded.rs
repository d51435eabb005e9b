//! Layers of short inputs as one launch, on a device that records: to launch their kernels one by one takes the host
//! longer than the device computes. A shape, the lengths of the sequences, is recorded when it has come a few times,
//! and then replayed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, TryLockError};

use candle_core::Tensor;

use crate::{Error, Result};
use base::runtime::log;
use kernels::gather_at;
use kernels::recording::{self, Recording};

/// With more tokens than this the gaps between launches do not matter.
const MOST_TOKENS: usize = 1024;
/// Of more sequences hardly a shape comes twice.
const MOST_SEQUENCES: usize = 8;
/// How often a shape must have come to be worth recording.
const OFTEN: u32 = 3;
/// How many recordings are kept, and how many shapes are counted.
const MOST: usize = 48;
const MOST_SEEN: usize = 4096;

/// The recordings of one encoder. Threads that find them in use compute for themselves.
#[derive(Default)]
pub(super) struct RecordedLayers(Mutex<Recordings>);

#[derive(Default)]
struct Recordings {
    /// By the boundaries of the sequences.
    recorded: HashMap<Vec<u32>, Recorded>,
    seen: HashMap<Vec<u32>, u32>,
    clock: u64,
    /// Recording failed, and will not be tried again.
    refused: bool,
}

struct Recorded {
    recording: Recording,
    /// [tokens, hidden], as what comes out.
    input: Tensor,
    output: Tensor,
    used: u64,
}

impl RecordedLayers {
    /// What `layers` make of `x` [tokens, hidden], by a replay; `None` where it has to be computed.
    pub fn forward(
        &self,
        x: &Tensor,
        boundaries: &[u32],
        layers: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Option<Tensor>> {
        let suited = boundaries.len() <= MOST_SEQUENCES + 1 && x.dim(0)? <= MOST_TOKENS;
        if !suited || !recording::is_possible(x.device()) {
            return Ok(None);
        }
        let mut guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        if guard.refused || !guard.holds(x, boundaries, layers)? {
            return Ok(None);
        }
        guard.replay(x, boundaries).map(Some)
    }
}

impl Recordings {
    /// Whether the shape is recorded, now or before.
    fn holds(
        &mut self,
        x: &Tensor,
        boundaries: &[u32],
        layers: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<bool> {
        if self.recorded.contains_key(boundaries) {
            return Ok(true);
        }
        if self.seen.len() >= MOST_SEEN {
            self.seen.clear();
        }
        let seen = self.seen.entry(boundaries.to_vec()).or_default();
        *seen += 1;
        if *seen < OFTEN {
            return Ok(false);
        }
        match Recorded::new(x, layers) {
            Ok(recorded) => {
                self.make_room();
                self.recorded.insert(boundaries.to_vec(), recorded);
                Ok(true)
            }
            Err(error) => {
                self.refused = true;
                log::info(format!("an encoder goes on without recordings: {error}"));
                Ok(false)
            }
        }
    }

    fn replay(&mut self, x: &Tensor, boundaries: &[u32]) -> Result<Tensor> {
        self.clock += 1;
        let recorded = self.recorded.get_mut(boundaries);
        let recorded =
            recorded.ok_or_else(|| Error::Internal("a recording went missing".into()))?;
        recorded.used = self.clock;
        recorded.input.slice_set(x, 0, 0)?;
        recorded.recording.replay()?;
        // The next replay writes over it.
        Ok(recorded.output.copy()?)
    }

    /// Drops the recording that was replayed longest ago.
    fn make_room(&mut self) {
        if self.recorded.len() < MOST {
            return;
        }
        let oldest = self.recorded.iter().min_by_key(|(_, one)| one.used);
        if let Some(shape) = oldest.map(|(shape, _)| shape.clone()) {
            self.recorded.remove(&shape);
        }
    }
}

impl Recorded {
    fn new(x: &Tensor, layers: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let (input, output) = (x.copy()?, x.zeros_like()?);
        let rows = Tensor::arange(0, x.dim(0)? as u32, x.device())?;
        let recording = Recording::new(x.device(), || {
            // What is launched on tensors of a recording is recorded, so the input becomes one first.
            let own = gather_at(&[(&input, &rows)])?;
            let own = own.ok_or_else(|| Error::Internal("rows that can't be recorded".into()))?;
            Ok(output.slice_set(&layers(&own)?, 0, 0)?)
        })?;
        Ok(Self {
            recording,
            input,
            output,
            used: 0,
        })
    }
}

impl fmt::Debug for RecordedLayers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RecordedLayers")
    }
}
