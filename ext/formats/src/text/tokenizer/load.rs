//! Tokenizers from the files of a model directory.

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::runtime::memory;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::AddedToken;

use super::direct::Direct;
use super::segmenter::Segmenter;
use super::sentence_piece::{self, Built, Unknown};
use super::special_tokens::{content_of, ROLES};
use super::{classes, engine_error, guard, vocabulary_files, Shared, SpecialTokens, Tokenizer};
use crate::files::model_files::{ModelFiles, WeightFiles};
use crate::text::chat_template::ChatTemplates;
use crate::{CancelToken, Error, Result};

/// No tokenizer in use comes near; a larger file is not one.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Reading so many tokens leaves megabytes of free memory behind.
const LARGE_VOCABULARY: usize = 20_000;

/// A `model_max_length` above this stands for "unlimited".
const SANE_MAX_LENGTH: u64 = 1 << 30;

/// The files that make a tokenizer; those that do not exist are `None`.
#[derive(Clone, Debug, Default)]
pub struct TokenizerFiles {
    pub source: PathBuf,
    pub tokenizer: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub special_tokens_map: Option<PathBuf>,
    pub vocab_txt: Option<PathBuf>,
    pub vocab_json: Option<PathBuf>,
    pub merges: Option<PathBuf>,
    /// `spiece.model`
    pub sentence_piece: Option<PathBuf>,
    /// `sentencepiece.bpe.model`
    pub sentence_piece_bpe: Option<PathBuf>,
    /// `source.spm`
    pub sentence_piece_source: Option<PathBuf>,
    /// `sentencepiece.model`
    pub sentence_piece_model: Option<PathBuf>,
    /// `config.json`, which names the tokenizer's class where no other file does.
    pub model_config: Option<PathBuf>,
    pub chat_template_jinja: Option<PathBuf>,
    pub chat_template_json: Option<PathBuf>,
    /// `additional_chat_templates/<name>.jinja`
    pub named_chat_templates: Vec<(String, PathBuf)>,
}

impl TokenizerFiles {
    /// Every file name this reads, for those who have to fetch them.
    pub const NAMES: [&'static str; 13] = [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.txt",
        "vocab.json",
        "merges.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
        "source.spm",
        "sentencepiece.model",
        "config.json",
        "chat_template.jinja",
        "chat_template.json",
    ];

    pub fn in_directory(directory: &Path) -> Self {
        let find = |name: &str| Some(directory.join(name)).filter(|path| path.is_file());
        Self {
            source: directory.to_owned(),
            tokenizer: find("tokenizer.json"),
            config: find("tokenizer_config.json"),
            special_tokens_map: find("special_tokens_map.json"),
            vocab_txt: find("vocab.txt"),
            vocab_json: find("vocab.json"),
            merges: find("merges.txt"),
            sentence_piece: find("spiece.model"),
            sentence_piece_bpe: find("sentencepiece.bpe.model"),
            sentence_piece_source: find("source.spm"),
            sentence_piece_model: find("sentencepiece.model"),
            model_config: find("config.json"),
            chat_template_jinja: find("chat_template.jinja"),
            chat_template_json: find("chat_template.json"),
            named_chat_templates: named_templates(directory),
        }
    }

    /// Fetches what there is of a model, the plain vocabularies only where they are needed.
    pub fn of_model(files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        let find = |name: &str| files.file(name, cancel);
        let mut found = Self {
            source: PathBuf::from(files.id()),
            tokenizer: find("tokenizer.json")?,
            config: find("tokenizer_config.json")?,
            special_tokens_map: find("special_tokens_map.json")?,
            chat_template_jinja: find("chat_template.jinja")?,
            chat_template_json: find("chat_template.json")?,
            ..Self::default()
        };
        if found.tokenizer.is_none() {
            found.vocab_txt = find("vocab.txt")?;
            found.vocab_json = find("vocab.json")?;
            found.merges = find("merges.txt")?;
            found.sentence_piece = find("spiece.model")?;
            found.sentence_piece_bpe = find("sentencepiece.bpe.model")?;
            found.sentence_piece_source = find("source.spm")?;
            found.sentence_piece_model = find("sentencepiece.model")?;
            found.model_config = find("config.json")?;
        }
        let directory = found.config.as_deref().and_then(Path::parent);
        if let Some(directory) = directory.filter(|_| files.is_local()) {
            found.named_chat_templates = named_templates(directory);
        }
        Ok(found)
    }

