//! Checkpoints of random numbers, large enough that what the device reads is weights above all, and no larger: every
//! access is watched.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Result, Tensor};
use serde_json::json;

use crate::{PROMPT, WARM};

const HIDDEN: usize = 256;
const INNER: usize = 512;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const VOCABULARY: usize = 384;
const POSITIONS: usize = 128;
const HEAD: usize = HIDDEN / HEADS;
/// What models on a Mac are mostly stored as.
pub const DTYPE: DType = DType::F16;

/// A folder of files that goes with its value.
pub struct Checkpoint {
    folder: PathBuf,
    kind: String,
    layers: usize,
    weight_bytes: usize,
}

/// Bytes that cannot but be read.
pub struct Work {
    pub weights: usize,
    pub cache: usize,
}

/// A tensor's name and shape; `true` for what a GGUF file stores in fewer bits.
type Shape = (String, Vec<usize>, bool);

impl Checkpoint {
    pub fn write(kind: &str, layers: usize) -> Result<Self> {
        let name = format!("budget-{}-{kind}-{layers}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let mut checkpoint = Self {
            folder,
            kind: kind.to_owned(),
            layers,
            weight_bytes: 0,
        };
        let shapes = match kind {
            "bert" => bert(layers),
            "gguf" => llama_gguf(layers),
            _ => llama(layers),
        };
        let tensors = shapes.iter().enumerate();
        let tensors =
            tensors.map(|(seed, shape)| Ok((shape, endless(&shape.0, random(&shape.1, seed)?)?)));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        match kind {
            "gguf" => checkpoint.write_gguf(&tensors)?,
            _ => checkpoint.write_safetensors(&tensors)?,
        }
        Ok(checkpoint)
    }

    pub fn folder(&self) -> &PathBuf {
        &self.folder
    }

    /// What holds the weights.
    pub fn file(&self) -> PathBuf {
        self.folder.join(if self.is_gguf() {
            "model.gguf"
        } else {
            "model.safetensors"
        })
    }

    pub fn is_gguf(&self) -> bool {
        self.kind == "gguf"
    }

    pub fn work(&self, sequences: usize) -> Work {
        let keys = PROMPT.len() + WARM;
        let decodes = self.kind != "bert";
        Work {
            weights: self.weight_bytes,
            cache: usize::from(decodes)
                * sequences
                * 2
                * self.layers
                * keys
                * KEY_HEADS
                * HEAD
                * DTYPE.size_in_bytes(),
        }
    }

    /// Of `config.json`.
    pub fn config(&self) -> serde_json::Value {
        let sizes = json!({
            "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
            "num_hidden_layers": self.layers, "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS,
            "torch_dtype": DTYPE.as_str().replace("f16", "float16"),
        });
        let rest = match self.kind.as_str() {
            "bert" => json!({
                "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12,
                "type_vocab_size": 2, "pad_token_id": 0, "hidden_dropout_prob": 0.0, "initializer_range": 0.02,
            }),
            _ => json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                "num_key_value_heads": KEY_HEADS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
            }),
        };
        let mut fields = sizes.as_object().cloned().unwrap_or_default();
        fields.extend(rest.as_object().cloned().unwrap_or_default());
        fields.into()
    }

    fn write_safetensors(&mut self, tensors: &[(&Shape, Tensor)]) -> Result<()> {
        let mut stored = HashMap::new();
        for ((name, _, _), tensor) in tensors {
            let tensor = tensor.to_dtype(DTYPE)?;
            if !is_table(name) {
                self.weight_bytes += tensor.elem_count() * DTYPE.size_in_bytes();
            }
            stored.insert(name.clone(), tensor);
        }
        candle_core::safetensors::save(&stored, self.file())?;
        Ok(std::fs::write(
            self.folder.join("config.json"),
            self.config().to_string(),
        )?)
    }

    /// As llama.cpp's Q4_K_M: most in four bits, values and what ends an MLP in six.
    fn write_gguf(&mut self, tensors: &[(&Shape, Tensor)]) -> Result<()> {
        let mut stored = Vec::new();
        for ((name, _, quantized), tensor) in tensors {
            let finer = ["attn_v", "ffn_down", "output.weight"];
            let kind = if !quantized {
                GgmlDType::F32
            } else if finer.iter().any(|part| name.contains(part)) {
                GgmlDType::Q6K
            } else {
                GgmlDType::Q4K
            };
            let tensor = QTensor::quantize(tensor, kind)?;
            if !is_table(name) {
                self.weight_bytes += tensor.storage_size_in_bytes();
            }
            stored.push((name.as_str(), tensor));
        }
        let number = |number: usize| Value::U32(number as u32);
        let metadata = [
            ("general.architecture", Value::String("llama".into())),
            ("llama.block_count", number(self.layers)),
            ("llama.embedding_length", number(HIDDEN)),
            ("llama.feed_forward_length", number(INNER)),
            ("llama.attention.head_count", number(HEADS)),
            ("llama.attention.head_count_kv", number(KEY_HEADS)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
            ("llama.context_length", number(POSITIONS)),
            ("llama.rope.dimension_count", number(HEAD)),
            ("llama.rope.freq_base", Value::F32(10000.0)),
            ("llama.vocab_size", number(VOCABULARY)),
        ];
        let metadata: Vec<_> = metadata
            .iter()
            .map(|(name, value)| (*name, value))
            .collect();
        let tensors: Vec<_> = stored
            .iter()
            .map(|(name, tensor)| (*name, tensor))
            .collect();
        gguf_file::write(&mut File::create(self.file())?, &metadata, &tensors)
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("{}: {error}", self.folder.display());
        }
    }
}

