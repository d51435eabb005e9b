//! Every encoder family against its reference, on the fixtures of `spec/fixtures/tiny`.

use base::runtime::threads;
use candle_core::{DType, Tensor};
use engine::nn::Pooling;
use engine::tasks::{
    ClassifyModel, EmbedOptions, EmbedSettings, EmbeddingModel, LoadOptions, MaskModel, TagModel,
};
use engine::{CancelToken, Error};
use formats::files::model_files::ModelFiles;
use serde_json::Value;

use super::tiny_folder::tiny;

const TOLERANCE: f32 = 1e-4;
const BATCH_TOLERANCE: f32 = 1e-5;

pub fn files(name: &str) -> ModelFiles {
    ModelFiles::open(tiny(name).to_str().unwrap(), None, &CancelToken::new()).unwrap()
}

/// What the reference made of a fixture.
pub struct Expected {
    pub record: Value,
    tensors: std::collections::HashMap<String, Tensor>,
}

impl Expected {
    pub fn of(name: &str) -> Self {
        let folder = tiny(name);
        let record = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let tensors = candle_core::safetensors::load(
            folder.join("expected.safetensors"),
            &candle_core::Device::Cpu,
        );
        Self {
            record: serde_json::from_str(&record).unwrap(),
            tensors: tensors.unwrap(),
        }
    }

    pub fn texts(&self) -> Vec<String> {
        serde_json::from_value(self.record["texts"].clone()).unwrap()
    }

    pub fn ids(&self) -> Vec<Vec<u32>> {
        serde_json::from_value(self.record["ids"].clone()).unwrap()
    }

    pub fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        self.tensors[name]
            .to_dtype(DType::F32)
            .unwrap()
            .to_vec2()
            .unwrap()
    }
}

pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, next| {
        if next.is_nan() {
            f32::INFINITY
        } else {
            most.max(next)
        }
    })
}

pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum::<f64>()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

