//! Sequences of any lengths laid end to end, with no padding.

use crate::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedSequences {
    ids: Vec<u32>,
    type_ids: Vec<u32>,
    boundaries: Vec<u32>,
}

impl PackedSequences {
    pub fn new() -> Self {
        Self {
            ids: Vec::new(),
            type_ids: Vec::new(),
            boundaries: vec![0],
        }
    }

    /// Appends a sequence; no type ids means that all are 0.
    pub fn push(&mut self, ids: &[u32], type_ids: Option<&[u32]>) -> Result<()> {
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

    pub fn longest(&self) -> usize {
        self.ranges().map(|range| range.len()).max().unwrap_or(0)
    }
}
