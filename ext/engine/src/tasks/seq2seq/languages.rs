//! Languages as tokens (M2M100, NLLB): one stands beside the text that is read, another begins the one
//! that is written.

use std::collections::BTreeMap;

use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;

/// So many are named in an error.
const SHOWN: usize = 12;

#[derive(Debug, Default)]
pub struct Languages {
    /// Tokens by the codes that users know.
    tokens: BTreeMap<String, u32>,
    /// The language of a text where none is said.
    usual: Option<u32>,
    end: Option<u32>,
    /// Older tokenizers of NLLB put the language behind the text.
    behind: bool,
}

impl Languages {
    /// Those of a family that has some.
    pub fn of(
        family: &str,
        files: &ModelFiles,
        tokenizer: &Tokenizer,
        cancel: &CancelToken,
    ) -> Result<Self> {
        if family != "m2m_100" {
            return Ok(Self::default());
        }
        let tokens: BTreeMap<String, u32> = tokenizer
            .vocab(true)
            .into_iter()
            .filter(|(token, _)| tokenizer.is_special(token))
            .filter_map(|(token, id)| Some((code_of(&token)?, id)))
            .collect();
        let config = files.file("tokenizer_config.json", cancel)?;
        let config = config.map(|path| RawConfig::read(&path)).transpose()?;
        let (usual, behind) = match &config {
            Some(config) => (
                config.opt_string("src_lang")?.map(str::to_owned),
                config.opt_bool("legacy_behaviour")?.unwrap_or(false),
            ),
            None => (None, false),
        };
        let codes = usual.as_deref().into_iter().chain(["eng_Latn", "en"]);
        let usual = { codes }.find_map(|code| tokens.get(code).copied());
        Ok(Self {
            usual,
            end: tokenizer.special_tokens().id("eos_token"),
            tokens,
            behind,
        })
    }

    pub fn codes(&self) -> Vec<String> {
        self.tokens.keys().cloned().collect()
    }

    pub fn token(&self, code: &str) -> Result<u32> {
        if let Some(&token) = self.tokens.get(code) {
            return Ok(token);
        }
        if self.tokens.is_empty() {
            return Err(Error::InvalidInput(format!(
                "this model has no tokens for languages, and so none for {code:?}"
            )));
        }
        let shown: Vec<&str> = self.tokens.keys().take(SHOWN).map(String::as_str).collect();
        Err(Error::InvalidInput(format!(
            "unknown language {code:?}; this model has {}, such as {}",
            self.tokens.len(),
            shown.join(", ")
        )))
    }

    /// What stands before and after a text in the language of that code; `None` where the tokenizer
    /// knows that by itself.
    pub fn around(&self, code: Option<&str>) -> Result<Option<(Vec<u32>, Vec<u32>)>> {
        let language = match code {
            Some(code) => Some(self.token(code)?),
            None => self.usual,
        };
        let Some(language) = language else {
            return Ok(None);
        };
        let end = self.end.into_iter();
        Ok(Some(if self.behind {
            (Vec::new(), end.chain([language]).collect())
        } else {
            (vec![language], end.collect())
        }))
    }
}

/// `eng_Latn` is a code itself, `__en__` stands for `en`.
fn code_of(token: &str) -> Option<String> {
    if let Some(code) = token.strip_prefix("__").and_then(|t| t.strip_suffix("__")) {
        return (!code.is_empty()).then(|| code.to_owned());
    }
    let (language, script) = token.split_once('_')?;
    let is_code = (2..=3).contains(&language.len())
        && language.bytes().all(|byte| byte.is_ascii_lowercase())
        && script.len() == 4
        && script.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_code.then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_from_other_tokens() {
        assert_eq!(code_of("eng_Latn").as_deref(), Some("eng_Latn"));
        assert_eq!(code_of("__zh__").as_deref(), Some("zh"));
        for token in ["</s>", "<mask>", "____", "extra_id_0", "en_XX_"] {
            assert_eq!(code_of(token), None, "{token}");
        }
    }
}
