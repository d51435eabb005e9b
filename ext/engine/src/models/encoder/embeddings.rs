//! From token ids to the first hidden states.

use candle_core::Tensor;

use crate::nn::{elementwise, Linear, Norm, PackedSequences};
use crate::{Error, Result};

use super::config::{EncoderConfig, Positions};
use super::parts::{Part, Parts};

#[derive(Debug)]
pub struct Embeddings {
    /// [vocabulary, embedding width]
    words: Tensor,
    positions: Option<Tensor>,
    token_types: Option<Tensor>,
    norm: Option<Norm>,
    projection: Option<Linear>,
    counting: Positions,
    padding_id: u32,
}

impl Embeddings {
    pub fn load(config: &EncoderConfig, parts: &Parts<'_>) -> Result<Self> {
        let words = parts.weight(Part::Words, 0)?;
        let positions = match config.positions {
            Positions::None => None,
            Positions::Learned | Positions::LearnedAfterPadding => {
                Some(parts.weight(Part::Positions, 0)?)
            }
        };
        let token_types = if config.token_types > 0 {
            parts.optional_weight(Part::TokenTypes, 0)?
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
            if table.dims2()?.1 != config.embedding_width {
                return Err(Error::CorruptModel(format!(
                    "an embedding table of shape {:?} does not fit the embedding size {}",
                    table.dims(),
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

    pub fn words(&self) -> &Tensor {
        &self.words
    }

    /// The longest sequence that the position table holds.
    pub fn max_positions(&self) -> Option<usize> {
        let rows = self.positions.as_ref()?.dim(0).ok()?;
        Some(match self.counting {
            Positions::LearnedAfterPadding => rows.saturating_sub(self.padding_id as usize + 1),
            _ => rows,
        })
    }

    /// [tokens, hidden]
    pub fn forward(&self, sequences: &PackedSequences) -> Result<Tensor> {
        let mut terms = vec![(&self.words, sequences.ids().to_vec(), "token id")];
        if let Some(table) = &self.positions {
            terms.push((table, self.position_ids(sequences), "position"));
        }
        if let Some(table) = &self.token_types {
            terms.push((table, self.type_ids(sequences, table)?, "token type"));
        }
        let mut x = select_sum(&terms)?;
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

    /// A table of one row serves tokenizers that number the second text of a pair.
    fn type_ids(&self, sequences: &PackedSequences, table: &Tensor) -> Result<Vec<u32>> {
        let last = table.dim(0)?.saturating_sub(1) as u32;
        Ok(sequences
            .type_ids()
            .iter()
            .map(|&id| id.min(last))
            .collect())
    }
}

/// The sum of the tables' rows; checked here, since a GPU would read past a table's end.
fn select_sum(terms: &[(&Tensor, Vec<u32>, &str)]) -> Result<Tensor> {
    for (table, rows, what) in terms {
        let count = table.dim(0)?;
        if let Some(bad) = rows.iter().find(|&&row| row as usize >= count) {
            return Err(Error::InvalidInput(format!(
                "{what} {bad} is beyond the model's table of {count}: the tokenizer belongs to another model, \
                 or the text is longer than the model's positions"
            )));
        }
    }
    #[cfg(feature = "cuda")]
    {
        let terms: Vec<_> = terms
            .iter()
            .map(|(table, rows, _)| (*table, rows.as_slice()))
            .collect();
        if let Some(sum) = crate::kernels::cuda::gather::gather_sum(&terms)? {
            return Ok(sum);
        }
    }
    let mut sum: Option<Tensor> = None;
    for (table, rows, _) in terms {
        let rows = Tensor::from_slice(rows, rows.len(), table.device())?;
        let taken = table.index_select(&rows, 0)?;
        sum = Some(match sum {
            Some(sum) => elementwise::add(&sum, &taken)?,
            None => taken,
        });
    }
    sum.ok_or_else(|| Error::Internal("embeddings without a table".into()))
}
