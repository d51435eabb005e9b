//! Labels for texts and for pairs of texts.

use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Input, Tokenizer};

use super::loading::{numbered_labels, Checkpoint, LoadOptions, ModelInfo};
use super::sequence_logits::SequenceModel;
use crate::serving::batching::Excess;

pub struct ClassifyModel {
    model: SequenceModel,
    labels: Vec<String>,
    independent: bool,
}

/// `count` rows of one logit per label.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    pub values: Vec<f32>,
    pub count: usize,
    pub labels: usize,
    /// Whether each label is a yes or no of its own.
    pub independent: bool,
}

impl Logits {
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.labels.max(1))
    }

    /// Softmax over the labels of a row, or a sigmoid of each where they are independent.
    pub fn probabilities(&self) -> Vec<Vec<f32>> {
        let row = |row: &[f32]| {
            if self.independent {
                row.iter().map(|&logit| sigmoid(logit)).collect()
            } else {
                softmax(row)
            }
        };
        self.rows().map(row).collect()
    }
}

impl ClassifyModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let model = SequenceModel::load(&checkpoint, files, options, cancel)?;
        let labels = labels(&checkpoint, model.head.outputs())?;
        let problem = match &checkpoint.config {
            Some(config) => config.opt_string("problem_type")?,
            None => None,
        };
        Ok(Self {
            independent: problem == Some("multi_label_classification") || labels.len() == 1,
            labels,
            model,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.model.loaded.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.model.loaded.tokenizer
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.model.loaded.batcher.stats.read()
    }

    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Whether each label is a yes or no of its own (multi-label models, and those with one label).
    pub fn has_independent_labels(&self) -> bool {
        self.independent
    }

    /// One row of logits per text, in the order of the texts. With `pairs`, which then are as many,
    /// each text is read together with its partner.
    pub fn classify<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        pairs: Option<&[T]>,
        batch_tokens: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Logits> {
        let inputs: Vec<Input<'_>> = match pairs {
            None => texts
                .iter()
                .map(|text| Input::Single(text.as_ref()))
                .collect(),
            Some(pairs) if pairs.len() == texts.len() => {
                let both = texts.iter().zip(pairs);
                both.map(|(text, pair)| Input::Pair(text.as_ref(), pair.as_ref()))
                    .collect()
            }
            Some(pairs) => {
                return Err(Error::InvalidInput(format!(
                    "{} texts need as many partners, not {}",
                    texts.len(),
                    pairs.len()
                )))
            }
        };
        Ok(Logits {
            values: self
                .model
                .logits(&inputs, Excess::CutLonger, None, batch_tokens, cancel)?,
            count: texts.len(),
            labels: self.labels.len(),
            independent: self.independent,
        })
    }
}

/// How natural language inference models name what follows from a text, and what can't be with it.
const FOLLOWS: &str = "entail";
const EXCLUDED: &str = "contra";

impl ClassifyModel {
    /// For each text, how likely each hypothesis follows from it. They compete with each other, or
    /// each stands for itself where they are `independent`.
    pub fn entailment<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        hypotheses: &[T],
        independent: bool,
        batch_tokens: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<f32>>> {
        let (follows, excluded) = self.inference_labels()?;
        if hypotheses.is_empty() {
            return Ok(vec![Vec::new(); texts.len()]);
        }
        let pair = |text| hypotheses.iter().map(move |hypothesis| (text, hypothesis));
        let (firsts, seconds): (Vec<&str>, Vec<&str>) = texts
            .iter()
            .flat_map(pair)
            .map(|(text, hypothesis)| (text.as_ref(), hypothesis.as_ref()))
            .unzip();
        let logits = self.classify(&firsts, Some(&seconds), batch_tokens, cancel)?;
        let rows: Vec<&[f32]> = logits.rows().collect();
        let of_text = |rows: &[&[f32]]| {
            if independent || hypotheses.len() == 1 {
                rows.iter()
                    .map(|row| sigmoid(row[follows] - row[excluded]))
                    .collect()
            } else {
                softmax(&rows.iter().map(|row| row[follows]).collect::<Vec<_>>())
            }
        };
        Ok(rows.chunks(hypotheses.len()).map(of_text).collect())
    }

    fn inference_labels(&self) -> Result<(usize, usize)> {
        let find = |start: &str| {
            self.labels
                .iter()
                .position(|label| label.to_ascii_lowercase().starts_with(start))
        };
        match (find(FOLLOWS), find(EXCLUDED)) {
            (Some(follows), Some(excluded)) => Ok((follows, excluded)),
            (Some(follows), None) if self.labels.len() > 1 => {
                Ok((follows, if follows == 0 { self.labels.len() - 1 } else { 0 }))
            }
            _ => Err(Error::UnsupportedModel(format!(
                "the labels of this model are {}, and zero-shot classification needs one that was trained on \
                 natural language inference, with labels such as contradiction and entailment",
                self.labels.join(", ")
            ))),
        }
    }
}

/// The configuration's labels, as many as the head has outputs.
pub(super) fn labels(checkpoint: &Checkpoint, outputs: usize) -> Result<Vec<String>> {
    let said = match &checkpoint.config {
        Some(config) => config.id2label()?,
        None => None,
    };
    let said = said.filter(|labels| labels.len() == outputs);
    Ok(said.unwrap_or_else(|| numbered_labels(outputs)))
}

pub(super) fn softmax(logits: &[f32]) -> Vec<f32> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits
        .iter()
        .map(|&logit| f64::from(logit - highest).exp())
        .collect();
    let sum: f64 = powers.iter().sum();
    powers
        .into_iter()
        .map(|power| (power / sum) as f32)
        .collect()
}

pub(super) fn sigmoid(logit: f32) -> f32 {
    (1.0 / (1.0 + f64::from(-logit).exp())) as f32
}