    pub fn has_vocabulary(&self) -> bool {
        self.tokenizer.is_some()
            || self.vocab_txt.is_some()
            || (self.vocab_json.is_some() && self.merges.is_some())
            || self.sentence_piece.is_some()
            || self.sentence_piece_bpe.is_some()
            || self.sentence_piece_source.is_some()
            || self.sentence_piece_model.is_some()
    }
}

/// The GGUF file of a model that has one.
pub(super) fn gguf_file(files: &ModelFiles, cancel: &CancelToken) -> Result<Option<PathBuf>> {
    if files.gguf_files(cancel)?.is_empty() {
        return Ok(None);
    }
    match files.weights(None, cancel)? {
        WeightFiles::Gguf(path) => Ok(Some(path)),
        WeightFiles::Safetensors(_) | WeightFiles::Pickle(_) | WeightFiles::Ggml(_) => Ok(None),
    }
}

fn named_templates(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory.join("additional_chat_templates"));
    let entries = entries.into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jinja")
        })
        .filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path)))
        .collect();
    found.sort();
    found
}

/// What a loader passes on to become a [`Tokenizer`].
pub(super) struct Parts {
    pub core: tokenizers::Tokenizer,
    pub special_tokens: SpecialTokens,
    pub model_max_length: Option<usize>,
    pub chat_templates: Option<ChatTemplates>,
    pub source: PathBuf,
    pub bytes: usize,
    /// Whether the model is given no types of tokens.
    pub one_type: bool,
    /// Which ids stand for the unknown token.
    pub unknown: Option<Unknown>,
    /// What cuts texts in place of the model.
    pub segmenter: Option<Segmenter>,
}

impl Parts {
    pub fn into_tokenizer(mut self) -> Result<Tokenizer> {
        self.core.with_truncation(None).map_err(engine_error)?;
        self.core.with_padding(None);
        let post_processor = self.core.get_post_processor().cloned();
        self.core
            .with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let plain = self.unknown.is_none() && self.segmenter.is_none();
        let direct = plain.then(|| Direct::new(&self.core)).flatten();
        if self.core.get_vocab_size(false) >= LARGE_VOCABULARY {
            memory::trim();
        }
        let mut tokenizer = Tokenizer {
            shared: Arc::new(Shared {
                core: self.core,
                post_processor,
                special_tokens: self.special_tokens,
                model_max_length: self.model_max_length,
                chat_templates: self.chat_templates,
                source: self.source,
                bytes: self.bytes + direct.as_ref().map_or(0, Direct::memory_bytes),
                one_type: self.one_type,
                unknown: self.unknown,
                segmenter: self.segmenter,
                direct,
            }),
            truncation: None,
            padding: None,
            by_pipeline: false,
        };
        tokenizer.read_frames();
        tokenizer.checked()
    }
}

pub(super) fn from_file(path: &Path) -> Result<Tokenizer> {
    let (core, bytes) = read_tokenizer_json(path)?;
    let special_tokens = conventional_special_tokens(&core);
    Parts {
        core,
        special_tokens,
        model_max_length: None,
        chat_templates: None,
        source: path.to_owned(),
        bytes,
        one_type: false,
        unknown: None,
        segmenter: None,
    }
    .into_tokenizer()
}

