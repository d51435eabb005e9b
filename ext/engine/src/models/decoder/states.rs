//! The states that a sequence keeps of layers without keys and values, and how a step changes them.
//!
//! A scan reads a sequence token by token, in a fixed order of operations, so that a prompt gives the same bits
//! whole, in parts and beside others. A state changes in place. So that it can go back to an earlier token, a
//! sequence also keeps an older state, and what scans have read since: they read that again when it goes on.

use std::ops::Range;
use std::sync::Arc;

use super::config::DecoderConfig;
use super::state_memory::{SavedState, StateMemory};
use crate::{Error, Result};
use kernels::paged::PAGE;
use kernels::scan::{Piece, MOST_MARKS};

/// So many of the last tokens can be taken back one by one.
pub const TRAIL: usize = 32;

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

    /// Which of all scans one of a layer is.
    pub(super) fn number(&self, (layer, slot): (usize, usize)) -> Result<usize> {
        let lost = || Error::Internal(format!("layer {layer} has no state"));
        let slots = self.slots.get(layer).ok_or_else(lost)?;
        slots.get(slot).copied().ok_or_else(lost)
    }

    /// Where the numbers of a scan lie.
    pub(super) fn range(&self, number: usize) -> Range<usize> {
        self.ranges[number].clone()
    }

    pub(super) fn scans(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn numbers(&self) -> usize {
        self.total
    }

    /// What one state of all layers takes.
    pub fn bytes(&self) -> usize {
        self.total * size_of::<f32>()
    }
}

/// All that a sequence keeps of one scan per layer.
pub struct SequenceState {
    layout: Arc<StateLayout>,
    /// Current after `length` tokens, unless it is `stale` or `cleared`.
    store: Store,
    length: usize,
    /// Whether the current state is to be made again, of the base and the rows of the trail.
    stale: bool,
    /// Whether it is to be made zeros.
    cleared: bool,
    /// After how many tokens there is a base.
    base: Option<usize>,
    trail_rows: usize,
    /// The step under way: how much of the trail it reads first, whether its rows go there too, and after how many of
    /// them copies are taken, one after the other.
    again: usize,
    records: bool,
    marks: Vec<usize>,
    worth: Worth,
    /// All that the prefix cache has not taken yet, and how long these beginnings are.
    saved: Vec<(usize, SavedState)>,
}

/// After which tokens of a prompt states are saved for the prefix cache, beside its last whole page. All are whole
/// pages.
#[derive(Clone, Copy, Debug)]
pub struct Worth {
    /// How long the instructions are, with which others begin too.
    pub instructions: usize,
    /// How much others have begun alike.
    pub common: usize,
    /// After every so many tokens.
    pub spacing: usize,
}

impl Worth {
    /// After how many of the `known` tokens that follow the first `length` a state is saved, in rising order: after
    /// `most` at most, and those that matter more come first. `ends` says that a prompt ends with them.
    fn marks(&self, length: usize, known: usize, ends: bool, most: usize) -> Vec<usize> {
        let mut marks = Vec::new();
        // A token alone is mostly one that the model has chosen.
        if known <= 1 {
            return marks;
        }
        let last = (length + known) / PAGE * PAGE;
        let wanted = [self.instructions, if ends { last } else { 0 }, self.common];
        let spaced = length / self.spacing + 1..=last / self.spacing;
        let spaced = spaced.rev().map(|number| number * self.spacing);
        for at in wanted.into_iter().chain(spaced) {
            let inside = length < at && at <= last;
            if inside && marks.len() < most && !marks.contains(&(at - length)) {
                marks.push(at - length);
            }
        }
        marks.sort_unstable();
        marks
    }
}

/// Where the numbers are: the current state, an older one, what scans have read since, and the copies of a step.
enum Store {
    Host(HostStates),
    /// Places in a [`StateMemory`].
    Slots {
        current: u32,
        base: u32,
        trail: u32,
        marked: Vec<u32>,
    },
}

#[derive(Default)]
pub(super) struct HostStates {
    current: Vec<f32>,
    base: Vec<f32>,
    /// By scan.
    trail: Vec<Vec<f32>>,
    marked: Vec<f32>,
}

