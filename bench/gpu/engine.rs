//! Times the engine's forward on a GPU, on random weights in the shapes of known models:
//! `bench_gpu [--device cuda] [PART ...]`, the parts being bert, large, kernels, blocks, fp8, llama-1b and llama-8b.
//! Results are read back before the clock stops.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use base::quant::noise::{fp8_matrix, random_matrix};
use base::quant::{BlockType, QuantizedTensor};
use base::runtime::threads;
use candle_core::{DType, Device, Tensor};
use engine::models::decoder::model::Logits;
use engine::models::decoder::{self, Decoder};
use engine::models::encoder::{Blueprint, Encoder};
use engine::nn::{
    attention, elementwise, AttentionKind, AttentionOptions, Epilogue, Linear, PackedSequences,
};
use engine::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::weights::{Metadata, TensorInfo, WeightSource};
use kernels::{self, Activation};

/// What the machine's memory gives, in bytes per second, by which decoding is judged.
const MEMORY_BANDWIDTH: f64 = 4.3e12;

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut device = "cuda".to_owned();
    if arguments.first().is_some_and(|first| first == "--device") && arguments.len() > 1 {
        device = arguments.remove(1);
        arguments.remove(0);
    }
    let result = threads::install(|| run(&device, &arguments));
    if let Err(error) = result.and_then(|result| result) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(device: &str, parts: &[String]) -> Result<()> {
    let device = engine::Device::parse(device)?.open()?;
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|name| name == part);
    if wanted("kernels") {
        kernel_times(&device)?;
    }
    if wanted("blocks") {
        block_times(&device)?;
    }
    if wanted("fp8") {
        fp8_times(&device)?;
    }
    if wanted("bert") {
        encoder_times("BERT-base", (768, 12, 12, 3072), &device)?;
    }
    if wanted("large") {
        encoder_times("BERT-large", (1024, 24, 16, 4096), &device)?;
    }
    if wanted("llama-1b") {
        decoder_times("Llama-3.2-1B", (2048, 16, 32, 8, 8192), true, &device)?;
    }
    if wanted("llama-8b") {
        decoder_times("Llama-3.1-8B", (4096, 32, 32, 8, 14336), false, &device)?;
    }
    Ok(())
}

/// The median of several runs in milliseconds, after some to warm up.
fn median(runs: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..3 {
        work()?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[runs / 2])
}

/// Random tensors by name and shape.
struct RandomWeights {
    shapes: BTreeMap<String, Vec<usize>>,
    metadata: Metadata,
}

impl WeightSource for RandomWeights {
    fn names(&self) -> Vec<String> {
        self.shapes.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.shapes.get(name).map(|shape| TensorInfo {
            shape: shape.clone(),
            dtype_name: "F16",
            bytes: 2 * shape.iter().product::<usize>(),
        })
    }

    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        let shape = self
            .shapes
            .get(name)
            .ok_or_else(|| Error::CorruptModel(format!("no tensor {name}")))?;
        let dtype = dtype.unwrap_or(DType::F16);
        if shape.len() == 1 && name.contains("norm") || name.contains("LayerNorm.weight") {
            return Ok(Tensor::ones(shape.as_slice(), dtype, device)?);
        }
        Ok(Tensor::randn(0f32, 0.02, shape.as_slice(), device)?.to_dtype(dtype)?)
    }

    fn quantized(&self, _: &str) -> Result<Option<QuantizedTensor>> {
        Ok(None)
    }

    fn file(&self, _: &str) -> PathBuf {
        PathBuf::new()
    }

    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// A source of random weights and its configuration.
fn random_model(
    config: serde_json::Value,
    shapes: impl IntoIterator<Item = (String, Vec<usize>)>,
) -> Result<(RawConfig, Arc<RandomWeights>)> {
    let path = std::env::temp_dir().join(format!("bench-gpu-{}.json", std::process::id()));
    let failed = |error: std::io::Error| Error::Internal(error.to_string());
    std::fs::write(&path, config.to_string()).map_err(failed)?;
    let raw = RawConfig::read(&path);
    std::fs::remove_file(&path).map_err(failed)?;
    let source = RandomWeights {
        shapes: shapes.into_iter().collect(),
        metadata: Metadata::default(),
    };
    Ok((raw?, Arc::new(source)))
}

