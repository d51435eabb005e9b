//! The tokens of one text on the way to an encoding.

use tokenizers::{Encoding, TruncationDirection};

use super::super::{Detail, Truncation};

/// Where a token comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// In characters of the text.
    pub start: u32,
    pub end: u32,
    /// Which of the parts that were made tokens one by one.
    part: u32,
}

/// The bytes of a text that a token of [`super::added`] stands for.
#[derive(Clone, Copy, Debug)]
struct Verbatim {
    token: usize,
    start: usize,
    end: usize,
}

/// Ids, and where they come from if that is wanted.
#[derive(Debug, Default)]
pub(in crate::text::tokenizer) struct Output {
    pub(super) ids: Vec<u32>,
    pub(super) places: Vec<Place>,
    verbatim: Vec<Verbatim>,
    /// Behind each part: how many tokens there are, and whether the part was a token from the beginning.
    parts: Vec<(usize, bool)>,
    part: u32,
    limit: Option<(usize, TruncationDirection)>,
    /// Whether places are wanted.
    pub(super) detailed: bool,
}

impl Output {
    pub fn new(text: &str, detail: Detail, truncation: Option<&Truncation>) -> Self {
        const BYTES_PER_TOKEN: usize = 4;
        const MOST: usize = 1 << 16;
        Self {
            ids: Vec::with_capacity((text.len() / BYTES_PER_TOKEN + 2).min(MOST)),
            limit: truncation.map(|limit| (limit.max_length, limit.direction)),
            detailed: detail == Detail::Offsets,
            ..Self::default()
        }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    #[inline]
    pub(super) fn push(&mut self, id: u32) {
        self.ids.push(id);
    }

    #[inline]
    pub(super) fn push_at(&mut self, id: u32, start: u32, end: u32) {
        self.ids.push(id);
        let part = self.part;
        self.places.push(Place { start, end, part });
    }

    /// A token that stands for the bytes of the text from `start` on, whose characters are given too.
    pub(super) fn push_verbatim(&mut self, id: u32, bytes: (usize, usize), places: (u32, u32)) {
        if self.detailed {
            let (start, end) = bytes;
            let token = self.ids.len();
            self.verbatim.push(Verbatim { token, start, end });
            self.push_at(id, places.0, places.1);
        } else {
            self.push(id);
        }
    }

    /// Ends a part. `false` where the tokens so far are as many as are wanted.
    #[inline]
    pub(super) fn end_part(&mut self, verbatim: bool) -> bool {
        self.part += 1;
        match self.limit {
            None => true,
            Some((most, TruncationDirection::Right)) => verbatim || self.ids.len() < most,
            Some((_, TruncationDirection::Left)) => {
                self.parts.push((self.ids.len(), verbatim));
                true
            }
        }
    }

    /// Leaves out the first parts where as many tokens as are wanted stand behind them.
    pub(super) fn finish(&mut self) {
        let Some((most, TruncationDirection::Left)) = self.limit else {
            return;
        };
        let total = self.ids.len();
        let begin = |part: usize| part.checked_sub(1).map_or(0, |before| self.parts[before].0);
        let mut backwards = (0..self.parts.len()).rev();
        let first = backwards.find(|&part| {
            let (_, verbatim) = self.parts[part];
            !verbatim && total - begin(part) >= most
        });
        let Some(first) = first else { return };
        let tokens = begin(first);
        self.drop_front(tokens);
        for place in &mut self.places {
            place.part -= first as u32;
        }
    }

    fn drop_front(&mut self, tokens: usize) {
        self.ids.drain(..tokens);
        self.places.drain(..tokens.min(self.places.len()));
        self.verbatim.retain_mut(|it| {
            let kept = it.token >= tokens;
            it.token -= tokens.min(it.token);
            kept
        });
    }

    /// Leaves `length` tokens at most.
    pub fn cut(&mut self, length: usize, direction: TruncationDirection) {
        if length >= self.ids.len() {
            return;
        }
        match direction {
            TruncationDirection::Right => {
                self.ids.truncate(length);
                self.places.truncate(length);
                self.verbatim.retain(|it| it.token < length);
            }
            TruncationDirection::Left => self.drop_front(self.ids.len() - length),
        }
    }

    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// An encoding without special tokens.
    pub fn into_encoding(
        self,
        text: &str,
        type_id: u32,
        name: impl Fn(u32) -> Option<String>,
    ) -> Encoding {
        if !self.detailed {
            let tokens = self.ids.iter();
            return tokens
                .map(|&id| (id, String::new(), (0, 0), None, type_id))
                .collect();
        }
        let mut verbatim = self.verbatim.iter().peekable();
        let tokens = self.ids.iter().zip(&self.places).enumerate();
        tokens
            .map(|(at, (&id, place))| {
                let token = match verbatim.next_if(|it| it.token == at) {
                    Some(it) => text[it.start..it.end].to_owned(),
                    None => name(id).unwrap_or_default(),
                };
                let offsets = (place.start as usize, place.end as usize);
                (id, token, offsets, Some(place.part), type_id)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(direction: TruncationDirection, most: usize) -> Output {
        let limit = Truncation::new(most).direction(direction);
        let mut output = Output::new("", Detail::Offsets, Some(&limit));
        for part in 0..4 {
            output.push_at(part, part, part + 1);
            output.push_at(part, part, part + 1);
            if !output.end_part(false) {
                break;
            }
        }
        output.finish();
        output
    }

    #[test]
    fn whole_parts_are_left_out_on_either_side() {
        let right = filled(TruncationDirection::Right, 3);
        assert_eq!(right.ids(), [0, 0, 1, 1]);
        let mut left = filled(TruncationDirection::Left, 3);
        assert_eq!(left.ids(), [2, 2, 3, 3]);
        assert_eq!(left.places[0].part, 0);
        left.cut(3, TruncationDirection::Left);
        assert_eq!(left.ids(), [2, 3, 3]);
        assert_eq!(left.places.len(), 3);
    }
}
