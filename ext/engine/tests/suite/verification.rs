//! The self-check passes every good checkpoint, and no damaged one.

use std::path::PathBuf;
use std::sync::Arc;

use base::quant::QuantizedTensor;
use base::runtime::threads;
use candle_core::{DType, Device, Tensor};
use engine::models::decoder::{self, Decoder};
use engine::models::encoder::{Blueprint, Encoder};
use engine::models::verification::Evidence;
use engine::tasks::{
    ClassifyModel, EmbedSettings, EmbeddingModel, LanguageModel, LoadOptions, MaskModel,
    RerankModel, TagModel,
};
use engine::{CancelToken, Error, Result};
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::weights::{self, Metadata, TensorInfo, WeightSource};

use super::encoder::files;
use super::tiny_folder::tiny;

/// A device that computes wrongly, as a source whose tensors are not those of the file.
struct Damaged {
    inner: Arc<dyn WeightSource>,
    part: &'static str,
    factor: f64,
}

impl WeightSource for Damaged {
    fn names(&self) -> Vec<String> {
        self.inner.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.inner.info(name)
    }

    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        let tensor = self.inner.tensor(name, dtype, device)?;
        if name.contains(self.part) {
            Ok((tensor * self.factor)?)
        } else {
            Ok(tensor)
        }
    }

    fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>> {
        self.inner.quantized(name)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.inner.file(name)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.inner.files()
    }

    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }
}

fn open(name: &str) -> (RawConfig, Arc<dyn WeightSource>) {
    let folder = tiny(name);
    let weights = WeightFiles::Safetensors(vec![folder.join("model.safetensors")]);
    (
        RawConfig::read(&folder.join("config.json")).unwrap(),
        weights::open(&weights).unwrap(),
    )
}

/// The verdict on an encoder that runs with `loaded` where the file holds something else.
fn check_encoder(name: &str, loaded: impl FnOnce(Arc<dyn WeightSource>) -> Damaged) -> Result<()> {
    let (config, source) = open(name);
    let blueprint = Blueprint::from_config(&config).unwrap();
    let cancel = CancelToken::new();
    let damaged = loaded(source.clone());
    let encoder = Encoder::load(
        &blueprint,
        &damaged,
        &Device::Cpu,
        DType::F32,
        false,
        &cancel,
    )
    .unwrap();
    encoder.verify(&blueprint, source.as_ref(), &cancel)
}

fn check_decoder(name: &str, part: &'static str, factor: f64, dtype: DType) -> Result<()> {
    let (config, inner) = open(&format!("decoders/{name}"));
    let blueprint = decoder::Blueprint::from_config(&config).unwrap();
    let cancel = CancelToken::new();
    let damaged = Damaged {
        inner: inner.clone(),
        part,
        factor,
    };
    let decoder = Decoder::load(&blueprint, &damaged, &Device::Cpu, dtype, &cancel).unwrap();
    decoder.verify(inner.as_ref(), &blueprint.names, &cancel)
}

/// The verdict on `found` where the CPU made 101, 102 and 97 of three times 100.
fn judge(found: &[f32], dtype: DType) -> String {
    let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
    let found = tensor(found).to_dtype(dtype).unwrap();
    let evidence = Evidence {
        place: "layer 0",
        found: &found,
    };
    let (_, source) = open("bert");
    let (expected, input) = (tensor(&[101.0, 102.0, 97.0]), tensor(&[100.0; 3]));
    match evidence.check_against(&expected, &input, source.as_ref()) {
        Ok(()) => "fine".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_quarter_of_the_rows_may_be_those_of_other_experts() {
    let (_, source) = open("bert");
    let expected = Tensor::ones((14, 8), DType::F32, &Device::Cpu).unwrap();
    let input = expected.zeros_like().unwrap();
    let agree = |changed: usize, value: f32| {
        let mut rows = vec![1f32; 14 * 8];
        rows[..changed * 8].fill(value);
        let found = Tensor::from_vec(rows, (14, 8), &Device::Cpu).unwrap();
        let evidence = Evidence {
            place: "layer 0",
            found: &found,
        };
        let agree = evidence.most_rows_agree(&expected, &input, source.as_ref());
        agree.unwrap()
    };
    assert!(agree(3, 2.0));
    assert!(!agree(4, 2.0));
    assert!(!agree(1, f32::NAN));
    assert!(agree(14, 1.0001));
}

#[test]
fn right_values_pass_in_every_dtype() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        assert_eq!(judge(&[101.0, 102.0, 97.0], dtype), "fine");
    }
}