fn encoder_times(
    label: &str,
    (hidden, layers, heads, inner): (usize, usize, usize, usize),
    device: &Device,
) -> Result<()> {
    let config = serde_json::json!({
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 30522,
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": inner, "hidden_act": "gelu", "max_position_embeddings": 512,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    });
    let mut shapes = vec![
        (
            "embeddings.word_embeddings.weight".to_owned(),
            vec![30522, hidden],
        ),
        (
            "embeddings.position_embeddings.weight".to_owned(),
            vec![512, hidden],
        ),
        (
            "embeddings.token_type_embeddings.weight".to_owned(),
            vec![2, hidden],
        ),
    ];
    let mut both = |name: String, outputs: usize, inputs: Option<usize>| {
        let weight = inputs.map_or(vec![outputs], |inputs| vec![outputs, inputs]);
        shapes.push((format!("{name}.weight"), weight));
        shapes.push((format!("{name}.bias"), vec![outputs]));
    };
    both("embeddings.LayerNorm".into(), hidden, None);
    for layer in 0..layers {
        let at = |name: &str| format!("encoder.layer.{layer}.{name}");
        for part in ["query", "key", "value"] {
            both(at(&format!("attention.self.{part}")), hidden, Some(hidden));
        }
        both(at("attention.output.dense"), hidden, Some(hidden));
        both(at("attention.output.LayerNorm"), hidden, None);
        both(at("intermediate.dense"), inner, Some(hidden));
        both(at("output.dense"), hidden, Some(inner));
        both(at("output.LayerNorm"), hidden, None);
    }
    let (raw, source) = random_model(config, shapes)?;
    let blueprint = Blueprint::from_config(&raw)?;
    let cancel = CancelToken::new();
    for dtype in [DType::F16, DType::F32] {
        let encoder = Encoder::load(&blueprint, source.as_ref(), device, dtype, false, &cancel)?;
        for (sequences, length) in [(256, 128), (32, 512), (1, 128)] {
            let ids: Vec<u32> = (0..length).map(|i| (i * 37 % 30000) as u32).collect();
            let mut packed = PackedSequences::new();
            for _ in 0..sequences {
                packed.push(&ids, None)?;
            }
            let mut norm = 0f32;
            let time = median(if dtype == DType::F32 { 5 } else { 21 }, || {
                let hidden = encoder.forward(&packed, &cancel)?;
                let pooled = kernels::mean_pool(&hidden, packed.boundaries())?;
                let first: Vec<f32> = pooled.get(0)?.to_dtype(DType::F32)?.to_vec1()?;
                norm = first.iter().map(|v| v * v).sum::<f32>().sqrt();
                Ok(())
            })?;
            println!(
                "{label} {} {sequences} x {length}: {time:.2} ms (norm {norm:.3})",
                dtype.as_str()
            );
        }
    }
    Ok(())
}

fn decoder_times(
    label: &str,
    (hidden, layers, heads, key_heads, inner): (usize, usize, usize, usize, usize),
    tied: bool,
    device: &Device,
) -> Result<()> {
    let (vocabulary, size) = (128_256, hidden / heads);
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary,
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": key_heads, "intermediate_size": inner, "hidden_act": "silu",
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": tied, "head_dim": size,
    });
    let mut shapes = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            vec![vocabulary, hidden],
        ),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if !tied {
        shapes.push(("lm_head.weight".to_owned(), vec![vocabulary, hidden]));
    }
    for layer in 0..layers {
        let mut add = |name: &str, shape: Vec<usize>| {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        };
        add("self_attn.q_proj", vec![hidden, hidden]);
        add("self_attn.k_proj", vec![key_heads * size, hidden]);
        add("self_attn.v_proj", vec![key_heads * size, hidden]);
        add("self_attn.o_proj", vec![hidden, hidden]);
        add("mlp.gate_proj", vec![inner, hidden]);
        add("mlp.up_proj", vec![inner, hidden]);
        add("mlp.down_proj", vec![hidden, inner]);
        add("input_layernorm", vec![hidden]);
        add("post_attention_layernorm", vec![hidden]);
    }
    let read: usize = shapes
        .iter()
        .filter(|(name, _)| tied || !name.contains("embed_tokens"))
        .map(|(_, shape)| 2 * shape.iter().product::<usize>())
        .sum();
    let (raw, source) = random_model(config, shapes)?;
    let blueprint = decoder::Blueprint::from_config(&raw)?;
    let cancel = CancelToken::new();
    let decoder = Decoder::load(&blueprint, source.as_ref(), device, DType::BF16, &cancel)?;
    for context in [128, 2048] {
        let prompt: Vec<u32> = (0..context).map(|i| (i * 31 % 100_000) as u32).collect();
        let mut cache = decoder.new_cache()?;
        let mut token = 0u32;
        let mut forward = |tokens: &[u32], cache: &mut _| -> Result<()> {
            let logits = decoder.forward(tokens, cache, Logits::Last, &cancel)?;
            let row: Vec<f32> = logits.flatten_all()?.to_vec1()?;
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            token = best.map_or(0, |(at, _)| at as u32);
            Ok(())
        };
        forward(&prompt, &mut cache)?;
        cache.clear(0);
        let start = Instant::now();
        forward(&prompt, &mut cache)?;
        let prefill = start.elapsed().as_secs_f64() * 1e3;
        let time = median(61, || forward(&[17], &mut cache))?;
        let limit = read as f64 / MEMORY_BANDWIDTH * 1e3;
        println!(
            "{label} bf16, context {context}: prompt {prefill:.1} ms, {time:.2} ms per token, {:.0} tokens/s, \
             {:.0} % of the bandwidth limit of {limit:.2} ms",
            1e3 / time,
            100.0 * limit / time
        );
    }
    Ok(())
}

