//! SentencePiece's model files: a small reader of the protobuf messages they are.
//!
//! Lengths and counts are the file's word, so that nothing is reserved by them, and every read is checked.

use std::path::Path;

use crate::{Error, Result};

/// What a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

#[derive(Clone, Debug)]
pub struct Piece {
    pub text: String,
    pub score: f32,
    pub kind: PieceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Unigram,
    Bpe,
}

/// A model as its file says it.
#[derive(Debug)]
pub struct SentencePieceModel {
    pub pieces: Vec<Piece>,
    pub algorithm: Algorithm,
    /// The table of the normalizer; empty where it changes nothing.
    pub characters: Vec<u8>,
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
}

/// A field of a message: its number and its value.
struct Field<'a> {
    number: u64,
    value: Value<'a>,
}

enum Value<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
    Four([u8; 4]),
    Eight,
}

/// The fields of a message, in their order.
struct Message<'a> {
    rest: &'a [u8],
}

/// Why a message can't be read.
const BROKEN: &str = "it is not a SentencePiece model (a message of it does not parse)";

impl<'a> Message<'a> {
    fn next(&mut self) -> std::result::Result<Option<Field<'a>>, &'static str> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Integer(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Eight
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| BROKEN)?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Four(self.take(4)?.try_into().map_err(|_| BROKEN)?),
            _ => return Err(BROKEN),
        };
        let number = key >> 3;
        Ok(Some(Field { number, value }))
    }

    fn varint(&mut self) -> std::result::Result<u64, &'static str> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(BROKEN)
    }

    fn take(&mut self, count: usize) -> std::result::Result<&'a [u8], &'static str> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(BROKEN)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl SentencePieceModel {
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = super::super::load::read_bytes(path)?;
        let model = Self::parse(&bytes).map_err(|reason| Error::corrupt(path, reason))?;
        if model.pieces.is_empty() {
            return Err(Error::corrupt(path, "it holds no pieces"));
        }
        if u32::try_from(model.pieces.len()).is_err() {
            return Err(Error::corrupt(path, "it has too many pieces"));
        }
        Ok(model)
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let mut model = Self {
            pieces: Vec::new(),
            algorithm: Algorithm::Unigram,
            characters: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
        };
        let mut message = Message { rest: bytes };
        while let Some(field) = message.next()? {
            match (field.number, field.value) {
                (1, Value::Bytes(bytes)) => model.pieces.push(piece(bytes)?),
                (2, Value::Bytes(bytes)) => model.algorithm = algorithm(bytes)?,
                (3, Value::Bytes(bytes)) => model.read_normalizer(bytes)?,
                _ => {}
            }
        }
        Ok(model)
    }

    fn read_normalizer(&mut self, bytes: &[u8]) -> std::result::Result<(), &'static str> {
        let mut message = Message { rest: bytes };
        while let Some(field) = message.next()? {
            match (field.number, field.value) {
                (2, Value::Bytes(table)) => self.characters = table.to_vec(),
                (3, Value::Integer(flag)) => self.add_dummy_prefix = flag != 0,
                (4, Value::Integer(flag)) => self.remove_extra_whitespaces = flag != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

fn piece(bytes: &[u8]) -> std::result::Result<Piece, &'static str> {
    let mut piece = Piece {
        text: String::new(),
        score: 0.0,
        kind: PieceKind::Normal,
    };
    let mut message = Message { rest: bytes };
    while let Some(field) = message.next()? {
        match (field.number, field.value) {
            (1, Value::Bytes(text)) => {
                let text = std::str::from_utf8(text).map_err(|_| "a piece of it is not UTF-8")?;
                piece.text = text.to_owned();
            }
            (2, Value::Four(bytes)) => {
                piece.score = f32::from_le_bytes(bytes);
                if !piece.score.is_finite() {
                    return Err("a piece of it has no finite score");
                }
            }
            (3, Value::Integer(kind)) => {
                piece.kind = match kind {
                    1 => PieceKind::Normal,
                    2 => PieceKind::Unknown,
                    3 => PieceKind::Control,
                    4 => PieceKind::UserDefined,
                    5 => PieceKind::Unused,
                    6 => PieceKind::Byte,
                    _ => return Err("a piece of it is of an unknown kind"),
                }
            }
            _ => {}
        }
    }
    Ok(piece)
}

fn algorithm(bytes: &[u8]) -> std::result::Result<Algorithm, String> {
    let mut message = Message { rest: bytes };
    let mut kind = 1;
    while let Some(field) = message.next()? {
        if let (3, Value::Integer(found)) = (field.number, field.value) {
            kind = found;
        }
    }
    match kind {
        1 => Ok(Algorithm::Unigram),
        2 => Ok(Algorithm::Bpe),
        other => Err(format!(
            "it cuts texts by algorithm {other}; unigram (1) and BPE (2) are known"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_break_off_are_refused() {
        let whole = [0x0a, 9, 0x0a, 1, b'a', 0x15, 0, 0, 0x80, 0x3f, 0x18];
        for end in 1..whole.len() {
            assert!(SentencePieceModel::parse(&whole[..end]).is_err(), "{end}");
        }
        let mut sound = whole.to_vec();
        sound.push(2);
        sound[1] = 10;
        let model = SentencePieceModel::parse(&sound).unwrap();
        assert_eq!(model.pieces[0].text, "a");
        assert_eq!(model.pieces[0].score, 1.0);
        assert_eq!(model.pieces[0].kind, PieceKind::Unknown);
        // Lengths and numbers beyond all bounds.
        let endless = [0xff; 20];
        assert!(SentencePieceModel::parse(&endless).is_err());
        let mut long = vec![0x0a];
        long.extend([0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert!(SentencePieceModel::parse(&long).is_err());
    }
}
