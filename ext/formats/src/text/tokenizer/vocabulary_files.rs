//! Tokenizers from the plain vocabulary files of checkpoints that predate `tokenizer.json`.

use std::path::Path;

use serde_json::{json, Value};
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::load::read_text;
use super::special_tokens::content_of;
use super::{classes, engine_error};
use crate::{Error, Result};

/// `vocab.txt`: one token per line, the line number is its id.
pub(super) fn lines(path: &Path, config: &Value) -> Result<(tokenizers::Tokenizer, usize)> {
    classes::refuse_foreign(config, path)?;
    let text = read_text(path)?;
    let mut vocab = Vocab::default();
    for (id, token) in text.lines().enumerate() {
        let id = u32::try_from(id).map_err(|_| Error::corrupt(path, "it has too many lines"))?;
        vocab.insert(token.trim_end_matches('\r').to_owned(), id);
    }
    let esm = match classes::name(config) {
        "" => vocab.contains_key("<cls>") && !vocab.contains_key("[CLS]"),
        class => class == "Esm",
    };
    let core = if esm {
        whole_tokens(vocab, config, path)?
    } else {
        word_piece(vocab, config, path)?
    };
    Ok((core, text.len().saturating_mul(8)))
}

/// ESM's: every token of the vocabulary is one wherever it stands, the longest first; what lies between them is cut at
/// white space, and unknown.
fn whole_tokens(vocab: Vocab, config: &Value, path: &Path) -> Result<tokenizers::Tokenizer> {
    let vocab: Vocab = vocab
        .into_iter()
        .map(|(token, id)| (token.trim().to_owned(), id))
        .collect();
    let named = |role: &str, usual: &str| content_of(&config[role]).unwrap_or(usual).to_owned();
    let token = |role: &str, usual: &str| -> Result<(String, u32)> {
        let content = named(role, usual);
        let id = vocab.get(&content).copied();
        let id = id.ok_or_else(|| {
            Error::corrupt(path, format_args!("the token {content:?} is missing"))
        })?;
        Ok((content, id))
    };
    let (cls, end) = (token("cls_token", "<cls>")?, token("eos_token", "<eos>")?);
    let (unknown, _) = token("unk_token", "<unk>")?;
    let special = [
        cls.0.clone(),
        end.0.clone(),
        unknown.clone(),
        named("pad_token", "<pad>"),
        named("mask_token", "<mask>"),
    ];
    let mut whole: Vec<(u32, AddedToken)> = vocab
        .iter()
        .filter(|(token, _)| !token.is_empty())
        .map(|(token, &id)| {
            let added = AddedToken::from(token.clone(), special.contains(token));
            (id, added.normalized(false))
        })
        .collect();
    whole.sort_by_key(|(id, _)| *id);
    let template = TemplateProcessing::builder()
        .try_single(vec![cls.0.clone(), "$A".to_owned(), end.0.clone()])
        .and_then(|template| {
            let pair = [cls.0.as_str(), "$A", &end.0, "$B:0", &end.0];
            template.try_pair(pair.map(str::to_owned).to_vec())
        })
        .map_err(|error| Error::Tokenizer(format!("cannot place special tokens: {error}")))?
        .special_tokens(vec![cls, end])
        .build()
        .map_err(|error| Error::Tokenizer(format!("cannot place special tokens: {error}")))?;
    let model = WordLevel::builder()
        .vocab(vocab)
        .unk_token(unknown)
        .build()
        .map_err(engine_error)?;
    let mut core = tokenizers::Tokenizer::new(model);
    core.with_pre_tokenizer(Some(WhitespaceSplit));
    core.with_post_processor(Some(template));
    let whole = whole.into_iter().map(|(_, token)| token);
    let (special, others): (Vec<_>, Vec<_>) = whole.partition(|token| token.special);
    core.add_special_tokens(special).map_err(engine_error)?;
    core.add_tokens(others).map_err(engine_error)?;
    Ok(core)
}

/// BERT's.
fn word_piece(vocab: Vocab, config: &Value, path: &Path) -> Result<tokenizers::Tokenizer> {
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
    Ok(core)
}

/// Classes whose texts stand between `<s>` and `</s>`, with two of the latter between those of a pair.
const LIKE_ROBERTA: [&str; 6] = ["Bart", "LED", "Longformer", "Luke", "Mvp", "Roberta"];

/// GPT-2's and RoBERTa's `vocab.json` with `merges.txt`.
pub(super) fn byte_level_bpe(
    vocab_path: &Path,
    merges_path: &Path,
    config: &Value,
) -> Result<(tokenizers::Tokenizer, usize)> {
    classes::refuse_foreign(config, vocab_path)?;
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
    let class = classes::name(config);
    let bytes = (vocab_text.len() + merges_text.len()).saturating_mul(4);
    if class == "CLIP" || (class.is_empty() && vocab.contains_key(CLIP_START)) {
        let core = clip_bpe(vocab, merges, config, (vocab_path, merges_path))?;
        return Ok((core, bytes));
    }
    let ends = vocab.keys().filter(|token| token.ends_with(WORD_END));
    if ends.count() > vocab.len() / 10 {
        return Err(classes::refuse_word_ends(vocab_path));
    }
    let has = |tokens: [&str; 2]| tokens.iter().all(|token| vocab.contains_key(*token));
    let roberta = LIKE_ROBERTA.contains(&class) || (class.is_empty() && has(["<s>", "<mask>"]));
    let deberta = class == "Deberta" || (class.is_empty() && has(["[CLS]", "[SEP]"]));
    let usual = |content: &str| Some((content.to_owned(), *vocab.get(content)?));
    let names = if deberta {
        ["[CLS]", "[SEP]"]
    } else {
        ["<s>", "</s>"]
    };
    let cls = boundaries("cls_token").or_else(|| usual(names[0]));
    let sep = boundaries("sep_token").or_else(|| usual(names[1]));
    if (roberta || deberta) && (cls.is_none() || sep.is_none()) {
        return Err(Error::corrupt(
            vocab_path,
            "it has no tokens to begin and end a text with (cls_token and sep_token)",
        ));
    }
    let special: &[&str] = if deberta {
        &["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    } else {
        &["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>"]
    };
    let masks = ["<mask>", "[MASK]"];
    let special: Vec<AddedToken> = special
        .iter()
        .filter(|token| vocab.contains_key(**token))
        .map(|token| AddedToken::from(*token, true).lstrip(masks.contains(token)))
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
        // One token between the texts of a pair, as its checkpoints were trained; transformers 5 has two.
        (false, Some(cls), Some(sep)) if deberta => BertProcessing::new(sep, cls).into(),
        _ => ByteLevel::new(add_prefix_space, true, true)
            .trim_offsets(false)
            .into(),
    };
    core.with_post_processor(Some(processor));
    core.add_special_tokens(special).map_err(engine_error)?;
    Ok((core, bytes))
}

/// What other vocabularies mark the last piece of a word with.
const WORD_END: &str = "</w>";
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
