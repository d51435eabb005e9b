//! Tokenizers from the plain vocabulary files of checkpoints that predate `tokenizer.json`.

use std::path::Path;

use serde_json::{json, Value};
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::engine_error;
use super::load::read_text;
use super::special_tokens::content_of;
use crate::{Error, Result};

/// BERT's `vocab.txt`: one token per line, the line number is its id.
pub(super) fn word_piece(path: &Path, config: &Value) -> Result<(tokenizers::Tokenizer, usize)> {
    let text = read_text(path)?;
    let mut vocab = Vocab::default();
    for (id, token) in text.lines().enumerate() {
        let id = u32::try_from(id).map_err(|_| Error::corrupt(path, "it has too many lines"))?;
        vocab.insert(token.trim_end_matches('\r').to_owned(), id);
    }
    let named = |role: &str, usual: &str| content_of(&config[role]).unwrap_or(usual).to_owned();
    let unknown = named("unk_token", "[UNK]");
    let id_of = |token: &str| {
        vocab
            .get(token)
            .copied()
            .ok_or_else(|| Error::corrupt(path, format_args!("the token {token:?} is missing")))
    };
    let (cls, sep) = (named("cls_token", "[CLS]"), named("sep_token", "[SEP]"));
    let (cls_id, sep_id) = (id_of(&cls)?, id_of(&sep)?);
    id_of(&unknown)?;
    let special: Vec<AddedToken> = [
        unknown.clone(),
        named("pad_token", "[PAD]"),
        cls.clone(),
        sep.clone(),
        named("mask_token", "[MASK]"),
    ]
    .into_iter()
    .filter(|token| vocab.contains_key(token))
    .map(|token| AddedToken::from(token, true))
    .collect();
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(unknown)
        .build()
        .map_err(engine_error)?;
    let mut core = tokenizers::Tokenizer::new(model);
    let flag = |name: &str, usual: bool| config[name].as_bool().unwrap_or(usual);
    core.with_normalizer(Some(BertNormalizer::new(
        true,
        flag("tokenize_chinese_chars", true),
        config["strip_accents"].as_bool(),
        flag("do_lower_case", true),
    )))
    .map_err(engine_error)?;
    core.with_pre_tokenizer(Some(BertPreTokenizer));
    core.with_post_processor(Some(BertProcessing::new((sep, sep_id), (cls, cls_id))));
    core.with_decoder(Some(WordPieceDecoder::default()));
    core.add_special_tokens(special).map_err(engine_error)?;
    Ok((core, text.len().saturating_mul(8)))
}

/// GPT-2's and RoBERTa's `vocab.json` with `merges.txt`.
pub(super) fn byte_level_bpe(
    vocab_path: &Path,
    merges_path: &Path,
    config: &Value,
) -> Result<(tokenizers::Tokenizer, usize)> {
    let vocab_text = read_text(vocab_path)?;
    let vocab: Vocab = serde_json::from_str::<std::collections::HashMap<String, u32>>(&vocab_text)
        .map_err(|error| {
            Error::corrupt(
                vocab_path,
                format_args!("it doesn't hold a vocabulary ({error})"),
            )
        })?
        .into_iter()
        .collect();
    let merges_text = read_text(merges_path)?;
    let merges = merges(&merges_text, merges_path)?;
    let boundaries = |role: &str| {
        let content = content_of(&config[role])?;
        Some((content.to_owned(), *vocab.get(content)?))
    };
    let add_prefix_space = config["add_prefix_space"].as_bool().unwrap_or(false);
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    let bytes = (vocab_text.len() + merges_text.len()).saturating_mul(4);
    if class.starts_with("CLIP") || (class.is_empty() && vocab.contains_key(CLIP_START)) {
        let core = clip_bpe(vocab, merges, config, (vocab_path, merges_path))?;
        return Ok((core, bytes));
    }
    let roberta = class.starts_with("Roberta")
        || (class.is_empty() && vocab.contains_key("<s>") && vocab.contains_key("<mask>"));
    let usual = |content: &str| Some((content.to_owned(), *vocab.get(content)?));
    let cls = boundaries("cls_token").or_else(|| usual("<s>"));
    let sep = boundaries("sep_token").or_else(|| usual("</s>"));
    let special: Vec<AddedToken> = ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>"]
        .iter()
        .filter(|token| vocab.contains_key(**token))
        .map(|token| AddedToken::from(*token, true).lstrip(*token == "<mask>"))
        .collect();
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .build()
        .map_err(|error| Error::corrupt(merges_path, error))?;
    let mut core = tokenizers::Tokenizer::new(model);
    core.with_pre_tokenizer(Some(ByteLevel::new(add_prefix_space, true, true)));
    core.with_decoder(Some(ByteLevel::default()));
    let processor: PostProcessorWrapper = match (roberta, cls, sep) {
        (true, Some(cls), Some(sep)) => RobertaProcessing::new(sep, cls)
            .add_prefix_space(add_prefix_space)
            .into(),
        _ => ByteLevel::new(add_prefix_space, true, true)
            .trim_offsets(false)
            .into(),
    };
    core.with_post_processor(Some(processor));
    core.add_special_tokens(special).map_err(engine_error)?;
    Ok((core, bytes))
}

