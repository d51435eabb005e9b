//! From token ids to the first hidden states.

use std::borrow::Cow;

use candle_core::{DType, Tensor};

use super::config::{EmbeddingOrder, EncoderConfig};
use super::narrow::{ScaledNorm, UNSAID_EPSILON};
use super::spans::Spans;
use crate::models::config::{Frequencies, Positions};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::positions::sinusoids;
use crate::nn::{elementwise, Embedding, Inventory, Linear, Lookup, PackedSequences};
use crate::{Error, Result};

/// A part of a text.
pub enum Piece<'a> {
    Tokens(&'a [u32]),
    /// What stands for tokens: [count, hidden].
    Rows(&'a Tensor),
}

#[derive(Debug)]
pub struct Embeddings {
    tokens: Embedding,
    scale: f32,
    positions: Option<Embedding>,
    token_types: Option<Embedding>,
    /// Added to the embedding of every token.
    constant: Option<Tensor>,
    norm: Option<ScaledNorm>,
    projection: Option<Linear>,
    order: EmbeddingOrder,
    masked_token: Option<u32>,
    counting: Counting,
}

/// The share of tokens that ESM was trained without.
const UNSEEN_IN_TRAINING: f32 = 0.15 * 0.8;

/// Which row of the position table a token has.
#[derive(Clone, Copy, Debug)]
struct Counting {
    /// The first token's row.
    first: u32,
    /// Tokens that do not count, and have the row of their own number.
    padding: Option<u32>,
}

impl Counting {
    fn of(positions: Positions) -> Self {
        let padding = match positions {
            Positions::LearnedAfterPadding { padding_id } => Some(padding_id),
            Positions::Sinusoidal { padding_id, .. } => padding_id,
            Positions::None
            | Positions::Learned
            | Positions::LearnedFrom { .. }
            | Positions::SinusoidalFrom { .. } => None,
        };
        let first = match positions {
            Positions::LearnedFrom { first } | Positions::SinusoidalFrom { first, .. } => first,
            _ => padding.map_or(0, |padding| padding + 1),
        };
        Self { first, padding }
    }
}

impl Embeddings {
    pub fn load(config: &EncoderConfig, parameters: &Parameters<'_>) -> Result<Self> {
        let order = config.mechanisms.embedding_order;
        let token_width = config.embedding_size;
        // Positions and types are as wide as what they are added to.
        let width = match order {
            EmbeddingOrder::Last => token_width,
            EmbeddingOrder::First | EmbeddingOrder::FirstOfThree => config.hidden_size,
        };
        let read = match order {
            EmbeddingOrder::FirstOfThree => 3 * token_width,
            EmbeddingOrder::First | EmbeddingOrder::Last => token_width,
        };
        let counting = Counting::of(config.positions);
        let embeddings = Self {
            tokens: parameters.table(Part::TokenEmbedding, token_width)?,
            scale: config.embedding_scale,
            positions: match config.positions {
                Positions::None => None,
                Positions::Learned
                | Positions::LearnedAfterPadding { .. }
                | Positions::LearnedFrom { .. } => {
                    Some(parameters.table(Part::PositionEmbedding, width)?)
                }
                Positions::Sinusoidal { .. } | Positions::SinusoidalFrom { .. } => {
                    let (frequencies, zero_row) = match config.positions {
                        Positions::Sinusoidal { frequencies, .. } => {
                            (frequencies, counting.padding)
                        }
                        Positions::SinusoidalFrom { zero_row, .. } => {
                            (Frequencies::Closed, zero_row)
                        }
                        _ => (Frequencies::Open, None),
                    };
                    let rows = config.max_positions.unwrap_or(0) + counting.first as usize;
                    Some(sinusoids((rows, width), frequencies, zero_row, parameters)?)
                }
            },
            token_types: if config.token_types > 0 && parameters.has(Part::TokenTypes) {
                Some(parameters.table(Part::TokenTypes, width)?)
            } else {
                None
            },
            constant: first_rows(parameters, width)?,
            norm: embedding_norm(config, parameters, width)?,
            projection: match order {
                EmbeddingOrder::First if token_width == width => None,
                _ => parameters.optional_linear(Part::EmbeddingProjection, read)?,
            },
            order,
            masked_token: config.mechanisms.masked_token,
            counting,
        };
        let projection = embeddings.projection.as_ref();
        let width = projection.map_or(token_width, Linear::outputs);
        if width == config.hidden_size {
            Ok(embeddings)
        } else {
            Err(Error::CorruptModel(format!(
                "embeddings of width {width} do not fit the hidden size {}",
                config.hidden_size
            )))
        }
    }

    pub fn tokens(&self) -> &Embedding {
        &self.tokens
    }

    /// The longest sequence that the position table holds.
    pub fn max_positions(&self) -> Option<usize> {
        let rows = self.positions.as_ref()?.count();
        Some(rows.saturating_sub(self.counting.first as usize))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let tables = [
            Some(&self.tokens),
            self.positions.as_ref(),
            self.token_types.as_ref(),
        ];
        for table in tables.into_iter().flatten() {
            inventory.add_embedding(table);
        }
        if let Some(norm) = &self.norm {
            norm.list(inventory)?;
        }
        if let Some(constant) = &self.constant {
            inventory.add_tensor(constant);
        }
        match &self.projection {
            Some(projection) => inventory.add_linear(projection),
            None => Ok(()),
        }
    }

    /// [tokens, hidden]
    pub fn forward(&self, sequences: &PackedSequences) -> Result<Tensor> {
        let positions = self.position_ids(sequences);
        let (ids, types) = (sequences.ids(), sequences.type_ids());
        if self.order == EmbeddingOrder::Last && self.masked_token.is_none() {
            return self.embed(ids, positions, types);
        }
        let mut tokens = Embedding::sum(&[self.lookup(ids)])?;
        if let Some(masked) = self.masked_token {
            tokens = elementwise::multiply(&tokens, &without(masked, sequences, &tokens)?)?;
        }
        if self.order == EmbeddingOrder::FirstOfThree {
            let spans = Spans::whole(sequences.boundaries());
            let (next, before) = (
                spans.neighbours(&tokens, 1)?,
                spans.neighbours(&tokens, -1)?,
            );
            tokens = Tensor::cat(&[&next, &tokens, &before], 1)?;
        }
        if let (Some(projection), true) = (&self.projection, self.order != EmbeddingOrder::Last) {
            tokens = projection.forward(&tokens)?;
        }
        let others = self.other_lookups(positions, types);
        if !others.is_empty() {
            tokens = elementwise::add(&tokens, &Embedding::sum(&others)?)?;
        }
        self.finish(tokens)
    }

    /// Tokens of as many sequences, before each of which so many stand in its own: [tokens, hidden].
    pub fn at(&self, ids: &[u32], before: impl Iterator<Item = usize>) -> Result<Tensor> {
        let position = |before: usize| {
            let position = u32::try_from(before).unwrap_or(u32::MAX);
            position.saturating_add(self.counting.first)
        };
        self.embed(ids, before.map(position).collect(), &vec![0; ids.len()])
    }

    /// One text of tokens, and of rows that stand for tokens: [tokens, hidden].
    pub fn mixed(&self, pieces: &[Piece<'_>], dtype: DType) -> Result<Tensor> {
        let mut rows = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match piece {
                Piece::Tokens([]) => {}
                Piece::Tokens(ids) => {
                    let tokens = Embedding::sum(&[self.lookup(ids)])?;
                    let tokens = elementwise::scale(&tokens, self.scale)?;
                    rows.push(tokens.to_dtype(dtype)?);
                }
                Piece::Rows(tensor) => rows.push(tensor.to_dtype(dtype)?),
            }
        }
        let mut x = Tensor::cat(&rows, 0)?;
        let count = x.dim(0)?;
        let first = self.counting.first;
        let positions = (first..first + count as u32).collect();
        let types = vec![0; count];
        let others = self.other_lookups(positions, &types);
        if !others.is_empty() {
            let others = Embedding::sum(&others)?;
            x = elementwise::add(&x, &others.to_dtype(dtype)?)?;
        }
        self.finish(x)
    }

    fn lookup<'a>(&'a self, ids: &'a [u32]) -> Lookup<'a> {
        Lookup {
            table: &self.tokens,
            rows: ids.into(),
            what: "token id",
        }
    }

    /// What is added to the tokens' embeddings.
    fn other_lookups<'a>(&'a self, positions: Vec<u32>, types: &'a [u32]) -> Vec<Lookup<'a>> {
        let mut lookups = Vec::new();
        if let Some(table) = &self.positions {
            lookups.push(Lookup {
                table,
                rows: positions.into(),
                what: "position",
            });
        }
        if let Some(table) = &self.token_types {
            lookups.push(Lookup {
                table,
                rows: type_ids(types, table),
                what: "token type",
            });
        }
        lookups
    }

    fn embed(&self, ids: &[u32], positions: Vec<u32>, types: &[u32]) -> Result<Tensor> {
        let mut lookups = vec![self.lookup(ids)];
        lookups.extend(self.other_lookups(positions, types));
        let x = if self.scale == 1.0 || lookups.len() == 1 {
            elementwise::scale(&Embedding::sum(&lookups)?, self.scale)?
        } else {
            let tokens = Embedding::sum(&lookups[..1])?;
            let tokens = elementwise::scale(&tokens, self.scale)?;
            elementwise::add(&tokens, &Embedding::sum(&lookups[1..])?)?
        };
        self.finish(x)
    }

    /// What comes after all sums.
    fn finish(&self, mut x: Tensor) -> Result<Tensor> {
        if let Some(constant) = &self.constant {
            x = elementwise::add(&x, &constant.to_dtype(x.dtype())?)?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        match (&self.projection, self.order) {
            (Some(projection), EmbeddingOrder::Last) => projection.forward(&x),
            _ => Ok(x),
        }
    }

    fn position_ids(&self, sequences: &PackedSequences) -> Vec<u32> {
        let Counting { first, padding } = self.counting;
        if let Some(positions) = sequences.positions() {
            return positions
                .iter()
                .map(|at| at.saturating_add(first))
                .collect();
        }
        let mut positions = Vec::with_capacity(sequences.tokens());
        for range in sequences.ranges() {
            if padding.is_none() {
                positions.extend(first..first + range.len() as u32);
                continue;
            }
            let mut next = first;
            for &id in &sequences.ids()[range] {
                if Some(id) == padding {
                    positions.push(id);
                } else {
                    positions.push(next);
                    next += 1;
                }
            }
        }
        positions
    }
}

/// A table of one row serves tokenizers that number the second text of a pair.
fn type_ids<'a>(ids: &'a [u32], table: &Embedding) -> Cow<'a, [u32]> {
    let last = table.count().saturating_sub(1) as u32;
    match ids.iter().copied().max() {
        Some(most) if most > last => ids.iter().map(|&id| id.min(last)).collect(),
        _ => ids.into(),
    }
}

