//! Decode steps as one launch, on a device that records: the step that gives each of several sequences one
//! more token is recorded when it has come a few times, and then replayed. Tokens, positions and the places
//! of keys are read from the device, so that a recording serves until the sequences outgrow it. Beyond a few
//! sequences their number is padded, so that some sizes serve all. With greedy sampling the device begins the next
//! step while the host still reads the token.
//!
//! Layers that keep states change them in place. Their steps are not padded, since a row of padding would change the
//! state that it repeats, and none begins before it is asked for, since it could not be taken back.
//!
//! Recordings and their logits belong to the scheduler that steps: a decoder may serve several.

use std::collections::HashMap;

use candle_core::{DType, Tensor};

use super::adapter_rows::AdapterRows;
use super::batch::{Batch, Past, Stretch};
use super::image_embeddings::has_images;
use super::layer::{Layer, Step, Stream};
use super::model::{Decoder, Reading};
use super::pool::KvPool;
use super::states::SequenceState;
use crate::models::config::RopeAxes;
use crate::models::rope::Rotation;
use crate::nn::elementwise;
use crate::{CancelToken, Error, Result};
use base::runtime::log;
use kernels::paged::{slot, PagedBatch, Places};
use kernels::recording::{self, Choices, Recording, Words};
use kernels::scan::{StepTable, TABLE_WORDS};
use kernels::Largest;

/// With more sequences than this the gaps between launches do not matter.
const MOST_ROWS: usize = 1024;
/// How far numbers of sequences are recorded one by one; up to the second number of a pair they are padded to multiples
/// of the first.
const EXACT_ROWS: usize = 16;
const PADDED: [(usize, usize); 3] = [(8, 64), (32, 256), (128, MOST_ROWS)];
/// Logits are kept in rooms for so many sequences.
const ROOMS: [usize; 3] = [64, 256, MOST_ROWS];
/// The most places of keys that a recording has room for: 16 MiB.
const MOST_PLACES: usize = 1 << 22;
/// A recording serves sequences of up to a power of two keys, from this on.
const LEAST_KEYS: usize = 256;
/// How often a step must have come to be worth recording.
const OFTEN: u32 = 3;
/// How many recordings are kept.
const MOST: usize = 48;

/// How many rows there are, padding included, and how many keys they have at most.
type Size = (usize, usize);

/// The recorded steps of one decoder on one pool.
#[derive(Default)]
pub struct Recordings {
    /// Where the pages lay when the recordings were made.
    pages: Vec<u64>,
    recorded: HashMap<Size, Recorded>,
    seen: HashMap<Size, u32>,
    results: [Option<Results>; ROOMS.len()],
    /// The size of the latest step, where it was replayed.
    latest: Option<Size>,
    ahead: Option<Ahead>,
    clock: u64,
    /// The fewest rows of a step that could not be recorded: it will not be tried again.
    refused: Option<usize>,
}

/// What all of them leave.
struct Results {
    /// f32 [most rows, vocabulary].
    logits: Tensor,
    choices: Choices,
}

/// A step that was begun before anybody asked for it.
struct Ahead {
    size: Size,
    words: Vec<u32>,
    /// As the pool counted them.
    begun: u64,
}

struct Recorded {
    recording: Recording,
    inputs: Words,
    used: u64,
}

/// What a step reads, in the order of its words.
#[derive(Clone)]
struct Inputs {
    tokens: Tensor,
    positions: Tensor,
    /// What is done with states, where layers keep them.
    states: Option<Tensor>,
    places: Places,
}

impl Inputs {
    /// How many words there are.
    fn count((rows, keys): Size, has_states: bool) -> usize {
        let table = if has_states { rows * TABLE_WORDS } else { 0 };
        3 * rows + table + 2 * (rows + 1) + rows * keys
    }

    fn of(words: &Words, (rows, keys): Size, has_states: bool) -> Result<Self> {
        let mut first = 0;
        let mut next = |count: usize| {
            first += count;
            words.part(first - count, count)
        };
        Ok(Self {
            tokens: next(rows)?,
            positions: next(rows)?,
            states: has_states.then(|| next(rows * TABLE_WORDS)).transpose()?,
            places: Places {
                slots: next(rows)?,
                query_boundaries: next(rows + 1)?,
                key_boundaries: next(rows + 1)?,
                keys: next(rows * keys)?,
            },
        })
    }