pub fn load(name: &str, options: &LoadOptions) -> EmbeddingModel {
    EmbeddingModel::load(
        &files(name),
        options,
        &EmbedSettings::default(),
        &CancelToken::new(),
    )
    .unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn embed(model: &EmbeddingModel, texts: &[String], options: &EmbedOptions) -> Vec<Vec<f32>> {
    let found = threads::install(|| model.embed(texts, options, &CancelToken::new())).unwrap();
    let found = found.unwrap();
    found
        .values
        .chunks(found.dimension.max(1))
        .map(<[f32]>::to_vec)
        .collect()
}

pub fn raw(pooling: Pooling) -> EmbedOptions {
    EmbedOptions {
        pooling: Some(pooling),
        normalize: Some(false),
        ..EmbedOptions::default()
    }
}

fn check_bare(name: &str) {
    check_model(name, &load(name, &LoadOptions::default()));
}

/// Hidden states, pooled vectors, and a batch against single texts.
pub fn check_model(name: &str, model: &EmbeddingModel) {
    let expected = Expected::of(name);
    let texts = expected.texts();
    let hidden = expected.rows("hidden");
    let mut from = 0;
    let mut worst = 0f32;
    for (text, ids) in texts.iter().zip(expected.ids()) {
        let states =
            threads::install(|| model.token_embeddings(text, &CancelToken::new())).unwrap();
        let states: Vec<Vec<f32>> = states.unwrap().to_vec2().unwrap();
        assert_eq!(states.len(), ids.len(), "{name}: the tokens of {text:?}");
        for (state, row) in states.iter().zip(&hidden[from..]) {
            worst = worst.max(difference(state, row));
        }
        from += ids.len();
    }
    assert_eq!(from, hidden.len());
    println!("{name}: hidden states within {worst:e}");
    assert!(
        worst <= TOLERANCE,
        "{name}: hidden states differ by {worst}"
    );
    for (pooling, key) in [(Pooling::Mean, "mean"), (Pooling::Cls, "cls")] {
        let together = embed(model, &texts, &raw(pooling));
        for (found, row) in together.iter().zip(expected.rows(key)) {
            assert!(difference(found, &row) <= TOLERANCE, "{name}: {key}");
        }
        let small = EmbedOptions {
            batch_tokens: Some(24),
            ..raw(pooling)
        };
        for (single, row) in embed(model, &texts, &small).iter().zip(&together) {
            let apart = difference(single, row);
            assert!(
                apart <= BATCH_TOLERANCE,
                "{name}: a batch changes a vector by {apart}"
            );
        }
    }
}

fn check_half(name: &str) {
    let expected = Expected::of(name);
    for dtype in [DType::F16, DType::BF16] {
        let options = LoadOptions {
            dtype: Some(dtype),
            ..LoadOptions::default()
        };
        let model = load(name, &options);
        let found = embed(&model, &expected.texts(), &raw(Pooling::Mean));
        for (vector, row) in found.iter().zip(expected.rows("mean")) {
            let alike = cosine(vector, &row);
            assert!(alike >= 0.999, "{name} in {dtype:?}: cosine {alike}");
        }
    }
}

fn check_sequence(name: &str) {
    let expected = Expected::of(name);
    let model = ClassifyModel::load(&files(name), &LoadOptions::default(), &CancelToken::new());
    let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
    let classify = |texts: &[String], pairs: Option<&[String]>| {
        threads::install(|| model.classify(texts, pairs, None, &CancelToken::new()))
            .unwrap()
            .unwrap()
    };
    let mut worst = 0f32;
    let found = classify(&expected.texts(), None);
    for (row, reference) in found.rows().zip(expected.rows("logits")) {
        worst = worst.max(difference(row, &reference));
    }
    let pairs: Vec<(String, String)> =
        serde_json::from_value(expected.record["pairs"].clone()).unwrap();
    let (firsts, seconds): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let found = classify(&firsts, Some(&seconds));
    assert_eq!(found.count, firsts.len());
    for (row, reference) in found.rows().zip(expected.rows("pair_logits")) {
        worst = worst.max(difference(row, &reference));
    }
    println!("{name}: logits within {worst:e}");
    assert!(worst <= TOLERANCE, "{name}: logits differ by {worst}");
    assert_eq!(model.labels(), ["contradiction", "neutral", "entailment"]);
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - highest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

fn check_token(name: &str) {
    let expected = Expected::of(name);
    let model = TagModel::load(&files(name), &LoadOptions::default(), &CancelToken::new());
    let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
    let texts = expected.texts();
    let tagged = threads::install(|| model.tag(&texts, None, &CancelToken::new()))
        .unwrap()
        .unwrap();
    let logits = expected.rows("logits");
    let limit = expected.record["max_length"].as_u64().unwrap() as usize;
    let mut from = 0;
    let mut worst = 0f32;
    for ((text, tokens), ids) in texts.iter().zip(&tagged).zip(expected.ids()) {
        // The reference cuts a long text where ours reads it in windows.
        if ids.len() < limit {
            assert_eq!(tokens.len() + 2, ids.len(), "{name}: {text:?}");
            for token in tokens {
                assert_eq!(token.id, ids[token.index]);
                let reference = softmax(&logits[from + token.index]);
                worst = worst.max(difference(&token.probabilities, &reference));
            }
        }
        from += ids.len();
    }
    println!("{name}: probabilities within {worst:e}");
    assert!(
        worst <= TOLERANCE,
        "{name}: probabilities differ by {worst}"
    );
    assert_eq!(model.labels()[1], "B-PER");
}

fn check_masked(name: &str) {
    let expected = Expected::of(name);
    let model = MaskModel::load(&files(name), &LoadOptions::default(), &CancelToken::new());
    let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut worst = 0f32;
    for (text, logits) in expected.texts().iter().zip(expected.rows("logits")) {
        let filled =
            threads::install(|| model.fill(text, usize::MAX, &CancelToken::new())).unwrap();
        let filled = filled.unwrap();
        assert_eq!(filled.len(), 1);
        let reference = softmax(&logits);
        assert_eq!(
            filled[0].len(),
            reference.len(),
            "{name}: the whole vocabulary"
        );
        for filling in &filled[0] {
            worst = worst.max((filling.score - reference[filling.id as usize]).abs());
        }
        assert!(filled[0]
            .windows(2)
            .all(|pair| pair[0].score >= pair[1].score));
    }
    println!("{name}: mask probabilities within {worst:e}");
    assert!(
        worst <= TOLERANCE,
        "{name}: mask probabilities differ by {worst}"
    );
}

macro_rules! families {
    ($($test:ident: $name:literal [$($head:ident),*];)*) => {
        $(mod $test {
            use super::*;
            $(families!(@ $head $name);)*
        })*
    };
    (@ bare $name:literal) => {
        #[test]
        fn hidden_states_and_vectors() {
            check_bare($name);
        }

        #[test]
        fn half_precision() {
            check_half($name);
        }
    };
    (@ sequence $name:literal) => {
        #[test]
        fn sequence_logits() {
            check_sequence(concat!($name, "-sequence"));
        }
    };
    (@ token $name:literal) => {
        #[test]
        fn token_logits() {
            check_token(concat!($name, "-token"));
        }
    };
    (@ masked $name:literal) => {
        #[test]
        fn masked_logits() {
            check_masked(concat!($name, "-masked"));
        }
    };
}

families! {
    bert: "bert" [bare, sequence, token, masked];
    roberta: "roberta" [bare, sequence, token, masked];
    xlm_roberta: "xlm-roberta" [bare, sequence];
    camembert: "camembert" [token];
    distilbert: "distilbert" [bare, sequence, token, masked];
    mpnet: "mpnet" [bare, sequence, token, masked];
    electra: "electra" [bare, sequence, token, masked];
    albert: "albert" [bare, sequence, token, masked];
    deberta: "deberta" [bare, sequence, token, masked];
    deberta_v2: "deberta-v2" [bare, sequence, token, masked];
    deberta_v2_convolution: "deberta-v2-conv" [bare];
    nomic_bert: "nomic-bert" [bare, sequence, token, masked];
    gte: "gte" [bare, sequence, token, masked];
    modernbert: "modernbert" [bare, sequence, token, masked];
    jina_bert: "jina-bert" [bare, sequence];
    jina_bert_code: "jina-bert-code" [bare];
    gte_stretched: "gte-ntk" [bare];
    qwen3_embedding: "qwen3-embedding" [bare];
    mistral: "mistral" [sequence];
    mistral_embedding: "mistral-embedding" [bare];
    qwen2: "qwen2" [token];
    qwen2_embedding: "qwen2-embedding" [bare];
    llama_embedding: "llama-embedding" [bare];
    phi3_embedding: "phi3-embedding" [bare];
    bert_in_bf16: "bert-bf16" [bare];
}

#[test]
fn the_wrong_head_is_refused_by_name() {
    let refused = |result: engine::Result<()>, part: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::UnsupportedModel(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    let (options, cancel) = (LoadOptions::default(), CancelToken::new());
    let classify = |name| ClassifyModel::load(&files(name), &options, &cancel).map(drop);
    let tag = |name| TagModel::load(&files(name), &options, &cancel).map(drop);
    let fill = |name| MaskModel::load(&files(name), &options, &cancel).map(drop);
    refused(classify("bert"), "sequence classification head");
    refused(classify("bert-token"), "BertForTokenClassification");
    refused(tag("roberta-sequence"), "RobertaForSequenceClassification");
    refused(fill("bert-sequence"), "masked language model head");
}

#[test]
fn a_cancelled_call_stops() {
    let model = load("bert", &LoadOptions::default());
    let cancel = CancelToken::new();
    cancel.cancel();
    let texts = ["a".to_owned()];
    let result = threads::install(|| model.embed(&texts, &EmbedOptions::default(), &cancel));
    assert!(matches!(result.unwrap(), Err(Error::Interrupted)));
}