pub(super) fn from_files(files: &TokenizerFiles) -> Result<Tokenizer> {
    let mut config = read_optional_object(files.config.as_deref())?;
    let map = read_optional_object(files.special_tokens_map.as_deref())?;
    if files.tokenizer.is_none() && config["tokenizer_class"].as_str().is_none() {
        let model = read_optional_object(files.model_config.as_deref())?;
        if let Some(class) = classes::of_model(&model) {
            config["tokenizer_class"] = class.into();
        }
    }
    let Built {
        mut core,
        unknown,
        bytes,
    } = read_core(files, &config, &map)?;
    add_missing_tokens(&mut core, &config, &map)?;
    let special_tokens = declared_special_tokens(&core, &config, &map);
    apply_boundary_flags(&mut core, &config, &special_tokens)?;
    Parts {
        special_tokens,
        model_max_length: config["model_max_length"]
            .as_u64()
            .filter(|&length| length > 0 && length < SANE_MAX_LENGTH)
            .and_then(|length| usize::try_from(length).ok()),
        chat_templates: read_chat_templates(files, &config)?,
        source: files.source.clone(),
        core,
        bytes,
        one_type: gives_no_types(&config),
        unknown,
        segmenter: None,
    }
    .into_tokenizer()
}

/// Types are given to a model if its tokenizer lists them among the inputs. The class of transformers 5 for any
/// `tokenizer.json` lists none by itself; every other one is taken to give what the file says.
fn gives_no_types(config: &Value) -> bool {
    match config["model_input_names"].as_array() {
        Some(names) => !names.iter().any(|name| name == "token_type_ids"),
        None => config["tokenizer_class"] == "TokenizersBackend",
    }
}

fn read_core(files: &TokenizerFiles, config: &Value, map: &Value) -> Result<Built> {
    if files.tokenizer.is_none() {
        if let Some(built) = from_sentence_piece(files, config, map)? {
            return Ok(built);
        }
    }
    let (core, bytes) = if let Some(path) = &files.tokenizer {
        read_tokenizer_json(path)?
    } else if let (Some(vocab), Some(merges)) = (&files.vocab_json, &files.merges) {
        vocabulary_files::byte_level_bpe(vocab, merges, config)?
    } else if let Some(vocab) = &files.vocab_txt {
        vocabulary_files::lines(vocab, config)?
    } else {
        return Err(Error::Tokenizer(format!(
            "{} has no tokenizer: none of tokenizer.json, vocab.json with merges.txt, vocab.txt, spiece.model, \
             sentencepiece.bpe.model, sentencepiece.model, and source.spm with vocab.json is there. Save the tokenizer with transformers \
             (AutoTokenizer.from_pretrained(...).save_pretrained(...)) to get a tokenizer.json",
            files.source.display()
        )));
    };
    Ok(Built {
        core,
        unknown: None,
        bytes,
    })
}

/// By which of SentencePiece's files a model has.
fn from_sentence_piece(
    files: &TokenizerFiles,
    config: &Value,
    map: &Value,
) -> Result<Option<Built>> {
    let vocab = files.vocab_json.as_deref();
    if let (Some(source), Some(vocab)) = (&files.sentence_piece_source, vocab) {
        return sentence_piece::marian(source, vocab, config).map(Some);
    }
    if let Some(path) = &files.sentence_piece_bpe {
        return match vocab {
            Some(vocab) => sentence_piece::m2m100(path, vocab, config).map(Some),
            None => sentence_piece::multilingual(path, config, map).map(Some),
        };
    }
    if let Some(path) = &files.sentence_piece_model {
        return sentence_piece::rembert(path, config).map(Some);
    }
    match &files.sentence_piece {
        Some(path) => sentence_piece::spiece(path, config).map(Some),
        None => Ok(None),
    }
}

/// What of a `tokenizer.json` is looked at before the crate reads it.
#[derive(Deserialize)]
struct Examined {
    #[serde(default)]
    normalizer: Value,
}

fn read_tokenizer_json(path: &Path) -> Result<(tokenizers::Tokenizer, usize)> {
    let text = read_text(path)?;
    // Some readers of the tokenizers crate panic on JSON that breaks off, so that is found first.
    let examined: Examined = serde_json::from_str(&text).map_err(|error| {
        let what = if error.is_data() {
            "a tokenizer"
        } else {
            "JSON"
        };
        Error::corrupt(path, format_args!("it is not {what} ({error})"))
    })?;
    guard::check_normalizer(&examined.normalizer, path)?;
    let parsed = panic::catch_unwind(AssertUnwindSafe(|| text.parse::<tokenizers::Tokenizer>()));
    match parsed {
        Ok(Ok(core)) => Ok((core, text.len().saturating_mul(3))),
        Ok(Err(error)) => Err(Error::unsupported(
            path,
            format_args!("it is not a tokenizer this version can read: {error}"),
        )),
        Err(_) => Err(Error::corrupt(path, "its parts contradict each other")),
    }
}

