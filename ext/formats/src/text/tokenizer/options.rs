//! How a tokenizer cuts and pads; both belong to a handle, not to the shared vocabulary.

use tokenizers::Encoding;
pub use tokenizers::{PaddingDirection, TruncationDirection};

use crate::{Error, Result};

/// Which text of a pair gives way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TruncationStrategy {
    #[default]
    LongestFirst,
    OnlyFirst,
    OnlySecond,
}

impl TruncationStrategy {
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "longest_first" => Ok(Self::LongestFirst),
            "only_first" => Ok(Self::OnlyFirst),
            "only_second" => Ok(Self::OnlySecond),
            other => Err(Error::InvalidInput(format!(
                "unknown truncation strategy {other:?}: use longest_first, only_first or only_second"
            ))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::LongestFirst => "longest_first",
            Self::OnlyFirst => "only_first",
            Self::OnlySecond => "only_second",
        }
    }
}

/// At most `max_length` tokens, special ones included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Truncation {
    pub max_length: usize,
    pub strategy: TruncationStrategy,
    pub direction: TruncationDirection,
}

impl Truncation {
    pub fn new(max_length: usize) -> Self {
        Self {
            max_length,
            strategy: TruncationStrategy::default(),
            direction: TruncationDirection::default(),
        }
    }

    pub fn strategy(mut self, strategy: TruncationStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    pub fn direction(mut self, direction: TruncationDirection) -> Self {
        self.direction = direction;
        self
    }

    /// Cuts so that `added` special tokens still fit.
    pub(super) fn apply(
        &self,
        first: &mut Encoding,
        second: Option<&mut Encoding>,
        added: usize,
    ) -> Result<()> {
        let lengths = (first.len(), second.as_ref().map(|second| second.len()));
        let (keep_first, keep_second) = self.kept(lengths.0, lengths.1, added)?;
        cut(first, keep_first, self.direction);
        if let Some(second) = second {
            cut(second, keep_second, self.direction);
        }
        Ok(())
    }

    /// How many tokens of each text stay, so that `added` special tokens still fit.
    pub(super) fn kept(
        &self,
        first: usize,
        second: Option<usize>,
        added: usize,
    ) -> Result<(usize, usize)> {
        let Some(room) = self.max_length.checked_sub(added) else {
            return Err(Error::InvalidInput(format!(
                "a maximum of {} tokens has no room for the {added} special tokens this tokenizer adds: \
                 allow more tokens or pass add_special_tokens: false",
                self.max_length
            )));
        };
        Ok(match second {
            None => (first.min(room), 0),
            Some(second) => self.shares(first, second, room),
        })
    }

    /// How many tokens of each text of a pair stay. Where the text that should give way can't make
    /// enough room, both give way.
    fn shares(&self, first: usize, second: usize, room: usize) -> (usize, usize) {
        if first + second <= room {
            return (first, second);
        }
        match self.strategy {
            TruncationStrategy::OnlyFirst if second < room => return (room - second, second),
            TruncationStrategy::OnlySecond if first < room => return (first, room - first),
            _ => {}
        }
        let half = room / 2;
        let (short, long) = (first.min(second), first.max(second));
        let (short, long) = if short <= half {
            (short, long.min(room - short))
        } else {
            (half, room - half)
        };
        if first <= second {
            (short, long)
        } else {
            (long, short)
        }
    }
}

fn cut(encoding: &mut Encoding, length: usize, direction: TruncationDirection) {
    encoding.truncate(length, 0, direction);
    encoding.take_overflowing();
}

/// Fills encodings up to one length.
#[derive(Clone, Debug)]
pub struct Padding {
    pub direction: PaddingDirection,
    pub pad_id: u32,
    pub pad_type_id: u32,
    pub pad_token: String,
    /// `None`: as long as the longest of the batch.
    pub length: Option<usize>,
    pub multiple_of: Option<usize>,
}

impl Padding {
    pub(super) fn apply(&self, encodings: &mut [Encoding]) -> Result<()> {
        let longest = encodings.iter().map(Encoding::len).max().unwrap_or(0);
        let mut length = self.length.unwrap_or(longest);
        if let Some(multiple) = self.multiple_of.filter(|&multiple| multiple > 0) {
            length = length.checked_next_multiple_of(multiple).ok_or_else(|| {
                Error::InvalidInput(format!("cannot pad to a multiple of {multiple}"))
            })?;
        }
        const BYTES_PER_TOKEN: usize = 80;
        base::runtime::memory::ensure_elements(
            &[length, encodings.len()],
            BYTES_PER_TOKEN + self.pad_token.len(),
            format_args!("padding to {length} tokens"),
        )?;
        for encoding in encodings {
            encoding.pad(
                length,
                self.pad_id,
                self.pad_type_id,
                &self.pad_token,
                self.direction,
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_text_gives_way_first_and_odd_room_goes_to_it() {
        let shares = |first, second, room| Truncation::new(0).shares(first, second, room);
        assert_eq!(shares(3, 4, 7), (3, 4));
        assert_eq!(shares(3, 10, 8), (3, 5));
        assert_eq!(shares(10, 3, 8), (5, 3));
        assert_eq!(shares(10, 10, 7), (3, 4));
        assert_eq!(shares(11, 10, 7), (4, 3));
        assert_eq!(shares(11, 10, 0), (0, 0));
    }

    #[test]
    fn one_text_gives_way_when_asked_unless_it_cannot() {
        let only = |strategy, first, second, room| {
            Truncation::new(0)
                .strategy(strategy)
                .shares(first, second, room)
        };
        assert_eq!(only(TruncationStrategy::OnlySecond, 6, 9, 8), (6, 2));
        assert_eq!(only(TruncationStrategy::OnlyFirst, 6, 5, 8), (3, 5));
        assert_eq!(only(TruncationStrategy::OnlySecond, 60, 9, 8), (4, 4));
    }
}
