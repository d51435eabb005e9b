//! One sequence on its way: token by token, or by beam search.

use super::run::{Run, RunText};
use super::{
    BeamSearch, BeamSettings, Constraint, EarlyStopping, GenerationConfig, Scores, TokenRules,
};
use crate::{Error, Result};
use formats::text::tokenizer::Tokenizer;

/// More beams than this are a mistake.
const MOST_BEAMS: usize = 256;

/// How sequences are generated.
#[derive(Clone, Debug)]
pub struct SearchSettings {
    pub config: GenerationConfig,
    /// 1: one token after the other, as `config` says.
    pub num_beams: usize,
    pub length_penalty: f32,
    pub early_stopping: EarlyStopping,
    pub rules: TokenRules,
}

pub enum Search {
    Tokens(Box<Run>),
    Beams(Box<BeamSearch>),
}

impl SearchSettings {
    pub fn check(&self, constrained: bool) -> Result<()> {
        if !(1..=MOST_BEAMS).contains(&self.num_beams) {
            return Err(Error::InvalidInput(format!(
                "num_beams must be between 1 and {MOST_BEAMS}, not {}",
                self.num_beams
            )));
        }
        if !self.length_penalty.is_finite() {
            return Err(Error::InvalidInput(
                "length_penalty must be a finite number".into(),
            ));
        }
        if self.num_beams == 1 {
            return Ok(());
        }
        let config = &self.config;
        let alone = [
            (constrained, "a schema, pattern or grammar"),
            (config.temperature > 0.0, "a temperature above 0"),
            (config.logprobs.is_some(), "logprobs"),
            (config.presence_penalty != 0.0, "presence_penalty"),
            (config.frequency_penalty != 0.0, "frequency_penalty"),
        ];
        match alone.iter().find(|(given, _)| *given) {
            Some((_, what)) => Err(Error::InvalidInput(format!(
                "beam search does not support {what}: use num_beams: 1"
            ))),
            None => Ok(()),
        }
    }
}

/// What a step came to.
pub struct Piece {
    pub text: String,
    /// For each row of the sequence the one it continues.
    pub parents: Vec<usize>,
}

impl Search {
    /// `start` are the tokens that every text begins with.
    pub fn new(
        settings: &SearchSettings,
        start: &[u32],
        tokenizer: &Tokenizer,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self> {
        if settings.num_beams > 1 {
            settings.config.validate()?;
            let beams = BeamSettings {
                width: settings.num_beams,
                length_penalty: settings.length_penalty,
                early_stopping: settings.early_stopping,
                repetition_penalty: settings.config.repetition_penalty,
                logit_bias: settings.config.logit_bias.clone(),
            };
            let search = BeamSearch::new(beams, settings.rules.clone(), start);
            return Ok(Self::Beams(Box::new(search)));
        }
        let text = match constraint {
            Some(constraint) => RunText::constrained(constraint),
            None => RunText::free(tokenizer.stream(true)),
        };
        let end_ids = settings.rules.end_ids.clone();
        let run = Run::new(start, settings.config.clone(), text, end_ids)?;
        Ok(Self::Tokens(Box::new(run)))
    }

    pub fn is_over(&self) -> bool {
        match self {
            Self::Tokens(run) => run.finish_reason().is_some(),
            Self::Beams(search) => search.is_over(),
        }
    }

    /// The latest token of each row; `start` where there is none.
    pub fn last_tokens(&self, start: u32, ids: &mut Vec<u32>) {
        match self {
            Self::Tokens(run) => {
                ids.push(run.choices().last().map_or(start, |choice| choice.token));
            }
            Self::Beams(search) => ids.extend(search.last_tokens()),
        }
    }

    /// Chooses the next token of each row by its logits.
    pub fn take(
        &mut self,
        rules: &TokenRules,
        texts: (&[u32], &Tokenizer),
        rows: &[&[f32]],
    ) -> Result<Piece> {
        self.take_by(rules, texts, rows, |_, _| ())
    }

    /// The same where the scores of tokens after a text are `adjusted`. The text is without its start.
    pub fn take_by(
        &mut self,
        rules: &TokenRules,
        (start, tokenizer): (&[u32], &Tokenizer),
        rows: &[&[f32]],
        adjusted: impl Fn(&[u32], &mut [f32]),
    ) -> Result<Piece> {
        match self {
            Self::Tokens(run) => {
                let mut scores = rows.first().copied().unwrap_or_default().to_vec();
                let choices = run.choices().iter().map(|choice| choice.token);
                let text: Vec<u32> = start.iter().copied().chain(choices).collect();
                rules.apply(&text, start.len(), &mut scores);
                adjusted(&text[start.len()..], &mut scores);
                let (_, text) = run.take(&Scores::All(scores), true)?;
                Ok(Piece {
                    text,
                    parents: vec![0],
                })
            }
            Self::Beams(search) => {
                let parents = search.advance_by(rows, adjusted);
                if parents.len() < rows.len() {
                    return Err(Error::Generation(
                        "the model gave no usable logits (all are NaN or forbidden); try dtype: :f32"
                            .to_owned(),
                    ));
                }
                let text = if search.is_over() {
                    tokenizer.decode(search.tokens(), true)?
                } else {
                    String::new()
                };
                Ok(Piece { text, parents })
            }
        }
    }
}
