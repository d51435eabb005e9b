//! What each family makes of the pieces of its model: which ids they have, and which tokens stand beside
//! them.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::*;

/// T5's tokens for gaps in a text, where the configuration does not count them.
const USUAL_GAPS: u64 = 100;
/// Pegasus' tokens before its pieces, likewise.
const USUAL_OFFSET: u64 = 103;
/// More of either are the word of a damaged file.
const MOST_GAPS: u64 = 10_000;

/// A piece that only the other language has costs more than any number of known ones, and the more the
/// longer it is, so that texts are cut into it only where SentencePiece would copy it as unknown.
const FOREIGN: f64 = -1e6;

/// The languages of M2M100 in the order of their tokens, which no file of its checkpoints lists.
const M2M100: &str = "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd \
    gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my \
    ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh \
    yi yo zh zu";
const WMT21: &str = "en ha is ja cs ru zh de";

pub(super) fn named<'a>(config: &'a Value, role: &str, usual: &'a str) -> &'a str {
    content_of(&config[role]).unwrap_or(usual)
}

fn count(config: &Value, key: &str, usual: u64, path: &Path) -> Result<u64> {
    let count = config[key].as_u64().unwrap_or(usual);
    if count <= MOST_GAPS {
        Ok(count)
    } else {
        Err(Error::corrupt(
            path,
            format_args!("{key} is {count} beside it, more than the {MOST_GAPS} that are taken"),
        ))
    }
}

/// T5's, Pegasus', ALBERT's, FNet's and BigBird's `spiece.model`.
pub fn spiece(path: &Path, config: &Value) -> Result<Built> {
    match classes::name(config) {
        "Pegasus" => pegasus(path, config),
        "" | "T5" | "MT5" => t5(path, config),
        "Albert" | "FNet" => encoders::albert(path, config),
        "BigBird" => encoders::big_bird(path, config),
        other => Err(Error::unsupported(
            path,
            format_args!(
                "the checkpoint's tokenizer is a {other}Tokenizer, whose SentencePiece file is not read; T5, MT5, \
                 Pegasus, Albert, FNet and BigBird are known. Save the tokenizer with transformers to get a \
                 tokenizer.json"
            ),
        )),
    }
}

/// XLM-RoBERTa's, CamemBERT's and NLLB's `sentencepiece.bpe.model`.
pub fn multilingual(path: &Path, config: &Value, map: &Value) -> Result<Built> {
    match classes::name(config) {
        "XLMRoberta" => encoders::xlm_roberta(path, config),
        "Camembert" => encoders::camembert(path, config),
        _ => nllb(path, config, map),
    }
}

fn t5(path: &Path, config: &Value) -> Result<Built> {
    let model = SentencePieceModel::read(path)?;
    let unknown = named(config, "unk_token", "<unk>");
    let mut tokens: Vec<Entry> = model.pieces.iter().map(Entry::of).collect();
    let gaps = count(config, "extra_ids", USUAL_GAPS, path)?;
    let gaps: Vec<String> = (0..gaps).rev().map(|i| format!("<extra_id_{i}>")).collect();
    tokens.extend(gaps.iter().map(|gap| Entry::special(gap)));
    let mut built = Vocabulary::new(tokens, unknown, path)?.build(&model, Spaces::Split, path)?;
    let (end, padding) = (
        named(config, "eos_token", "</s>"),
        named(config, "pad_token", "<pad>"),
    );
    let special = [padding, end, unknown].into_iter();
    let special: Vec<&str> = special.chain(gaps.iter().map(String::as_str)).collect();
    finish(&mut built, &special, end)?;
    Ok(built)
}

fn pegasus(path: &Path, config: &Value) -> Result<Built> {
    let model = SentencePieceModel::read(path)?;
    let unknown = named(config, "unk_token", "<unk>");
    let (end, padding) = (
        named(config, "eos_token", "</s>"),
        named(config, "pad_token", "<pad>"),
    );
    let mask = named(config, "mask_token", "<mask_2>");
    let sentence_mask = named(config, "mask_token_sent", "<mask_1>");
    let offset = count(config, "offset", USUAL_OFFSET, path)?;
    let unused: Vec<String> = (2..offset).map(|i| format!("<unk_{i}>")).collect();
    let special = [padding, end, sentence_mask, mask].into_iter();
    let special: Vec<&str> = special.chain(unused.iter().map(String::as_str)).collect();
    let mut tokens: Vec<Entry> = special.iter().map(|token| Entry::special(token)).collect();
    for entry in tokens.iter_mut().skip(4) {
        entry.score = -100.0;
    }
    // The file's own end and padding come first in it.
    tokens.extend(model.pieces.iter().skip(2).map(Entry::of));
    let mut built = Vocabulary::new(tokens, unknown, path)?.build(&model, Spaces::Joined, path)?;
    finish(&mut built, &[&special[..], &[unknown]].concat(), end)?;
    Ok(built)
}

