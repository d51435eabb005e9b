//! Decoders that embed, rerank and label: packed sequences without a cache.

use candle_core::{DType, Device, Tensor};
use engine::models::decoder::{self, Decoder};
use engine::models::verification::Expanded;
use engine::models::{Blueprint, TextModel};
use engine::nn::{PackedSequences, Pooling};
use engine::tasks::{EmbedOptions, LanguageModel, LoadOptions, RerankModel};
use engine::{CancelToken, Error};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::weights::{self, WeightSource};

use std::path::Path;
use std::sync::Arc;

use super::decoder::{folders, Expectations};
use super::encoder::{difference, embed, files, load, Expected};
use super::tiny_folder::tiny;

const TOLERANCE: f32 = 1e-4;
const BATCH_TOLERANCE: f32 = 1e-5;

const EMBEDDERS: [(&str, Pooling, bool); 5] = [
    ("mistral-embedding", Pooling::Last, true),
    ("qwen2-embedding", Pooling::Last, false),
    ("llama-embedding", Pooling::Mean, true),
    ("phi3-embedding", Pooling::Last, true),
    ("gemma3-embedding", Pooling::Mean, true),
];

fn source(folder: &Path) -> Arc<dyn WeightSource> {
    let cancel = CancelToken::new();
    let files = ModelFiles::open(folder.to_str().unwrap(), None, &cancel).unwrap();
    weights::open(&files.weights(None, &cancel).unwrap()).unwrap()
}

