//! The tokens of a schema, and of a text behind it.

use std::collections::HashMap;
use std::ops::Range;

use super::{SchemaQuery, TaskKind};
use crate::{CancelToken, Error, Result};
use formats::text::tokenizer::{Detail, Tokenizer};
use formats::text::words::{words_links_and_signs, Word};

const TASK: &str = "[P]";
const BETWEEN: &str = "[SEP_STRUCT]";
const TEXT: &str = "[SEP_TEXT]";

impl TaskKind {
    /// What stands before each of its fields.
    fn marker(self) -> &'static str {
        match self {
            Self::Structure => "[C]",
            Self::Entities => "[E]",
            Self::Relation => "[R]",
            Self::Labels => "[L]",
        }
    }
}

/// An error where the tokenizer cuts markers into parts.
pub fn check(tokenizer: &Tokenizer, cancel: &CancelToken) -> Result<()> {
    for token in [TASK, BETWEEN, TEXT, "[C]", "[E]", "[R]", "[L]"] {
        if ids(tokenizer, token, cancel)?.len() != 1 {
            return Err(Error::CorruptModel(format!(
                "the tokenizer has no token {token}, which GLiNER2 marks its schemas with"
            )));
        }
    }
    Ok(())
}

fn ids(tokenizer: &Tokenizer, text: &str, cancel: &CancelToken) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(text, false, Detail::Ids, cancel)?;
    Ok(encoding.get_ids().to_vec())
}

/// What stands before each text.
pub struct Prompt {
    pub ids: Vec<u32>,
    /// Of each task its own marker, and those of its fields.
    pub markers: Vec<usize>,
    /// Tokens of the query's prefix, word by word.
    words: Vec<Range<usize>>,
}

impl Prompt {
    pub fn of(query: &SchemaQuery, tokenizer: &Tokenizer, cancel: &CancelToken) -> Result<Self> {
        let (mut all, mut markers) = (Vec::new(), Vec::new());
        let mut push = |text: &str, marks: bool| -> Result<Range<usize>> {
            let start = all.len();
            if marks {
                markers.push(start);
            }
            all.extend(ids(tokenizer, text, cancel)?);
            Ok(start..all.len())
        };
        for (number, task) in query.tasks.iter().enumerate() {
            if number > 0 {
                push(BETWEEN, false)?;
            }
            push("(", false)?;
            push(TASK, true)?;
            push(&task.prompt, false)?;
            push("(", false)?;
            for field in &task.fields {
                push(task.kind.marker(), true)?;
                push(&field.name, false)?;
            }
            push(")", false)?;
            push(")", false)?;
        }
        push(TEXT, false)?;
        let words = query.prefix.iter().map(|word| push(word, false));
        let words = words.collect::<Result<Vec<_>>>()?;
        Ok(Self {
            ids: all,
            markers,
            words,
        })
    }
}

/// A text behind a prompt.
pub struct Read {
    /// It closes with a full stop, if need be with one more than was given.
    text: String,
    own: Vec<Word>,
    pub ids: Vec<u32>,
    /// The tokens of each word, those of the prefix first.
    pub words: Vec<Range<usize>>,
}

impl Read {
    pub fn of(
        text: &str,
        most: usize,
        prompt: &Prompt,
        tokenizer: &Tokenizer,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut text = text.to_owned();
        if !text.ends_with(['.', '!', '?']) {
            text.push('.');
        }
        let mut own = words_links_and_signs(&text);
        own.truncate(most);
        let mut known: HashMap<String, Vec<u32>> = HashMap::new();
        let (mut all, mut words) = (prompt.ids.clone(), prompt.words.clone());
        for word in &own {
            let part = text[word.bytes.clone()].to_lowercase();
            let start = all.len();
            match known.get(&part) {
                Some(ids) => all.extend_from_slice(ids),
                None => {
                    let ids = ids(tokenizer, &part, cancel)?;
                    all.extend_from_slice(&ids);
                    known.insert(part, ids);
                }
            }
            words.push(start..all.len());
        }
        // A word without tokens stands where the next one begins.
        let last = all.len() - 1;
        for word in &mut words {
            word.start = word.start.min(last);
        }
        Ok(Self {
            text,
            own,
            ids: all,
            words,
        })
    }

    /// The text from one of its words to another, and its characters.
    pub fn span(&self, first: usize, last: usize) -> (&str, usize, usize) {
        let (first, last) = (&self.own[first], &self.own[last]);
        (
            &self.text[first.bytes.start..last.bytes.end],
            first.characters.start,
            last.characters.end,
        )
    }
}