/// What a step on the CPU changes of one scan of a sequence.
pub(super) struct HostPiece<'a> {
    pub state: &'a mut [f32],
    /// What is read first, for the state alone.
    pub again: &'a [f32],
    /// After so many rows the state is copied there; the first ones first.
    pub marks: Vec<(usize, &'a mut [f32])>,
}

impl Store {
    /// How many copies of a step there may be.
    fn most_marks(&self) -> usize {
        match self {
            Self::Host(_) => usize::MAX,
            Self::Slots { .. } => MOST_MARKS,
        }
    }

    fn new(
        layout: &StateLayout,
        saved: Option<SavedState>,
        memory: Option<&mut StateMemory>,
    ) -> Result<Self> {
        let Some(memory) = memory else {
            return Ok(Self::Host(HostStates {
                current: match saved {
                    Some(saved) => saved.values()?,
                    None => vec![0.0; layout.total],
                },
                trail: vec![Vec::new(); layout.ranges.len()],
                ..HostStates::default()
            }));
        };
        let (current, base) = (memory.take()?, memory.take()?);
        match saved {
            Some(saved) => memory.load(current, &saved)?,
            None => memory.clear(current)?,
        }
        Ok(Self::Slots {
            current,
            base,
            trail: memory.take_trail(),
            marked: Vec::new(),
        })
    }

    fn clear(&mut self, memory: Option<&mut StateMemory>) -> Result<()> {
        match (self, memory) {
            (Self::Host(host), _) => host.current.fill(0.0),
            (Self::Slots { current, .. }, Some(memory)) => memory.clear(*current)?,
            (Self::Slots { .. }, None) => return Err(elsewhere()),
        }
        Ok(())
    }

    /// Makes the current state the base, or the base the current state.
    fn copy(&mut self, to_base: bool, memory: Option<&mut StateMemory>) -> Result<()> {
        match (self, memory) {
            (Self::Host(host), _) => {
                let (from, to) = if to_base {
                    (&host.current, &mut host.base)
                } else {
                    (&host.base, &mut host.current)
                };
                to.clone_from(from);
            }
            (Self::Slots { current, base, .. }, Some(memory)) => {
                let (from, to) = if to_base {
                    (*current, *base)
                } else {
                    (*base, *current)
                };
                memory.copy(from, to)?;
            }
            (Self::Slots { .. }, None) => return Err(elsewhere()),
        }
        Ok(())
    }

    /// Reserves so many copies of a step.
    fn reserve(
        &mut self,
        marks: usize,
        layout: &StateLayout,
        memory: Option<&mut StateMemory>,
    ) -> Result<()> {
        match (self, memory) {
            (Self::Host(host), _) => host.marked.resize(marks * layout.total, 0.0),
            (Self::Slots { marked, .. }, Some(memory)) => {
                while marked.len() < marks {
                    marked.push(memory.take()?);
                }
            }
            (Self::Slots { .. }, None) => return Err(elsewhere()),
        }
        Ok(())
    }

    /// The copies of a step, of which there are so many.
    fn take_marked(
        &mut self,
        marks: usize,
        layout: &StateLayout,
        memory: Option<&mut StateMemory>,
    ) -> Result<Vec<SavedState>> {
        match (self, memory) {
            (Self::Host(host), _) => {
                let marked = std::mem::take(&mut host.marked);
                let copies = marked.chunks_exact(layout.total.max(1)).take(marks);
                copies
                    .map(|copy| SavedState::of_host(copy.to_vec()))
                    .collect()
            }
            (Self::Slots { marked, .. }, Some(memory)) => {
                let copies = marked.iter().take(marks).map(|slot| memory.save(*slot));
                let copies = copies.collect::<Result<Vec<_>>>();
                marked.drain(..).for_each(|slot| memory.give_back(slot));
                copies
            }
            (Self::Slots { .. }, None) => Err(elsewhere()),
        }
    }

