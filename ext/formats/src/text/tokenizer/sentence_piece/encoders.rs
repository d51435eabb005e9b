//! Encoders' models: tokens of their own around the pieces, and what texts are between.

use std::path::Path;

use serde_json::Value;
use tokenizers::normalizers::{Lowercase, StripAccents, NFKD};
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::PostProcessorWrapper;

use super::families::named;
use super::*;

/// What fairseq's piece at an id is called whose place another token has taken.
const UNUSED: [&str; 3] = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"];
const UNUSED_SCORE: f64 = -100.0;

/// XLM-RoBERTa's: four tokens of its own in place of the model's first three, the pieces, and the mask.
pub fn xlm_roberta(path: &Path, config: &Value) -> Result<Built> {
    let start = named(config, "bos_token", "<s>");
    let end = named(config, "eos_token", "</s>");
    let unknown = named(config, "unk_token", "<unk>");
    let padding = named(config, "pad_token", "<pad>");
    let first = [start, padding, end, unknown].map(Entry::special);
    fairseq(path, config, (first.into(), 3), &[])
}

/// CamemBERT's: five tokens in place of the model's first, the pieces, and the mask.
pub fn camembert(path: &Path, config: &Value) -> Result<Built> {
    let unknown = named(config, "unk_token", "<unk>");
    let padding = named(config, "pad_token", "<pad>");
    let mut first: Vec<Entry> = [UNUSED[0], padding, UNUSED[1], unknown, UNUSED[2]]
        .map(Entry::special)
        .into();
    if let Some(last) = first.last_mut() {
        last.score = UNUSED_SCORE;
    }
    fairseq(path, config, (first, 1), &UNUSED)
}

/// Models that fairseq trained; `first` are the tokens in place of so many of the file's.
fn fairseq(
    path: &Path,
    config: &Value,
    (first, replaced): (Vec<Entry>, usize),
    more: &[&str],
) -> Result<Built> {
    let model = SentencePieceModel::read(path)?;
    let own = [
        named(config, "bos_token", "<s>"),
        named(config, "eos_token", "</s>"),
        named(config, "unk_token", "<unk>"),
        named(config, "pad_token", "<pad>"),
        named(config, "mask_token", "<mask>"),
    ];
    let mut tokens = first;
    tokens.extend(model.pieces.iter().skip(replaced).map(Entry::of));
    tokens.push(Entry::special(own[4]));
    let vocabulary = Vocabulary::new(tokens, own[2], path)?;
    let mut built = vocabulary.build(&model, Spaces::Split, path)?;
    let texts = Texts {
        first: own[0],
        last: own[1],
        doubled: true,
        mask: own[4],
        mask_strips: mask_strips(config, false),
    };
    texts.enclose(&mut built, &model, &[&own[..], more].concat(), path)?;
    Ok(built)
}

/// ALBERT's and FNet's, which may ignore case and accents.
pub fn albert(path: &Path, config: &Value) -> Result<Built> {
    let folded = folding(config, (true, false))?;
    classified(path, config, folded, Spaces::Split)
}

/// RemBERT's.
pub fn rembert(path: &Path, config: &Value) -> Result<Built> {
    match classes::name(config) {
        "" | "RemBert" => {}
        other => {
            return Err(Error::unsupported(
                path,
                format_args!(
                    "the checkpoint's tokenizer is a {other}Tokenizer, and a file of this name is read for RemBERT \
                     only. Save the tokenizer with transformers to get a tokenizer.json"
                ),
            ))
        }
    }
    let mut folded = folding(config, (false, true))?;
    // Behind the quotes.
    folded.insert(2, joined_spaces()?);
    classified(path, config, folded, Spaces::Kept)
}

/// BigBird's.
pub fn big_bird(path: &Path, config: &Value) -> Result<Built> {
    classified(path, config, Vec::new(), Spaces::Joined)
}