#[test]
fn every_fault_of_values_is_named() {
    for (found, words) in [
        ([f32::NAN, 102.0, 97.0], "NaN"),
        ([f32::INFINITY, 102.0, 97.0], "infinite"),
        ([0.0; 3], "only zeros"),
        // The input unchanged: 2 % off by the norm of the output, 100 % by the change.
        ([100.0; 3], "100.0 % off"),
    ] {
        let message = judge(&found, DType::F32);
        assert!(
            message.contains(words) && message.contains("layer 0"),
            "{message}"
        );
    }
    assert!(judge(&[f32::NAN; 3], DType::F16).contains("dtype: :bf16"));
}

fn message(verdict: Result<()>) -> String {
    match verdict {
        Err(Error::Device(message)) => message,
        other => panic!("expected a device error, not {other:?}"),
    }
}

#[test]
fn damaged_encoders_are_refused_by_what_they_give() {
    for (part, factor, words) in [
        (
            "layer.0.output.LayerNorm",
            f64::NAN,
            "NaN in the first layer",
        ),
        (
            "layer.0.output.LayerNorm",
            0.0,
            "only zeros in the first layer",
        ),
        (
            "layer.0.output.LayerNorm",
            1.5,
            "% off the CPU's (a norm of",
        ),
        ("layer.0.attention.self.value", 0.5, "% off the CPU's"),
        (
            "layer.1.output.LayerNorm",
            f64::NAN,
            "NaN in the last layer",
        ),
        (
            "embeddings.LayerNorm",
            f64::NAN,
            "NaN in the token embeddings",
        ),
    ] {
        let verdict = check_encoder("bert", |inner| Damaged {
            inner,
            part,
            factor,
        });
        let message = message(verdict);
        assert!(message.contains(words), "{part} × {factor}: {message}");
        assert!(message.contains("cpu") && message.contains("verify: false"));
    }
}

#[test]
fn damaged_decoders_are_refused_in_every_dtype() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (part, factor, words) in [
            ("layers.0.mlp.down_proj", f64::NAN, "NaN in the first layer"),
            ("layers.0.mlp.down_proj", 0.0, "% off"),
            ("layers.0.self_attn.v_proj", 3.0, "% off"),
            ("embed_tokens", 0.0, "only zeros in the token embeddings"),
            ("model.norm", f64::NAN, "NaN in the logits"),
        ] {
            let message = message(check_decoder("llama", part, factor, dtype));
            assert!(
                message.contains(words),
                "{part} × {factor} in {dtype:?}: {message}"
            );
        }
    }
}

#[test]
fn every_good_decoder_passes_in_every_dtype() {
    for entry in std::fs::read_dir(tiny("decoders")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let verdict = check_decoder(name, "no such tensor", 1.0, dtype);
            assert!(verdict.is_ok(), "{name} in {dtype:?}: {verdict:?}");
        }
    }
}

#[test]
fn every_task_checks_good_models_and_says_so() {
    let cancel = CancelToken::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let options = LoadOptions {
            verify: Some(true),
            dtype: Some(dtype),
            ..LoadOptions::default()
        };
        for name in [
            "albert",
            "bert",
            "deberta",
            "deberta-v2-conv",
            "distilbert",
            "electra",
            "gte",
            "jina-bert",
            "jina-bert-code",
            "modernbert",
            "mpnet",
            "nomic-bert",
            "qwen3-embedding",
            "gguf-qwen3-embedding",
            "mistral-embedding",
            "phi3-embedding",
            "gemma3-embedding",
            "roberta",
            "gguf-bert-q8_0",
        ] {
            let settings = EmbedSettings::default();
            let model = threads::install(|| {
                EmbeddingModel::load(&files(name), &options, &settings, &cancel)
            });
            let model = model
                .unwrap()
                .unwrap_or_else(|error| panic!("{name} in {dtype:?}: {error}"));
            assert!(model.info().verified);
        }
        let reranker = RerankModel::load(&files("bert-reranker"), &options, &cancel).unwrap();
        let tagger = TagModel::load(&files("bert-token"), &options, &cancel).unwrap();
        let classifier = ClassifyModel::load(&files("bert-sequence"), &options, &cancel).unwrap();
        let filler = MaskModel::load(&files("bert-masked"), &options, &cancel).unwrap();
        let language =
            LanguageModel::load(&files("decoders/llama"), &options, &[], &cancel).unwrap();
        let verified = [
            reranker.info().verified,
            tagger.info().verified,
            classifier.info().verified,
            filler.info().verified,
            language.info().verified,
        ];
        assert_eq!(verified, [true; 5]);
    }
}

#[test]
fn the_cpu_is_not_checked_unasked() {
    let cancel = CancelToken::new();
    let model = TagModel::load(&files("bert-token"), &LoadOptions::default(), &cancel).unwrap();
    assert!(!model.info().verified);
}