/// Marian's `source.spm` with the ids of `vocab.json`, which both languages share.
pub fn marian(path: &Path, vocab: &Path, config: &Value) -> Result<Built> {
    let model = SentencePieceModel::read(path)?;
    let unknown = named(config, "unk_token", "<unk>");
    let mut vocabulary = numbered(&model, read_ids(vocab)?, &[], unknown, vocab)?;
    for entry in &mut vocabulary.tokens {
        if !entry.cuts {
            let length = entry.text.chars().count() as f64;
            entry.score = FOREIGN * length * length;
        }
    }
    let end = named(config, "eos_token", "</s>");
    let languages: Vec<String> = vocabulary
        .tokens
        .iter()
        .filter(|entry| entry.text.starts_with(">>") && entry.text.ends_with("<<"))
        .map(|entry| entry.text.clone())
        .collect();
    let mut built = vocabulary.build(&model, Spaces::Own, path)?;
    let padding = named(config, "pad_token", "<pad>");
    let mut special = vec![end, unknown, padding];
    special.extend(languages.iter().map(String::as_str));
    finish(&mut built, &special, end)?;
    Ok(built)
}

/// M2M100's `sentencepiece.bpe.model` with the ids of `vocab.json`.
pub fn m2m100(path: &Path, vocab: &Path, config: &Value) -> Result<Built> {
    let model = SentencePieceModel::read(path)?;
    let unknown = named(config, "unk_token", "<unk>");
    let languages = match config["language_codes"].as_str() {
        Some("wmt21") => WMT21,
        _ => M2M100,
    };
    let languages = languages.split_whitespace();
    let languages: Vec<String> = languages.map(|code| format!("__{code}__")).collect();
    let ids = read_ids(vocab)?;
    let vocabulary = numbered(&model, ids, &languages, unknown, vocab)?;
    let mut built = vocabulary.build(&model, Spaces::Own, path)?;
    let end = named(config, "eos_token", "</s>");
    let mut special = vec![named(config, "bos_token", "<s>"), end, unknown];
    special.push(named(config, "pad_token", "<pad>"));
    special.extend(languages.iter().map(String::as_str));
    finish(&mut built, &special, end)?;
    Ok(built)
}

/// NLLB's `sentencepiece.bpe.model`: four tokens of its own, the pieces, then the languages that the
/// configuration lists.
fn nllb(path: &Path, config: &Value, map: &Value) -> Result<Built> {
    let model = SentencePieceModel::read(path)?;
    let unknown = named(config, "unk_token", "<unk>");
    let end = named(config, "eos_token", "</s>");
    let own = [
        named(config, "bos_token", "<s>"),
        named(config, "pad_token", "<pad>"),
        end,
        unknown,
    ];
    let languages = listed(config, map);
    if languages.is_empty() {
        return Err(Error::unsupported(
            path,
            "neither tokenizer_config.json nor special_tokens_map.json lists languages beside it \
             (additional_special_tokens), and their tokens can't be numbered without",
        ));
    }
    let mask = named(config, "mask_token", "<mask>");
    let mut tokens: Vec<Entry> = own.iter().map(|token| Entry::special(token)).collect();
    let pieces = model.pieces.iter().map(Entry::of);
    tokens.extend(pieces.filter(|piece| !own.contains(&piece.text.as_str())));
    let others = languages.iter().copied().chain([mask]);
    let others: Vec<&str> = others.collect();
    tokens.extend(others.iter().map(|token| Entry::special(token)));
    let mut built = Vocabulary::new(tokens, unknown, path)?.build(&model, Spaces::Joined, path)?;
    finish(&mut built, &[&own[..], &others].concat(), end)?;
    Ok(built)
}

/// The pieces of a model by the ids of a `vocab.json`, `more` tokens behind those, and last the pieces
/// that have no id.
fn numbered(
    model: &SentencePieceModel,
    ids: HashMap<String, u32>,
    more: &[String],
    unknown: &str,
    path: &Path,
) -> Result<Vocabulary> {
    let count = ids.len();
    let mut tokens: Vec<Option<Entry>> = Vec::new();
    tokens.resize_with(count, || None);
    for (text, id) in ids {
        let slot = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id));
        let slot = slot.filter(|slot| slot.is_none()).ok_or_else(|| {
            Error::corrupt(
                path,
                format_args!(
                    "the id {id} of {text:?} is not one of its {count}, or not the only one"
                ),
            )
        })?;
        *slot = Some(Entry::special(&text));
    }
    let tokens: Vec<Entry> = tokens.into_iter().flatten().collect();
    let mut vocabulary = Vocabulary::new(tokens, unknown, path)?;
    let more = more.iter().map(|token| Entry::special(token));
    vocabulary.tokens.extend(more);
    vocabulary.known = vocabulary.tokens.len() as u32;
    let places: HashMap<String, usize> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .map(|(at, entry)| (entry.text.clone(), at))
        .collect();
    for piece in model
        .pieces
        .iter()
        .map(Entry::of)
        .filter(|piece| piece.cuts)
    {
        match places.get(&piece.text) {
            Some(&at) => vocabulary.tokens[at] = piece,
            None => vocabulary.tokens.push(piece),
        }
    }
    Ok(vocabulary)
}
