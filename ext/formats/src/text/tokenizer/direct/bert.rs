//! What BERT's normalizer and pre-tokenizer make of each character. Both are asked, page by page, when a page is first
//! needed, so that their rules are written in one place: the tokenizers crate.

use std::sync::OnceLock;

use tokenizers::normalizers::{BertNormalizer, NFD};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::tokenizer::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
};

/// What becomes of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Part of a word, as this character.
    Word(char),
    /// A word of its own.
    Alone(char),
    /// Ends a word.
    Space,
    Nothing,
    /// Several characters.
    Several(u16, u16),
    /// It depends on the characters around it.
    Open,
}

#[derive(Debug)]
pub(super) struct Page {
    fates: Box<[Fate]>,
    /// What characters become that become several: words, words of their own and spaces.
    several: Vec<Fate>,
}

impl Page {
    #[inline]
    pub fn fate(&self, code: u32) -> Fate {
        self.fates[code as usize & 255]
    }

    pub fn several(&self, start: u16, length: u16) -> &[Fate] {
        let start = usize::from(start);
        &self.several[start..start + usize::from(length)]
    }
}

#[derive(Debug)]
pub(super) struct Characters {
    normalizer: BertNormalizer,
    pages: Box<[OnceLock<Page>]>,
}

impl Characters {
    pub fn new(normalizer: BertNormalizer) -> Self {
        Self {
            normalizer,
            pages: (0..0x1100).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The page of a character; a code is one, so that it has a page.
    #[inline]
    pub fn page(&self, code: u32) -> &Page {
        self.pages[code as usize >> 8].get_or_init(|| self.make(code >> 8))
    }

    fn make(&self, number: u32) -> Page {
        let mut several = Vec::new();
        let codes = (0..256).map(|low| number << 8 | low);
        let fates = codes.map(|code| match char::from_u32(code) {
            Some(character) => self.decide(character, &mut several),
            None => Fate::Nothing,
        });
        Page {
            fates: fates.collect(),
            several,
        }
    }

    fn decide(&self, character: char, several: &mut Vec<Fate>) -> Fate {
        let mut text = NormalizedString::from(character.to_string());
        if self.normalizer.normalize(&mut text).is_err() {
            return Fate::Open;
        }
        if text.get().chars().any(moves) {
            return Fate::Open;
        }
        let fates: Option<Vec<Fate>> = text.get().chars().map(cut).collect();
        match fates.as_deref() {
            None => Fate::Open,
            Some([]) => Fate::Nothing,
            Some([fate]) => *fate,
            Some([Fate::Space, Fate::Word(character), Fate::Space]) => Fate::Alone(*character),
            Some(fates) => {
                let place = (u16::try_from(several.len()), u16::try_from(fates.len()));
                several.extend(fates);
                match place {
                    (Ok(start), Ok(length)) => Fate::Several(start, length),
                    _ => Fate::Open,
                }
            }
        }
    }
}

/// Whether the order of characters may change around this one: it combines, and stays.
fn moves(character: char) -> bool {
    let decomposed = |text: String| {
        let mut text = NormalizedString::from(text);
        match NFD.normalize(&mut text) {
            Ok(()) => text.get().to_owned(),
            Err(_) => String::new(),
        }
    };
    // Marks of the highest and of the lowest class.
    let (high, low) = ('\u{345}', '\u{334}');
    let itself = decomposed(character.to_string());
    !character.is_ascii()
        && (decomposed(format!("{high}{character}")) != format!("{high}{itself}")
            || decomposed(format!("{character}{low}")) != format!("{itself}{low}"))
}

/// What the pre-tokenizer does at a character.
fn cut(character: char) -> Option<Fate> {
    let mut text = PreTokenizedString::from(format!("a{character}a"));
    BertPreTokenizer.pre_tokenize(&mut text).ok()?;
    let parts = text.get_splits(OffsetReferential::Normalized, OffsetType::None);
    match parts.len() {
        1 => Some(Fate::Word(character)),
        2 => Some(Fate::Space),
        3 => Some(Fate::Alone(character)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crate_says_what_becomes_of_characters() {
        let characters = Characters::new(BertNormalizer::default());
        let fate = |character: char| characters.page(character as u32).fate(character as u32);
        assert_eq!(fate('A'), Fate::Word('a'));
        assert_eq!(fate('É'), Fate::Word('e'));
        assert_eq!(fate('!'), Fate::Alone('!'));
        assert_eq!(fate('漢'), Fate::Alone('漢'));
        assert_eq!(fate('\u{301}'), Fate::Nothing);
        assert_eq!(fate('\u{0}'), Fate::Nothing);
        assert_eq!(fate('\t'), Fate::Space);
        assert_eq!(fate('\u{3000}'), Fate::Space);
        let Fate::Several(start, length) = fate('각') else {
            panic!("Hangul is decomposed");
        };
        let letters = ['\u{1100}', '\u{1161}', '\u{11a8}'].map(Fate::Word);
        assert_eq!(characters.page('각' as u32).several(start, length), letters);
        assert!(moves('\u{1d165}') && moves('\u{323}') && moves('é'));
        assert!(!moves('ß') && !moves('漢'));
    }
}
