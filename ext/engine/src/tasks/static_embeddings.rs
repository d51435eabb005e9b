//! Embeddings without a network: the mean of each token's vector (model2vec, StaticEmbedding).

use candle_core::DType;

use crate::nn::Inventory;
use crate::{CancelToken, Error, Result};
use base::runtime::memory;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Tokenizer, TokenizerFiles};

use super::loading::{Checkpoint, LoadOptions, ModelInfo};
use crate::serving::batching::shorten_text;
use crate::serving::{Served, Stats};

pub struct StaticEmbeddings {
    /// [rows, dimension]
    table: Vec<f32>,
    dimension: usize,
    rows: usize,
    /// How much a token counts, by id.
    weights: Option<Vec<f32>>,
    /// The row of a token, by id, where tokens share rows.
    mapping: Option<Vec<u32>>,
    pub tokenizer: Tokenizer,
    /// Left out of the mean.
    unknown: Option<u32>,
    pub max_length: usize,
    /// What the model's own config says.
    pub normalize: bool,
    pub stats: Stats,
    pub info: ModelInfo,
}

/// How many tokens of a text model2vec itself reads.
const MAX_LENGTH: usize = 512;

impl StaticEmbeddings {
    pub fn load(
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        options: &LoadOptions,
        is_module: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let source = checkpoint.source.as_ref();
        let cpu = candle_core::Device::Cpu;
        let name = ["embeddings", "embedding.weight", "0.embedding.weight"]
            .into_iter()
            .find(|name| source.has(name))
            .ok_or_else(|| Error::corrupt(&source.file(""), "it holds no tensor \"embeddings\""))?;
        let table = source.tensor(name, Some(DType::F32), &cpu)?;
        let (rows, dimension) = table.dims2()?;
        let optional = |name: &str, dtype| -> Result<Option<candle_core::Tensor>> {
            source
                .has(name)
                .then(|| source.tensor(name, Some(dtype), &cpu))
                .transpose()
        };
        let weights = optional("weights", DType::F32)?.map(|t| t.flatten_all()?.to_vec1::<f32>());
        let mapping = optional("mapping", DType::I64)?.map(|t| t.flatten_all()?.to_vec1::<i64>());
        let mapping = match mapping.transpose()? {
            Some(rows_of) => Some(checked_mapping(&rows_of, rows, source)?),
            None => None,
        };
        let tokenizer = match &options.tokenizer {
            Some(tokenizer) => tokenizer.clone(),
            None => Tokenizer::from_files(&TokenizerFiles::of_model(files, cancel)?)?,
        };
        let tokenizer = tokenizer.with_padding(None).with_truncation(None);
        let max_length = match (options.max_length, is_module) {
            (Some(asked), _) => asked.max(1),
            (None, true) => usize::MAX,
            (None, false) => MAX_LENGTH,
        };
        let normalize = match &checkpoint.config {
            Some(config) => config.opt_bool("normalize")?.unwrap_or(!is_module),
            None => !is_module,
        };
        let mut inventory = Inventory::default();
        inventory.add_tensor(&table);
        Ok(Self {
            unknown: unknown_token(&tokenizer).filter(|_| !is_module),
            table: table.flatten_all()?.to_vec1()?,
            dimension,
            rows,
            weights: weights.transpose()?,
            mapping,
            max_length,
            normalize,
            stats: Stats::new(Served::Encoder),
            info: ModelInfo {
                architecture: "StaticModel".to_owned(),
                family: "model2vec".to_owned(),
                parameters: checkpoint.parameters(),
                hidden_size: dimension,
                layers: 0,
                attention_heads: 0,
                vocabulary: tokenizer.vocab_size(true),
                max_length,
                device: checkpoint.device,
                dtype: DType::F32,
                int8: false,
                files: source.files(),
                inventory,
                verified: false,
            },
            tokenizer,
        })
    }

    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The ids that count, at most `max_length` of them.
    pub fn ids(&self, text: &str, cancel: &CancelToken) -> Result<Vec<u32>> {
        let text = shorten_text(&self.tokenizer, text, self.max_length, cancel)?;
        let encoding = self.tokenizer.encode(text, false, Detail::Ids, cancel)?;
        let ids = encoding.get_ids().iter().copied();
        Ok(ids
            .filter(|&id| Some(id) != self.unknown)
            .take(self.max_length)
            .collect())
    }

    /// The vector of each token, weighted.
    pub fn token_vectors(&self, ids: &[u32]) -> Result<Vec<f32>> {
        memory::ensure_elements(
            &[ids.len(), self.dimension],
            size_of::<f32>(),
            format_args!("the vectors of {} tokens", ids.len()),
        )?;
        let mut vectors = Vec::with_capacity(ids.len() * self.dimension);
        for &id in ids {
            let weight = self.weight(id);
            vectors.extend(self.row(id)?.iter().map(|value| value * weight));
        }
        Ok(vectors)
    }

    /// Adds up into `out`, which is [dimension]; no token gives zeros.
    pub fn mean(&self, ids: &[u32], out: &mut [f32]) -> Result<()> {
        let mut sums = vec![0f64; self.dimension];
        for &id in ids {
            let weight = f64::from(self.weight(id));
            for (sum, value) in sums.iter_mut().zip(self.row(id)?) {
                *sum += f64::from(*value) * weight;
            }
        }
        let count = ids.len().max(1) as f64;
        for (slot, sum) in out.iter_mut().zip(sums) {
            *slot = (sum / count) as f32;
        }
        Ok(())
    }

    fn weight(&self, id: u32) -> f32 {
        let weights = self.weights.as_deref().unwrap_or_default();
        weights.get(id as usize).copied().unwrap_or(1.0)
    }

    fn row(&self, id: u32) -> Result<&[f32]> {
        let row = match &self.mapping {
            Some(mapping) => mapping.get(id as usize).copied().unwrap_or(u32::MAX) as usize,
            None => id as usize,
        };
        let start = row.saturating_mul(self.dimension);
        self.table.get(start..start.saturating_add(self.dimension)).ok_or_else(|| {
            Error::InvalidInput(format!(
                "token id {id} is beyond the model's table of {}: the tokenizer belongs to another model",
                self.rows
            ))
        })
    }
}

fn checked_mapping(
    rows_of: &[i64],
    rows: usize,
    source: &dyn formats::weights::WeightSource,
) -> Result<Vec<u32>> {
    let row = |&row: &i64| u32::try_from(row).ok().filter(|&row| (row as usize) < rows);
    let mapping: Option<Vec<u32>> = rows_of.iter().map(row).collect();
    mapping.ok_or_else(|| {
        Error::corrupt(
            &source.file("mapping"),
            format!("\"mapping\" points outside of the {rows} rows"),
        )
    })
}

fn unknown_token(tokenizer: &Tokenizer) -> Option<u32> {
    let declared = tokenizer.special_tokens().id("unk_token");
    declared.or_else(|| {
        ["[UNK]", "<unk>"]
            .iter()
            .find_map(|token| tokenizer.token_to_id(token))
    })
}