const CLIP_START: &str = "<|startoftext|>";
const CLIP_END: &str = "<|endoftext|>";

/// CLIP's: words in small letters, the last piece of each of which is marked.
fn clip_bpe(
    vocab: Vocab,
    merges: Vec<(String, String)>,
    config: &Value,
    (vocab_path, merges_path): (&Path, &Path),
) -> Result<tokenizers::Tokenizer> {
    let token = |role: &str, usual: &str| -> Result<(String, u32)> {
        let content = content_of(&config[role]).unwrap_or(usual);
        let id = vocab.get(content).copied();
        let id = id.ok_or_else(|| {
            Error::corrupt(vocab_path, format_args!("the token {content:?} is missing"))
        })?;
        Ok((content.to_owned(), id))
    };
    let start = token("bos_token", CLIP_START)?;
    let end = token("eos_token", CLIP_END)?;
    let (unknown, _) = token("unk_token", CLIP_END)?;
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .unk_token(unknown)
        .end_of_word_suffix("</w>".to_owned())
        .build()
        .map_err(|error| Error::corrupt(merges_path, error))?;
    let mut core = tokenizers::Tokenizer::new(model);
    let part = |error: serde_json::Error| Error::Internal(error.to_string());
    let normalizer: NormalizerWrapper = serde_json::from_value(json!({
        "type": "Sequence",
        "normalizers": [
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Lowercase"},
        ],
    }))
    .map_err(part)?;
    let words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
    let pre_tokenizer: PreTokenizerWrapper = serde_json::from_value(json!({
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Removed", "invert": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ],
    }))
    .map_err(part)?;
    core.with_normalizer(Some(normalizer))
        .map_err(engine_error)?;
    core.with_pre_tokenizer(Some(pre_tokenizer));
    core.with_decoder(Some(ByteLevel::default()));
    let special = [&start, &end].map(|(content, _)| AddedToken::from(content.clone(), true));
    let processor = RobertaProcessing::new(end, start)
        .trim_offsets(false)
        .add_prefix_space(false);
    core.with_post_processor(Some(processor));
    core.add_special_tokens(special).map_err(engine_error)?;
    Ok(core)
}

/// One pair of tokens per line, best first, after an optional version line.
fn merges(text: &str, path: &Path) -> Result<Vec<(String, String)>> {
    text.lines()
        .enumerate()
        .filter(|(index, line)| {
            !(line.trim().is_empty() || *index == 0 && line.starts_with("#version"))
        })
        .map(|(index, line)| {
            let (left, right) = line.trim_end().split_once(' ').ok_or_else(|| {
                Error::corrupt(
                    path,
                    format_args!("line {} is not a pair of tokens", index + 1),
                )
            })?;
            Ok((left.to_owned(), right.to_owned()))
        })
        .collect()
}