pub(super) fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_bytes(path)?).map_err(|_| Error::corrupt(path, "it is not UTF-8 text"))
}

pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::ModelNotFound(format!("there is no file {}", path.display()))
        }
        _ => Error::Tokenizer(format!("cannot read {}: {error}", path.display())),
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_dir() {
        return Err(Error::InvalidInput(format!(
            "{} is a directory: use from_pretrained for a model directory",
            path.display()
        )));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(Error::corrupt(path, "it is too large for a tokenizer"));
    }
    std::fs::read(path).map_err(failed)
}

/// A JSON object, empty where the file does not exist.
fn read_optional_object(path: Option<&Path>) -> Result<Value> {
    let Some(path) = path else {
        return Ok(Value::Object(serde_json::Map::new()));
    };
    let value: Value = serde_json::from_str(&read_text(path)?)
        .map_err(|error| Error::corrupt(path, format_args!("it is not JSON ({error})")))?;
    if !value.is_object() {
        return Err(Error::corrupt(path, "it is not a JSON object"));
    }
    Ok(value)
}

/// Tokens that only the configuration knows, in the order of their ids.
fn add_missing_tokens(core: &mut tokenizers::Tokenizer, config: &Value, map: &Value) -> Result<()> {
    let mut declared: Vec<(u64, AddedToken)> = config["added_tokens_decoder"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(id, fields)| Some((id.parse().ok()?, added_token(fields)?)))
        .collect();
    declared.sort_by_key(|(id, _)| *id);
    let known = core.get_added_tokens_decoder();
    let missing: Vec<AddedToken> = declared
        .into_iter()
        .filter(|(id, token)| {
            u32::try_from(*id)
                .ok()
                .and_then(|id| known.get(&id))
                .is_none_or(|known| known.content != token.content)
        })
        .map(|(_, token)| token)
        .collect();
    core.add_tokens(missing).map_err(engine_error)?;
    let special: Vec<AddedToken> = ROLES
        .iter()
        .filter_map(|role| content_of(&config[*role]).or_else(|| content_of(&map[*role])))
        .filter(|content| core.token_to_id(content).is_some())
        .filter(|content| !core.get_added_vocabulary().is_special_token(content))
        .map(|content| AddedToken::from(content, true))
        .collect();
    core.add_special_tokens(special).map_err(engine_error)?;
    Ok(())
}

fn added_token(fields: &Value) -> Option<AddedToken> {
    let flag = |name: &str| fields[name].as_bool().unwrap_or(false);
    let special = flag("special");
    Some(
        AddedToken::from(content_of(fields)?, special)
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(fields["normalized"].as_bool().unwrap_or(!special)),
    )
}

fn declared_special_tokens(
    core: &tokenizers::Tokenizer,
    config: &Value,
    map: &Value,
) -> SpecialTokens {
    let mut tokens = SpecialTokens::default();
    let mut nothing_declared = true;
    for role in ROLES {
        let content = content_of(&config[role]).or_else(|| content_of(&map[role]));
        let Some(content) = content else { continue };
        nothing_declared = false;
        if let Some(id) = core.token_to_id(content) {
            tokens.set(role, content, id);
        }
    }
    if nothing_declared {
        return conventional_special_tokens(core);
    }
    for list in [config, map].map(|file| &file["additional_special_tokens"]) {
        for content in list.as_array().into_iter().flatten().filter_map(content_of) {
            if let Some(id) = core.token_to_id(content) {
                tokens.add_additional(content, id);
            }
        }
    }
    tokens.add_turn_ends(|content| special_id(core, content));
    tokens
}

