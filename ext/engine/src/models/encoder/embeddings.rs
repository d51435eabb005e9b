//! From token ids to the first hidden states.

use candle_core::Tensor;

use super::config::EncoderConfig;
use crate::models::config::Positions;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Embedding, Inventory, Linear, Lookup, Norm, PackedSequences};
use crate::{Error, Result};

#[derive(Debug)]
pub struct Embeddings {
    tokens: Embedding,
    positions: Option<Embedding>,
    token_types: Option<Embedding>,
    norm: Option<Norm>,
    projection: Option<Linear>,
    counting: Positions,
}

impl Embeddings {
    pub fn load(config: &EncoderConfig, parameters: &Parameters<'_>) -> Result<Self> {
        let width = config.embedding_size;
        let embeddings = Self {
            tokens: parameters.table(Part::TokenEmbedding, width)?,
            positions: match config.positions {
                Positions::None => None,
                Positions::Learned | Positions::LearnedAfterPadding { .. } => {
                    Some(parameters.table(Part::PositionEmbedding, width)?)
                }
            },
            token_types: match config.token_types > 0 && parameters.has(Part::TokenTypes) {
                true => Some(parameters.table(Part::TokenTypes, width)?),
                false => None,
            },
            norm: parameters.optional_norm(Part::EmbeddingNorm, &[width], config.norm)?,
            projection: parameters.optional_linear(Part::EmbeddingProjection, width)?,
            counting: config.positions,
        };
        let projection = embeddings.projection.as_ref();
        let width = projection.map_or(width, Linear::outputs);
        match width == config.hidden_size {
            true => Ok(embeddings),
            false => Err(Error::CorruptModel(format!(
                "embeddings of width {width} do not fit the hidden size {}",
                config.hidden_size
            ))),
        }
    }

    pub fn tokens(&self) -> &Embedding {
        &self.tokens
    }

    /// The longest sequence that the position table holds.
    pub fn max_positions(&self) -> Option<usize> {
        let rows = self.positions.as_ref()?.count();
        Some(match self.counting {
            Positions::LearnedAfterPadding { padding_id } => {
                rows.saturating_sub(padding_id as usize + 1)
            }
            _ => rows,
        })
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
        let mut lookups = vec![Lookup {
            table: &self.tokens,
            rows: sequences.ids().to_vec(),
            what: "token id",
        }];
        if let Some(table) = &self.positions {
            lookups.push(Lookup {
                table,
                rows: self.position_ids(sequences),
                what: "position",
            });
        }
        if let Some(table) = &self.token_types {
            lookups.push(Lookup {
                table,
                rows: type_ids(sequences, table),
                what: "token type",
            });
        }
        let mut x = Embedding::sum(&lookups)?;
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        match &self.projection {
            Some(projection) => projection.forward(&x),
            None => Ok(x),
        }
    }

    fn position_ids(&self, sequences: &PackedSequences) -> Vec<u32> {
        let mut positions = Vec::with_capacity(sequences.tokens());
        for range in sequences.ranges() {
            match self.counting {
                Positions::LearnedAfterPadding { padding_id } => {
                    let mut counted = padding_id;
                    for &id in &sequences.ids()[range] {
                        let padding = id == padding_id;
                        counted += u32::from(!padding);
                        positions.push(if padding { padding_id } else { counted });
                    }
                }
                Positions::None | Positions::Learned => positions.extend(0..range.len() as u32),
            }
        }
        positions
    }
}

/// A table of one row serves tokenizers that number the second text of a pair.
fn type_ids(sequences: &PackedSequences, table: &Embedding) -> Vec<u32> {
    let last = table.count().saturating_sub(1) as u32;
    let ids = sequences.type_ids().iter();
    ids.map(|&id| id.min(last)).collect()
}
