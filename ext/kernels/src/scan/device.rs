//! Scans on a GPU: the states of all sequences lie in slots of one tensor, and a table says which of them a step's
//! sequences have.

use std::ops::Range;

use candle_core::{Device, Tensor};

use super::{Constants, Kind, Scan};
use crate::cpu::scan::MatrixRule;
use crate::{Error, Result};

/// The words of a sequence in the table, and what stands for a trail that is not written.
pub const WORDS: usize = 12;
const NO_RECORD: u32 = u32::MAX;
/// A step copies the state of a sequence after so many of its rows at most.
pub const MOST_MARKS: usize = 2;
/// Words and numbers of a head.
const HEAD_WORDS: usize = 6;
const HEAD_NUMBERS: usize = 3;

/// Whether states lie in slots of one tensor; on the CPU each sequence has its own.
pub fn slots_are_used(device: &Device) -> bool {
    !device.is_cpu()
}

/// What a step does with one sequence.
pub struct Piece {
    /// Of the step.
    pub rows: Range<usize>,
    /// So many rows of its trail are read first, for the state alone.
    pub again: usize,
    /// Where its state and its trail are.
    pub slot: u32,
    pub trail: u32,
    /// Its rows go to its trail, from this one on.
    pub record: Option<usize>,
    /// After so many of its rows the state is copied to that slot; in rising order.
    pub marks: Vec<(usize, u32)>,
}

/// The pieces of a step, on the device.
#[cfg_attr(
    not(any(feature = "metal", feature = "cuda")),
    allow(dead_code, reason = "what kernels of GPUs read")
)]
pub struct StepTable {
    pub(crate) words: Tensor,
    pub(crate) sequences: usize,
    /// The most rows of a piece, with those that are read again.
    pub(crate) longest: usize,
}

impl StepTable {
    pub fn new(pieces: &[Piece], device: &Device) -> Result<Self> {
        let longest = pieces.iter().map(|piece| piece.again + piece.rows.len());
        Ok(Self {
            longest: longest.max().unwrap_or(0),
            sequences: pieces.len(),
            words: Tensor::from_vec(Self::words(pieces)?, (pieces.len(), WORDS), device)?,
        })
    }

    /// Of so many sequences, each of which reads one row; what [`Self::words`] gives for them is written to u32
    /// `[sequences · WORDS]` before each launch.
    pub fn of_single_rows(sequences: usize, words: &Tensor) -> Result<Self> {
        Ok(Self {
            longest: 1,
            sequences,
            words: words.reshape((sequences, WORDS))?,
        })
    }

    pub fn words(pieces: &[Piece]) -> Result<Vec<u32>> {
        let mut words = Vec::with_capacity(pieces.len() * WORDS);
        for piece in pieces {
            if piece.marks.len() > MOST_MARKS {
                return Err(Error::Internal("a state is copied too often".into()));
            }
            let mark = |at: usize| piece.marks.get(at).copied().unwrap_or((0, 0));
            let [first, second] = [mark(0), mark(1)];
            words.extend([
                piece.rows.start as u32,
                piece.rows.len() as u32,
                piece.again as u32,
                piece.slot,
                piece.trail,
                piece.record.map_or(NO_RECORD, |row| row as u32),
                piece.marks.len() as u32,
                first.0 as u32,
                first.1,
                second.0 as u32,
                second.1,
                0,
            ]);
        }
        Ok(words)
    }
}

/// Where the states of one scan lie.
pub struct SlotStates<'a> {
    /// f32 `[slots, numbers]`, and where the scan's begin in a slot.
    pub states: &'a Tensor,
    pub first: usize,
    /// The same of rows that were read before; `None` where there are none, and none are recorded.
    pub trails: Option<(&'a Tensor, usize)>,
    pub table: &'a StepTable,
}

impl Constants {
    pub(super) fn new(kind: &Kind, device: &Device) -> Result<Self> {
        // What a kernel does not read has one element all the same.
        let (mut words, mut numbers) = (vec![0], vec![0.0]);
        match kind {
            Kind::Convolution(one) => numbers = [&one.weights[..], &one.bias].concat(),
            Kind::Selective(one) => numbers = [&one.rates[..], &one.skips].concat(),
            Kind::Rwkv(one) => numbers = [&one.bonus[..], &one.fading].concat(),
            Kind::Rglru { .. } => {}
            Kind::Matrix(one) => {
                words = Vec::with_capacity(one.heads.len() * HEAD_WORDS);
                numbers = Vec::with_capacity(one.heads.len() * HEAD_NUMBERS);
                for head in &one.heads {
                    let more = head.rule.columns(one.shape.keys).map(|(first, _)| first);
                    let own = [head.query, head.key, head.value];
                    words.extend([own, more].concat().into_iter().map(|at| at as u32));
                    numbers.extend(match head.rule {
                        MatrixRule::Plain { kept } => [kept, 0.0, 0.0],
                        MatrixRule::Steps {
                            bias, rate, skip, ..
                        } => [bias, rate, skip],
                        _ => [0.0; HEAD_NUMBERS],
                    });
                }
            }
        }
        let numbers_count = numbers.len();
        let words_count = words.len();
        Ok(Self {
            words: Tensor::from_vec(words, words_count, device)?,
            numbers: Tensor::from_vec(numbers, numbers_count, device)?,
        })
    }
}

impl Scan {
    /// On a GPU: what it gives for `[tokens, inputs]` rows of f32, in one launch. States, trails and copies change in
    /// place.
    pub fn forward(&self, inputs: &Tensor, states: &SlotStates<'_>) -> Result<Tensor> {
        self.check(inputs, states)?;
        #[cfg(feature = "metal")]
        if inputs.device().is_metal() {
            return Ok(crate::metal::scan::scan(self, inputs, states)?);
        }
        #[cfg(feature = "cuda")]
        if inputs.device().is_cuda() {
            return Ok(crate::cuda::scan::scan(self, inputs, states)?);
        }
        Err(Error::Internal("on the CPU scans run by lanes".into()))
    }

    fn check(&self, inputs: &Tensor, states: &SlotStates<'_>) -> Result<()> {
        let fits = |rows: &Tensor, first: usize, count: usize| {
            let width = rows.dims().get(1).copied();
            rows.is_contiguous() && width.is_some_and(|width| first + count <= width)
        };
        let sound = inputs.is_contiguous()
            && inputs.dims().get(1) == Some(&self.inputs)
            && fits(states.states, states.first, self.state())
            && states
                .trails
                .is_none_or(|(trails, first)| fits(trails, first, self.inputs));
        if sound {
            Ok(())
        } else {
            Err(Error::Internal(
                "a scan's inputs do not fit its states".into(),
            ))
        }
    }

    #[cfg(any(test, feature = "metal", feature = "cuda"))]
    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    #[cfg(any(feature = "metal", feature = "cuda"))]
    pub(crate) fn constants(&self) -> candle_core::Result<&Constants> {
        match &self.constants {
            Some(constants) => Ok(constants),
            None => candle_core::bail!("a scan was made for the CPU"),
        }
    }
}
