//! Whisper's special tokens, as `generation_config.json` or else the tokenizer names them.

use std::collections::BTreeMap;

use super::languages;
use super::settings::Task;
use crate::{Error, Result};
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;
use serde_json::Value;

/// What transformers generates where a checkpoint says nothing.
const USUAL_LENGTH: usize = 20;
/// As many as a call may ask for.
const MOST_BEAMS: usize = 64;
/// Tokens of the vocabularies that Whisper's own checkpoints have.
const ENGLISH: usize = 51_864;
const MULTILINGUAL: usize = 51_865;

#[derive(Clone, Debug)]
pub struct WhisperTokens {
    pub start: u32,
    pub end: u32,
    /// By code.
    languages: BTreeMap<String, u32>,
    /// What follows the start in models without languages, where an old file says so.
    forced: Vec<u32>,
    transcribe: Option<u32>,
    translate: Option<u32>,
    pub no_timestamps: Option<u32>,
    /// Whether a prompt says that no times are wanted.
    says_no_timestamps: bool,
    /// Whether short audio gets tokens for times too.
    pub always_timestamps: bool,
    /// The token of 0 s; those after it stand for steps of 20 ms.
    pub first_timestamp: u32,
    /// The first token that does not stand for text.
    pub first_beyond_text: u32,
    /// Precedes the text before a window.
    pub previous: Option<u32>,
    pub no_speech: Option<u32>,
    pub suppressed: Vec<u32>,
    pub suppressed_at_begin: Vec<u32>,
    pub max_length: usize,
    pub max_new_tokens: Option<usize>,
    /// Texts that are followed at once where the call does not say.
    pub num_beams: Option<usize>,
    /// In steps of 20 ms.
    pub latest_first_timestamp: Option<u32>,
    /// (layer, head) of the cross-attention that follows the audio.
    pub alignment_heads: Vec<(usize, usize)>,
}

