//! Every family of encoder-decoders against what transformers makes of the same tiny checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engine::generation::{EarlyStopping, Ending, FinishReason, GenerationConfig, Pattern};
use engine::models::seq2seq::{Blueprint, Cache, Seq2Seq};
use engine::nn::PackedSequences;
use engine::tasks::{LoadOptions, Seq2SeqGeneration, Seq2SeqModel, Seq2SeqSettings};
use engine::{CancelToken, Error};
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::weights::{self, WeightSource};
use serde_json::Value;

use crate::decoder::{folders, numbers, worst};
use crate::tiny_folder::tiny;
use crate::weight_files::Folder;

const TOLERANCE: f32 = 1e-4;

pub struct Fixture {
    pub folder: PathBuf,
    expected: Value,
    tensors: Arc<dyn WeightSource>,
}

impl Fixture {
    pub fn all() -> Vec<Self> {
        let found: Vec<Self> = folders("seq2seq").into_iter().map(Self::read).collect();
        assert!(found.len() >= 8, "{} families", found.len());
        found
    }

    fn read(folder: PathBuf) -> Self {
        let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        Self {
            expected: serde_json::from_str(&text).unwrap(),
            tensors: open(folder.join("expected.safetensors")),
            folder,
        }
    }

    pub fn named(name: &str) -> Self {
        Self::read(tiny("seq2seq").join(name))
    }

    pub fn sources(&self) -> Vec<Vec<u32>> {
        let ids = self.expected["ids"].as_array().unwrap();
        ids.iter().map(numbers).collect()
    }