/// Factors of token embeddings, [tokens, 1]: 0 for the masked token, and for the others more the more there are of it.
fn without(masked: u32, sequences: &PackedSequences, like: &Tensor) -> Result<Tensor> {
    let mut factors = Vec::with_capacity(sequences.tokens());
    for range in sequences.ranges() {
        let ids = &sequences.ids()[range];
        let count = ids.iter().filter(|&&id| id == masked).count();
        let share = count as f32 / ids.len().max(1) as f32;
        let factor = (1.0 - UNSEEN_IN_TRAINING) / (1.0 - share);
        factors.extend(
            ids.iter()
                .map(|&id| if id == masked { 0.0 } else { factor }),
        );
    }
    let count = factors.len();
    Ok(Tensor::from_vec(factors, (count, 1), like.device())?.to_dtype(like.dtype())?)
}

/// The sum of the first rows of tables of which texts use no other: a task, and the four corners, height and width
/// of an empty box.
fn first_rows(parameters: &Parameters<'_>, width: usize) -> Result<Option<Tensor>> {
    let tables = [
        (Part::TaskTypes, 1.0),
        (Part::BoxColumns, 2.0),
        (Part::BoxRows, 2.0),
        (Part::BoxHeights, 1.0),
        (Part::BoxWidths, 1.0),
    ];
    let mut sum: Option<Tensor> = None;
    for (part, times) in tables {
        if let Some(table) = parameters.optional_tensor(part)? {
            if table.rank() != 2 || table.dim(0)? == 0 || table.dim(1)? != width {
                return Err(parameters.misfit(part, &[1, width]));
            }
            let row = elementwise::scale(&table.get(0)?, times)?;
            sum = Some(match sum {
                Some(sum) => elementwise::add(&sum, &row)?,
                None => row,
            });
        }
    }
    Ok(sum)
}

fn embedding_norm(
    config: &EncoderConfig,
    parameters: &Parameters<'_>,
    width: usize,
) -> Result<Option<ScaledNorm>> {
    if !parameters.has(Part::EmbeddingNorm) {
        return Ok(None);
    }
    let (linear, norm) = match config.mechanisms.narrow {
        Some(narrow) => {
            let norm = crate::models::config::NormConfig {
                epsilon: UNSAID_EPSILON,
                ..config.norm
            };
            (narrow.linear_norms, norm)
        }
        None => (false, config.norm),
    };
    let norm = ScaledNorm::load(parameters, Part::EmbeddingNorm, width, norm, linear)?;
    Ok(Some(norm))
}