    /// The current state, if it is wanted; gives places back.
    fn end(self, wanted: bool, memory: Option<&mut StateMemory>) -> Result<Option<SavedState>> {
        match (self, memory) {
            (Self::Host(host), _) => {
                let saved = wanted.then(|| SavedState::of_host(host.current));
                saved.transpose()
            }
            (
                Self::Slots {
                    current,
                    base,
                    trail,
                    marked,
                },
                Some(memory),
            ) => {
                let saved = wanted.then(|| memory.save(current)).transpose();
                memory.give_back_trail(trail);
                let slots = [current, base].into_iter().chain(marked);
                slots.for_each(|slot| memory.give_back(slot));
                saved
            }
            (Self::Slots { .. }, None) => Err(elsewhere()),
        }
    }
}

fn elsewhere() -> Error {
    Error::Internal("a state on a GPU needs its memory".into())
}

impl SequenceState {
    /// Of a sequence of so many tokens, after which its state was saved, or of none.
    pub fn new(
        layout: &Arc<StateLayout>,
        saved: Option<SavedState>,
        (length, worth): (usize, Worth),
        memory: Option<&mut StateMemory>,
    ) -> Result<Self> {
        Ok(Self {
            store: Store::new(layout, saved, memory)?,
            layout: layout.clone(),
            length,
            stale: false,
            cleared: false,
            base: None,
            trail_rows: 0,
            again: 0,
            records: false,
            marks: Vec::new(),
            worth,
            saved: Vec::new(),
        })
    }

    /// Whether the next step goes on with the state as it is.
    pub(super) fn is_current(&self) -> bool {
        !self.stale && !self.cleared
    }

    /// How much memory it takes for each number of a state.
    pub const COPIES: usize = 2;

    /// Before a step reads so many more rows, of which the last `doubtful` may be taken back. `ends` says that a
    /// prompt ends with the others.
    pub(super) fn prepare(
        &mut self,
        rows: usize,
        doubtful: usize,
        ends: bool,
        mut memory: Option<&mut StateMemory>,
    ) -> Result<()> {
        if self.cleared {
            self.store.clear(memory.as_deref_mut())?;
            self.cleared = false;
        }
        let continues = self.base.map(|base| base + self.trail_rows) == Some(self.length);
        if self.stale {
            self.store.copy(false, memory.as_deref_mut())?;
        } else if !continues || self.trail_rows + rows > TRAIL {
            self.store.copy(true, memory.as_deref_mut())?;
            self.base = Some(self.length);
            self.trail_rows = 0;
        }
        self.again = if self.stale { self.trail_rows } else { 0 };
        self.records = self.trail_rows + rows <= TRAIL;
        // What a step that fails leaves is of no use.
        self.stale = true;
        let known = rows.saturating_sub(doubtful);
        let most = self.store.most_marks();
        self.marks = self.worth.marks(self.length, known, ends, most);
        self.store.reserve(self.marks.len(), &self.layout, memory)
    }

    /// After such a step.
    pub(super) fn advance(&mut self, rows: usize, memory: Option<&mut StateMemory>) -> Result<()> {
        let copies = self
            .store
            .take_marked(self.marks.len(), &self.layout, memory)?;
        for (mark, copy) in self.marks.drain(..).zip(copies) {
            self.saved.push((self.length + mark, copy));
        }
        if self.records {
            self.trail_rows += rows;
        }
        self.length += rows;
        self.stale = false;
        Ok(())
    }

    /// Goes back to the state after `length` tokens, or, where that one is missing, after fewer; returns how many.
    pub(super) fn go_back(&mut self, length: usize) -> usize {
        if !self.stale && length == self.length {
            return length;
        }
        match self.base {
            Some(base) if length >= base => {
                let rows = length - base;
                // In between nothing is known of the tokens.
                self.trail_rows = if rows <= self.trail_rows { rows } else { 0 };
                self.stale = true;
                self.length = base + self.trail_rows;
            }
            _ => {
                (self.base, self.trail_rows, self.length) = (None, 0, 0);
                (self.cleared, self.stale) = (true, false);
            }
        }
        self.saved.retain(|(length, _)| *length <= self.length);
        self.length
    }