    fn generated(&self, case: usize) -> Vec<Vec<u32>> {
        let texts = self.expected["generated"][case].as_array().unwrap();
        texts.iter().map(numbers).collect()
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let tensor = self
            .tensors
            .tensor(name, Some(DType::F32), &Device::Cpu)
            .unwrap();
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    pub fn load(&self) -> Arc<Seq2SeqModel> {
        let cancel = CancelToken::new();
        let files = ModelFiles::open(self.folder.to_str().unwrap(), None, &cancel).unwrap();
        let model = Seq2SeqModel::load(&files, &LoadOptions::default(), &cancel);
        Arc::new(model.unwrap_or_else(|error| panic!("{}: {error}", self.folder.display())))
    }

    fn target(&self, model: &Seq2SeqModel) -> Option<u32> {
        let code = self.expected["target"].as_str()?;
        Some(model.target_language(code).unwrap())
    }
}

fn open(path: PathBuf) -> Arc<dyn WeightSource> {
    weights::open(&WeightFiles::Safetensors(vec![path])).unwrap()
}

pub fn bare(folder: &Path) -> Seq2Seq {
    let raw = RawConfig::read(&folder.join("config.json")).unwrap();
    let blueprint = Blueprint::from_config(&raw).unwrap();
    let source = open(folder.join("model.safetensors"));
    let target = (&Device::Cpu, DType::F32);
    Seq2Seq::load(&blueprint, source.as_ref(), target, &CancelToken::new()).unwrap()
}

pub fn packed(sources: &[Vec<u32>]) -> PackedSequences {
    let mut sequences = PackedSequences::new();
    for ids in sources {
        sequences.push(ids, None).unwrap();
    }
    sequences
}

pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn logprobs(row: &[f32]) -> Vec<f32> {
    let total = engine::generation::sampler::log_sum_exp(row);
    row.iter().map(|logit| logit - total).collect()
}

/// The settings of a case, as transformers' `generate` was called.
fn settings(model: &Seq2SeqModel, case: &Value, target: Option<u32>) -> Seq2SeqSettings {
    let defaults = model.defaults();
    let count = |key: &str| case[key].as_u64().map(|count| count as usize);
    let number = |key: &str| case[key].as_f64().map(|number| number as f32);
    let mut rules = defaults.rules.clone();
    rules.forced_begin = target.or(rules.forced_begin);
    if let Some(length) = count("min_length") {
        rules.min_new_tokens = length - 1;
    }
    rules.no_repeat_ngram_size =
        count("no_repeat_ngram_size").unwrap_or(rules.no_repeat_ngram_size);
    if let Some(words) = case["bad_words_ids"].as_array() {
        rules.bad_words = words.iter().map(numbers).collect();
        rules.suppressed = numbers(&case["suppress_tokens"]);
        rules.suppressed_at_begin = numbers(&case["begin_suppress_tokens"]);
    }
    Seq2SeqSettings {
        config: GenerationConfig {
            max_new_tokens: count("max_length").unwrap() - 1,
            repetition_penalty: number("repetition_penalty").unwrap_or(1.0),
            ..GenerationConfig::default()
        },
        num_beams: count("num_beams").unwrap(),
        length_penalty: number("length_penalty").unwrap_or(defaults.length_penalty),
        early_stopping: match &case["early_stopping"] {
            Value::Bool(true) => EarlyStopping::Always,
            Value::String(_) => EarlyStopping::Never,
            Value::Bool(false) => EarlyStopping::Heuristic,
            _ => defaults.early_stopping,
        },
        rules,
    }
}

pub fn generated(
    model: &Arc<Seq2SeqModel>,
    sources: &[Vec<u32>],
    settings: &Seq2SeqSettings,
) -> Vec<Vec<u32>> {
    let generation =
        Seq2SeqGeneration::new(model.clone(), sources.to_vec(), settings.clone(), None).unwrap();
    generation.finish(&CancelToken::new()).unwrap();
    let outputs = generation.outputs().unwrap();
    let tokens = |text: &engine::tasks::seq2seq::Seq2SeqOutput| {
        text.choices.iter().map(|choice| choice.token).collect()
    };
    outputs.iter().map(tokens).collect()
}

#[test]
fn states_and_logits_equal_the_reference() {
    for fixture in Fixture::all() {
        let model = bare(&fixture.folder);
        let (cancel, sources) = (CancelToken::new(), fixture.sources());
        let sequences = packed(&sources);
        let states = model.encoder().forward(&sequences, &cancel).unwrap();
        let off = worst(&fixture.values("encoder"), &values(&states));
        assert!(off < TOLERANCE, "{}: {off}", fixture.folder.display());
        // One row per text, all in one forward.
        let memory = model.read(&sequences, &cancel).unwrap();
        let mut cache = Cache::default();
        let mut found = vec![Vec::new(); sources.len()];
        for token in numbers(&fixture.expected["decoder_ids"]) {
            let ids = vec![token; sources.len()];
            let (logits, next) = model.decode(&ids, &cache, &memory, &cancel).unwrap();
            cache = next;
            let rows: Vec<Vec<f32>> = logits.to_vec2().unwrap();
            for (found, row) in found.iter_mut().zip(rows) {
                found.extend(logprobs(&row));
            }
        }
        let off = worst(&fixture.values("logprobs"), &found.concat());
        assert!(off < TOLERANCE, "{}: {off}", fixture.folder.display());
    }
}

#[test]
fn greedy_and_beam_tokens_equal_the_reference() {
    let mut ends = 0;
    for fixture in Fixture::all() {
        let model = fixture.load();
        let target = fixture.target(&model);
        let cases = fixture.expected["cases"].as_array().unwrap();
        for (number, case) in cases.iter().enumerate() {
            let settings = settings(&model, case, target);
            let sources = fixture.sources();
            let expected = fixture.generated(number);
            let together = generated(&model, &sources, &settings);
            assert_eq!(together, expected, "{} {case}", fixture.folder.display());
            let end = settings.rules.end_ids[0];
            let short = |text: &&Vec<u32>| {
                text.last() == Some(&end) && text.len() < settings.config.max_new_tokens
            };
            ends += together.iter().filter(short).count();
            let alone = generated(&model, &sources[1..2], &settings);
            assert_eq!(alone[0], expected[1], "{} {case}", fixture.folder.display());
        }
    }
    assert!(ends > 50, "only {ends} texts ended before their limit");
}

#[test]
fn texts_are_tokenized_and_decoded_as_in_the_reference() {
    for fixture in Fixture::all() {
        let model = fixture.load();
        let texts = fixture.expected["texts"].as_array().unwrap();
        for (text, ids) in texts.iter().zip(fixture.sources()) {
            let found = model
                .encode(text.as_str().unwrap(), None, &CancelToken::new())
                .unwrap();
            assert_eq!(found, ids, "{}: {text}", fixture.folder.display());
        }
        let decoded = fixture.expected["decoded"].as_array().unwrap();
        for (tokens, text) in fixture.generated(0).iter().zip(decoded) {
            let found = model.tokenizer().decode(tokens, true).unwrap();
            assert_eq!(
                found.trim(),
                text.as_str().unwrap().trim(),
                "{}",
                fixture.folder.display()
            );
        }
    }
}

#[test]
fn a_text_does_not_depend_on_those_beside_it() {
    for name in ["t5", "bart", "nllb"] {
        let fixture = Fixture::named(name);
        let model = bare(&fixture.folder);
        let cancel = CancelToken::new();
        let sources = fixture.sources();
        let logits = |sources: &[Vec<u32>]| -> Vec<Vec<f32>> {
            let memory = model.read(&packed(sources), &cancel).unwrap();
            let mut cache = Cache::default();
            let mut last = Vec::new();
            for token in [2, 5, 9] {
                let ids = vec![token; sources.len()];
                let (logits, next) = model.decode(&ids, &cache, &memory, &cancel).unwrap();
                (cache, last) = (next, logits.to_vec2().unwrap());
            }
            last
        };
        let together = logits(&sources);
        for (source, row) in sources.iter().zip(&together) {
            let alone = logits(std::slice::from_ref(source));
            assert_eq!(&alone[0], row, "{name}");
        }
    }
}

pub fn plain(model: &Seq2SeqModel, max_new_tokens: usize) -> Seq2SeqSettings {
    let defaults = model.defaults();
    Seq2SeqSettings {
        config: GenerationConfig {
            max_new_tokens,
            ..GenerationConfig::default()
        },
        num_beams: 1,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::Heuristic,
        rules: defaults.rules.clone(),
    }
}

#[test]
fn an_interrupted_step_goes_on_where_it_was() {
    let fixture = Fixture::named("t5");
    let model = fixture.load();
    for num_beams in [1, 3] {
        let settings = Seq2SeqSettings {
            num_beams,
            ..plain(&model, 8)
        };
        let sources = fixture.sources()[1..4].to_vec();
        let expected = generated(&model, &sources, &settings);
        let generation = Seq2SeqGeneration::new(model.clone(), sources, settings, None).unwrap();
        let stopped = CancelToken::new();
        stopped.cancel();
        loop {
            assert!(matches!(
                generation.step(&stopped),
                Ok(None) | Err(Error::Interrupted)
            ));
            if generation.step(&CancelToken::new()).unwrap().is_none() {
                break;
            }
        }
        let found = generation.outputs().unwrap();
        for (text, expected) in found.iter().zip(expected) {
            let tokens: Vec<u32> = text.choices.iter().map(|choice| choice.token).collect();
            assert_eq!(tokens, expected);
        }
    }
}

#[test]
fn constraints_and_stop_sequences_are_followed() {
    let fixture = Fixture::named("t5");
    let model = fixture.load();
    let cancel = CancelToken::new();
    let source = fixture.sources()[1].clone();
    let pattern = Pattern::Regex("(dog|fox) [a-c]{3}".to_owned());
    let constraint = model
        .constraint(&pattern, Ending::Complete, &cancel)
        .unwrap();
    let settings = plain(&model, 40);
    let generation = Seq2SeqGeneration::new(
        model.clone(),
        vec![source.clone()],
        settings.clone(),
        Some(constraint),
    )
    .unwrap();
    generation.finish(&cancel).unwrap();
    let text = &generation.outputs().unwrap()[0];
    assert_eq!(text.finish_reason, Some(FinishReason::Constraint));
    assert!(
        text.text.starts_with("dog ") || text.text.starts_with("fox "),
        "{}",
        text.text
    );
    for num_beams in [1, 2] {
        let mut free = Seq2SeqSettings {
            num_beams,
            ..settings.clone()
        };
        free.rules.min_new_tokens = 12;
        let generation =
            Seq2SeqGeneration::new(model.clone(), vec![source.clone()], free.clone(), None)
                .unwrap();
        generation.finish(&cancel).unwrap();
        let whole = generation.outputs().unwrap()[0].text.clone();
        let stop: String = whole.chars().skip(3).take(2).collect();
        let mut stopping = free;
        stopping.config.stop_sequences = vec![stop.clone()];
        let generation =
            Seq2SeqGeneration::new(model.clone(), vec![source.clone()], stopping, None).unwrap();
        generation.finish(&cancel).unwrap();
        let cut = &generation.outputs().unwrap()[0];
        assert_eq!(cut.finish_reason, Some(FinishReason::StopSequence));
        assert_eq!(Some(cut.text.as_str()), whole.split(stop.as_str()).next());
    }
}

#[test]
fn gguf_files_write_what_their_checkpoints_write() {
    for (name, original) in [("t5-t5", "t5"), ("t5-mt5", "mt5")] {
        let fixture = Fixture::named(original);
        let file = tiny("gguf-seq2seq").join(name).join("model.gguf");
        let cancel = CancelToken::new();
        let files = ModelFiles::open(file.to_str().unwrap(), None, &cancel).unwrap();
        let model = Seq2SeqModel::load(&files, &LoadOptions::default(), &cancel).unwrap();
        let model = Arc::new(model);
        let cases = fixture.expected["cases"].as_array().unwrap();
        for (number, case) in cases.iter().enumerate() {
            let settings = settings(&model, case, None);
            let found = generated(&model, &fixture.sources(), &settings);
            assert_eq!(found, fixture.generated(number), "{name} {case}");
        }
        let texts = fixture.expected["texts"].as_array().unwrap();
        for (text, ids) in texts.iter().zip(fixture.sources()) {
            let found = model.encode(text.as_str().unwrap(), None, &cancel);
            assert_eq!(found.unwrap(), ids, "{name} {text}");
        }
    }
    let encoder = tiny("gguf-seq2seq").join("t5encoder-mt5/model.gguf");
    let source = weights::open(&WeightFiles::Gguf(encoder)).unwrap();
    let blueprint = engine::models::encoder::Blueprint::from_gguf(source.as_ref()).unwrap();
    let (device, cancel) = (Device::Cpu, CancelToken::new());
    let encoder = engine::models::encoder::Encoder::load(
        &blueprint,
        source.as_ref(),
        &device,
        DType::F32,
        false,
        &cancel,
    );
    let fixture = Fixture::named("mt5");
    let states = encoder
        .unwrap()
        .forward(&packed(&fixture.sources()), &cancel)
        .unwrap();
    assert!(worst(&fixture.values("encoder"), &values(&states)) < TOLERANCE);
}

#[test]
fn beams_refuse_what_they_cannot_do() {
    let fixture = Fixture::named("t5");
    let model = fixture.load();
    let refused = |change: &dyn Fn(&mut Seq2SeqSettings), word: &str| {
        let mut settings = Seq2SeqSettings {
            num_beams: 2,
            ..plain(&model, 4)
        };
        change(&mut settings);
        match Seq2SeqGeneration::new(model.clone(), fixture.sources(), settings, None) {
            Err(Error::InvalidInput(message)) => assert!(message.contains(word), "{message}"),
            _ => panic!("{word} was taken"),
        }
    };
    refused(&|settings| settings.num_beams = 0, "num_beams");
    refused(&|settings| settings.num_beams = 100_000, "num_beams");
    refused(&|settings| settings.config.temperature = 0.5, "temperature");
    refused(&|settings| settings.config.logprobs = Some(0), "logprobs");
    refused(
        &|settings| settings.length_penalty = f32::NAN,
        "length_penalty",
    );
}

/// A checkpoint with other configuration files.
fn changed(name: &str, file: &str, changes: Value) -> Result<Seq2SeqModel, Error> {
    let folder = Folder::new();
    for entry in std::fs::read_dir(tiny("seq2seq").join(name)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut content = std::fs::read(&path).unwrap();
        if name == file {
            let mut config: Value = serde_json::from_slice(&content).unwrap();
            for (key, value) in changes.as_object().unwrap() {
                config[key] = value.clone();
            }
            content = config.to_string().into_bytes();
        }
        folder.write(&name, content);
    }
    let cancel = CancelToken::new();
    let files = ModelFiles::open(folder.path("").to_str().unwrap(), None, &cancel)?;
    Seq2SeqModel::load(&files, &LoadOptions::default(), &cancel)
}

#[test]
fn files_that_lie_are_refused_with_the_reason() {
    use serde_json::json;
    let cases = [
        ("t5", "config.json", json!({"d_kv": 1 << 30}), "d_kv"),
        ("t5", "config.json", json!({"num_heads": 0}), "num_heads"),
        (
            "t5",
            "config.json",
            json!({"num_decoder_layers": 4000}),
            "4000 layers",
        ),
        ("t5", "config.json", json!({"num_layers": 7}), "7 layers"),
        (
            "t5",
            "config.json",
            json!({"vocab_size": 1 << 30}),
            "vocab_size",
        ),
        (
            "flan-t5",
            "config.json",
            json!({"vocab_size": 9}),
            "lm_head",
        ),
        (
            "t5",
            "config.json",
            json!({"relative_attention_num_buckets": 64}),
            "relative position",
        ),
        (
            "t5",
            "config.json",
            json!({"relative_attention_max_distance": 2_000_000_000}),
            "relative position",
        ),
        (
            "t5",
            "config.json",
            json!({"relative_attention_max_distance": 2}),
            "relative position",
        ),
        ("t5", "config.json", json!({"d_model": 16}), "shape"),
        (
            "bart",
            "config.json",
            json!({"decoder_attention_heads": 3}),
            "3 heads",
        ),
        ("bart", "config.json", json!({"d_model": 64}), "shape"),
        (
            "marian",
            "config.json",
            json!({"max_position_embeddings": 1_000_000_000}),
            "positions",
        ),
        (
            "marian",
            "generation_config.json",
            json!({"bad_words_ids": [["x"]]}),
            "bad_words_ids",
        ),
        (
            "marian",
            "generation_config.json",
            json!({"early_stopping": 3}),
            "early_stopping",
        ),
        (
            "marian",
            "generation_config.json",
            json!({"num_beams": "many"}),
            "num_beams",
        ),
    ];
    for (name, file, changes, word) in cases {
        match changed(name, file, changes.clone()).map(drop) {
            Err(Error::CorruptModel(message)) => {
                assert!(message.contains(word), "{word:?} is not in {message:?}");
            }
            other => panic!("{name} {changes}: {other:?}"),
        }
    }
}
