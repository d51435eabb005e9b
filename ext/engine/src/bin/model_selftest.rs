//! Runs every tiny checkpoint under some folders, GGUF files and seeded ones too, on a device and compares with the CPU:
//! `model_selftest --device cuda spec/fixtures/tiny spec/fixtures/seeded`. Then asks the device for more memory than it
//! has, and expects an error and a device that goes on.

#[path = "../../tests/suite/seeded_tensors.rs"]
mod seeded_tensors;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use base::runtime::threads;
use candle_core::{DType, Tensor};
use engine::models::decoder::model::Logits;
use engine::models::decoder::{self, Decoder};
use engine::models::seq2seq::{self, Cache, Seq2Seq};
use engine::models::vision::vlm::VlmConfig;
use engine::models::{families, Blueprint, TextModel};
use engine::nn::PackedSequences;
use engine::tasks::{ImageEncoder, LanguageModel, LoadOptions, Picture};
use engine::{CancelToken, Device, Error, Result};
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::image::{Image, CHANNELS};
use formats::weights::{self, WeightSource};

const USAGE: &str = "usage: model_selftest --device cpu|cuda|cuda:1|metal FOLDER ...";

/// The names and shapes of weights that are a function of name and seed.
const SEEDED: &str = "tensors.json";

/// The error that is allowed, relative to the size of the result.
const ALLOWED: [(DType, f32); 3] = [(DType::F32, 1e-4), (DType::F16, 3e-2), (DType::BF16, 2e-1)];

/// How much farther off than the CPU in the same type a device may be where both are beyond what is allowed.
const ALIKE: f32 = 1.5;

/// The same for quantized weights, which the CPU multiplies with activations of eight bits.
const ALLOWED_QUANTIZED: f32 = 1e-1;

fn main() -> ExitCode {
    match threads::install(run).and_then(|result| result) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [flag, device, folders @ ..] = arguments.as_slice() else {
        return Err(Error::InvalidInput(USAGE.into()));
    };
    if flag != "--device" || folders.is_empty() {
        return Err(Error::InvalidInput(USAGE.into()));
    }
    let device = Device::parse(device)?;
    let opened = device.open()?;
    let mut sound = true;
    let mut count = 0;
    let mut checkpoints = Vec::new();
    for folder in folders {
        find_checkpoints(Path::new(folder), &mut checkpoints)?;
    }
    let scratch = std::env::temp_dir().join(format!("model_selftest-{}", std::process::id()));
    for folder in checkpoints {
        let Some(model) = Model::find(&folder, &scratch)? else {
            continue;
        };
        let want = model.run(Device::Cpu, DType::F32)?;
        for (dtype, allowed) in ALLOWED {
            let got = model.run(device, dtype)?;
            let error = deviation(&want, &got);
            let allowed = if model.is_quantized()? {
                allowed.max(ALLOWED_QUANTIZED)
            } else {
                allowed
            };
            // Where routers choose other experts in this type, they do so on the CPU too.
            let passed = error <= allowed
                || dtype != DType::F32
                    && error <= ALIKE * deviation(&want, &model.run(Device::Cpu, dtype)?);
            sound &= passed;
            count += 1;
            let verdict = if passed { "ok" } else { "FAILED" };
            println!(
                "{verdict:<7} {:<5} {error:.1e} {}",
                dtype.as_str(),
                folder.display()
            );
        }
    }
    std::fs::remove_file(&scratch).ok();
    println!("{count} runs on {device}");
    let survives = device == Device::Cpu || survives_exhaustion(&opened)?;
    Ok(sound && count > 0 && survives)
}

/// The checkpoint that a folder is, or those under it.
fn find_checkpoints(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let listed = std::fs::read_dir(folder)
        .map_err(|error| Error::ModelNotFound(format!("{}: {error}", folder.display())))?;
    let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let ends = |path: &PathBuf, end: &str| path.extension().is_some_and(|found| found == end);
    let stored = ["model.safetensors", SEEDED].map(|name| folder.join(name).exists());
    let stored = stored.contains(&true) && folder.join("config.json").exists();
    if stored || paths.iter().any(|path| ends(path, "gguf")) {
        found.push(folder.to_owned());
        return Ok(());
    }
    for path in paths.iter().filter(|path| path.is_dir()) {
        find_checkpoints(path, found)?;
    }
    Ok(())
}

fn json(path: &Path) -> Result<serde_json::Value> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::corrupt(path, error))?;
    serde_json::from_str(&text).map_err(|error| Error::corrupt(path, error))
}

/// A checkpoint with token ids: those that its reference was made of, or some that every vocabulary has.
struct Model {
    files: WeightFiles,
    /// Without it weights are as their files have them.
    config: Option<RawConfig>,
    blueprint: Known,
    sequences: Vec<Vec<u32>>,
}

enum Known {
    Text(Box<Blueprint>),
    Decoder(Box<decoder::Blueprint>),
    Vlm(ModelFiles),
}

