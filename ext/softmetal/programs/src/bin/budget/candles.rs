//! candle-transformers' models, called as its examples do.

use candle_core::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::generation::LogitsProcessor;
use candle_transformers::models::{bert, llama};
use serde::de::DeserializeOwned;

use super::checkpoints::{Checkpoint, DTYPE};
use super::{counted, texts, PROMPT, WARM};

fn config<C: DeserializeOwned>(checkpoint: &Checkpoint) -> Result<C> {
    serde_json::from_value(checkpoint.config()).map_err(Error::wrap)
}

fn weights(checkpoint: &Checkpoint, device: &Device) -> Result<VarBuilder<'static>> {
    let tensors = candle_core::safetensors::load(checkpoint.file(), device)?;
    Ok(VarBuilder::from_tensors(tensors, DTYPE, device))
}

/// Reads the prompt one by one, then tokens, the last of which counts. `forward` takes tokens and how many came before
/// them.
fn tokens(
    device: &Device,
    mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>,
) -> Result<()> {
    let mut sampler = LogitsProcessor::new(0, None, None);
    let mut step = |id: u32, before: usize| {
        let ids = Tensor::new(&[[id]], device)?;
        sampler.sample(&forward(&ids, before)?.squeeze(0)?)
    };
    let mut token = 0;
    for before in 0..PROMPT.len() + WARM - 1 {
        token = step(PROMPT.get(before).copied().unwrap_or(token), before)?;
    }
    counted(device, || step(token, PROMPT.len() + WARM - 1))
}

pub fn decode(checkpoint: &Checkpoint, device: &Device) -> Result<()> {
    let config = config::<llama::LlamaConfig>(checkpoint)?.into_config(false);
    let model = llama::Llama::load(weights(checkpoint, device)?, &config)?;
    let mut cache = llama::Cache::new(true, DTYPE, &config, device)?;
    tokens(device, |ids, before| model.forward(ids, before, &mut cache))
}

/// A padded batch with its mask, to hidden states.
pub fn embed(checkpoint: &Checkpoint, device: &Device) -> Result<()> {
    let model = bert::BertModel::load(weights(checkpoint, device)?, &config(checkpoint)?)?;
    let texts = texts();
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let shape = (texts.len(), longest);
    let padded = |of: fn(u32) -> u32| -> Vec<u32> {
        let rows = texts.iter().flat_map(|text| {
            let padding = std::iter::repeat_n(0, longest - text.len());
            text.iter().map(|id| of(*id)).chain(padding)
        });
        rows.collect()
    };
    let embed = || {
        let ids = Tensor::from_vec(padded(|id| id), shape, device)?;
        let mask = Tensor::from_vec(padded(|_| 1), shape, device)?;
        let states = model.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
        states.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()
    };
    embed()?;
    counted(device, embed)
}