/// Of which a few rows are read.
fn is_table(name: &str) -> bool {
    name.contains("embed") || name.contains("token_embd")
}

fn llama(layers: usize) -> Vec<Shape> {
    let matrix = |name: &str, outputs, inputs| (name.to_owned(), vec![outputs, inputs], true);
    let norm = |name: String| (name, vec![HIDDEN], false);
    let mut shapes = vec![
        matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN),
        norm("model.norm.weight".to_owned()),
        matrix("lm_head.weight", VOCABULARY, HIDDEN),
    ];
    for layer in 0..layers {
        let named = |part: &str| format!("model.layers.{layer}.{part}.weight");
        shapes.extend([
            norm(named("input_layernorm")),
            matrix(&named("self_attn.q_proj"), HIDDEN, HIDDEN),
            matrix(&named("self_attn.k_proj"), KEY_HEADS * HEAD, HIDDEN),
            matrix(&named("self_attn.v_proj"), KEY_HEADS * HEAD, HIDDEN),
            matrix(&named("self_attn.o_proj"), HIDDEN, HIDDEN),
            norm(named("post_attention_layernorm")),
            matrix(&named("mlp.gate_proj"), INNER, HIDDEN),
            matrix(&named("mlp.up_proj"), INNER, HIDDEN),
            matrix(&named("mlp.down_proj"), HIDDEN, INNER),
        ]);
    }
    shapes
}

fn llama_gguf(layers: usize) -> Vec<Shape> {
    let parts = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let renamed = |name: String| {
        parts
            .iter()
            .fold(name, |name, (from, to)| name.replace(from, to))
    };
    let shapes = llama(layers).into_iter();
    shapes
        .map(|(name, dims, quantized)| (renamed(name), dims, quantized))
        .collect()
}

fn bert(layers: usize) -> Vec<Shape> {
    fn linear(shapes: &mut Vec<Shape>, name: String, outputs: usize, inputs: usize) {
        shapes.push((format!("{name}.weight"), vec![outputs, inputs], true));
        shapes.push((format!("{name}.bias"), vec![outputs], false));
    }
    fn norm(shapes: &mut Vec<Shape>, name: String) {
        for part in ["weight", "bias"] {
            shapes.push((format!("{name}.LayerNorm.{part}"), vec![HIDDEN], false));
        }
    }
    let mut shapes = Vec::new();
    let tables = [
        ("word", VOCABULARY),
        ("position", POSITIONS),
        ("token_type", 2),
    ];
    for (name, rows) in tables {
        let name = format!("embeddings.{name}_embeddings.weight");
        shapes.push((name, vec![rows, HIDDEN], true));
    }
    norm(&mut shapes, "embeddings".to_owned());
    for layer in 0..layers {
        let named = |part: &str| format!("encoder.layer.{layer}.{part}");
        for part in ["query", "key", "value"] {
            let name = named(&format!("attention.self.{part}"));
            linear(&mut shapes, name, HIDDEN, HIDDEN);
        }
        linear(&mut shapes, named("attention.output.dense"), HIDDEN, HIDDEN);
        norm(&mut shapes, named("attention.output"));
        linear(&mut shapes, named("intermediate.dense"), INNER, HIDDEN);
        linear(&mut shapes, named("output.dense"), HIDDEN, INNER);
        norm(&mut shapes, named("output"));
    }
    shapes
}

/// The same, but for the rows of what ends a text, of which no logit is the largest.
fn endless(name: &str, tensor: Tensor) -> Result<Tensor> {
    const ENDS: usize = 8;
    if !["lm_head.weight", "output.weight"].contains(&name) {
        return Ok(tensor);
    }
    let (rows, columns) = tensor.dims2()?;
    let zeros = Tensor::zeros((ENDS, columns), tensor.dtype(), tensor.device())?;
    Tensor::cat(&[zeros, tensor.narrow(0, ENDS, rows - ENDS)?], 0)
}

/// Numbers around zero, those of norms around one.
fn random(dims: &[usize], seed: usize) -> Result<Tensor> {
    let mut state = seed as u32 + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let middle = if dims.len() == 1 { 1.0 } else { 0.0 };
    let values: Vec<f32> = (0..dims.iter().product())
        .map(|_| middle + 0.2 * next())
        .collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
}