    /// Rows of padding compute what the shortest sequence does: they write the same to the same place.
    fn words(readings: &[Reading<'_>], rows: usize) -> Result<Vec<u32>> {
        let shortest = readings.iter().min_by_key(|one| one.sequence.length());
        let padding = std::iter::repeat(shortest).flatten();
        let all = || readings.iter().chain(padding.clone()).take(rows);
        let keys: usize = all().map(|one| one.sequence.length() + 1).sum();
        let mut words = Vec::with_capacity(Self::count((rows, 0), true) + keys);
        words.extend(all().map(|one| one.tokens[0]));
        words.extend(all().map(|one| one.sequence.length() as u32));
        let pieces = readings.iter().enumerate().filter_map(|(row, one)| {
            let state = one.sequence.state();
            state.map(|state| state.piece(row..row + 1))
        });
        words.extend(StepTable::words(&pieces.collect::<Result<Vec<_>>>()?)?);
        let key = |one: &Reading<'_>, key: usize| slot(one.sequence.pages(), key);
        words.extend(all().map(|one| key(one, one.sequence.length())));
        words.extend(0..=rows as u32);
        words.push(0);
        let mut end = 0;
        words.extend(all().map(|one| {
            end += one.sequence.length() as u32 + 1;
            end
        }));
        for one in all() {
            words.extend((0..=one.sequence.length()).map(|at| key(one, at)));
        }
        Ok(words)
    }
}

impl Decoder {
    /// The logits of a step that can be replayed, after which the sequences have gone on; `None` where it
    /// has to be computed.
    pub(super) fn replayed(
        &self,
        readings: &mut [Reading<'_>],
        pool: &mut KvPool,
        state: &mut Recordings,
        cancel: &CancelToken,
    ) -> Result<Option<Tensor>> {
        let ahead = state.ahead.take();
        state.latest = None;
        let Some(size) = self.replayable(readings) else {
            return Ok(None);
        };
        cancel.check()?;
        if state.refused.is_some_and(|rows| rows <= size.0) {
            return Ok(None);
        }
        let Some(pages) = pool.addresses()? else {
            return Ok(None);
        };
        if state.pages != pages {
            state.recorded.clear();
            state.pages = pages;
        }
        let is_recorded = state.recorded.contains_key(&size);
        if !is_recorded {
            let seen = state.seen.entry(size).or_default();
            *seen += 1;
            if *seen < OFTEN {
                return Ok(None);
            }
        }
        for reading in readings.iter_mut() {
            pool.prepare(reading.sequence, 1, reading.wanted)?;
        }
        let words = Inputs::words(readings, size.0)?;
        if !is_recorded {
            match self.record(size, &words, pool, state) {
                Ok(recorded) => {
                    state.evict();
                    state.recorded.insert(size, recorded);
                }
                Err(error) => {
                    state.refused = Some(size.0);
                    log::info(format!(
                        "decoding goes on without recorded steps of {} sequences or more: {error}",
                        size.0
                    ));
                    return Ok(None);
                }
            }
        } else if let Some(recorded) = state.recorded.get_mut(&size) {
            if !ahead.is_some_and(|ahead| ahead.is(size, &words, pool)) {
                recorded.replay(0, &words, &mut state.clock)?;
            }
        }
        state.latest = Some(size);
        for reading in readings.iter_mut() {
            pool.advance(reading.sequence, reading.tokens)?;
        }
        let results = state.results[room(size.0)].as_ref();
        let results =
            results.ok_or_else(|| Error::Internal("a recording without logits".into()))?;
        Ok(Some(results.logits.narrow(0, 0, readings.len())?))
    }

    /// The likeliest token of each sequence after a step that was replayed. The device begins the next step
    /// with them meanwhile. `None` where it can't, and the logits of the step are then still there; after an
    /// error they may not be, and the step has to be computed again.
    pub fn step_ahead(
        &self,
        readings: &mut [Reading<'_>],
        pool: &mut KvPool,
        state: &mut Recordings,
    ) -> Result<Option<Vec<Largest>>> {
        let Some(latest) = state.latest.take().filter(|_| !self.keeps_states()) else {
            return Ok(None);
        };
        for Reading { sequence, .. } in readings.iter_mut() {
            let has_room = sequence.length() < self.max_positions();
            if !has_room || !pool.extend(sequence, 1).unwrap_or(false) {
                return Ok(None);
            }
        }
        let size = self.replayable(readings);
        // The logits to choose from lie in the room of the latest step.
        let Some(size) = size.filter(|size| size.0 == latest.0) else {
            return Ok(None);
        };
        // Room for another page may have moved them all.
        let pages = pool.addresses().ok().flatten();
        if pages.as_ref() != Some(&state.pages) {
            return Ok(None);
        }
        let Recordings {
            recorded,
            results,
            clock,
            ..
        } = state;
        let results = results[room(size.0)].as_mut();
        let (Some(recorded), Some(results)) = (recorded.get_mut(&size), results) else {
            return Ok(None);
        };
        let (rows, mut words) = (size.0, Inputs::words(readings, size.0)?);
        let tokens = recorded.inputs.part(0, rows)?;
        let mut launch = || {
            results.choices.choose(&tokens)?;
            recorded.replay(rows, &words[rows..], clock)
        };
        if launch().is_err() {
            return Ok(None);
        }
        let mut found = results.choices.read()?;
        for (word, row) in words.iter_mut().zip(&found) {
            *word = row.first().map_or(0, |&(token, _)| token);
        }
        state.ahead = Some(Ahead {
            size,
            words,
            begun: pool.begun(),
        });
        found.truncate(readings.len());
        Ok(Some(found))
    }

    /// The size of a step that can be replayed.
    fn replayable(&self, readings: &[Reading<'_>]) -> Option<Size> {
        if self.stages().is_split() || !recording::is_possible(self.device()) {
            return None;
        }
        let vocabulary = self.config().vocab_size;
        let is_current = |state: Option<&SequenceState>| match state {
            Some(state) => state.is_current(),
            None => !self.keeps_states(),
        };
        let rope = self.config().relative.rope();
        let is_line = rope.is_none_or(|rope| rope.axes == RopeAxes::Line);
        // Images move the positions of what follows them.
        let is_text = |tokens: &[u32]| !has_images(tokens, vocabulary);
        let plain = |one: &Reading<'_>| {
            one.tokens.len() == 1
                && one.wanted == 1
                && (one.tokens[0] as usize) < vocabulary
                && one.sequence.adapter().is_none()
                && one.sequence.rope_variant() == 0
                && (is_line || is_text(one.sequence.tokens()))
                && is_current(one.sequence.state())
        };
        let suited = self.config().is_recordable()
            && self.layers().iter().all(Layer::is_recordable)
            && !readings.is_empty()
            && readings.len() <= MOST_ROWS
            && readings.iter().all(plain);
        let longest = readings.iter().map(|one| one.sequence.length() + 1).max()?;
        let keys = longest.max(LEAST_KEYS).next_power_of_two();
        let rows = if self.keeps_states() {
            readings.len()
        } else {
            padded(readings.len())
        };
        (suited && rows * keys <= MOST_PLACES).then_some((rows, keys))
    }

    /// Computes the step and records it.
    fn record(
        &self,
        size: Size,
        words: &[u32],
        pool: &mut KvPool,
        state: &mut Recordings,
    ) -> Result<Recorded> {
        let has_states = self.keeps_states();
        let inputs = Words::new(Inputs::count(size, has_states), self.device())?;
        inputs.write(0, words)?;
        let at = room(size.0);
        let results = match &mut state.results[at] {
            Some(results) => results,
            none => none.insert(self.results(ROOMS[at])?),
        };
        let read = Inputs::of(&inputs, size, has_states)?;
        let end = size.1.min(self.max_positions());
        let rotation = match self.rotations() {
            Some(rotations) => Some(
                rotations
                    .growing(&read.positions, end, self.device())?
                    .ok_or_else(|| refused("the rotation"))?,
            ),
            None => None,
        };
        let recording = Recording::new(self.device(), || {
            let logits = self.step(size, read.clone(), rotation.clone(), pool)?;
            results.choices.keep(&logits, &results.logits)
        })?;
        Ok(Recorded {
            recording,
            inputs,
            used: state.clock,
        })
    }

    fn keeps_states(&self) -> bool {
        self.config().state.is_some()
    }

    fn results(&self, rows: usize) -> Result<Results> {
        let shape = (rows, self.config().vocab_size);
        Ok(Results {
            logits: Tensor::zeros(shape, DType::F32, self.device())?,
            choices: Choices::new(shape.0, shape.1, self.device())?,
        })
    }

    /// The logits after one more token of each sequence, of any type.
    fn step(
        &self,
        (rows, keys): Size,
        inputs: Inputs,
        rotation: Option<Rotation<'_>>,
        pool: &mut KvPool,
    ) -> Result<Tensor> {
        let embedded = self.embedding().rows_at(&inputs.tokens)?;
        let embedded = embedded.ok_or_else(|| refused("the token table"))?;
        let embedded = elementwise::scale(&embedded, self.config().embedding_scale)?;
        let embedded = match self.position_table() {
            Some(table) => {
                let positions = table.rows_at(&inputs.positions)?;
                let positions = positions.ok_or_else(|| refused("the position table"))?;
                elementwise::add(&embedded, &positions)?
            }
            None => embedded,
        };
        let stretch = |_| Stretch {
            ids: &[0],
            first: 0,
            places: None,
            variant: 0,
        };
        let batch = Batch::pieces_of((0..rows).map(stretch));
        let paged = PagedBatch::growing(rows, keys, inputs.places)?;
        let step = Step {
            config: self.config(),
            batch: &batch,
            rotation,
            temperature: None,
            inputs: Vec::new(),
            deep: Vec::new(),
            adapters: &AdapterRows::default(),
            cancel: &CancelToken::new(),
        };
        let states = inputs.states.as_ref();
        let states = states.map(|words| StepTable::of_single_rows(rows, words));
        let past = Past::Paged {
            pool,
            batch: paged,
            bidirectional_spans: Vec::new(),
            first_values: None,
            states: Vec::new(),
            scan_table: states.transpose()?,
        };
        let hidden = self.run_layers(Stream::new(embedded), past, &step)?;
        if self.config().logit_scale == 1.0 && self.config().logit_soft_cap.is_none() {
            self.raw_logits(&hidden, &AdapterRows::default())
        } else {
            self.logits(&hidden, &AdapterRows::default())
        }
    }
}

/// How many rows a step of so many sequences is recorded with.
fn padded(sequences: usize) -> usize {
    if sequences <= EXACT_ROWS {
        return sequences;
    }
    let fits = PADDED.iter().find(|(_, most)| sequences <= *most);
    fits.map_or(sequences, |&(multiple, _)| {
        sequences.next_multiple_of(multiple)
    })
}

/// Which of the rooms for logits has place for so many rows.
fn room(rows: usize) -> usize {
    let found = ROOMS.iter().position(|&most| rows <= most);
    found.unwrap_or(ROOMS.len() - 1)
}

fn refused(what: &str) -> Error {
    Error::Internal(format!("{what} can't be recorded"))
}

impl Ahead {
    /// Whether it is this step that was begun.
    fn is(&self, size: Size, words: &[u32], pool: &KvPool) -> bool {
        self.size == size && self.words == words && self.begun == pool.begun()
    }
}

impl Recorded {
    /// With these words, from the `first` on.
    fn replay(&mut self, first: usize, words: &[u32], clock: &mut u64) -> Result<()> {
        *clock += 1;
        self.used = *clock;
        self.inputs.write(first, words)?;
        self.recording.replay()
    }
}

impl Recordings {
    fn evict(&mut self) {
        if self.recorded.len() < MOST {
            return;
        }
        let oldest = self.recorded.iter().min_by_key(|(_, one)| one.used);
        if let Some(size) = oldest.map(|(&size, _)| size) {
            self.recorded.remove(&size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_sizes_serve_all_numbers_of_sequences() {
        let sizes: std::collections::BTreeSet<usize> = (1..=MOST_ROWS).map(padded).collect();
        assert!(sizes.len() <= 34, "{sizes:?}");
        for sequences in 1..=MOST_ROWS {
            let rows = padded(sequences);
            assert!(rows >= sequences && rows <= MOST_ROWS && ROOMS[room(rows)] >= rows);
            assert!(sequences > EXACT_ROWS || rows == sequences);
            assert!(rows - sequences <= sequences / 2, "{sequences} {rows}");
        }
    }
}
