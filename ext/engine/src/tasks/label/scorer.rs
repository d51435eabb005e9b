//! How well a text's vector fits those of labels.

use candle_core::{DType, Device, Tensor};

use super::files::ScorerKind;
use crate::nn::{elementwise, Epilogue, Inventory, Linear};
use crate::{Error, Result};
use formats::weights::WeightSource;
use kernels::Activation;

pub type Target<'a> = (&'a dyn WeightSource, (&'a Device, DType));

/// The strength of the attention of labels to the text.
const HOPFIELD_BETA: f32 = 4.0;

pub fn linear((source, (device, dtype)): Target<'_>, name: &str) -> Result<Linear> {
    let tensor = |name: String| source.tensor(&name, Some(dtype), device);
    let bias = format!("{name}.bias");
    let bias = if source.has(&bias) {
        Some(tensor(bias)?)
    } else {
        None
    };
    Linear::new(tensor(format!("{name}.weight"))?, bias)
}

pub fn forward(linear: &Linear, x: &Tensor, activation: Activation) -> Result<Tensor> {
    if x.dims().last() != Some(&linear.inputs()) {
        return Err(Error::CorruptModel(
            "the matrices of the scorer do not fit the encoder's states".to_owned(),
        ));
    }
    let epilogue = Epilogue {
        activation: Some(activation),
        residual: None,
    };
    linear.forward_with(&x.to_dtype(linear.dtype())?, &epilogue)
}

/// Two matrices between the encoder's states and the scorer.
#[derive(Debug)]
pub struct Projector {
    first: Linear,
    second: Linear,
    activation: Activation,
}

impl Projector {
    pub fn read(target: Target<'_>, name: &str, activation: Activation) -> Result<Self> {
        Ok(Self {
            first: linear(target, &format!("{name}.linear_1"))?,
            second: linear(target, &format!("{name}.linear_2"))?,
            activation,
        })
    }

    /// f32 rows; of length 1, or nearly, where they are normalized.
    pub fn forward(&self, x: &Tensor, normalizes: bool) -> Result<Tensor> {
        let x = forward(&self.first, x, self.activation)?;
        let x = forward(&self.second, &x, Activation::Identity)?.to_dtype(DType::F32)?;
        if !normalizes {
            return Ok(x);
        }
        elementwise::each_row(&x, None, |row, _| {
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt() + 1e-8;
            row.iter_mut().for_each(|value| *value /= length);
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.first)?;
        inventory.add_linear(&self.second)
    }
}

#[derive(Debug)]
pub enum Scorer {
    Dot,
    WeightedDot {
        text: Linear,
        labels: Linear,
        mlp: Vec<Linear>,
    },
    Mlp(Vec<Linear>),
    Hopfield {
        query: Linear,
        key: Linear,
        value: Linear,
        mlp: Vec<Linear>,
    },
}

impl Scorer {
    pub fn read(target: Target<'_>, kind: ScorerKind) -> Result<Self> {
        let own = |name: &str| linear(target, &format!("model.scorer.{name}"));
        let all = |names: &[&str]| {
            names
                .iter()
                .map(|name| own(name))
                .collect::<Result<Vec<_>>>()
        };
        let mlp = || all(&["mlp.0", "mlp.2", "mlp.4"]);
        match kind {
            ScorerKind::Dot => Ok(Self::Dot),
            ScorerKind::WeightedDot => Ok(Self::WeightedDot {
                text: own("proj_text")?,
                labels: own("proj_label")?,
                mlp: all(&["out_mlp.0", "out_mlp.3"])?,
            }),
            ScorerKind::Mlp => Ok(Self::Mlp(mlp()?)),
            ScorerKind::Hopfield => Ok(Self::Hopfield {
                query: own("q_proj")?,
                key: own("k_proj")?,
                value: own("v_proj")?,
                mlp: mlp()?,
            }),
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let linears: Vec<&Linear> = match self {
            Self::Dot => Vec::new(),
            Self::WeightedDot { text, labels, mlp } => {
                [text, labels].into_iter().chain(mlp).collect()
            }
            Self::Mlp(mlp) => mlp.iter().collect(),
            Self::Hopfield {
                query,
                key,
                value,
                mlp,
            } => [query, key, value].into_iter().chain(mlp).collect(),
        };
        linears
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// A logit for each label: `text` is [1, hidden], `labels` [labels, hidden].
    pub fn logits(&self, text: &Tensor, labels: &Tensor) -> Result<Vec<f32>> {
        match self {
            Self::Dot => {
                let (text, labels) = (values(text)?, values(labels)?);
                let rows = labels.chunks_exact(text.len().max(1));
                Ok(rows.map(|row| dot(&text, row)).collect())
            }
            Self::WeightedDot {
                text: of_text,
                labels: of_labels,
                mlp,
            } => {
                let text = values(&forward(of_text, text, Activation::Identity)?)?;
                let rows = values(&forward(of_labels, labels, Activation::Identity)?)?;
                let half = text.len() / 2;
                let joined = rows.chunks_exact((2 * half).max(1)).flat_map(|row| {
                    let products = text[half..].iter().zip(&row[half..]).map(|(a, b)| a * b);
                    let first = text[..half].iter().chain(&row[..half]).copied();
                    first.chain(products).collect::<Vec<f32>>()
                });
                let joined: Vec<f32> = joined.collect();
                chain(
                    mlp,
                    &Tensor::from_vec(joined, (labels.dims2()?.0, 3 * half), labels.device())?,
                )
            }
            Self::Mlp(mlp) => {
                let (text, rows) = (values(text)?, values(labels)?);
                let width = text.len();
                let joined: Vec<f32> = rows
                    .chunks_exact(width.max(1))
                    .flat_map(|row| text.iter().chain(row).copied().collect::<Vec<f32>>())
                    .collect();
                chain(
                    mlp,
                    &Tensor::from_vec(joined, (labels.dims2()?.0, 2 * width), labels.device())?,
                )
            }
            Self::Hopfield {
                query,
                key,
                value,
                mlp,
            } => {
                let queries = values(&forward(query, labels, Activation::Identity)?)?;
                let key = values(&forward(key, text, Activation::Identity)?)?;
                let value = values(&forward(value, text, Activation::Identity)?)?;
                let width = value.len().max(1);
                let scores = queries.chunks_exact(key.len().max(1));
                let scores: Vec<f32> = scores.map(|row| HOPFIELD_BETA * dot(row, &key)).collect();
                let shares = softmax(&scores);
                let mut rows = values(labels)?;
                for (row, share) in rows.chunks_exact_mut(width).zip(shares) {
                    row.iter_mut()
                        .zip(&value)
                        .for_each(|(sum, value)| *sum += share * value);
                }
                chain(
                    mlp,
                    &Tensor::from_vec(rows, labels.shape(), labels.device())?,
                )
            }
        }
    }
}

/// Matrices with a ReLU between them; the last has one output.
fn chain(mlp: &[Linear], x: &Tensor) -> Result<Vec<f32>> {
    let mut x = x.clone();
    for (number, linear) in mlp.iter().enumerate() {
        let last = number + 1 == mlp.len();
        let activation = if last {
            Activation::Identity
        } else {
            Activation::Relu
        };
        x = forward(linear, &x, activation)?;
    }
    values(&x)
}

pub fn softmax(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn values(x: &Tensor) -> Result<Vec<f32>> {
    Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}
