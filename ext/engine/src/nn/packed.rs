//! Sequences of any lengths laid end to end, with no padding.

use crate::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedSequences {
    ids: Vec<u32>,
    type_ids: Vec<u32>,
    boundaries: Vec<u32>,
    /// How many tokens at the start of each sequence are attended to.
    attended: Vec<u32>,
    /// The position of each token in place of its number in its sequence.
    positions: Option<Vec<u32>>,
}

impl PackedSequences {
    pub fn new() -> Self {
        Self {
            ids: Vec::new(),
            type_ids: Vec::new(),
            boundaries: vec![0],
            attended: Vec::new(),
            positions: None,
        }
    }

    /// The same whose tokens have these positions.
    pub fn at_positions(self, positions: Vec<u32>) -> Result<Self> {
        if positions.len() != self.ids.len() {
            let reason = "token ids and positions differ in number";
            return Err(Error::Internal(reason.into()));
        }
        Ok(Self {
            positions: Some(positions),
            ..self
        })
    }

    /// What `at_positions` was given.
    pub fn positions(&self) -> Option<&[u32]> {
        self.positions.as_deref()
    }

    /// Appends a sequence; no type ids means that all are 0. Positions that were given are forgotten.
    pub fn push(&mut self, ids: &[u32], type_ids: Option<&[u32]>) -> Result<()> {
        self.push_attended(ids, type_ids, ids.len())
    }

    /// `push` for a sequence of which only the first `attended` tokens are attended to: what follows
    /// them sees them, and is seen by none.
    pub fn push_attended(
        &mut self,
        ids: &[u32],
        type_ids: Option<&[u32]>,
        attended: usize,
    ) -> Result<()> {
        if type_ids.is_some_and(|types| types.len() != ids.len()) {
            return Err(Error::Internal(
                "token ids and type ids differ in number".into(),
            ));
        }
        self.ids.extend_from_slice(ids);
        match type_ids {
            Some(types) => self.type_ids.extend_from_slice(types),
            None => self.type_ids.resize(self.ids.len(), 0),
        }
        let end = u32::try_from(self.ids.len()).map_err(|_| {
            Error::InvalidInput("a batch cannot hold more than 4 billion tokens".into())
        })?;
        self.boundaries.push(end);
        self.attended.push(attended.min(ids.len()) as u32);
        self.positions = None;
        Ok(())
    }

    /// Appends the sequences of another.
    pub fn append(&mut self, other: &Self) -> Result<()> {
        for (range, &attended) in other.ranges().zip(&other.attended) {
            let (ids, type_ids) = (&other.ids[range.clone()], &other.type_ids[range]);
            self.push_attended(ids, Some(type_ids), attended as usize)?;
        }
        Ok(())
    }

    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// How many sequences there are.
    pub fn count(&self) -> usize {
        self.boundaries.len().saturating_sub(1)
    }

    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub fn type_ids(&self) -> &[u32] {
        &self.type_ids
    }

    /// Sequence i is the tokens from `boundaries[i]` to `boundaries[i + 1]`.
    pub fn boundaries(&self) -> &[u32] {
        &self.boundaries
    }

    pub fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.boundaries
            .windows(2)
            .map(|pair| pair[0] as usize..pair[1] as usize)
    }

    /// The rows of the tokens that are attended to, and their boundaries; `None` where all are.
    pub fn attended(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let each = || self.ranges().zip(&self.attended);
        if each().all(|(range, &count)| range.len() == count as usize) {
            return None;
        }
        let rows =
            each().flat_map(|(range, &count)| range.start as u32..range.start as u32 + count);
        let mut boundaries = vec![0];
        boundaries.extend(self.attended.iter().scan(0, |end, &count| {
            *end += count;
            Some(*end)
        }));
        Some((rows.collect(), boundaries))
    }

    pub fn longest(&self) -> usize {
        self.ranges().map(|range| range.len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_are_not_attended_to_are_left_out_of_the_keys() {
        let mut sequences = PackedSequences::new();
        sequences.push(&[1, 2], None).unwrap();
        assert_eq!(sequences.attended(), None);
        sequences.push_attended(&[3, 4, 5], None, 1).unwrap();
        sequences.push_attended(&[6], None, 9).unwrap();
        let (rows, boundaries) = sequences.attended().unwrap();
        assert_eq!((rows, boundaries), (vec![0, 1, 2, 5], vec![0, 2, 3, 4]));
        let mut joined = PackedSequences::new();
        joined.push(&[7], Some(&[1])).unwrap();
        joined.append(&sequences).unwrap();
        assert_eq!(joined.ids(), [7, 1, 2, 3, 4, 5, 6]);
        assert_eq!(joined.type_ids(), [1, 0, 0, 0, 0, 0, 0]);
        let (rows, boundaries) = joined.attended().unwrap();
        assert_eq!(
            (rows, boundaries),
            (vec![0, 1, 2, 3, 6], vec![0, 1, 3, 4, 5])
        );
    }
}