/// What each step of BERT-base costs at 256 x 128 tokens in f16, in microseconds.
fn kernel_times(device: &Device) -> Result<()> {
    let dtype = DType::F16;
    let tokens = 256 * 128;
    let random = |shape: &[usize]| -> Result<Tensor> {
        Ok(Tensor::randn(0f32, 0.5, shape, device)?.to_dtype(dtype)?)
    };
    let time = |label: &str, bytes: f64, work: &mut dyn FnMut() -> Result<Tensor>| -> Result<()> {
        for _ in 0..5 {
            work()?;
        }
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..50 {
            work()?;
        }
        device.synchronize()?;
        let micros = start.elapsed().as_secs_f64() * 1e6 / 50.0;
        println!(
            "{label:<40} {micros:>8.1} us {:>7.2} TB/s",
            bytes / micros / 1e6
        );
        Ok(())
    };
    let linear = |inputs: usize, outputs: usize| -> Result<Linear> {
        Linear::new(random(&[outputs, inputs])?, Some(random(&[outputs])?))
    };
    let (x, wide) = (random(&[tokens, 768])?, random(&[tokens, 3072])?);
    let size = |elements: usize| (2 * elements) as f64;
    let (qkv, output) = (linear(768, 2304)?, linear(768, 768)?);
    let (up, down) = (linear(768, 3072)?, linear(3072, 768)?);
    let epilogue = |activation: Option<Activation>, residual| Epilogue {
        activation,
        residual,
    };
    time("qkv", size(tokens * 3072), &mut || qkv.forward(&x))?;
    time("output + residual", size(tokens * 2304), &mut || {
        output.forward_with(&x, &epilogue(None, Some(&x)))
    })?;
    time("up", size(tokens * 3840), &mut || up.forward(&x))?;
    time("up + gelu", size(tokens * 9984), &mut || {
        up.forward_with(&x, &epilogue(Some(Activation::Gelu), None))
    })?;
    time("down + residual", size(tokens * 4608), &mut || {
        down.forward_with(&wide, &epilogue(None, Some(&x)))
    })?;
    time("gelu", size(tokens * 6144), &mut || {
        kernels::activate(&wide, Activation::Gelu)
    })?;
    let weight = random(&[768])?;
    time("layer_norm", size(tokens * 1536), &mut || {
        kernels::layer_norm(&x, &weight, Some(&weight), 1e-12)
    })?;
    let sum = x.copy()?;
    time("add_layer_norm", size(tokens * 3072), &mut || {
        let both = kernels::add_layer_norm(sum.clone(), &x, &weight, Some(&weight), 1e-12);
        Ok(both?.1)
    })?;
    time("add, then layer_norm", size(tokens * 3840), &mut || {
        kernels::layer_norm(&elementwise::add(&x, &x)?, &weight, Some(&weight), 1e-12)
    })?;
    let fused = random(&[tokens, 36, 64])?;
    for length in [128usize, 512] {
        let boundaries: Vec<u32> = (0..=tokens / length).map(|i| (i * length) as u32).collect();
        let part = |at: usize| fused.narrow(1, at * 12, 12);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let options = AttentionOptions::new(AttentionKind::Bidirectional, 0.125);
        let label = format!("attention, sequences of {length}");
        time(&label, size(tokens * 3072), &mut || {
            attention(&q, &k, &v, &boundaries, &boundaries, &options)
        })?;
    }
    // Decoding: a few rows through an 8B model's matrices.
    for (inputs, outputs) in [(4096, 4096), (4096, 14336), (14336, 4096), (4096, 128_256)] {
        let layer = Linear::new(
            Tensor::randn(0f32, 0.02, (outputs, inputs), device)?.to_dtype(DType::BF16)?,
            None,
        )?;
        for rows in [1usize, 2, 4, 8, 9] {
            let x = Tensor::randn(0f32, 1.0, (rows, inputs), device)?.to_dtype(DType::BF16)?;
            let label = format!("bf16 {rows} x {inputs} x {outputs}");
            time(&label, size(inputs * outputs), &mut || layer.forward(&x))?;
        }
    }
    Ok(())
}

