//! Tokenizers of checkpoints that have SentencePiece's files instead of a `tokenizer.json`: T5 and
//! Pegasus (`spiece.model`), Marian (`source.spm` beside `vocab.json`), M2M100 and NLLB
//! (`sentencepiece.bpe.model`, the former beside `vocab.json`); and of encoders, XLM-RoBERTa and CamemBERT
//! (`sentencepiece.bpe.model`), ALBERT, FNet and BigBird (`spiece.model`), and RemBERT (`sentencepiece.model`).

mod encoders;
mod families;
mod proto;

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::{Sequence, Strip};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::load::{boundary_template, read_text};
use super::special_tokens::content_of;
use super::{classes, engine_error, guard};
use crate::{Error, Result};

pub(super) use encoders::rembert;
pub(super) use families::{m2m100, marian, multilingual, spiece};
use proto::{Algorithm, Piece, PieceKind, SentencePieceModel};

/// What SentencePiece writes for a space.
const SPACE: char = '▁';

/// A tokenizer that was built, and which of its ids stand for the unknown token: pieces that a checkpoint
/// knows how to cut, but has no embedding for.
pub(super) struct Built {
    pub core: tokenizers::Tokenizer,
    pub unknown: Option<Unknown>,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Unknown {
    /// The first id that no token of the checkpoint has.
    pub from: u32,
    pub id: u32,
}

/// How white space is treated beside the model's own table of characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spaces {
    /// Words are cut apart first (T5, XLM-RoBERTa, ALBERT).
    Split,
    /// Several become one (Pegasus, NLLB, BigBird).
    Joined,
    /// Nothing beside what was done before the table (RemBERT).
    Kept,
    /// As the model's file says, which is to drop those around a text too (Marian, M2M100).
    Own,
}

/// Every token with its id.
struct Vocabulary {
    tokens: Vec<Entry>,
    unknown: u32,
    /// The checkpoint has no tokens behind these.
    known: u32,
}

struct Entry {
    text: String,
    score: f64,
    /// Whether texts are cut into it.
    cuts: bool,
}

impl Entry {
    fn of(piece: &Piece) -> Self {
        Self {
            text: piece.text.clone(),
            score: f64::from(piece.score),
            cuts: matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined),
        }
    }

    fn special(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            score: 0.0,
            cuts: false,
        }
    }
}

impl Vocabulary {
    fn new(tokens: Vec<Entry>, unknown: &str, path: &Path) -> Result<Self> {
        let found = tokens.iter().position(|token| token.text == unknown);
        let id = found.and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| {
            Error::corrupt(
                path,
                format_args!("the unknown token {unknown:?} is missing"),
            )
        })?;
        Ok(Self {
            known: tokens.len() as u32,
            tokens,
            unknown: id,
        })
    }

    fn build(self, model: &SentencePieceModel, spaces: Spaces, path: &Path) -> Result<Built> {
        self.build_after(Vec::new(), model, spaces, path)
    }

    /// The same, with texts normalized by `before` first.
    fn build_after(
        self,
        before: Vec<NormalizerWrapper>,
        model: &SentencePieceModel,
        spaces: Spaces,
        path: &Path,
    ) -> Result<Built> {
        let bytes = self.tokens.iter().map(|t| 4 * (t.text.len() + 48)).sum();
        let beyond = self.known < self.tokens.len() as u32;
        let unknown = Unknown {
            from: self.known,
            id: self.unknown,
        };
        let (pieces, path) = (self, path);
        let cutter: ModelWrapper = match model.algorithm {
            Algorithm::Unigram => pieces.unigram(path)?.into(),
            Algorithm::Bpe => pieces.bpe(path)?.into(),
        };
        let mut core = tokenizers::Tokenizer::new(cutter);
        let own = normalizers(model, spaces, path)?;
        let normalizers: Vec<_> = before.into_iter().chain(own).collect();
        if !normalizers.is_empty() {
            core.with_normalizer(Some(Sequence::new(normalizers)))
                .map_err(engine_error)?;
        }
        let scheme = if model.add_dummy_prefix {
            PrependScheme::Always
        } else {
            PrependScheme::Never
        };
        let marks = Metaspace::new(SPACE, scheme, true);
        core.with_pre_tokenizer(Some::<PreTokenizerWrapper>(match spaces {
            Spaces::Split => {
                PreTokenizers::new(vec![WhitespaceSplit.into(), marks.clone().into()]).into()
            }
            Spaces::Joined | Spaces::Kept | Spaces::Own => marks.clone().into(),
        }));
        core.with_decoder(Some(marks));
        Ok(Built {
            core,
            unknown: beyond.then_some(unknown),
            bytes,
        })
    }

    fn unigram(self, path: &Path) -> Result<Unigram> {
        let unknown = usize::try_from(self.unknown).ok();
        let pieces = self.tokens.into_iter();
        let pieces = pieces.map(|token| (token.text, token.score)).collect();
        Unigram::from(pieces, unknown, false).map_err(|error| Error::corrupt(path, error))
    }

    fn bpe(self, path: &Path) -> Result<BPE> {
        let vocab: Vocab = (0u32..)
            .zip(&self.tokens)
            .map(|(id, token)| (token.text.clone(), id))
            .collect();
        let pieces = (0u32..).zip(&self.tokens);
        let pieces = pieces
            .filter(|(_, token)| token.cuts)
            .map(|(id, token)| (id, token.text.as_str(), token.score as f32));
        let merges = scored_merges(pieces, &vocab);
        let unknown = self.tokens.get(self.unknown as usize);
        BPE::builder()
            .vocab_and_merges(vocab, merges)
            .unk_token(unknown.map_or_else(String::new, |token| token.text.clone()))
            .fuse_unk(true)
            .build()
            .map_err(|error| Error::corrupt(path, error))
    }
}