/// Quotes made of two characters, accents and capitals: what a text loses before it is cut.
fn folding(
    config: &Value,
    (lowers, keeps_accents): (bool, bool),
) -> Result<Vec<NormalizerWrapper>> {
    let flag = |name: &str, usual: bool| config[name].as_bool().unwrap_or(usual);
    let mut folded: Vec<NormalizerWrapper> = Vec::new();
    for quotes in ["``", "''"] {
        folded.push(Replace::new(quotes, "\"").map_err(engine_error)?.into());
    }
    if !flag("keep_accents", keeps_accents) {
        folded.push(NFKD.into());
        folded.push(StripAccents.into());
    }
    if flag("do_lower_case", lowers) {
        folded.push(Lowercase.into());
    }
    Ok(folded)
}

/// Models whose pieces have their own ids, and whose texts stand between `[CLS]` and `[SEP]`.
fn classified(
    path: &Path,
    config: &Value,
    before: Vec<NormalizerWrapper>,
    spaces: Spaces,
) -> Result<Built> {
    let model = SentencePieceModel::read(path)?;
    let unknown = named(config, "unk_token", "<unk>");
    let texts = Texts {
        first: named(config, "cls_token", "[CLS]"),
        last: named(config, "sep_token", "[SEP]"),
        doubled: false,
        mask: named(config, "mask_token", "[MASK]"),
        mask_strips: mask_strips(config, spaces == Spaces::Joined),
    };
    let padding = named(config, "pad_token", "<pad>");
    let special = [unknown, texts.first, texts.last, padding, texts.mask];
    let tokens = model.pieces.iter().map(Entry::of).collect();
    let vocabulary = Vocabulary::new(tokens, unknown, path)?;
    let mut built = vocabulary.build_after(before, &model, spaces, path)?;
    texts.enclose(&mut built, &model, &special, path)?;
    Ok(built)
}

/// Whether the mask takes the space before it along; `usual` is what its class does.
fn mask_strips(config: &Value, usual: bool) -> bool {
    config["mask_token"]["lstrip"].as_bool().unwrap_or(usual)
}

/// What stands around texts.
struct Texts<'a> {
    first: &'a str,
    last: &'a str,
    /// Whether two of `last` stand between the texts of a pair, which then are of one type.
    doubled: bool,
    mask: &'a str,
    mask_strips: bool,
}

impl Texts<'_> {
    /// Puts every text between two tokens, and makes the tokens special that stand for no text.
    fn enclose(
        &self,
        built: &mut Built,
        model: &SentencePieceModel,
        special: &[&str],
        path: &Path,
    ) -> Result<()> {
        let core = &mut built.core;
        let kinds = [PieceKind::Control, PieceKind::UserDefined];
        let own = model.pieces.iter();
        let own = own.filter(|piece| kinds.contains(&piece.kind));
        let special: Vec<AddedToken> = special
            .iter()
            .copied()
            .chain(own.map(|piece| piece.text.as_str()))
            .filter(|token| core.token_to_id(token).is_some())
            .map(|token| {
                let strips = token == self.mask && self.mask_strips;
                AddedToken::from(token, true)
                    .normalized(false)
                    .lstrip(strips)
            })
            .collect();
        core.add_special_tokens(special).map_err(engine_error)?;
        let id = |token: &str| {
            let missing = || Error::corrupt(path, format_args!("the token {token:?} is missing"));
            let id = core.token_to_id(token).ok_or_else(missing)?;
            Ok::<_, Error>((token.to_owned(), id))
        };
        let (first, last) = (id(self.first)?, id(self.last)?);
        let processor: PostProcessorWrapper = if self.doubled {
            let between = RobertaProcessing::new(last, first);
            between.trim_offsets(false).add_prefix_space(false).into()
        } else {
            BertProcessing::new(last, first).into()
        };
        core.with_post_processor(Some(processor));
        Ok(())
    }
}