impl WhisperTokens {
    pub fn read(
        generation: Option<&RawConfig>,
        config: &RawConfig,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        // What a file of its own leaves out is left out.
        let source = generation.unwrap_or(config);
        let tokens = |key: &str| -> Result<Vec<u32>> {
            let ids = match source.get(key) {
                None | Some(Value::Null) => Vec::new(),
                Some(_) => source.opt_integers(key)?.unwrap_or_default(),
            };
            Ok(ids
                .into_iter()
                .filter_map(|id| u32::try_from(id).ok())
                .collect())
        };
        let first = |key: &str| -> Result<Option<u32>> { Ok(tokens(key)?.first().copied()) };
        let named = |token: &str| tokenizer.token_to_id(token);
        let ids = |key: &str| named_ids(source.get(key));
        let said = first("no_timestamps_token_id")?;
        let no_timestamps = said.or_else(|| named("<|notimestamps|>"));
        let forced = forced(source)
            .or_else(|| forced(config))
            .unwrap_or_default();
        let tasks = ids("task_to_id");
        let task = |name: &str| {
            let token = tasks.get(name).copied();
            token.or_else(|| named(&format!("<|{name}|>")))
        };
        let mut languages: BTreeMap<String, u32> = ids("lang_to_id")
            .into_iter()
            .map(|(token, id)| (languages::code(&token), id))
            .collect();
        // As transformers: a checkpoint whose file names no languages gets none.
        let vocabulary = config.opt_usize("vocab_size")?.unwrap_or(0);
        let named_by_tokens =
            generation.is_none() || vocabulary >= MULTILINGUAL || forced.len() > 1;
        if languages.is_empty() && named_by_tokens {
            languages.extend(languages::LANGUAGES.iter().filter_map(|(code, _)| {
                Some(((*code).to_owned(), named(&format!("<|{code}|>"))?))
            }));
        }
        if source.opt_bool("is_multilingual")? == Some(false) {
            languages.clear();
        }
        let start = first("decoder_start_token_id")?
            .or(config_token(config, "decoder_start_token_id")?)
            .or_else(|| named("<|startoftranscript|>"));
        let end = first("eos_token_id")?
            .or(config_token(config, "eos_token_id")?)
            .or_else(|| named("<|endoftext|>"));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(Error::corrupt(
                config.file(),
                "it names no decoder_start_token_id or no eos_token_id",
            ));
        };
        Ok(Self {
            start,
            end,
            transcribe: task("transcribe").filter(|_| !languages.is_empty()),
            translate: task("translate").filter(|_| !languages.is_empty()),
            languages,
            // As transformers: without its number in the file, no token stands for a time. Old checkpoints of
            // the usual sizes mean the usual tokens.
            first_timestamp: said
                .or(no_timestamps.filter(|_| generation.is_none() || vocabulary >= ENGLISH))
                .map_or(u32::MAX, |token| token.saturating_add(1)),
            first_beyond_text: no_timestamps.map_or(u32::MAX, |token| token.saturating_add(1)),
            previous: first("prev_sot_token_id")?.or_else(|| named("<|startofprev|>")),
            no_speech: named("<|nospeech|>")
                .or_else(|| named("<|nocaptions|>"))
                .or_else(|| no_timestamps.and_then(|token| token.checked_sub(1))),
            no_timestamps,
            says_no_timestamps: said.is_some()
                || generation.is_none()
                || no_timestamps.is_some_and(|token| forced.contains(&token)),
            forced,
            always_timestamps: source.opt_bool("return_timestamps")? == Some(true),
            suppressed: tokens("suppress_tokens")?,
            suppressed_at_begin: tokens("begin_suppress_tokens")?,
            max_length: source.opt_usize("max_length")?.unwrap_or(USUAL_LENGTH),
            max_new_tokens: source.opt_usize("max_new_tokens")?,
            num_beams: source.opt_usize_in("num_beams", 1..=MOST_BEAMS)?,
            latest_first_timestamp: first("max_initial_timestamp_index")?,
            alignment_heads: heads(source.get("alignment_heads")),
        })
    }

    pub fn is_multilingual(&self) -> bool {
        !self.languages.is_empty()
    }

    pub fn codes(&self) -> Vec<String> {
        self.languages.keys().cloned().collect()
    }

    /// Every language with its token.
    pub fn languages(&self) -> impl Iterator<Item = (&str, u32)> {
        self.languages.iter().map(|(code, &id)| (code.as_str(), id))
    }

    /// The code of a language that is asked for; English is all that English models have.
    pub fn language(&self, asked: &str) -> Result<String> {
        let code = languages::code(asked);
        let known = self.languages.contains_key(&code) || (!self.is_multilingual() && code == "en");
        if known {
            return Ok(code);
        }
        Err(Error::InvalidInput(if self.is_multilingual() {
            let codes: Vec<&str> = self.languages.keys().take(12).map(String::as_str).collect();
            format!(
                "this model knows no language {asked:?}; it has {} of them, such as {}",
                self.languages.len(),
                codes.join(", ")
            )
        } else {
            format!("this model knows English only, not {asked:?}")
        }))
    }

    /// What precedes every window.
    pub fn prompt(&self, language: Option<&str>, task: Task, timestamps: bool) -> Result<Vec<u32>> {
        let mut prompt = vec![self.start];
        prompt.extend(language.and_then(|code| self.languages.get(code)));
        let token = match task {
            Task::Transcribe => self.transcribe,
            Task::Translate => self.translate,
        };
        if task == Task::Translate && token.is_none() {
            return Err(Error::InvalidInput(
                "this model does not translate: it has no token for that task".to_owned(),
            ));
        }
        prompt.extend(token);
        if !self.is_multilingual() {
            prompt.extend(&self.forced);
        }
        // Said at the end of what is forced, or not at all.
        if self.no_timestamps.is_some() && prompt.last().copied() == self.no_timestamps {
            prompt.pop();
        }
        if !timestamps && self.says_no_timestamps {
            prompt.extend(self.no_timestamps);
        }
        Ok(prompt)
    }

    /// Whether there are tokens for times.
    pub fn has_timestamps(&self, vocabulary: usize) -> bool {
        (self.first_timestamp as usize) < vocabulary
    }
}

/// The tokens that older checkpoints begin with.
fn forced(source: &RawConfig) -> Option<Vec<u32>> {
    let Value::Array(pairs) = source.get("forced_decoder_ids")? else {
        return None;
    };
    let token = |pair: &Value| u32::try_from(pair.get(1)?.as_u64()?).ok();
    Some(pairs.iter().filter_map(token).collect())
}

fn config_token(config: &RawConfig, key: &str) -> Result<Option<u32>> {
    let ids = config.opt_integers(key)?.unwrap_or_default();
    Ok(ids.first().and_then(|&id| u32::try_from(id).ok()))
}

fn named_ids(value: Option<&Value>) -> BTreeMap<String, u32> {
    let Some(Value::Object(entries)) = value else {
        return BTreeMap::new();
    };
    entries
        .iter()
        .filter_map(|(name, id)| Some((name.clone(), u32::try_from(id.as_u64()?).ok()?)))
        .collect()
}

fn heads(value: Option<&Value>) -> Vec<(usize, usize)> {
    let Some(Value::Array(pairs)) = value else {
        return Vec::new();
    };
    let number = |pair: &Value, at: usize| usize::try_from(pair.get(at)?.as_u64()?).ok();
    pairs
        .iter()
        .filter_map(|pair| Some((number(pair, 0)?, number(pair, 1)?)))
        .collect()
}