/// Types of blocks whose products are timed; the first is what others are compared with.
const BLOCKS: [BlockType; 9] = [
    BlockType::Q4K,
    BlockType::Q4_0,
    BlockType::Q8_0,
    BlockType::Nf4,
    BlockType::Nf4Bf16,
    BlockType::Int4,
    BlockType::NvFp4,
    BlockType::Fp8,
    BlockType::Int8,
];
/// Of one layer's largest matrices; together they are more than a cache holds.
const BLOCK_SHAPE: (usize, usize) = (4096, 14_336);
const BLOCK_MATRICES: usize = 16;
/// One token, more and more sequences, and a prompt.
const BLOCK_ROWS: [usize; 9] = [1, 2, 4, 16, 32, 64, 128, 256, 2048];

/// Products of bf16 with matrices of blocks: microseconds, and the blocks' bytes in a second.
fn block_times(device: &Device) -> Result<()> {
    let (inputs, outputs) = BLOCK_SHAPE;
    let place = (device, DType::BF16);
    let weight = Tensor::randn(0f32, 0.02, (outputs, inputs), device)?.to_dtype(DType::BF16)?;
    let dense = vec![Linear::new(weight, None)?; BLOCK_MATRICES];
    let mut all = vec![("bf16".to_owned(), dense, 2 * inputs * outputs)];
    for kind in BLOCKS {
        let matrix = random_matrix(kind, outputs, inputs);
        let layers = (0..BLOCK_MATRICES).map(|_| Linear::quantized(matrix.clone(), None, place));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        all.push((kind.name().to_owned(), layers, matrix.bytes.len()));
    }
    for (name, square) in [("fp8 rows", None), ("fp8 128²", Some(128))] {
        let matrix = fp8_matrix(outputs, inputs, square);
        let layers = (0..BLOCK_MATRICES).map(|_| Linear::quantized(matrix.clone(), None, place));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        all.push((name.to_owned(), layers, matrix.bytes.len()));
    }
    for rows in BLOCK_ROWS {
        let x = Tensor::randn(0f32, 1.0, (rows, inputs), device)?.to_dtype(DType::BF16)?;
        for (name, layers, bytes) in &all {
            let time = median(9, || {
                layers
                    .iter()
                    .try_for_each(|layer| layer.forward(&x).map(drop))?;
                Ok(device.synchronize()?)
            })?;
            let micros = time * 1e3 / BLOCK_MATRICES as f64;
            let rate = *bytes as f64 / micros / 1e6;
            println!("{name:<9} {rows:>4} rows: {micros:>8.1} us {rate:>6.2} TB/s");
        }
    }
    Ok(())
}

/// The products of a layer of the 8B shape, for one text's prompt and for many sequences: bf16, then FP8 with rows of
/// FP8. Microseconds, and operations in a second.
fn fp8_times(device: &Device) -> Result<()> {
    let place = (device, DType::BF16);
    for (inputs, outputs) in [(4096, 6144), (4096, 4096), (4096, 28_672), (14_336, 4096)] {
        let dense = Tensor::randn(0f32, 0.02, (outputs, inputs), device)?.to_dtype(DType::BF16)?;
        let quantized = |square| -> Result<Linear> {
            Linear::quantized(fp8_matrix(outputs, inputs, square), None, place)
        };
        let layers = [
            ("bf16", Linear::new(dense, None)?),
            ("fp8 by rows", quantized(None)?),
            ("fp8 by squares", quantized(Some(128))?),
        ];
        for rows in [32usize, 128, 256, 512, 2048] {
            let x = Tensor::randn(0f32, 1.0, (rows, inputs), device)?.to_dtype(DType::BF16)?;
            for (name, layer) in &layers {
                let time = median(9, || {
                    (0..20).try_for_each(|_| layer.forward(&x).map(drop))?;
                    Ok(device.synchronize()?)
                })?;
                let micros = time * 1e3 / 20.0;
                let operations = (2 * rows * inputs * outputs) as f64 / micros / 1e6;
                println!("{name:<15} {rows:>4} x {inputs:>5} x {outputs:>5}: {micros:>8.1} us {operations:>6.0} T/s");
            }
        }
    }
    Ok(())
}