impl Model {
    /// `None` for what isn't a transformer, or was recorded without ids.
    fn find(folder: &Path, scratch: &Path) -> Result<Option<Self>> {
        let (stored, seeded) = (folder.join("model.safetensors"), folder.join(SEEDED));
        let found = if stored.exists() {
            Self::in_safetensors(folder, stored)
        } else if seeded.exists() {
            let weights = seeded_tensors::safetensors(&json(&seeded)?, str::to_owned);
            let written = std::fs::write(scratch, weights);
            written.map_err(|error| Error::Internal(format!("{}: {error}", scratch.display())))?;
            Self::in_safetensors(folder, scratch.to_owned())
        } else {
            Self::in_gguf(folder)
        };
        match found {
            Err(error @ (Error::UnsupportedModel(_) | Error::CorruptModel(_))) => {
                println!("not run: {}: {error}", folder.display());
                Ok(None)
            }
            found => found,
        }
    }

    fn in_safetensors(folder: &Path, file: PathBuf) -> Result<Option<Self>> {
        let config = RawConfig::read(&folder.join("config.json"))?;
        let files = WeightFiles::Safetensors(vec![file]);
        // Of seeded ones only the text part is compared.
        if families::matches::<VlmConfig>(&config) && !folder.join(SEEDED).exists() {
            return Self::that_sees(folder, files).map(Some);
        }
        let expected = folder.join("expected.json");
        if !expected.exists() {
            return Ok(None);
        }
        let record = json(&expected)?;
        // Of a seeded decoder; what a record of another kind calls cases has no prompts.
        let cases = record["cases"].as_array();
        let prompts = cases.and_then(|cases| {
            let prompts = cases.iter().map(|case| case.get("prompt").cloned());
            Some(serde_json::Value::Array(prompts.collect::<Option<_>>()?))
        });
        let only = |prompt: &serde_json::Value| vec![prompt.clone()].into();
        let sequences = prompts
            .or_else(|| record.get("sequences").cloned())
            .or_else(|| record.get("prompt").map(only));
        let decodes = sequences.is_some();
        let ids = sequences.or_else(|| record.get("ids").cloned());
        let Some(sequences) = ids.and_then(|ids| serde_json::from_value(ids).ok()) else {
            return Ok(None);
        };
        Ok(Some(Self {
            files,
            blueprint: if decodes {
                Known::Decoder(Box::new(decoder::Blueprint::from_config(&config)?))
            } else {
                Known::Text(Box::new(Blueprint::from_config(&config)?))
            },
            sequences,
            config: Some(config),
        }))
    }

    fn in_gguf(folder: &Path) -> Result<Option<Self>> {
        let cancel = CancelToken::new();
        let files = ModelFiles::open(&folder.to_string_lossy(), None, &cancel)?;
        let files = files.weights(None, &cancel)?;
        if has_tower(folder) {
            return Self::that_sees(folder, files).map(Some);
        }
        let source = weights::open(&files)?;
        let blueprint = match decoder::Blueprint::from_gguf(source.as_ref()) {
            Ok(blueprint) => Known::Decoder(Box::new(blueprint)),
            Err(_) => Known::Text(Box::new(Blueprint::from_gguf(source.as_ref())?)),
        };
        Ok(Some(Self {
            files,
            config: None,
            blueprint,
            sequences: [20, 3, 9].map(some_tokens).to_vec(),
        }))
    }

    fn that_sees(folder: &Path, files: WeightFiles) -> Result<Self> {
        let whole = ModelFiles::open(&folder.to_string_lossy(), None, &CancelToken::new())?;
        Ok(Self {
            files,
            config: None,
            blueprint: Known::Vlm(whole),
            sequences: vec![some_tokens(3), some_tokens(7)],
        })
    }

    /// As a model reads them, those that another library quantized, too.
    fn source(&self) -> Result<Arc<dyn WeightSource>> {
        let source = weights::open(&self.files)?;
        match &self.config {
            Some(config) => weights::unpacked(source, config),
            None => Ok(source),
        }
    }

    /// Whether its weights are blocks.
    fn is_quantized(&self) -> Result<bool> {
        let source = self.source()?;
        let mut quantized = false;
        for name in source.names() {
            quantized |= source.quantized(&name)?.is_some();
        }
        Ok(quantized)
    }

    fn run(&self, device: Device, dtype: DType) -> Result<Vec<f32>> {
        match &self.blueprint {
            Known::Text(blueprint) => self.read(blueprint, (&device.open()?, dtype)),
            Known::Decoder(blueprint) => self.decode(blueprint, (&device.open()?, dtype)),
            Known::Vlm(files) => self.see(files, (device, dtype)),
        }
    }

    fn read(
        &self,
        blueprint: &Blueprint,
        placement: (&candle_core::Device, DType),
    ) -> Result<Vec<f32>> {
        let (source, cancel) = (self.source()?, CancelToken::new());
        let model = TextModel::load(blueprint, source.as_ref(), placement, false, &cancel)?;
        let mut packed = PackedSequences::new();
        for ids in &self.sequences {
            packed.push(ids, None)?;
        }
        let mut all = numbers(&model.forward(&packed, &cancel)?)?;
        if let Blueprint::Seq2Seq(blueprint) = blueprint {
            all.extend(self.write(blueprint, &packed, placement)?);
        }
        Ok(all)
    }