/// Roles by the names that tokenizers have in common, for a `tokenizer.json` on its own.
fn conventional_special_tokens(core: &tokenizers::Tokenizer) -> SpecialTokens {
    const NAMES: [(&str, &[&str]); 7] = [
        ("bos_token", &["<s>", "<bos>", "<|begin_of_text|>"]),
        (
            "eos_token",
            &[
                "</s>",
                "<eos>",
                "<|end_of_text|>",
                "<|im_end|>",
                "<|endoftext|>",
            ],
        ),
        ("unk_token", &["[UNK]", "<unk>"]),
        ("sep_token", &["[SEP]"]),
        ("pad_token", &["[PAD]", "<pad>"]),
        ("cls_token", &["[CLS]"]),
        ("mask_token", &["[MASK]", "<mask>"]),
    ];
    let mut tokens = SpecialTokens::default();
    for (role, names) in NAMES {
        let found = names
            .iter()
            .find_map(|name| Some((name, core.token_to_id(name)?)));
        if let Some((name, id)) = found {
            tokens.set(role, name, id);
        }
    }
    tokens.add_turn_ends(|content| special_id(core, content));
    tokens
}

fn special_id(core: &tokenizers::Tokenizer, content: &str) -> Option<u32> {
    core.get_added_vocabulary()
        .is_special_token(content)
        .then(|| core.token_to_id(content))
        .flatten()
}

/// The tokenizer classes whose `add_bos_token` and `add_eos_token` overrule `tokenizer.json`.
const FLAGGED_CLASSES: [&str; 4] = ["Llama", "CodeLlama", "Gemma", "Cohere"];

fn apply_boundary_flags(
    core: &mut tokenizers::Tokenizer,
    config: &Value,
    special_tokens: &SpecialTokens,
) -> Result<()> {
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    let class = class.trim_end_matches("Fast").trim_end_matches("Tokenizer");
    let flags = (
        config["add_bos_token"].as_bool(),
        config["add_eos_token"].as_bool(),
    );
    if !FLAGGED_CLASSES.contains(&class) || flags == (None, None) {
        return Ok(());
    }
    let bos = special_tokens
        .get("bos_token")
        .filter(|_| flags.0.unwrap_or(true));
    let eos = special_tokens
        .get("eos_token")
        .filter(|_| flags.1.unwrap_or(false));
    let processor = boundary_template(
        bos.map(|token| (token.content.as_str(), token.id)),
        eos.map(|token| (token.content.as_str(), token.id)),
    )?;
    core.with_post_processor(Some(processor));
    Ok(())
}

/// Puts `bos` before and `eos` after each text.
pub(super) fn boundary_template(
    bos: Option<(&str, u32)>,
    eos: Option<(&str, u32)>,
) -> Result<TemplateProcessing> {
    let around = |sequence: &str, type_id: usize| {
        let mut pieces = Vec::new();
        pieces.extend(bos.map(|(content, _)| format!("{content}:{type_id}")));
        pieces.push(format!("{sequence}:{type_id}"));
        pieces.extend(eos.map(|(content, _)| format!("{content}:{type_id}")));
        pieces
    };
    let failed = |error: String| Error::Tokenizer(format!("cannot place special tokens: {error}"));
    let single = around("$A", 0);
    let pair: Vec<String> = [around("$A", 0), around("$B", 1)].concat();
    let special: Vec<(String, u32)> = bos
        .into_iter()
        .chain(eos)
        .map(|(content, id)| (content.to_owned(), id))
        .collect();
    TemplateProcessing::builder()
        .try_single(single)
        .map_err(failed)?
        .try_pair(pair)
        .map_err(failed)?
        .special_tokens(special)
        .build()
        .map_err(|error| failed(error.to_string()))
}

fn read_chat_templates(files: &TokenizerFiles, config: &Value) -> Result<Option<ChatTemplates>> {
    let mut templates = ChatTemplates::from_config(&config["chat_template"]);
    if let Some(path) = &files.chat_template_json {
        let holder = read_optional_object(Some(path))?;
        templates.merge(ChatTemplates::from_config(&holder["chat_template"]));
    }
    if let Some(path) = &files.chat_template_jinja {
        templates.insert("default", read_text(path)?);
    }
    for (name, path) in &files.named_chat_templates {
        templates.insert(name, read_text(path)?);
    }
    Ok((!templates.is_empty()).then_some(templates))
}
