//! Places of terms and patterns in texts, counted in characters.

mod gazetteer;
mod pattern;

pub use gazetteer::Gazetteer;
pub use pattern::TextPattern;

/// A part of a text, from one character up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

/// Turns places in bytes, asked for in ascending order, into places in characters.
struct Characters<'a> {
    text: &'a str,
    byte: usize,
    character: usize,
}

impl<'a> Characters<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            byte: 0,
            character: 0,
        }
    }

    fn at(&mut self, byte: usize) -> usize {
        if let Some(passed) = self.text.get(self.byte..byte) {
            self.character += passed.chars().count();
            self.byte = byte;
        }
        self.character
    }
}
