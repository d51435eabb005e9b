//! The two common kinds of tokenizers without the pipeline of the `tokenizers` crate: BERT's WordPiece, and byte-level
//! BPE with a known pattern. The crate makes a string with the origin of each byte for every word; here a text is read
//! once, and words are looked up where they stand. Ids, places and masks are those of the crate, which encodes all
//! other tokenizers, and the few texts whose characters depend on their neighbours.

mod added;
mod bert;
mod byte_pairs;
mod cuts;
mod frame;
mod merges;
mod merging;
mod output;
pub(super) mod patterns;
mod recent;
mod table;
#[cfg(test)]
mod tests;
mod unicode;
mod word_piece;

use serde_json::Value;
use tokenizers::normalizers::{NormalizerWrapper, NFC};
use tokenizers::tokenizer::{NormalizedString, Normalizer};
use tokenizers::{ModelWrapper, PreTokenizerWrapper};

use self::added::{Added, Part};
use self::byte_pairs::BytePairs;
use self::cuts::Step;
use self::merging::Merging;
use self::word_piece::WordPiece;
use super::{Detail, Truncation};
use crate::{CancelToken, Error, Result};

pub(super) use self::frame::Frames;
pub(super) use self::output::Output;

#[derive(Debug)]
enum Kind {
    WordPiece(WordPiece),
    BytePairs { pairs: BytePairs, composes: bool },
}

#[derive(Debug)]
pub(super) struct Direct {
    added: Added,
    kind: Kind,
    pub frames: Frames,
}

/// Why a text ends before its end.
enum Stop {
    /// There are as many tokens as are wanted.
    Enough,
    /// The text needs the pipeline.
    Foreign,
    Failed(Error),
}

type Progress<T = ()> = std::result::Result<T, Stop>;

/// What words share on their way.
struct Scratch<'a> {
    word: Vec<u8>,
    /// The character that each byte of the word comes from.
    origins: Vec<u32>,
    merging: Merging,
    cancel: &'a CancelToken,
    words: u32,
}

impl Scratch<'_> {
    /// Once in a while, whether the call was cancelled.
    #[inline]
    fn check(&mut self) -> Progress {
        const SELDOM: u32 = 256;
        self.words = self.words.wrapping_add(1);
        if self.words.is_multiple_of(SELDOM) {
            return self.cancel.check().map_err(Stop::Failed);
        }
        Ok(())
    }
}

impl Direct {
    /// `None` for a tokenizer that has other parts than those known here.
    pub fn new(core: &tokenizers::Tokenizer) -> Option<Self> {
        let (kind, normalizes) = match core.get_model() {
            ModelWrapper::WordPiece(model) => {
                let Some(NormalizerWrapper::BertNormalizer(normalizer)) = core.get_normalizer()
                else {
                    return None;
                };
                let Some(PreTokenizerWrapper::BertPreTokenizer(_)) = core.get_pre_tokenizer()
                else {
                    return None;
                };
                (Kind::WordPiece(WordPiece::new(model, *normalizer)?), true)
            }
            ModelWrapper::BPE(model) => {
                let composes = match core.get_normalizer() {
                    None => false,
                    Some(NormalizerWrapper::NFC(_)) => true,
                    Some(NormalizerWrapper::Sequence(all)) if all.as_ref().is_empty() => false,
                    Some(_) => return None,
                };
                let (steps, begins_with_space) = steps(core.get_pre_tokenizer()?)?;
                let pairs = BytePairs::new(model, steps, begins_with_space)?;
                (Kind::BytePairs { pairs, composes }, composes)
            }
            ModelWrapper::WordLevel(_) | ModelWrapper::Unigram(_) => return None,
        };
        Some(Self {
            added: Added::new(core, normalizes)?,
            kind,
            frames: Frames::default(),
        })
    }

    pub fn memory_bytes(&self) -> usize {
        match &self.kind {
            Kind::WordPiece(pieces) => pieces.memory_bytes(),
            Kind::BytePairs { pairs, .. } => pairs.memory_bytes(),
        }
    }

