//! Text by candle-transformers' quantized Llama. It has no tokenizer of its own for GGUF files: ours stands in.

use std::fs::File;
use std::time::Instant;

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use engine::CancelToken;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::Tokenizer;
use serde_json::{json, Value};

use super::{Answer, Done};

/// How many tokens of each place of an answer are told.
const LIKELIEST: usize = 10;

pub struct LanguageModel {
    model: ModelWeights,
    tokenizer: Tokenizer,
    /// Tokens in its cache.
    length: usize,
}

impl LanguageModel {
    pub fn load(path: &str) -> Answer<Self> {
        let cancel = CancelToken::new();
        let files = ModelFiles::open(path, None, &cancel)?;
        let tokenizer = Tokenizer::from_model(&files, &cancel)?;
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        Ok(Self {
            model: ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?,
            tokenizer,
            length: 0,
        })
    }

    pub fn perform(&mut self, task: &str, data: &Value) -> Answer<Done> {
        self.model.clear_kv_cache();
        self.length = 0;
        let prompt = data["prompt"].as_str().ok_or("the input has no prompt")?;
        let tokens = self.tokenizer.ids(prompt, true)?;
        let count = data["tokens"].as_u64().unwrap_or(1) as usize;
        match task {
            "prefill" => Ok((json!([best(&self.read(&tokens)?)]), None)),
            "first_token" => {
                let first = best(&self.read(&tokens)?);
                Ok((json!([self.tokenizer.decode(&[first], false)?]), None))
            }
            "decode" => self.decode(&tokens, count),
            "likeliest" => Ok((self.likeliest(&tokens, count)?, None)),
            "logprobs" => Ok((self.logprobs(&tokens)?, None)),
            _ => Err(format!("no such task: {task}").into()),
        }
    }

    /// The logits after the last of these tokens.
    fn read(&mut self, tokens: &[u32]) -> Answer<Vec<f32>> {
        let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let logits = self.model.forward(&input, self.length)?;
        self.length += tokens.len();
        Ok(logits.flatten_all()?.to_vec1()?)
    }

    /// Seconds per token after the first.
    fn decode(&mut self, prompt: &[u32], count: usize) -> Answer<Done> {
        let mut chosen = vec![best(&self.read(prompt)?)];
        let started = Instant::now();
        while chosen.len() < count {
            let last = chosen[chosen.len() - 1];
            chosen.push(best(&self.read(&[last])?));
            self.tokenizer.decode(&chosen[chosen.len() - 1..], false)?;
        }
        let seconds = started.elapsed().as_secs_f64() / (count - 1).max(1) as f64;
        Ok((json!(chosen), Some(seconds)))
    }

    /// The tokens that could have been chosen, best first, at each place of a greedy answer.
    fn likeliest(&mut self, prompt: &[u32], count: usize) -> Answer<Value> {
        let mut places = Vec::new();
        let mut row = self.read(prompt)?;
        while places.len() < count {
            let logprobs = log_softmax(&row);
            let mut ids: Vec<u32> = (0..row.len() as u32).collect();
            ids.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
            ids.truncate(LIKELIEST);
            let place = ids.iter().map(|&id| json!([id, logprobs[id as usize]]));
            places.push(place.collect::<Vec<_>>());
            if places.len() < count {
                row = self.read(&ids[..1])?;
            }
        }
        Ok(json!(places))
    }

    /// The tokens of a text and the log probability of each but the first, one by one: a forward tells the logits of
    /// its last token only.
    fn logprobs(&mut self, tokens: &[u32]) -> Answer<Value> {
        let mut found = Vec::new();
        for pair in tokens.windows(2) {
            let row = self.read(&pair[..1])?;
            found.push(log_softmax(&row)[pair[1] as usize]);
        }
        Ok(json!([tokens, found]))
    }
}

fn best(row: &[f32]) -> u32 {
    let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    best.unwrap_or(0) as u32
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = row.iter().map(|&value| f64::from(value - most));
    let sum: f64 = shifted.clone().map(f64::exp).sum();
    shifted.map(|value| value - sum.ln()).collect()
}
