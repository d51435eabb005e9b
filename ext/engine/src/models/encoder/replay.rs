//! The layers of short batches as one launch, on a device that records: a batch of the same lengths as a few before it is
//! recorded, and then replayed. With few tokens the launches take longer than what they compute.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use candle_core::Tensor;

use super::config::{EncoderConfig, Mixer, SeesAll};
use super::relative::{RelativePositions, RelativeState};
use super::Encoder;
use crate::nn::{PackedSequences, RopeTable};
use crate::{CancelToken, Error, Result};
use base::runtime::log;
use kernels::recording::{self, Recording};

/// With more tokens than this the gaps between launches do not matter.
const MOST_TOKENS: usize = 1024;
/// How often lengths must have come to be worth recording.
const OFTEN: u32 = 3;
/// How many recordings are kept, and how many lengths are counted.
const MOST: usize = 64;
const MOST_SEEN: usize = 1024;

/// The recorded layers of one encoder.
#[derive(Default)]
pub(super) struct Recordings(Mutex<State>);

#[derive(Default)]
struct State {
    /// By the boundaries of the sequences.
    recorded: HashMap<Vec<u32>, Recorded>,
    seen: HashMap<Vec<u32>, u32>,
    clock: u64,
    /// Whether layers could not be recorded: it will not be tried again.
    refused: bool,
}

struct Recorded {
    recording: Recording,
    /// [tokens, hidden] each.
    input: Tensor,
    output: Tensor,
    /// What its launches read beside weights.
    _tables: Vec<(RopeTable, Tensor)>,
    used: u64,
}

impl std::fmt::Debug for Recordings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} recordings", self.lock().recorded.len())
    }
}

impl Recordings {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl EncoderConfig {
    /// Whether its layers are launches of kernels alone, on what lies on the device.
    fn is_recordable(&self) -> bool {
        let mechanisms = &self.mechanisms;
        mechanisms.mixer == Mixer::Attention
            && mechanisms.sees_all == SeesAll::None
            && mechanisms.narrow.is_none()
            && mechanisms.adapter.is_none()
            && mechanisms.experts.is_none()
    }
}

impl Encoder {
    /// The hidden states after the last layer where its layers can be replayed.
    pub(super) fn replayed(
        &self,
        embedded: &Tensor,
        sequences: &PackedSequences,
        cancel: &CancelToken,
    ) -> Result<Option<Tensor>> {
        if !self.is_replayable(sequences) {
            return Ok(None);
        }
        let mut state = self.recordings.lock();
        if !state.is_due(sequences.boundaries()) {
            return Ok(None);
        }
        if !state.recorded.contains_key(sequences.boundaries()) {
            cancel.check()?;
            match self.record(embedded, sequences) {
                Ok(recorded) => state.insert(sequences.boundaries(), recorded),
                Err(error) => {
                    state.refused = true;
                    log::info(format!("the encoder goes on without recordings: {error}"));
                    return Ok(None);
                }
            }
        }
        state.clock += 1;
        let clock = state.clock;
        let Some(recorded) = state.recorded.get_mut(sequences.boundaries()) else {
            return Ok(None);
        };
        recorded.used = clock;
        recorded.replay(embedded).map(Some)
    }

    fn is_replayable(&self, sequences: &PackedSequences) -> bool {
        let plain = matches!(
            self.relative,
            RelativePositions::None | RelativePositions::Rope(_)
        );
        plain
            && sequences.tokens() <= MOST_TOKENS
            && recording::is_possible(&self.device)
            && self.config.is_recordable()
            && self.convolution.is_none()
            && sequences.attended().is_none()
    }

    /// Records the layers, and compares what they give then with what they give now.
    fn record(&self, embedded: &Tensor, sequences: &PackedSequences) -> Result<Recorded> {
        let relative = self.relative.state(sequences, &self.device)?;
        let tables = match &relative {
            RelativeState::Rope(rotation) => rotation.tables(),
            _ => Vec::new(),
        };
        let input = embedded.copy()?;
        let output = Tensor::zeros(input.shape(), self.dtype, &self.device)?;
        let cancel = CancelToken::new();
        let recording = Recording::new(&self.device, || {
            let states = self.run_layers(&input, sequences, &relative, &cancel)?;
            recording::keep(&states, &output)
        })?;
        let recorded = Recorded {
            recording,
            input,
            output,
            _tables: tables,
            used: 0,
        };
        let found = recorded.replay(embedded)?;
        let wanted = self.run_layers(embedded, sequences, &relative, &cancel)?;
        let bits = |states: Tensor| -> Result<Vec<f32>> {
            let states = states.to_dtype(candle_core::DType::F32)?;
            Ok(states.flatten_all()?.to_vec1()?)
        };
        if bits(found)? == bits(wanted)? {
            return Ok(recorded);
        }
        let reason = "recorded layers give other states than the layers do";
        Err(Error::Internal(reason.into()))
    }
}

impl State {
    /// Whether a batch of these lengths is to be replayed.
    fn is_due(&mut self, boundaries: &[u32]) -> bool {
        if self.refused {
            return false;
        }
        if self.recorded.contains_key(boundaries) {
            return true;
        }
        if let Some(seen) = self.seen.get_mut(boundaries) {
            *seen += 1;
            return *seen >= OFTEN;
        }
        if self.seen.len() >= MOST_SEEN {
            self.seen.clear();
        }
        self.seen.insert(boundaries.to_vec(), 1);
        false
    }

    fn insert(&mut self, boundaries: &[u32], recorded: Recorded) {
        if self.recorded.len() >= MOST {
            let oldest = self.recorded.iter().min_by_key(|(_, one)| one.used);
            if let Some(oldest) = oldest.map(|(lengths, _)| lengths.clone()) {
                self.recorded.remove(&oldest);
            }
        }
        self.seen.remove(boundaries);
        self.recorded.insert(boundaries.to_vec(), recorded);
    }
}

impl Recorded {
    fn replay(&self, embedded: &Tensor) -> Result<Tensor> {
        self.input.slice_set(embedded, 0, 0)?;
        self.recording.replay()?;
        Ok(self.output.copy()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_came_often_are_recorded_and_few_are_counted() {
        let mut state = State::default();
        assert!(!state.is_due(&[0, 8]));
        assert!(!state.is_due(&[0, 9]));
        assert!(!state.is_due(&[0, 8]));
        assert!(state.is_due(&[0, 8]));
        assert!(!state.is_due(&[0, 9]));
        for length in 0..2 * MOST_SEEN as u32 {
            state.is_due(&[0, 100 + length]);
        }
        assert!(state.seen.len() <= MOST_SEEN);
        state.refused = true;
        assert!(!state.is_due(&[0, 8]));
    }
}
