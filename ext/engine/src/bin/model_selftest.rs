//! Runs every tiny checkpoint under some folders, GGUF files too, on a device and compares with the CPU:
//! `model_selftest --device cuda spec/fixtures/tiny`. Then asks the device for more memory than it
//! has, and expects an error and a device that goes on.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_core::{DType, Tensor};
use engine::files::model_files::{ModelFiles, WeightFiles};
use engine::files::raw_config::RawConfig;
use engine::models::decoder::model::Logits;
use engine::models::decoder::{self, Decoder};
use engine::models::{Blueprint, TextModel};
use engine::nn::PackedSequences;
use engine::{runtime::threads, weights, CancelToken, Device, Error, Result};

const USAGE: &str = "usage: model_selftest --device cpu|cuda|cuda:1|metal FOLDER ...";

/// The error that is allowed, relative to the size of the result.
const ALLOWED: [(DType, f32); 3] = [(DType::F32, 1e-4), (DType::F16, 3e-2), (DType::BF16, 2e-1)];

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
    for folder in checkpoints {
        let Some(model) = Model::find(&folder)? else {
            continue;
        };
        let want = model.run(&candle_core::Device::Cpu, DType::F32)?;
        for (dtype, allowed) in ALLOWED {
            let got = model.run(&opened, dtype)?;
            let error = deviation(&want, &got);
            let allowed = match model.is_quantized()? {
                true => allowed.max(ALLOWED_QUANTIZED),
                false => allowed,
            };
            let passed = error <= allowed;
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
    let stored = folder.join("model.safetensors").exists() && folder.join("config.json").exists();
    if stored || paths.iter().any(|path| ends(path, "gguf")) {
        found.push(folder.to_owned());
        return Ok(());
    }
    for path in paths.iter().filter(|path| path.is_dir()) {
        find_checkpoints(path, found)?;
    }
    Ok(())
}

/// A checkpoint with the token ids that its reference was made of.
struct Model {
    files: WeightFiles,
    blueprint: Known,
    sequences: Vec<Vec<u32>>,
}

enum Known {
    Text(Box<Blueprint>),
    Decoder(Box<decoder::Blueprint>),
}

impl Model {
    /// `None` for what isn't a transformer, or was recorded without ids.
    fn find(folder: &Path) -> Result<Option<Self>> {
        let found = match folder.join("model.safetensors") {
            file if file.exists() => Self::in_safetensors(folder, file),
            _ => Self::in_gguf(folder),
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
        let Ok(text) = std::fs::read_to_string(folder.join("expected.json")) else {
            return Ok(None);
        };
        let record: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| Error::corrupt(&folder.join("expected.json"), error))?;
        let decodes = record.get("sequences").is_some();
        let ids = record.get(if decodes { "sequences" } else { "ids" });
        let Some(sequences) = ids.and_then(|ids| serde_json::from_value(ids.clone()).ok()) else {
            return Ok(None);
        };
        let config = RawConfig::read(&folder.join("config.json"))?;
        Ok(Some(Self {
            files: WeightFiles::Safetensors(vec![file]),
            blueprint: match decodes {
                true => Known::Decoder(Box::new(decoder::Blueprint::from_config(&config)?)),
                false => Known::Text(Box::new(Blueprint::from_config(&config)?)),
            },
            sequences,
        }))
    }

    /// With ids that every vocabulary has.
    fn in_gguf(folder: &Path) -> Result<Option<Self>> {
        let cancel = CancelToken::new();
        let files = ModelFiles::open(&folder.to_string_lossy(), None, &cancel)?;
        let files = files.weights(None, &cancel)?;
        let source = weights::open(&files)?;
        let blueprint = match decoder::Blueprint::from_gguf(source.as_ref()) {
            Ok(blueprint) => Known::Decoder(Box::new(blueprint)),
            Err(_) => Known::Text(Box::new(Blueprint::from_gguf(source.as_ref())?)),
        };
        let text = |length: u32| (0..length).map(|at| 5 + at * 37 % 101).collect();
        Ok(Some(Self {
            files,
            blueprint,
            sequences: [20, 3, 9].map(text).to_vec(),
        }))
    }

    /// Whether its weights are blocks.
    fn is_quantized(&self) -> Result<bool> {
        let source = weights::open(&self.files)?;
        let mut quantized = false;
        for name in source.names() {
            quantized |= source.quantized(&name)?.is_some();
        }
        Ok(quantized)
    }

    fn run(&self, device: &candle_core::Device, dtype: DType) -> Result<Vec<f32>> {
        let source = weights::open(&self.files)?;
        let cancel = CancelToken::new();
        let blueprint = match &self.blueprint {
            Known::Text(blueprint) => {
                let placement = (device, dtype);
                let model = TextModel::load(blueprint, source.as_ref(), placement, false, &cancel)?;
                let mut packed = PackedSequences::new();
                for ids in &self.sequences {
                    packed.push(ids, None)?;
                }
                return numbers(&model.forward(&packed, &cancel)?);
            }
            Known::Decoder(blueprint) => blueprint,
        };
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
    match want.len() == got.len() && !ratio.is_nan() {
        true => ratio,
        false => f32::INFINITY,
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
