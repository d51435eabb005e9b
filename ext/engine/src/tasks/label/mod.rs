//! Labels that a call names, and how well each fits a text: one forward pass for all of them (GLiClass).

mod apart;
mod files;
mod scorer;

use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::nn::Lstm;
use crate::serving::batching::{self, Tokens};
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Encoding, Tokenizer, Truncation};
use formats::weights::{Prefixed, WeightSource};

use super::loading::{Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use apart::LabelEncoder;
use files::{LabelConfig, LABEL, SEPARATOR};
use scorer::{Projector, Scorer};

/// Texts with their labels are read up to this many tokens, unless a call or the model allows fewer.
const USUAL_LENGTH: usize = 1024;

pub struct LabelModel {
    loaded: LoadedModel,
    config: LabelConfig,
    apart: Option<LabelEncoder>,
    of_text: Projector,
    of_labels: Projector,
    scorer: Scorer,
    lstm: Option<Lstm>,
    /// Of logits whose vectors are normalized, and of all of a bi-encoder.
    scale: f32,
    length: usize,
}

/// What the head reads of a text: its pooled state, and the states of its labels, where they are read with it.
struct States {
    text: Vec<f32>,
    labels: Option<Vec<f32>>,
}

impl LabelModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let mut checkpoint = Checkpoint::open(files, options, cancel)?;
        let config = match &checkpoint.config {
            Some(config) => LabelConfig::parse(config)?,
            None => {
                return Err(Error::UnsupportedModel(
                    "GLiClass models are not GGUF files".to_owned(),
                ))
            }
        };
        let source: Arc<dyn WeightSource> = checkpoint.source.clone();
        checkpoint.source = Arc::new(Prefixed::new(source.clone(), "model.encoder_model."));
        checkpoint.config = Some(config.encoder.clone());
        let mut loaded = LoadedModel::load(&checkpoint, files, options, None, cancel)?;
        let target = (source.as_ref(), (&checkpoint.opened, checkpoint.dtype));
        let of_text = Projector::read(target, "model.text_projector", config.activation)?;
        let of_labels = Projector::read(target, "model.classes_projector", config.activation)?;
        let apart = LabelEncoder::load(files, &checkpoint, &source, &config, cancel)?;
        let scorer = Scorer::read(target, config.scorer)?;
        let lstm = if config.lstm {
            Some(Lstm::read(
                source.as_ref(),
                "model.lstm.lstm.",
                1,
                target.1,
            )?)
        } else {
            None
        };
        let scales = config.normalizes || apart.is_some();
        let scale = if source.has("model.logit_scale") && scales {
            let scale = source.tensor(
                "model.logit_scale",
                Some(DType::F32),
                &candle_core::Device::Cpu,
            )?;
            scale
                .flatten_all()?
                .to_vec1::<f32>()?
                .first()
                .copied()
                .unwrap_or(1.0)
        } else {
            1.0
        };
        let inventory = &mut loaded.info.inventory;
        of_text.list(inventory)?;
        of_labels.list(inventory)?;
        scorer.list(inventory)?;
        lstm.iter().try_for_each(|lstm| lstm.list(inventory))?;
        if let Some(apart) = &apart {
            inventory.add(apart.inventory());
        }
        loaded.info.architecture = "GLiClass".to_owned();
        let positions = loaded.body.max_positions().unwrap_or(usize::MAX);
        let length = options.max_length.unwrap_or(USUAL_LENGTH).min(positions);
        loaded.info.max_length = length;
        Ok(Self {
            loaded,
            config,
            apart,
            of_text,
            of_labels,
            scorer,
            lstm,
            scale,
            length,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.loaded.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.loaded.tokenizer
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.loaded.batcher.stats.read()
    }

    /// How likely each label is, for each text: one of them, or each by itself where several may fit.
    pub fn scores<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        labels: &[String],
        multi_label: bool,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<f32>>> {
        let apart = match &self.apart {
            Some(encoder) if !labels.is_empty() => {
                Some(self.projected(&encoder.embed(labels, cancel)?)?)
            }
            _ => None,
        };
        let tokens = threads::map(texts, |_, text| self.tokens(text.as_ref(), labels, cancel))?;
        let states = self.states(&tokens, labels.len(), cancel)?;
        let rows = threads::map(&states, |_, states| self.logits(states, apart.as_ref()))?;
        rows.into_iter()
            .map(|logits| {
                self.loaded.info.check_numbers(&logits)?;
                Ok(if multi_label {
                    logits
                        .iter()
                        .map(|logit| 1.0 / (1.0 + (-logit).exp()))
                        .collect()
                } else {
                    scorer::softmax(&logits)
                })
            })
            .collect()
    }

    /// A text with its labels. Of what is too long the text is cut, so that every label remains.
    fn tokens(&self, text: &str, labels: &[String], cancel: &CancelToken) -> Result<Tokens> {
        if self.apart.is_some() {
            let alone = self
                .loaded
                .tokenizer
                .with_truncation(Some(Truncation::new(self.length)));
            return Ok(Tokens::from(&alone.encode(
                text,
                true,
                Detail::Ids,
                cancel,
            )?));
        }
        let labels: String = labels
            .iter()
            .map(|label| format!("{LABEL}{label}"))
            .collect();
        let whole = if self.config.labels_first {
            format!("{labels}{SEPARATOR}{text}")
        } else {
            format!("{text}{labels}{SEPARATOR}")
        };
        let encoding = self
            .loaded
            .tokenizer
            .encode(whole.as_str(), true, Detail::Ids, cancel)?;
        let excess = encoding.get_ids().len().saturating_sub(self.length);
        if excess == 0 {
            return Ok(Tokens::from(&encoding));
        }
        self.cut(&encoding, excess)
    }

    fn cut(&self, encoding: &Encoding, excess: usize) -> Result<Tokens> {
        let special = encoding.get_special_tokens_mask();
        let after = special.iter().rev().take_while(|&&mask| mask == 1).count();
        let ids = encoding.get_ids();
        let is_label = |&id: &u32| id == self.config.label_token;
        let (end, least) = if self.config.labels_first {
            let last = ids.iter().rposition(is_label).unwrap_or(0);
            (ids.len() - after, last + 1)
        } else {
            (
                ids.iter().position(is_label).unwrap_or(ids.len() - after),
                0,
            )
        };
        let start = end.saturating_sub(excess);
        if start < least || end < excess {
            return Err(Error::InvalidInput(format!(
                "the labels leave no room for the text among the {} tokens that the model reads at once: pass fewer \
                 labels",
                self.length
            )));
        }
        let without = |values: &[u32]| [&values[..start], &values[end..]].concat();
        Ok(Tokens {
            ids: without(ids),
            type_ids: without(encoding.get_type_ids()),
        })
    }

    fn states(
        &self,
        tokens: &[Tokens],
        labels: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<States>> {
        let forward = |batch: &[usize]| -> Result<Vec<States>> {
            let sequences = batching::pack(tokens, batch)?;
            self.loaded.forward(&sequences, None, cancel, |hidden| {
                let each = sequences.ranges().zip(batch);
                each.map(|(range, &index)| {
                    let rows = hidden.narrow(0, range.start, range.len())?;
                    self.pooled(&rows, &tokens[index].ids, labels)
                })
                .collect()
            })
        };
        batching::collect(tokens, None, self.loaded.info.device, cancel, forward)
    }

    fn pooled(&self, rows: &Tensor, ids: &[u32], labels: usize) -> Result<States> {
        let (total, width) = rows.dims2()?;
        let rows = rows.to_dtype(DType::F32)?;
        let values: Vec<f32> = rows.flatten_all()?.to_vec1()?;
        if self.apart.is_some() {
            let mut text = self.config.pooling.pool(&values, width, total);
            text.resize(width, 0.0);
            return Ok(States { text, labels: None });
        }
        let row = |at: usize| &values[at * width..(at + 1) * width];
        let is_text = |&id: &u32| Some(id) == self.config.text_token;
        let first = ids.iter().position(is_text).unwrap_or(0);
        let text = match &self.lstm {
            Some(lstm) => {
                let read = lstm.forward(&rows.narrow(0, first, total - first)?)?;
                let read: Vec<f32> = read.flatten_all()?.to_vec1()?;
                self.config
                    .pooling
                    .pool(&read, lstm.outputs(), total - first)
            }
            None => self
                .config
                .pooling
                .pool(&values[first * width..], width, total),
        };
        let places = (0..ids.len()).filter(|&at| ids[at] == self.config.label_token);
        let places: Vec<usize> = places.take(labels).collect();
        if places.len() < labels {
            return Err(Error::InvalidInput(format!(
                "{} of {labels} labels were found among the tokens: the model's tokenizer has no token {LABEL}",
                places.len()
            )));
        }
        let end = if self.config.text_token.is_some() {
            first
        } else {
            ids.len()
        };
        let mut of_labels = Vec::with_capacity(labels * width);
        for (number, &place) in places.iter().enumerate() {
            let begin = place + usize::from(!self.config.embeds_marker);
            if self.config.averages_labels {
                let next = (place + 1..ids.len()).find(|&at| ids[at] == self.config.label_token);
                let next = next.unwrap_or(ids.len()).min(end.max(begin));
                let mut sums = vec![0f32; width];
                for at in begin..next {
                    sums.iter_mut()
                        .zip(row(at))
                        .for_each(|(sum, value)| *sum += value);
                }
                let count = next.saturating_sub(begin).max(1) as f32;
                of_labels.extend(sums.iter().map(|sum| sum / count));
            } else if begin < total {
                of_labels.extend_from_slice(row(begin));
            } else {
                return Err(Error::InvalidInput(format!("label {number} has no token")));
            }
        }
        Ok(States {
            text,
            labels: Some(of_labels),
        })
    }

    fn projected(&self, labels: &Tensor) -> Result<Tensor> {
        self.of_labels.forward(labels, self.config.normalizes)
    }

    /// `apart` are the labels' vectors where these were read by themselves.
    fn logits(&self, states: &States, apart: Option<&Tensor>) -> Result<Vec<f32>> {
        let device = self.loaded.info.device.open()?;
        let width = self.loaded.body.hidden_size();
        let tensor = |values: &[f32]| -> Result<Tensor> {
            let rows = values.len() / width.max(1);
            Ok(Tensor::from_slice(values, (rows, width), &device)?)
        };
        let normalizes = self.config.normalizes;
        let text = self.of_text.forward(&tensor(&states.text)?, normalizes)?;
        let labels = match (apart, &states.labels) {
            (Some(labels), _) => labels.clone(),
            (None, Some(labels)) => self.projected(&tensor(labels)?)?,
            (None, None) => return Ok(Vec::new()),
        };
        let logits = self.scorer.logits(&text, &labels)?;
        Ok(logits.into_iter().map(|logit| logit * self.scale).collect())
    }
}