    /// The beginnings whose states are to be kept, and these.
    pub(super) fn take_saved(&mut self) -> Vec<(usize, SavedState)> {
        std::mem::take(&mut self.saved)
    }

    /// The state after all tokens, unless it is to be made again.
    pub(super) fn into_current(
        self,
        memory: Option<&mut StateMemory>,
    ) -> Result<Option<SavedState>> {
        let wanted = self.is_current();
        self.store.end(wanted, memory)
    }

    /// The numbers after all tokens, for comparisons.
    pub(super) fn values(&self, memory: Option<&StateMemory>) -> Result<Option<Vec<f32>>> {
        if !self.is_current() {
            return Ok(None);
        }
        match (&self.store, memory) {
            (Store::Host(host), _) => Ok(Some(host.current.clone())),
            (Store::Slots { current, .. }, Some(memory)) => {
                Ok(Some(memory.save(*current)?.values()?))
            }
            (Store::Slots { .. }, None) => Err(elsewhere()),
        }
    }

    pub(super) fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// On the CPU: a scan's part of the step under way, whose rows have this width.
    pub(super) fn host_piece(&mut self, number: usize, width: usize) -> Result<HostPiece<'_>> {
        let Store::Host(host) = &mut self.store else {
            return Err(elsewhere());
        };
        let range = self.layout.range(number);
        let copies = host.marked.chunks_exact_mut(self.layout.total.max(1));
        let marks = self.marks.iter().copied().zip(copies);
        let marks = marks.map(|(rows, copy)| (rows, &mut copy[range.clone()]));
        Ok(HostPiece {
            marks: marks.collect(),
            again: &host.trail[number][..self.again * width],
            state: &mut host.current[range],
        })
    }

    /// On the CPU: notes the rows that a scan has read.
    pub(super) fn record(&mut self, number: usize, width: usize, rows: &[f32]) {
        if let (Store::Host(host), true) = (&mut self.store, self.records) {
            let trail = &mut host.trail[number];
            trail.truncate(self.trail_rows * width);
            trail.extend_from_slice(rows);
        }
    }

    /// On a GPU: what the step under way does with these rows.
    pub(super) fn piece(&self, rows: Range<usize>) -> Result<Piece> {
        let Store::Slots {
            current,
            trail,
            marked,
            ..
        } = &self.store
        else {
            return Err(Error::Internal("a state on the CPU has no slot".into()));
        };
        Ok(Piece {
            rows,
            again: self.again,
            slot: *current,
            trail: *trail,
            record: self.records.then_some(self.trail_rows),
            marks: self
                .marks
                .iter()
                .copied()
                .zip(marked.iter().copied())
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_saved_where_prompts_part_and_end_and_in_between() {
        let worth = Worth {
            instructions: 3 * PAGE,
            common: 5 * PAGE,
            spacing: 4 * PAGE,
        };
        let pages = |first: usize, end: usize, ends, most| -> Vec<usize> {
            let marks = worth.marks(first, end - first, ends, most);
            marks.into_iter().map(|at| (first + at) / PAGE).collect()
        };
        let end = 9 * PAGE + 7;
        assert_eq!(pages(0, end, true, usize::MAX), [3, 4, 5, 8, 9]);
        assert_eq!(pages(0, end, false, usize::MAX), [3, 4, 5, 8]);
        assert_eq!(pages(3 * PAGE, end, true, usize::MAX), [4, 5, 8, 9]);
        assert_eq!(pages(5, 3 * PAGE, false, usize::MAX), [3]);
        assert!(pages(6 * PAGE, 7 * PAGE + 1, false, usize::MAX).is_empty());
        // A GPU copies two: of the instructions, and where the next turn goes on.
        assert_eq!(pages(0, end, true, MOST_MARKS), [3, 9]);
        assert_eq!(pages(3 * PAGE, end, false, MOST_MARKS), [5, 8]);
        assert!(worth.marks(3 * PAGE - 1, 1, true, usize::MAX).is_empty());
    }
}
