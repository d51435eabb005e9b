//! What a checkpoint says of generating: `generation_config.json`, or the same keys of `config.json` in
//! older ones.

use serde_json::Value;

use crate::generation::{EarlyStopping, TokenRules};
use crate::{Error, Result};
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;

/// The most words and tokens of a list that are taken from a file.
const MOST_ENTRIES: usize = 1 << 16;

#[derive(Clone, Debug)]
pub struct GenerationDefaults {
    /// The token that precedes every text.
    pub start: u32,
    /// Its greatest length is 0 where nothing is said.
    pub rules: TokenRules,
    pub num_beams: usize,
    pub length_penalty: f32,
    pub early_stopping: EarlyStopping,
    pub repetition_penalty: f32,
}

/// Files, of which the first that says it counts.
struct Settings<'a>(&'a [Option<&'a RawConfig>]);

impl<'a> Settings<'a> {
    /// The first file that has the key.
    fn with(&self, key: &str) -> Option<&'a RawConfig> {
        self.0.iter().flatten().copied().find(|raw| raw.has(key))
    }

    fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        let Some(raw) = self.with(key) else {
            return Ok(Vec::new());
        };
        let ids = raw.opt_integers(key)?.unwrap_or_default();
        check_count(raw, key, ids.len())?;
        Ok(ids
            .into_iter()
            .filter_map(|id| u32::try_from(id).ok())
            .collect())
    }

    fn count(&self, key: &str) -> Result<usize> {
        match self.with(key) {
            Some(raw) => Ok(raw.opt_usize(key)?.unwrap_or(0)),
            None => Ok(0),
        }
    }

    fn number(&self, key: &str) -> Result<f32> {
        match self.with(key) {
            Some(raw) => Ok(raw.opt_f64(key)?.unwrap_or(1.0) as f32),
            None => Ok(1.0),
        }
    }

    fn words(&self, key: &str) -> Result<Vec<Vec<u32>>> {
        let Some(raw) = self.with(key) else {
            return Ok(Vec::new());
        };
        let word = |word: &Value| -> Option<Vec<u32>> {
            let ids = word.as_array()?.iter();
            ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
                .collect()
        };
        let words = raw.get(key).and_then(Value::as_array);
        check_count(raw, key, words.map_or(0, Vec::len))?;
        let words = words.and_then(|words| words.iter().map(word).collect());
        words.ok_or_else(|| {
            Error::corrupt(
                raw.file(),
                format!("\"{key}\" should be a list of lists of tokens"),
            )
        })
    }

    fn early_stopping(&self) -> Result<EarlyStopping> {
        let Some(raw) = self.with("early_stopping") else {
            return Ok(EarlyStopping::default());
        };
        match raw.get("early_stopping") {
            Some(Value::Bool(true)) => Ok(EarlyStopping::Always),
            Some(Value::Bool(false)) => Ok(EarlyStopping::Heuristic),
            Some(Value::String(word)) if word == "never" => Ok(EarlyStopping::Never),
            _ => Err(Error::corrupt(
                raw.file(),
                "\"early_stopping\" should be true, false or \"never\"",
            )),
        }
    }
}

fn check_count(raw: &RawConfig, key: &str, count: usize) -> Result<()> {
    if count <= MOST_ENTRIES {
        Ok(())
    } else {
        Err(Error::corrupt(
            raw.file(),
            format!("\"{key}\" has {count} entries, more than the {MOST_ENTRIES} that are taken"),
        ))
    }
}

impl GenerationDefaults {
    /// `start` counts where no file says what precedes every text; the first file that says something counts.
    pub fn read(files: &[Option<&RawConfig>], start: u32, tokenizer: &Tokenizer) -> Result<Self> {
        let settings = Settings(files);
        let given = settings.tokens("decoder_start_token_id")?;
        let mut end_ids = settings.tokens("eos_token_id")?;
        if end_ids.is_empty() {
            end_ids.extend(tokenizer.special_tokens().end_ids());
        }
        // Lengths of transformers count the token that every text starts with.
        let length = |key: &str| Ok::<_, Error>(settings.count(key)?.saturating_sub(1));
        let max_new_tokens = match settings.count("max_new_tokens")? {
            0 => length("max_length")?,
            count => count,
        };
        Ok(Self {
            start: given.first().copied().unwrap_or(start),
            num_beams: settings.count("num_beams")?.max(1),
            length_penalty: settings.number("length_penalty")?,
            early_stopping: settings.early_stopping()?,
            repetition_penalty: settings.number("repetition_penalty")?,
            rules: TokenRules {
                end_ids,
                min_new_tokens: length("min_length")?.max(settings.count("min_new_tokens")?),
                max_new_tokens,
                no_repeat_ngram_size: settings.count("no_repeat_ngram_size")?,
                bad_words: settings.words("bad_words_ids")?,
                suppressed: settings.tokens("suppress_tokens")?,
                suppressed_at_begin: settings.tokens("begin_suppress_tokens")?,
                forced_begin: settings.tokens("forced_bos_token_id")?.first().copied(),
                forced_end: settings.tokens("forced_eos_token_id")?,
            },
        })
    }
}
