//! Whisper as OpenAI and whisper.cpp publish it: the file of the weights names sizes, and what files beside it say
//! of other checkpoints follows from them.

use std::path::Path;

use serde_json::{json, Map, Value};

use super::languages::LANGUAGES;
use crate::tasks::loading::{Checkpoint, LoadOptions};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::{read_tiktoken, Tokenizer, TokenizerFiles};
use formats::weights::Metadata;

/// Tokens of the vocabulary that is English only, which is GPT-2's.
const ENGLISH: usize = 50_256;
/// Models that are English only have tokens for so many languages nevertheless.
const ENGLISH_LANGUAGES: usize = 99;
/// The first of a window's times is at most this late, in steps of 20 ms.
const LATEST_FIRST: usize = 50;
/// Between the languages and the times.
const TASKS: [&str; 6] = [
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
];
/// What is written of sounds and speakers, and not spoken.
const SYMBOLS: &str = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- -( -[ (' (\" \
                       (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
/// The same, whatever tokens they begin with.
const NOTES: &str = "♩ ♪ ♫ ♬ ♭ ♮ ♯";

/// Sizes by OpenAI's names.
struct Sizes {
    vocabulary: usize,
    bands: usize,
    states: usize,
    target: usize,
    width: usize,
    encoder: (usize, usize),
    decoder: (usize, usize),
}

impl Sizes {
    fn read(metadata: &Metadata) -> Result<Self> {
        let size = |name: &str| -> Result<usize> {
            Ok(metadata.u32(&format!("whisper.{name}"))? as usize)
        };
        Ok(Self {
            vocabulary: size("n_vocab")?,
            bands: size("n_mels")?,
            states: size("n_audio_ctx")?,
            target: size("n_text_ctx")?,
            width: size("n_audio_state")?,
            encoder: (size("n_audio_layer")?, size("n_audio_head")?),
            decoder: (size("n_text_layer")?, size("n_text_head")?),
        })
    }

    /// How many languages there are tokens for: what is left of the vocabulary beside text, two marks, tasks and a
    /// time for every state and the end.
    fn languages(&self, text: usize, file: &Path) -> Result<usize> {
        let others = text + 2 + TASKS.len() + self.states + 1;
        let left = self.vocabulary.checked_sub(others);
        left.filter(|&count| count <= LANGUAGES.len())
            .ok_or_else(|| {
                Error::corrupt(
                    file,
                    format!(
                        "a vocabulary of {} tokens does not fit {text} tokens of text and {} states",
                        self.vocabulary, self.states
                    ),
                )
            })
    }
}

/// What `config.json` and `tokenizer.json` say of other checkpoints; `None` where the weights do not name sizes.
pub fn read(
    checkpoint: &Checkpoint,
    files: &ModelFiles,
    options: &LoadOptions,
    cancel: &CancelToken,
) -> Result<Option<(RawConfig, Tokenizer)>> {
    let metadata = checkpoint.source.metadata();
    if checkpoint.config.is_some() || metadata.opt_u32("whisper.n_vocab")?.is_none() {
        return Ok(None);
    }
    let sizes = Sizes::read(metadata)?;
    let tokenizer = tokenizer(&sizes, metadata, files, options, cancel)?;
    let text = tokenizer.token_to_id("<|endoftext|>").ok_or_else(|| {
        Error::corrupt(
            tokenizer.source(),
            "it has no token <|endoftext|>: it is not Whisper's",
        )
    })?;
    let config = config(&sizes, text as usize, &tokenizer, metadata.file())?;
    Ok(Some((config, tokenizer)))
}

/// A checkpoint with its `config.json`. GGUF files with transformers' names say nothing of speech: their tokenizer
/// lies beside them too.
pub fn with_files_beside(
    checkpoint: Checkpoint,
    files: &ModelFiles,
    options: &LoadOptions,
    cancel: &CancelToken,
) -> Result<(Checkpoint, Option<Tokenizer>)> {
    let checkpoint = checkpoint.checked(files, cancel)?;
    if !checkpoint.is_gguf() {
        return Ok((checkpoint, None));
    }
    let Some(config) = files.file("config.json", cancel)? else {
        return Ok((checkpoint, None));
    };
    let tokenizer = match &options.tokenizer {
        Some(tokenizer) => tokenizer.clone(),
        None => Tokenizer::from_files(&TokenizerFiles::of_model(files, cancel)?)?,
    };
    Ok((
        checkpoint.with_config(RawConfig::read(&config)?),
        Some(tokenizer),
    ))
}

/// The one that is given, the one of the file, or the one beside it.
fn tokenizer(
    sizes: &Sizes,
    metadata: &Metadata,
    files: &ModelFiles,
    options: &LoadOptions,
    cancel: &CancelToken,
) -> Result<Tokenizer> {
    if let Some(tokenizer) = &options.tokenizer {
        return Ok(tokenizer.clone());
    }
    if let Some(tokens) = metadata.opt_byte_strings("whisper.tokens")? {
        return of_tokens(sizes, &tokens, metadata.file());
    }
    let beside = TokenizerFiles::of_model(files, cancel)?;
    if beside.has_vocabulary() {
        return Tokenizer::from_files(&beside);
    }
    let english = ENGLISH + 2 + ENGLISH_LANGUAGES + TASKS.len() + sizes.states + 1;
    let name = if sizes.vocabulary == english {
        "gpt2.tiktoken"
    } else {
        "multilingual.tiktoken"
    };
    let path = files.file(name, cancel)?.ok_or_else(|| {
        Error::Tokenizer(format!(
            "{} holds no vocabulary: put {name} of the Python package openai-whisper beside it, or give tokenizer:",
            metadata.file().display()
        ))
    })?;
    let tokens = read_tiktoken(&path)?;
    let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    of_tokens(sizes, &tokens, &path)
}

fn of_tokens(sizes: &Sizes, tokens: &[&[u8]], file: &Path) -> Result<Tokenizer> {
    let count = sizes.languages(tokens.len(), file)?;
    let mut special = vec![
        "<|endoftext|>".to_owned(),
        "<|startoftranscript|>".to_owned(),
    ];
    let languages = LANGUAGES[..count].iter();
    special.extend(languages.map(|(code, _)| format!("<|{code}|>")));
    special.extend(TASKS.map(str::to_owned));
    let times: Vec<String> = (0..=sizes.states)
        .map(|step| format!("<|{:.2}|>", step as f64 * super::sequential::STEP))
        .collect();
    Tokenizer::from_ranks(tokens, &special, &times, file)
}

fn config(sizes: &Sizes, text: usize, tokenizer: &Tokenizer, file: &Path) -> Result<RawConfig> {
    let count = sizes.languages(text, file)?;
    let (start, first) = (text + 1, text + 2);
    let task =
        |name: &str| TASKS.iter().position(|task| *task == name).unwrap_or(0) + first + count;
    let languages: Map<String, Value> = LANGUAGES[..count]
        .iter()
        .enumerate()
        .map(|(at, (code, _))| (format!("<|{code}|>"), json!(first + at)))
        .collect();
    let mut suppressed = unspoken(tokenizer)?;
    suppressed.push(start as u32);
    let hidden = [
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
    ];
    suppressed.extend(hidden.map(|name| task(name) as u32));
    let mut at_begin = tokenizer.ids(" ", false)?;
    at_begin.push(text as u32);
    let mut config = json!({
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": sizes.vocabulary,
        "num_mel_bins": sizes.bands,
        "d_model": sizes.width,
        "encoder_layers": sizes.encoder.0,
        "encoder_attention_heads": sizes.encoder.1,
        "decoder_layers": sizes.decoder.0,
        "decoder_attention_heads": sizes.decoder.1,
        "max_source_positions": sizes.states,
        "max_target_positions": sizes.target,
        "decoder_start_token_id": start,
        "eos_token_id": text,
        "no_timestamps_token_id": task("<|notimestamps|>"),
        "prev_sot_token_id": task("<|startofprev|>"),
        "is_multilingual": text != ENGLISH && count > 0,
        "lang_to_id": languages,
        "task_to_id": {"translate": task("<|translate|>"), "transcribe": task("<|transcribe|>")},
        "suppress_tokens": suppressed,
        "begin_suppress_tokens": at_begin,
        "max_new_tokens": sizes.target / 2,
        "max_initial_timestamp_index": LATEST_FIRST,
    });
    if let Some(heads) = alignment_heads(sizes, text == ENGLISH) {
        config["alignment_heads"] = json!(heads);
    }
    RawConfig::parse(file, &config.to_string())
}

/// The tokens of sounds and speakers.
fn unspoken(tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let mut found: Vec<u32> = Vec::new();
    for (text, whatever) in [(SYMBOLS, false), (NOTES, true)] {
        for symbol in text.split(' ') {
            for form in [symbol.to_owned(), format!(" {symbol}")] {
                let ids = tokenizer.ids(&form, false)?;
                if whatever || ids.len() == 1 {
                    found.extend(ids.first());
                }
            }
        }
    }
    // Between words, but not before them.
    for mark in [" -", " '"] {
        found.extend(tokenizer.ids(mark, false)?.first());
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

type Heads = &'static [(u8, u8)];

/// (layer, head) of the cross-attention that follows the audio, for the shapes that OpenAI has published.
fn alignment_heads(sizes: &Sizes, english: bool) -> Option<Heads> {
    Some(match (sizes.decoder, english, sizes.bands) {
        ((4, 6), true, _) => &[
            (1, 0),
            (2, 0),
            (2, 5),
            (3, 0),
            (3, 1),
            (3, 2),
            (3, 3),
            (3, 4),
        ],
        ((4, 6), false, _) => &[(2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)],
        ((6, 8), true, _) => &[(3, 3), (4, 7), (5, 1), (5, 5), (5, 7)],
        ((6, 8), false, _) => &[
            (3, 1),
            (4, 2),
            (4, 3),
            (4, 7),
            (5, 1),
            (5, 2),
            (5, 4),
            (5, 6),
        ],
        ((12, 12), true, _) => SMALL_ENGLISH,
        ((12, 12), false, _) => SMALL,
        ((24, 16), true, _) => MEDIUM_ENGLISH,
        ((24, 16), false, _) => &[(13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)],
        ((32, 20), _, 80) => LARGE_2,
        ((32, 20), _, _) => LARGE_3,
        ((4, 20), _, _) => &[(2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)],
        _ => return None,
    })
}

#[rustfmt::skip]
const SMALL_ENGLISH: Heads = &[
    (6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8), (9, 10), (10, 0), (10, 1),
    (10, 2), (10, 3), (10, 6), (10, 11), (11, 2), (11, 4),
];

#[rustfmt::skip]
const SMALL: Heads = &[
    (5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5),
];

#[rustfmt::skip]
const MEDIUM_ENGLISH: Heads = &[
    (11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12), (17, 14), (18, 7),
    (18, 10), (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12),
];

#[rustfmt::skip]
const LARGE_2: Heads = &[
    (10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11), (18, 19), (19, 11), (21, 2), (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7), (23, 13), (25, 5), (26, 1), (26, 12),
    (27, 15),
];

#[rustfmt::skip]
const LARGE_3: Heads = &[
    (7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6),
];