    /// Logits of the same few tokens after each of the texts, one by one.
    fn write(
        &self,
        blueprint: &seq2seq::Blueprint,
        texts: &PackedSequences,
        placement: (&candle_core::Device, DType),
    ) -> Result<Vec<f32>> {
        let (source, cancel) = (self.source()?, CancelToken::new());
        let model = Seq2Seq::load(blueprint, source.as_ref(), placement, &cancel)?;
        let memory = model.read(texts, &cancel)?;
        let (mut cache, mut all) = (Cache::default(), Vec::new());
        for token in some_tokens(6) {
            let ids = vec![token; self.sequences.len()];
            let (logits, next) = model.decode(&ids, &cache, &memory, &cancel)?;
            cache = next;
            all.extend(numbers(&logits)?);
        }
        Ok(all)
    }

    /// Logits of two pictures between words.
    fn see(&self, files: &ModelFiles, (device, dtype): (Device, DType)) -> Result<Vec<f32>> {
        let cancel = CancelToken::new();
        let options = LoadOptions {
            device,
            dtype: Some(dtype),
            verify: Some(false),
            ..LoadOptions::default()
        };
        let language = LanguageModel::load(files, &options, &[], &cancel)?;
        let encoder = ImageEncoder::load(&language, files, &options, &cancel)?;
        let pictures = [picture(40, 30)?, picture(31, 64)?];
        let seen = encoder.encode(&language, &pictures, &cancel)?;
        let mut ids = Vec::new();
        for (words, seen) in self.sequences.iter().zip(&seen) {
            ids.extend(seen.parts.iter().flat_map(|part| part.ids()));
            ids.extend(words);
        }
        let decoder = language.decoder();
        let mut cache = decoder.new_cache()?;
        cache.clear(decoder.rope_variant(ids.len()));
        numbers(&decoder.forward(&ids, &mut cache, Logits::All, &cancel)?)
    }

    fn decode(
        &self,
        blueprint: &decoder::Blueprint,
        (device, dtype): (&candle_core::Device, DType),
    ) -> Result<Vec<f32>> {
        let (source, cancel) = (self.source()?, CancelToken::new());
        let decoder = Decoder::load(blueprint, source.as_ref(), device, dtype, &cancel)?;
        let mut all = Vec::new();
        for ids in &self.sequences {
            // The first half at once, the rest one by one: both ways through attention.
            let (prompt, rest) = ids.split_at(ids.len() / 2);
            let mut cache = decoder.new_cache()?;
            cache.clear(decoder.rope_variant(ids.len()));
            let steps = std::iter::once(prompt).chain(rest.chunks(1));
            for step in steps.filter(|step| !step.is_empty()) {
                let logits = decoder.forward(step, &mut cache, Logits::All, &cancel)?;
                all.extend(numbers(&logits)?);
            }
        }
        Ok(all)
    }
}

/// Ids that every vocabulary has.
fn some_tokens(length: u32) -> Vec<u32> {
    (0..length).map(|at| 5 + at * 37 % 71).collect()
}

/// Whether a GGUF file with a vision tower is beside the model's.
fn has_tower(folder: &Path) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .map(|file| file.file_name())
        .any(|name| name.to_string_lossy().starts_with("mmproj"))
}

fn picture(width: usize, height: usize) -> Result<Picture> {
    let pixels = (0..width * height * CHANNELS).map(|at| (at * at / 7 % 251) as u8);
    let image = Image::new(width, height, pixels.collect())?;
    Ok(Picture::Decoded(Arc::new(image)))
}

fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    let values = tensor.to_device(&candle_core::Device::Cpu)?;
    Ok(values.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
}

/// ‖got − want‖ / ‖want‖: in half precision a router may pick another expert for a token, which says
/// little of the whole.
fn deviation(want: &[f32], got: &[f32]) -> f32 {
    let square = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|v| f64::from(v) * f64::from(v)).sum()
    };
    let error = square(&mut want.iter().zip(got).map(|(w, g)| w - g));
    let size = square(&mut want.iter().copied());
    let ratio = (error / size).sqrt() as f32;
    if want.len() == got.len() && !ratio.is_nan() {
        ratio
    } else {
        f32::INFINITY
    }
}

/// A petabyte is refused as memory, and the device computes on.
fn survives_exhaustion(device: &candle_core::Device) -> Result<bool> {
    let refused = Tensor::zeros((1 << 20, 1 << 28), DType::F32, device).map_err(Error::from);
    let refused = match refused {
        Err(Error::OutOfMemory(message)) => {
            println!("out of memory, as expected: {message}");
            true
        }
        Err(other) => {
            println!("FAILED: exhausted memory is reported as {other:?}");
            false
        }
        Ok(_) => false,
    };
    let works = numbers(&Tensor::ones(1000, DType::F32, device)?.affine(2.0, 1.0)?)? == [3.0; 1000];
    println!("the device goes on: {works}");
    Ok(refused && works)
}
