//! From token ids to the first hidden states.

use candle_core::Tensor;

use crate::nn::{Embedding, Inventory, Linear, Lookup, Norm, PackedSequences};
use crate::{Error, Result};

use super::config::{EncoderConfig, Positions};
use super::parts::{Part, Parts};

#[derive(Debug)]
pub struct Embeddings {
    /// [vocabulary, embedding width]
    words: Embedding,
    positions: Option<Embedding>,
    token_types: Option<Embedding>,
    norm: Option<Norm>,
    projection: Option<Linear>,
    counting: Positions,
    padding_id: u32,
}

impl Embeddings {
    pub fn load(config: &EncoderConfig, parts: &Parts<'_>) -> Result<Self> {
        let words = Embedding::Dense(parts.weight(Part::Words, 0)?);
        let positions = match config.positions {
            Positions::None => None,
            Positions::Learned | Positions::LearnedAfterPadding => {
                Some(Embedding::Dense(parts.weight(Part::Positions, 0)?))
            }
        };
        let token_types = if config.token_types > 0 {
            parts
                .optional_weight(Part::TokenTypes, 0)?
                .map(Embedding::Dense)
        } else {
            None
        };
        let embeddings = Self {
            words,
            positions,
            token_types,
            norm: parts.optional_norm(Part::EmbeddingNorm, 0, config.norm, config.epsilon)?,
            projection: parts.optional_linear(Part::EmbeddingProjection, 0)?,
            counting: config.positions,
            padding_id: config.padding_id.unwrap_or(0),
        };
        embeddings.check(config)?;
        Ok(embeddings)
    }

    fn check(&self, config: &EncoderConfig) -> Result<()> {
        let tables = [
            Some(&self.words),
            self.positions.as_ref(),
            self.token_types.as_ref(),
        ];
        for table in tables.into_iter().flatten() {
            if table.shape().len() != 2 || table.width() != config.embedding_width {
                return Err(Error::CorruptModel(format!(
                    "an embedding table of shape {:?} does not fit the embedding size {}",
                    table.shape(),
                    config.embedding_width
                )));
            }
        }
        let width = self
            .projection
            .as_ref()
            .map_or(config.embedding_width, Linear::outputs);
        if width != config.hidden {
            return Err(Error::CorruptModel(format!(
                "embeddings of width {width} do not fit the hidden size {}",
                config.hidden
            )));
        }
        Ok(())
    }

    pub fn words(&self) -> &Embedding {
        &self.words
    }

    /// The longest sequence that the position table holds.
    pub fn max_positions(&self) -> Option<usize> {
        let rows = self.positions.as_ref()?.count();
        Some(match self.counting {
            Positions::LearnedAfterPadding => rows.saturating_sub(self.padding_id as usize + 1),
            _ => rows,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let tables = [
            Some(&self.words),
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
            table: &self.words,
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
                Positions::LearnedAfterPadding => {
                    let mut counted = self.padding_id;
                    for &id in &sequences.ids()[range] {
                        let padding = id == self.padding_id;
                        counted += u32::from(!padding);
                        positions.push(if padding { self.padding_id } else { counted });
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
