//! From token ids to the first hidden states.

use std::borrow::Cow;

use candle_core::Tensor;

use super::config::EncoderConfig;
use crate::models::config::{Frequencies, Positions};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::positions::sinusoids;
use crate::nn::{elementwise, Embedding, Inventory, Linear, Lookup, Norm, PackedSequences};
use crate::{Error, Result};

#[derive(Debug)]
pub struct Embeddings {
    tokens: Embedding,
    scale: f32,
    positions: Option<Embedding>,
    token_types: Option<Embedding>,
    norm: Option<Norm>,
    projection: Option<Linear>,
    counting: Counting,
}

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
        let width = config.embedding_size;
        let counting = Counting::of(config.positions);
        let embeddings = Self {
            tokens: parameters.table(Part::TokenEmbedding, width)?,
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
            norm: parameters.optional_norm(Part::EmbeddingNorm, &[width], config.norm)?,
            projection: parameters.optional_linear(Part::EmbeddingProjection, width)?,
            counting,
        };
        let projection = embeddings.projection.as_ref();
        let width = projection.map_or(width, Linear::outputs);
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
            inventory.add_norm(norm)?;
        }
        match &self.projection {
            Some(projection) => inventory.add_linear(projection),
            None => Ok(()),
        }
    }

    /// [tokens, hidden]
    pub fn forward(&self, sequences: &PackedSequences) -> Result<Tensor> {
        let positions = self.position_ids(sequences);
        self.embed(sequences.ids(), positions, sequences.type_ids())
    }

    /// Tokens of as many sequences, before each of which so many stand in its own: [tokens, hidden].
    pub fn at(&self, ids: &[u32], before: impl Iterator<Item = usize>) -> Result<Tensor> {
        let position = |before: usize| {
            let position = u32::try_from(before).unwrap_or(u32::MAX);
            position.saturating_add(self.counting.first)
        };
        self.embed(ids, before.map(position).collect(), &vec![0; ids.len()])
    }

    fn embed(&self, ids: &[u32], positions: Vec<u32>, types: &[u32]) -> Result<Tensor> {
        let mut lookups = vec![Lookup {
            table: &self.tokens,
            rows: ids.into(),
            what: "token id",
        }];
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
        let mut x = if self.scale == 1.0 || lookups.len() == 1 {
            elementwise::scale(&Embedding::sum(&lookups)?, self.scale)?
        } else {
            let tokens = Embedding::sum(&lookups[..1])?;
            let tokens = elementwise::scale(&tokens, self.scale)?;
            elementwise::add(&tokens, &Embedding::sum(&lookups[1..])?)?
        };
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        match &self.projection {
            Some(projection) => projection.forward(&x),
            None => Ok(x),
        }
    }

    fn position_ids(&self, sequences: &PackedSequences) -> Vec<u32> {
        let Counting { first, padding } = self.counting;
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
