//! Families against candle-transformers, which shares candle's tensors with us and no model code:
//! what transformers wrote into a tiny checkpoint is read twice, and both must compute the same.
//! Not every family can be: its DistilBERT approximates GELU, its Gemma 3 knows no scaled rope.

use std::fs::File;
use std::path::Path;

use base::runtime::threads;
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as theirs;
use engine::tasks::{LanguageModel, LoadOptions};
use engine::CancelToken;
use formats::files::model_files::ModelFiles;
use serde::de::DeserializeOwned;
use serde_json::{json, Value};

use super::decoder::{in_chunks, numbers};
use super::encoder::{self, difference, Expected};
use super::tiny_folder::tiny;

/// Of hidden states and of logits, both in f32: only the order of summation differs.
const TOLERANCE: f32 = 1e-4;

/// A fixture's `config.json` as candle-transformers reads it: rope settings beside the others, as
/// transformers wrote them before its version 5, and `more` for what it wants besides.
fn config<C: DeserializeOwned>(folder: &Path, more: Value) -> C {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let rope = config["rope_parameters"].clone();
    let additions = [rope, more].into_iter().filter_map(|each| match each {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    let fields = config.as_object_mut().unwrap();
    additions.for_each(|added| fields.extend(added));
    serde_json::from_value(config).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

fn weights(folder: &Path) -> VarBuilder<'static> {
    let file = folder.join("model.safetensors");
    let tensors = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
    VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)
}

/// u32 [1, tokens]
fn row(ids: &[u32]) -> Tensor {
    Tensor::new(ids, &Device::Cpu)
        .unwrap()
        .unsqueeze(0)
        .unwrap()
}

fn rows(tensor: &Tensor) -> Vec<Vec<f32>> {
    tensor.to_dtype(DType::F32).unwrap().to_vec2().unwrap()
}

type Forward = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor>>;

/// Hidden states of every token of every text, [1, tokens, hidden] from `forward`.
fn check_encoder(name: &str, forward: impl FnOnce(&Path) -> Forward) {
    let forward = forward(&tiny(name));
    let ours = encoder::load(name, &LoadOptions::default());
    let expected = Expected::of(name);
    for (text, ids) in expected.texts().iter().zip(expected.ids()) {
        let found = threads::install(|| ours.token_embeddings(text, &CancelToken::new()));
        let found = rows(&found.unwrap().unwrap());
        let wanted = rows(&forward(&row(&ids)).unwrap().squeeze(0).unwrap());
        assert_eq!(found.len(), wanted.len(), "{name}: the tokens of {text:?}");
        for (found, wanted) in found.iter().zip(&wanted) {
            let off = difference(found, wanted);
            assert!(off < TOLERANCE, "{name}, {text:?}: {off}");
        }
    }
}

#[test]
fn bert_has_the_same_hidden_states() {
    check_encoder("bert", |folder| {
        let model = theirs::bert::BertModel::load(weights(folder), &config(folder, json!({})));
        let model = model.unwrap();
        Box::new(move |ids| model.forward(ids, &ids.zeros_like()?, None))
    });
}

/// From tokens and the number of those before them to the logits of the last.
type Step = Box<dyn FnMut(&Tensor, usize) -> candle_core::Result<Tensor>>;

fn our_decoder(folder: &Path) -> LanguageModel {
    let cancel = CancelToken::new();
    let files = ModelFiles::open(folder.to_str().unwrap(), None, &cancel).unwrap();
    LanguageModel::load(&files, &LoadOptions::default(), &[], &cancel)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

fn sequences(folder: &Path) -> Vec<Vec<u32>> {
    let record = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let sequences = record["sequences"].as_array().unwrap();
    sequences.iter().map(numbers).collect()
}

/// The logits after each of the first `most` tokens of a sequence: theirs at once up to half of it
/// and then token by token, ours at once.
fn check_decoder(
    (folder, origin): (&Path, &Path),
    most: usize,
    tolerance: f32,
    load: impl Fn(&Path) -> Step,
) {
    let ours = our_decoder(folder);
    for ids in sequences(origin) {
        let ids = &ids[..ids.len().min(most)];
        let found = rows(&in_chunks(ours.decoder(), ids, ids.len()));
        let mut step = load(folder);
        let half = ids.len().div_ceil(2);
        let pieces = std::iter::once(0..half).chain((half..ids.len()).map(|at| at..at + 1));
        for piece in pieces {
            let (first, last) = (piece.start, piece.end - 1);
            let wanted = step(&row(&ids[piece]), first).unwrap();
            let wanted: Vec<f32> = wanted.flatten_all().unwrap().to_vec1().unwrap();
            let off = difference(&found[last], &wanted);
            assert!(off < tolerance, "{} after {last}: {off}", folder.display());
        }
    }
}

fn decoder(name: &str, most: usize, load: impl Fn(&Path) -> Step) {
    let folder = tiny("decoders").join(name);
    check_decoder((&folder, &folder), most, TOLERANCE, load);
}

/// Its configurations want a window; none is longer than this.
const NO_WINDOW: usize = 1 << 20;

fn llama(folder: &Path) -> Step {
    use theirs::llama::{Cache, Llama, LlamaConfig};
    let config = config::<LlamaConfig>(folder, json!({})).into_config(false);
    let model = Llama::load(weights(folder), &config).unwrap();
    let mut cache = Cache::new(true, DType::F32, &config, &Device::Cpu).unwrap();
    Box::new(move |ids, before| model.forward(ids, before, &mut cache))
}

#[test]
fn llama_and_its_scaled_rope_have_the_same_logits() {
    decoder("llama", usize::MAX, llama);
    decoder("llama3", usize::MAX, llama);
}

#[test]
fn qwen2_and_qwen3_have_the_same_logits() {
    decoder("qwen2", usize::MAX, |folder| {
        let config = config(folder, json!({ "sliding_window": NO_WINDOW }));
        let mut model = theirs::qwen2::ModelForCausalLM::new(&config, weights(folder)).unwrap();
        Box::new(move |ids, before| model.forward(ids, before))
    });
    decoder("qwen3", usize::MAX, |folder| {
        let config = config(folder, json!({}));
        let mut model = theirs::qwen3::ModelForCausalLM::new(&config, weights(folder)).unwrap();
        Box::new(move |ids, before| model.forward(ids, before))
    });
}

#[test]
fn mixtral_and_olmo2_have_the_same_logits() {
    decoder("mixtral", usize::MAX, |folder| {
        let more = json!({ "sliding_window": NO_WINDOW, "use_flash_attn": false });
        let mut model =
            theirs::mixtral::Model::new(&config(folder, more), weights(folder)).unwrap();
        Box::new(move |ids, before| model.forward(ids, before))
    });
    decoder("olmo2", usize::MAX, |folder| {
        let mut model =
            theirs::olmo2::Model::new(&config(folder, json!({})), weights(folder)).unwrap();
        Box::new(move |ids, before| model.forward(ids, before))
    });
}

/// It lets a token see one more than the window says, so texts agree up to there only.
#[test]
fn mistral_has_the_same_logits_within_its_window() {
    decoder("mistral", 8, |folder| {
        let config = config(folder, json!({ "use_flash_attn": false }));
        let mut model = theirs::mistral::Model::new(&config, weights(folder)).unwrap();
        Box::new(move |ids, before| model.forward(ids, before))
    });
}

fn gguf_llama(folder: &Path) -> Step {
    let mut file = File::open(folder.join("model.gguf")).unwrap();
    let content = Content::read(&mut file).unwrap();
    let model = theirs::quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu);
    let mut model = model.unwrap();
    Box::new(move |ids, before| model.forward(ids, before))
}

#[test]
fn gguf_llama_has_the_same_logits() {
    let folder = tiny("gguf-decoders").join("llama");
    let origin = tiny("decoders").join("llama");
    check_decoder((&folder, &origin), usize::MAX, TOLERANCE, gguf_llama);
}