fn packed(sequences: &[Vec<u32>]) -> PackedSequences {
    let mut packed = PackedSequences::new();
    for ids in sequences {
        packed.push(ids, None).unwrap();
    }
    packed
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The states of each sequence, run after the other through a cache.
fn cached_states(decoder: &Decoder, sequences: &[Vec<u32>]) -> Vec<f32> {
    let cancel = CancelToken::new();
    let states = sequences.iter().flat_map(|ids| {
        let mut cache = decoder.new_cache().unwrap();
        cache.clear(decoder.rope_variant(ids.len()));
        values(&decoder.hidden_states(ids, &mut cache, &cancel).unwrap())
    });
    states.collect()
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for (name, pooling, normalize) in EMBEDDERS {
        let expected = Expected::of(name);
        let model = load(name, &LoadOptions::default());
        assert_eq!(model.pooling(), [pooling], "{name}");
        assert_eq!(model.normalizes(), normalize, "{name}");
        let limit = expected.record["max_length"].as_u64().unwrap() as usize;
        assert_eq!(model.max_length(), limit, "{name}");
        let mut hidden = Vec::new();
        for text in expected.texts() {
            let states = model.token_embeddings(&text, &CancelToken::new()).unwrap();
            hidden.extend(values(&states));
        }
        let apart = difference(&hidden, &expected.rows("hidden").concat());
        assert!(
            apart <= TOLERANCE,
            "{name}: hidden states differ by {apart}"
        );
        let query = EmbedOptions {
            prompt_name: Some("query".to_owned()),
            ..EmbedOptions::default()
        };
        for (key, options) in [("default", EmbedOptions::default()), ("query", query)] {
            let together = embed(&model, &expected.texts(), &options);
            let mut worst = 0f32;
            for (found, row) in together.iter().zip(expected.rows(key)) {
                worst = worst.max(difference(found, &row));
            }
            println!("{name}: {key} within {worst:e}");
            assert!(worst <= TOLERANCE, "{name}: {key} differs by {worst}");
            for (text, row) in expected.texts().into_iter().zip(&together) {
                let alone = embed(&model, &[text], &options);
                let apart = difference(&alone[0], row);
                assert!(apart <= BATCH_TOLERANCE, "{name}: a batch adds {apart}");
            }
        }
    }
}

#[test]
fn a_models_description_is_complete() {
    let model = load("gemma3-embedding", &LoadOptions::default());
    let info = model.info();
    assert_eq!(info.architecture, "Gemma3TextModel");
    assert_eq!(info.family, "gemma3_text");
    assert_eq!((info.layers, info.attention_heads), (3, 4));
    assert_eq!((info.hidden_size, info.vocabulary), (16, 273));
    assert_eq!((model.dimension(), info.max_length), (16, 32));
    assert!(info.parameters > 273 * 16);
}

#[test]
fn packed_sequences_have_the_states_that_a_cache_gives() {
    for folder in folders("decoders") {
        let raw = RawConfig::read(&folder.join("config.json")).unwrap();
        let blueprint = decoder::Blueprint::from_config(&raw).unwrap();
        let cancel = CancelToken::new();
        let decoder = Decoder::load(
            &blueprint,
            source(&folder).as_ref(),
            &Device::Cpu,
            DType::F32,
            &cancel,
        )
        .unwrap();
        let sequences = Expectations::read(&folder).sequences;
        let mixed: Vec<Vec<u32>> = [&sequences[4][..], &sequences[0][..3], &sequences[2]]
            .map(<[u32]>::to_vec)
            .to_vec();
        let together = decoder.forward_packed(&packed(&mixed), &cancel).unwrap();
        let apart = difference(&values(&together), &cached_states(&decoder, &mixed));
        assert!(apart <= TOLERANCE, "{}: {apart}", folder.display());
        let mut alone = Vec::new();
        for ids in &mixed {
            let one = packed(std::slice::from_ref(ids));
            alone.extend(values(&decoder.forward_packed(&one, &cancel).unwrap()));
        }
        let apart = difference(&values(&together), &alone);
        assert!(apart <= BATCH_TOLERANCE, "{}: {apart}", folder.display());
    }
}

#[test]
fn a_quantized_file_stays_quantized() {
    let folder = tiny("gguf-decoders/quantized");
    let (source, cancel) = (source(&folder), CancelToken::new());
    let sequences = packed(&Expectations::read(&folder).sequences);
    let states = |source: &dyn WeightSource| {
        let blueprint = Blueprint::from_gguf(source).unwrap();
        let placement = (&Device::Cpu, DType::F32);
        let model = TextModel::load(&blueprint, source, placement, false, &cancel).unwrap();
        values(&model.forward(&sequences, &cancel).unwrap())
    };
    let on_blocks = states(source.as_ref());
    let expanded = states(&Expanded(source.as_ref()));
    let blueprint = decoder::Blueprint::from_gguf(source.as_ref()).unwrap();
    let generating = Decoder::load(
        &blueprint,
        source.as_ref(),
        &Device::Cpu,
        DType::F32,
        &cancel,
    )
    .unwrap();
    let cached = cached_states(&generating, &Expectations::read(&folder).sequences);
    let apart = difference(&on_blocks, &cached);
    assert!(apart <= BATCH_TOLERANCE, "the decoder's states: {apart}");
    // Products of blocks round their inputs, which products of expanded weights do not.
    let apart = difference(&on_blocks, &expanded);
    assert!(apart > 2.0 * BATCH_TOLERANCE, "expanded states: {apart}");
}

#[test]
fn pooling_without_sentence_transformers_files_follows_the_checkpoint() {
    // Saved with its head, so made to generate; saved without, so made to embed.
    for (name, pooling) in [
        ("decoders/llama", Pooling::Mean),
        ("qwen3-embedding", Pooling::Last),
        ("gguf-qwen3-embedding", Pooling::Last),
    ] {
        let model = load(name, &LoadOptions::default());
        assert_eq!(model.pooling(), [pooling], "{name}");
        assert!(model.normalizes());
    }
}

#[test]
fn models_are_refused_for_what_they_cannot_do() {
    let (options, cancel) = (LoadOptions::default(), CancelToken::new());
    let generating = LanguageModel::load(&files("gemma3-embedding"), &options, &[], &cancel);
    let reranking = RerankModel::load(&files("mistral-embedding"), &options, &cancel);
    let counting = RerankModel::load(&files("mistral-sequence"), &options, &cancel);
    for (error, part) in [
        (generating.err(), "EmbeddingModel"),
        (reranking.err(), "sequence classification head"),
        (counting.err(), "3 scores"),
    ] {
        let error = error.unwrap();
        assert!(matches!(error, Error::UnsupportedModel(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}
