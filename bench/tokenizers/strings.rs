//! Random texts of all that tokenizers treat in ways of their own, and what two tokenizers make of them.

use formats::text::tokenizer::{
    Detail, Encoding, Input, Tokenizer, Truncation, TruncationDirection, TruncationStrategy,
};
use formats::CancelToken;

/// Numerical Recipes' generator: plain, and the same on every machine.
pub struct Random(pub u64);

const WORDS: [&str; 24] = [
    "the",
    "of",
    "and",
    "Tokenizers",
    "don't",
    "IT'S",
    "we'll",
    "internationalization",
    "HTTPServer",
    "iPhone",
    "straße",
    "naïve",
    "ΟΔΥΣΣΕΥΣ",
    "İstanbul",
    "ﬁnance",
    "Ǆungla",
    "Привет",
    "мир",
    "unbelievably",
    "e.g.",
    "3rd",
    "CamelCaseWord",
    "snake_case_word",
    "https://example.org/a?b=c",
];
const SPACES: [&str; 14] = [
    " ", " ", " ", "  ", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "\u{2028}", "\u{85}", "\u{b}",
    "\u{1680}", "\r",
];
const MARKS: [&str; 19] = [
    "!", "?", ".", ",", "'", "\"", "-", "/", "//", "…", "。", "«", "€", "^", "`", "\u{37e}",
    "\u{1fef}", "_", "·",
];
const ENDINGS: [&str; 14] = [
    "'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'lL", "'d", "'ſ", "’s", "'x", "'",
];
/// Scripts, as ranges of characters.
const SCRIPTS: [(u32, u32); 26] = [
    (0x20, 0x7f),
    (0xa0, 0x180),
    (0x180, 0x250),
    (0x300, 0x370),
    (0x370, 0x400),
    (0x400, 0x530),
    (0x590, 0x600),
    (0x600, 0x700),
    (0x900, 0x980),
    (0xb80, 0xc00),
    (0xe00, 0xe80),
    (0x1100, 0x1200),
    (0x1e00, 0x2000),
    (0x2000, 0x2070),
    (0x20d0, 0x2200),
    (0x3000, 0x3100),
    (0x3400, 0x3500),
    (0x4e00, 0x5000),
    (0xac00, 0xad00),
    (0xf900, 0xfb50),
    (0xfe00, 0x10000),
    (0x1d100, 0x1d200),
    (0x1d400, 0x1d500),
    (0x1f300, 0x1f650),
    (0x20000, 0x20100),
    (0x2f800, 0x2fa20),
];

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        let next = self.0.wrapping_mul(6364136223846793005);
        self.0 = next.wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn character(&mut self, (start, end): (u32, u32)) -> char {
        let code = start + self.below((end - start) as usize) as u32;
        char::from_u32(code).unwrap_or('\u{fffd}')
    }

    fn letters(&mut self, length: usize, text: &mut String) {
        for _ in 0..length {
            let letter = (b'a' + self.below(26) as u8) as char;
            let upper = self.below(5) == 0;
            text.push(if upper {
                letter.to_ascii_uppercase()
            } else {
                letter
            });
        }
    }

    /// A special token, or something near one.
    fn special(&mut self, tokens: &[String], text: &mut String) {
        let Some(token) = tokens.get(self.below(tokens.len().max(1))) else {
            return;
        };
        let characters: Vec<char> = token.chars().collect();
        match self.below(6) {
            0 => text.extend(&characters[..self.below(characters.len())]),
            1 => text.extend(&characters[self.below(characters.len())..]),
            2 => text.push_str(&token.to_lowercase()),
            3 => {
                text.extend(&characters[..characters.len() / 2]);
                text.push(self.character((0x20, 0x180)));
                text.extend(&characters[characters.len() / 2..]);
            }
            _ => text.push_str(token),
        }
    }

    fn fragment(&mut self, tokens: &[String], text: &mut String) {
        match self.below(24) {
            0..=4 => text.push_str(self.of(&WORDS)),
            5..=8 => {
                let length = 1 + self.below(12);
                self.letters(length, text);
            }
            9..=13 => (0..=self.below(3)).for_each(|_| text.push_str(self.of(&SPACES))),
            14 => (0..=self.below(3)).for_each(|_| text.push_str(self.of(&MARKS))),
            15 => text.push_str(self.of(&ENDINGS)),
            16 => (0..=self.below(7)).for_each(|_| text.push(self.character((0x30, 0x3a)))),
            17..=19 => {
                let script = self.of(&SCRIPTS);
                (0..=self.below(6)).for_each(|_| text.push(self.character(script)));
            }
            20 => (0..=self.below(3)).for_each(|_| text.push(self.character((0x300, 0x370)))),
            21 => text.push(self.character((0, 0x11_0000))),
            22 => self.special(tokens, text),
            _ => text.push(self.character((0, 0x20))),
        }
    }

    pub fn text(&mut self, tokens: &[String]) -> String {
        let mut text = String::new();
        let fragments = self.below(20);
        for _ in 0..fragments {
            self.fragment(tokens, &mut text);
            if self.below(3) > 0 {
                text.push(' ');
            }
        }
        if self.below(200) == 0 {
            let length = 40 + self.below(200);
            self.letters(length, &mut text);
        }
        text
    }

    fn truncation(&mut self) -> Option<Truncation> {
        if self.below(3) > 0 {
            return None;
        }
        let directions = [TruncationDirection::Right, TruncationDirection::Left];
        let strategies = [
            TruncationStrategy::LongestFirst,
            TruncationStrategy::OnlyFirst,
            TruncationStrategy::OnlySecond,
        ];
        let limit = Truncation::new(self.below(24)).direction(self.of(&directions));
        Some(limit.strategy(self.of(&strategies)))
    }
}

/// All that is seen of an encoding.
fn seen(encoding: &Encoding) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {}",
        encoding.get_ids(),
        encoding.get_tokens(),
        encoding.get_offsets(),
        encoding.get_word_ids(),
        encoding.get_type_ids(),
        encoding.get_special_tokens_mask(),
        encoding.get_attention_mask(),
        encoding.get_sequence_ids(),
        encoding.get_overflowing().len(),
    )
}

/// What of one random text, or two, a tokenizer and its pipeline disagree in.
pub fn difference(tokenizer: &Tokenizer, tokens: &[String], random: &mut Random) -> Option<String> {
    let (first, second) = (random.text(tokens), random.text(tokens));
    let input = if random.below(4) == 0 {
        Input::Pair(&first, &second)
    } else {
        Input::Single(&first)
    };
    let detail = if random.below(2) == 0 {
        Detail::Ids
    } else {
        Detail::Offsets
    };
    let special = random.below(4) > 0;
    let tokenizer = tokenizer.with_truncation(random.truncation());
    let encode = |tokenizer: &Tokenizer| {
        let outcome = tokenizer.encode(input, special, detail, &CancelToken::new());
        outcome.map_or_else(|error| error.to_string(), |encoding| seen(&encoding))
    };
    let (ours, theirs) = (encode(&tokenizer), encode(&tokenizer.by_pipeline()));
    (ours != theirs).then(|| {
        let limit = tokenizer.truncation();
        format!("{input:?}, {detail:?}, special {special}, {limit:?}:\n  {ours}\n  {theirs}")
    })
}

/// Texts of the tokens that stand beside a vocabulary.
pub fn added_tokens(tokenizer: &Tokenizer) -> Vec<String> {
    let own = tokenizer.vocab(true).into_keys();
    let mut found: Vec<String> = own.filter(|token| tokenizer.is_added(token)).collect();
    found.sort_unstable();
    found.truncate(64);
    found
}
