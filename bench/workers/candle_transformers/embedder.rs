//! Sentence vectors by candle-transformers' BERT, with the tokenizer, the mean pooling and the normalization that its
//! own example of a sentence model has, on batches of texts of like length.

use std::path::Path;

use base64::prelude::{Engine, BASE64_STANDARD};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::{PaddingParams, Tokenizer, TruncationParams};

use super::Answer;

const BATCH: usize = 32;

pub struct Embedder {
    model: BertModel,
    tokenizer: Tokenizer,
}

impl Embedder {
    pub fn load(folder: &str) -> Answer<Self> {
        let folder = Path::new(folder);
        let config: Config = read(&folder.join("config.json"))?;
        let limits: Value = read(&folder.join("sentence_bert_config.json"))?;
        let file = folder.join("model.safetensors");
        // SAFETY: nobody changes the file while it is mapped.
        let weights =
            unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &Device::Cpu)? };
        let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
        let max_length = limits["max_seq_length"].as_u64().unwrap_or(512) as usize;
        tokenizer
            .with_padding(Some(PaddingParams::default()))
            .with_truncation(Some(TruncationParams {
                max_length,
                ..TruncationParams::default()
            }))?;
        Ok(Self {
            model: BertModel::load(weights, &config)?,
            tokenizer,
        })
    }

    /// Vectors in the order of the texts, as little-endian f32 in base64.
    pub fn embed(&self, texts: &Value) -> Answer<Value> {
        let texts: Vec<&str> = Deserialize::deserialize(texts)?;
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&at| texts[at].len());
        let mut vectors = vec![Vec::new(); texts.len()];
        for batch in order.chunks(BATCH) {
            let chosen: Vec<&str> = batch.iter().map(|&at| texts[at]).collect();
            let rows: Vec<Vec<f32>> = self.forward(chosen)?.to_vec2()?;
            for (&at, row) in batch.iter().zip(rows) {
                vectors[at] = row;
            }
        }
        let bytes: Vec<u8> = vectors
            .iter()
            .flatten()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        Ok(BASE64_STANDARD.encode(bytes).into())
    }

    /// f32 [texts, hidden]
    fn forward(&self, texts: Vec<&str>) -> Answer<Tensor> {
        let encodings = self.tokenizer.encode_batch(texts, true)?;
        let stack = |pick: fn(&tokenizers::Encoding) -> &[u32]| {
            let rows: Vec<Vec<u32>> = encodings.iter().map(|each| pick(each).to_vec()).collect();
            Tensor::new(rows, &Device::Cpu)
        };
        let ids = stack(tokenizers::Encoding::get_ids)?;
        let mask = stack(tokenizers::Encoding::get_attention_mask)?;
        let states = self.model.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
        let mask = mask.to_dtype(DType::F32)?.unsqueeze(2)?;
        let sums = states.broadcast_mul(&mask)?.sum(1)?;
        let means = sums.broadcast_div(&mask.sum(1)?)?;
        let lengths = means.sqr()?.sum_keepdim(1)?.sqrt()?;
        Ok(means.broadcast_div(&lengths)?)
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Answer<T> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}