/// SentencePiece's BPE has scores instead of merges: of all neighbours that make a token, those that
/// make the best one merge first. Every way to split a token into two is therefore a merge, ranked by
/// the score of the whole.
pub(super) fn scored_merges<'a>(
    pieces: impl Iterator<Item = (u32, &'a str, f32)>,
    vocab: &Vocab,
) -> Merges {
    let mut scored: Vec<(f32, u32, &str, &str)> = Vec::new();
    for (id, token, score) in pieces {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if vocab.contains_key(left) && vocab.contains_key(right) {
                scored.push((score, id, left, right));
            }
        }
    }
    scored.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    scored
        .into_iter()
        .map(|(_, _, left, right)| (left.to_owned(), right.to_owned()))
        .collect()
}

fn normalizers(
    model: &SentencePieceModel,
    spaces: Spaces,
    path: &Path,
) -> Result<Vec<NormalizerWrapper>> {
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if !model.characters.is_empty() {
        guard::check_characters(&model.characters, path)?;
        let table = Precompiled::from(&model.characters)
            .map_err(|_| Error::corrupt(path, "its table of characters does not parse"))?;
        normalizers.push(table.into());
    }
    let strips = spaces == Spaces::Own && model.remove_extra_whitespaces;
    if strips {
        normalizers.push(Strip::new(true, true).into());
    }
    if strips || spaces == Spaces::Joined {
        normalizers.push(joined_spaces()?);
    }
    Ok(normalizers)
}

/// One space in place of several.
fn joined_spaces() -> Result<NormalizerWrapper> {
    let several = ReplacePattern::Regex(" {2,}".to_owned());
    Ok(Replace::new(several, " ").map_err(engine_error)?.into())
}

/// `vocab.json`: ids by token.
fn read_ids(path: &Path) -> Result<HashMap<String, u32>> {
    serde_json::from_str(&read_text(path)?).map_err(|error| {
        Error::corrupt(path, format_args!("it doesn't hold a vocabulary ({error})"))
    })
}

/// The special tokens of a configuration that lists them.
fn listed<'a>(config: &'a Value, map: &'a Value) -> Vec<&'a str> {
    let lists = [config, map].map(|file| file["additional_special_tokens"].as_array());
    let first = lists.into_iter().flatten().find(|list| !list.is_empty());
    first.into_iter().flatten().filter_map(content_of).collect()
}

/// Ends every text, and makes the tokens special that stand for no text.
fn finish(built: &mut Built, special: &[&str], end: &str) -> Result<()> {
    let core = &mut built.core;
    let special: Vec<AddedToken> = special
        .iter()
        .filter(|token| core.token_to_id(token).is_some())
        .map(|token| AddedToken::from(*token, true).normalized(false))
        .collect();
    core.add_special_tokens(special).map_err(engine_error)?;
    if let Some(id) = core.token_to_id(end) {
        core.with_post_processor(Some(boundary_template(None, Some((end, id)))?));
    }
    Ok(())
}
