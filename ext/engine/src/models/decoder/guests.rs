//! What stands in a prompt beside tokens: the rows that a vision tower makes of an image.
//!
//! Rows get ids beyond the vocabulary, and no two rows ever the same one. A prompt with images is so
//! a list of ids like any other, and what was read of it is found again like any other prefix.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use candle_core::Tensor;

use crate::{Error, Result};

/// Rows of the decoder's width, for as long as someone holds them.
#[derive(Debug)]
pub struct Guest {
    first: u32,
    /// [count, hidden]
    rows: Tensor,
    count: usize,
}

/// The guests of a decoder.
#[derive(Debug, Default)]
pub struct Guests(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    guests: Vec<Weak<Guest>>,
    /// How many ids were given.
    given: u32,
}

impl Guest {
    pub fn ids(&self) -> Range<u32> {
        self.first..self.first + self.count as u32
    }

    /// What its rows take.
    pub fn bytes(&self) -> usize {
        self.rows.elem_count() * self.rows.dtype().size_in_bytes()
    }
}

impl Guests {
    /// Gives `rows`, [count, hidden], ids from `vocabulary` on.
    pub fn admit(&self, rows: Tensor, vocabulary: usize) -> Result<Arc<Guest>> {
        let count = rows.dim(0)?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = u32::try_from(vocabulary)
            .ok()
            .and_then(|start| start.checked_add(known.given));
        let end = u32::try_from(count)
            .ok()
            .and_then(|count| first?.checked_add(count));
        let (Some(first), Some(end)) = (first, end) else {
            return Err(Error::Generation(
                "this model has seen so many images that none more can be told apart: load it anew"
                    .into(),
            ));
        };
        known.given = end - vocabulary as u32;
        known.guests.retain(|guest| guest.strong_count() > 0);
        let guest = Arc::new(Guest { first, rows, count });
        known.guests.push(Arc::downgrade(&guest));
        Ok(guest)
    }

    /// Who has an id, if they are still here.
    pub fn find(&self, id: u32) -> Option<Arc<Guest>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guests = known.guests.iter().filter_map(Weak::upgrade);
        guests.find(|guest| guest.ids().contains(&id))
    }

    /// `embedded` with the rows of guests where their ids stand; ids below `vocabulary` are tokens.
    pub fn seat(&self, ids: &[u32], vocabulary: usize, embedded: Tensor) -> Result<Tensor> {
        let is_guest = |id: &u32| *id as usize >= vocabulary;
        if !ids.iter().any(is_guest) {
            return Ok(embedded);
        }
        let mut pieces = Vec::new();
        let mut start = 0;
        while let Some(&id) = ids.get(start) {
            let rest = &ids[start..];
            let length = match is_guest(&id) {
                false => {
                    let length = rest.iter().take_while(|id| !is_guest(id)).count();
                    pieces.push(embedded.narrow(0, start, length)?);
                    length
                }
                true => {
                    let guest = self.find(id).ok_or_else(|| unknown(id, vocabulary))?;
                    let own = guest.ids();
                    let run = rest.iter().zip(id..own.end);
                    let length = run.take_while(|(&id, expected)| id == *expected).count();
                    let rows = guest.rows.narrow(0, (id - own.start) as usize, length)?;
                    pieces.push(rows);
                    length
                }
            };
            start += length;
        }
        Ok(Tensor::cat(&pieces, 0)?)
    }
}

/// The complaint about an id that is neither a token nor a guest.
pub fn unknown(id: u32, vocabulary: usize) -> Error {
    Error::InvalidInput(format!(
        "token {id} is beyond the model's vocabulary of {vocabulary}; the tokenizer belongs to another model"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn rows(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, (values.len(), 1), &Device::Cpu).unwrap()
    }

    #[test]
    fn guests_stand_where_their_ids_do() {
        let guests = Guests::default();
        let first = guests.admit(rows(&[10.0, 11.0]), 5).unwrap();
        let second = guests.admit(rows(&[20.0]), 5).unwrap();
        assert_eq!((first.ids(), second.ids()), (5..7, 7..8));
        let ids = [1, 5, 6, 7, 2, 6, 3];
        let embedded = rows(&[1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 3.0]);
        let seated = guests.seat(&ids, 5, embedded).unwrap();
        let seated: Vec<f32> = seated.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(seated, [1.0, 10.0, 11.0, 20.0, 2.0, 11.0, 3.0]);
    }

    #[test]
    fn ids_are_not_given_twice() {
        let guests = Guests::default();
        let first = guests.admit(rows(&[1.0]), 5).unwrap();
        drop(first);
        assert!(guests.find(5).is_none());
        assert_eq!(guests.admit(rows(&[1.0]), 5).unwrap().ids(), 6..7);
        let gone = guests.seat(&[5], 5, rows(&[0.0])).unwrap_err();
        assert!(gone.to_string().contains("token 5 is beyond"));
    }
}