    /// The tokens of a text; `None` for one that needs the pipeline.
    pub fn encode(
        &self,
        text: &str,
        detail: Detail,
        truncation: Option<&Truncation>,
        cancel: &CancelToken,
    ) -> Result<Option<Output>> {
        cancel.check()?;
        // Places are numbers of 32 bits.
        if u32::try_from(text.len()).is_err() {
            return Ok(None);
        }
        let mut output = Output::new(text, detail, truncation);
        let mut scratch = Scratch {
            word: Vec::new(),
            origins: Vec::new(),
            merging: Merging::default(),
            cancel,
            words: 0,
        };
        let mut outcome = Ok(());
        let (mut byte, mut passed) = (0, 0);
        self.added.split(text, |part| {
            let (Part::Text(part_text) | Part::Token(_, part_text)) = part;
            let characters = if output.detailed {
                part_text.chars().count() as u32
            } else {
                0
            };
            outcome = match part {
                Part::Text(part) => self.part(part, passed, &mut scratch, &mut output),
                Part::Token(id, token) => {
                    let places = (passed, passed + characters);
                    output.push_verbatim(id, (byte, byte + token.len()), places);
                    output.end_part(true);
                    Ok(())
                }
            };
            byte += part_text.len();
            passed += characters;
            outcome.is_ok()
        });
        match outcome {
            Ok(()) | Err(Stop::Enough) => {
                output.finish();
                Ok(Some(output))
            }
            Err(Stop::Foreign) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn part(
        &self,
        text: &str,
        passed: u32,
        scratch: &mut Scratch,
        output: &mut Output,
    ) -> Progress {
        match &self.kind {
            Kind::WordPiece(pieces) => pieces.encode(text, passed, scratch, output),
            Kind::BytePairs { pairs, composes } => {
                let composed = if *composes { composed(text)? } else { None };
                match composed {
                    None => pairs.encode(text, passed, scratch, output),
                    Some(_) if output.detailed => Err(Stop::Foreign),
                    Some(text) => pairs.encode(&text, passed, scratch, output),
                }
            }
        }
    }
}

/// A text in Unicode's form C; `None` where it has it already.
fn composed(text: &str) -> Progress<Option<String>> {
    /// The first character that a normalizer may change, or that may change others.
    const FIRST: char = '\u{300}';
    if text.is_ascii() || text.chars().all(|character| character < FIRST) {
        return Ok(None);
    }
    let mut string = NormalizedString::from(text);
    NFC.normalize(&mut string).map_err(|_| Stop::Foreign)?;
    Ok((string.get() != text).then(|| string.get().to_owned()))
}

/// How a pre-tokenizer cuts texts, and whether it puts a space before them. `None` for one that is not known.
fn steps(pre_tokenizer: &PreTokenizerWrapper) -> Option<(Vec<Step>, bool)> {
    let value = serde_json::to_value(pre_tokenizer).ok()?;
    let single = std::slice::from_ref(&value);
    let all = match value["pretokenizers"].as_array() {
        Some(all) if value["type"] == "Sequence" => all.as_slice(),
        _ => single,
    };
    let (last, before) = all.split_last()?;
    let flag = |name: &str| last[name].as_bool();
    if last["type"] != "ByteLevel" {
        return None;
    }
    let mut steps = before.iter().map(step).collect::<Option<Vec<Step>>>()?;
    let begins_with_space = flag("add_prefix_space")?;
    if begins_with_space && !steps.is_empty() {
        return None;
    }
    if flag("use_regex")? {
        steps.push(Step::of_pattern(patterns::GPT2)?);
    }
    Some((steps, begins_with_space))
}

fn step(value: &Value) -> Option<Step> {
    match value["type"].as_str()? {
        "Digits" => Some(Step::Numeric {
            single: value["individual_digits"].as_bool()?,
        }),
        "Split" => {
            let step = Step::of_pattern(value["pattern"]["Regex"].as_str()?)?;
            let kept = match (value["behavior"].as_str()?, value["invert"].as_bool()?) {
                ("Isolated", false) => true,
                // Every character is in a match of these.
                ("Removed", true) => matches!(step, Step::Cut(_)),
                _ => false,
            };
            kept.then_some(step)
        }
        _ => None,
    }
}
