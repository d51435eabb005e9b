//! The adapters of a checkpoint that computes its weights for each task (Jina v3): low-rank matrices beside the
//! weights, in the same file or in folders as PEFT writes them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};

use crate::tasks::loading::{Checkpoint, LoadOptions, LoadedModel};
use crate::tasks::sentence::join;
use crate::{CancelToken, Error, Result};
use base::quant::{LinedTensor, QuantizedTensor};
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::weights::{self, Metadata, TensorInfo, WeightSource};

/// Where torch keeps a weight that is computed from others.
const ORIGINAL: &str = ".parametrizations.weight.original";
const STACKED_A: &str = ".parametrizations.weight.0.lora_A";
const STACKED_B: &str = ".parametrizations.weight.0.lora_B";

/// The tasks of Jina v3, as its adapters' folders may be called too.
const FOLDERS: [&str; 5] = [
    "retrieval.query",
    "retrieval.passage",
    "separation",
    "classification",
    "text-matching",
];

/// The adapters of a checkpoint, and the models that were loaded with them.
pub struct TaskAdapters {
    tasks: Vec<Task>,
    checkpoint: Checkpoint,
    files: ModelFiles,
    options: LoadOptions,
    limit: Option<usize>,
    /// One per task, from its first use on.
    loaded: Mutex<HashMap<usize, Arc<LoadedModel>>>,
}

struct Task {
    name: String,
    /// What stands before its texts.
    instruction: Option<String>,
    updates: HashMap<String, Vec<Update>>,
}

/// What is added to a weight: B · A, scaled.
#[derive(Clone)]
struct Update {
    source: Arc<dyn WeightSource>,
    a: String,
    b: String,
    /// Of several in one tensor, which.
    index: Option<usize>,
    scale: f64,
    form: Form,
    /// The first row of the weight that it is added to.
    row: RowsOf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// B `[outputs, rank]` · A `[rank, inputs]`
    Linear,
    /// A `[rows, rank]` · B `[rank, width]`
    Table,
    /// The same, both transposed, as PEFT keeps them.
    TransposedTable,
}

/// Which rows of a weight an update is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowsOf {
    All,
    /// Of as many equal parts as this, the first number.
    Part(usize, usize),
}

/// A checkpoint whose weights are called as without adapters, and are those of one task.
struct Adapted {
    inner: Arc<dyn WeightSource>,
    /// The names in the file, by those that a model asks for.
    names: HashMap<String, String>,
    updates: HashMap<String, Vec<Update>>,
}

/// The checkpoint as it is without adapters, and its adapters.
pub fn find(
    checkpoint: Checkpoint,
    (files, options): (&ModelFiles, &LoadOptions),
    limit: Option<usize>,
    cancel: &CancelToken,
) -> Result<(Checkpoint, Option<TaskAdapters>)> {
    let Some(config) = checkpoint.config.clone() else {
        return Ok((checkpoint, None));
    };
    let tasks = match config.opt_strings("lora_adaptations")? {
        Some(names) if !names.is_empty() => stacked(&checkpoint, &config, names)?,
        _ if config.model_type()? == Some("jina_embeddings_v3") => {
            folders(&checkpoint, files, cancel)?
        }
        _ => Vec::new(),
    };
    if tasks.is_empty() {
        return Ok((checkpoint, None));
    }
    let plain = Arc::new(Adapted::new(checkpoint.source.clone(), HashMap::new()));
    let checkpoint = checkpoint.with_source(plain);
    let adapters = TaskAdapters {
        tasks,
        checkpoint: checkpoint.clone(),
        files: files.clone(),
        options: options.clone(),
        limit,
        loaded: Mutex::default(),
    };
    Ok((checkpoint, Some(adapters)))
}

impl TaskAdapters {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().map(|task| task.name.as_str())
    }

    /// The number of a task by its name, or as what queries and documents are to it.
    pub fn number(&self, task: &str) -> Option<usize> {
        let name = match task {
            "query" => "retrieval.query",
            "document" => "retrieval.passage",
            name => name,
        };
        self.tasks.iter().position(|task| task.name == name)
    }

    pub fn instruction(&self, number: usize) -> Option<&str> {
        self.tasks[number].instruction.as_deref()
    }

    /// The model with the weights of a task, which is loaded when it is first asked for.
    pub fn model(&self, number: usize, cancel: &CancelToken) -> Result<Arc<LoadedModel>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = loaded.get(&number) {
            return Ok(model.clone());
        }
        let source = &self.checkpoint.source;
        let updates = self.tasks[number].updates.clone();
        let adapted = Arc::new(Adapted::new(source.clone(), updates));
        let checkpoint = self.checkpoint.clone().with_source(adapted);
        let model = LoadedModel::load(&checkpoint, &self.files, &self.options, self.limit, cancel)?;
        let model = Arc::new(model);
        loaded.insert(number, model.clone());
        Ok(model)
    }
}

/// Adapters that lie in the checkpoint itself, those of all tasks in one tensor.
fn stacked(checkpoint: &Checkpoint, config: &RawConfig, names: Vec<String>) -> Result<Vec<Task>> {
    let source = &checkpoint.source;
    let rank = config.opt_usize("lora_rank")?.unwrap_or(4);
    let alpha = config.opt_f64("lora_alpha")?.unwrap_or(1.0);
    if rank == 0 || !alpha.is_finite() {
        return Err(Error::corrupt(config.file(), "lora_rank is 0"));
    }
    let instructions = config.opt_nested("task_instructions")?;
    let all = source.names();
    let modules: Vec<&str> = all
        .iter()
        .filter_map(|name| name.strip_suffix(STACKED_A))
        .collect();
    let mut tasks = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let mut updates = HashMap::new();
        for module in &modules {
            let [a, b] = [STACKED_A, STACKED_B].map(|end| format!("{module}{end}"));
            let weight = shape(source, &format!("{module}{ORIGINAL}"))?;
            let (left, right) = (shape(source, &a)?, shape(source, &b)?);
            let form = match (&weight[..], &left[..], &right[..]) {
                ([out, inner], [count, r, i], [other, o, s])
                    if count == other && r == s && [o, i] == [out, inner] && index < *count =>
                {
                    Form::Linear
                }
                ([rows, width], [count, n, r], [other, s, w])
                    if count == other && r == s && [n, w] == [rows, width] && index < *count =>
                {
                    Form::Table
                }
                _ => {
                    let reason = format!("the adapters of {module} do not fit its weight");
                    return Err(Error::corrupt(&source.file(&a), reason));
                }
            };
            let update = Update {
                source: source.clone(),
                a,
                b,
                index: Some(index),
                scale: alpha / rank as f64,
                form,
                row: RowsOf::All,
            };
            updates.insert(format!("{module}.weight"), vec![update]);
        }
        let instruction = match &instructions {
            Some(instructions) => instructions.opt_string(name.as_str())?.map(str::to_owned),
            None => None,
        };
        tasks.push(Task {
            name,
            instruction,
            updates,
        });
    }
    Ok(tasks)
}

/// Adapters in folders that are called as their tasks.
fn folders(checkpoint: &Checkpoint, files: &ModelFiles, cancel: &CancelToken) -> Result<Vec<Task>> {
    let mut tasks = Vec::new();
    for name in FOLDERS {
        let spelled = [name.to_owned(), name.replace(['.', '-'], "_")];
        for folder in spelled {
            let Some(path) = files.file(&join(&folder, "adapter_config.json"), cancel)? else {
                continue;
            };
            let weights = files.require(&join(&folder, "adapter_model.safetensors"), cancel)?;
            let adapter = weights::open(&WeightFiles::Safetensors(vec![weights]))?;
            tasks.push(Task {
                name: name.to_owned(),
                instruction: None,
                updates: peft(&checkpoint.source, &adapter, &RawConfig::read(&path)?)?,
            });
            break;
        }
    }
    Ok(tasks)
}

fn peft(
    base: &Arc<dyn WeightSource>,
    adapter: &Arc<dyn WeightSource>,
    config: &RawConfig,
) -> Result<HashMap<String, Vec<Update>>> {
    let unsupported = |reason: String| Err(Error::unsupported(config.file(), reason));
    for key in ["use_dora", "fan_in_fan_out", "lora_bias"] {
        if config.opt_bool(key)?.unwrap_or(false) {
            return unsupported(format!("{key}: true is not supported"));
        }
    }
    for key in ["rank_pattern", "alpha_pattern"] {
        if config
            .opt_nested(key)?
            .is_some_and(|all| all.keys().next().is_some())
        {
            return unsupported(format!("{key} is not supported"));
        }
    }
    let rank = config.opt_usize("r")?.unwrap_or(8).max(1) as f64;
    let alpha = config.opt_f64("lora_alpha")?.unwrap_or(8.0);
    let scale = if config.opt_bool("use_rslora")?.unwrap_or(false) {
        alpha / rank.sqrt()
    } else {
        alpha / rank
    };
    let mut updates: HashMap<String, Vec<Update>> = HashMap::new();
    for name in adapter.names() {
        let (module, b, form) = match (
            name.strip_suffix(".lora_A.weight"),
            name.strip_suffix(".lora_embedding_A"),
        ) {
            (Some(module), _) => (module, format!("{module}.lora_B.weight"), Form::Linear),
            (_, Some(module)) => {
                let b = format!("{module}.lora_embedding_B");
                (module, b, Form::TransposedTable)
            }
            _ if name.ends_with(".lora_B.weight") || name.ends_with(".lora_embedding_B") => {
                continue
            }
            _ => return unsupported(format!("its tensor {name} is not one of low rank")),
        };
        let module = module.trim_start_matches("base_model.model.");
        let Some((weight, row)) = target(base, module) else {
            let reason = format!("the model has no weight {module}, which it changes");
            return Err(Error::corrupt(&adapter.file(&name), reason));
        };
        let update = Update {
            source: adapter.clone(),
            a: name,
            b,
            index: None,
            scale,
            form,
            row,
        };
        updates.entry(weight).or_default().push(update);
    }
    Ok(updates)
}

/// The weight of a module, as checkpoints of Jina v3 call it, and its part of it.
fn target(base: &Arc<dyn WeightSource>, module: &str) -> Option<(String, RowsOf)> {
    let older = match module.strip_prefix("layers.") {
        Some(rest) => format!("encoder.layers.{rest}"),
        None => module.to_owned(),
    };
    let older = older.replace("self_attn.o_proj", "mixer.out_proj");
    let mut spelled = vec![
        (module.to_owned(), RowsOf::All),
        (older.clone(), RowsOf::All),
    ];
    for (part, name) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
        if let Some(layer) = older.strip_suffix(&format!("self_attn.{name}")) {
            spelled.push((format!("{layer}mixer.Wqkv"), RowsOf::Part(part, 3)));
        }
    }
    for (module, row) in spelled {
        for prefix in ["", "roberta.", "model."] {
            let name = format!("{prefix}{module}.weight");
            if base.has(&name) {
                return Some((name, row));
            }
        }
    }
    None
}

fn shape(source: &Arc<dyn WeightSource>, name: &str) -> Result<Vec<usize>> {
    match source.info(name) {
        Some(info) => Ok(info.shape),
        None => Err(Error::corrupt(
            &source.file(name),
            format!("it holds no tensor {name}"),
        )),
    }
}

impl Update {
    /// What is added, f32 on the CPU.
    fn delta(&self) -> Result<Tensor> {
        let read = |name: &str| -> Result<Tensor> {
            let all = self.source.tensor(name, Some(DType::F32), &Device::Cpu)?;
            match self.index {
                Some(index) => Ok(all.get(index)?),
                None => Ok(all),
            }
        };
        let (a, b) = (read(&self.a)?, read(&self.b)?);
        let (left, right) = match self.form {
            Form::Linear => (b, a),
            Form::Table => (a, b),
            Form::TransposedTable => (a.t()?.contiguous()?, b.t()?.contiguous()?),
        };
        if left.rank() != 2 || right.rank() != 2 || left.dim(1)? != right.dim(0)? {
            let reason = format!("{} and {} do not fit each other", self.a, self.b);
            return Err(Error::corrupt(&self.source.file(&self.a), reason));
        }
        Ok((left.matmul(&right)? * self.scale)?)
    }
}

impl Adapted {
    fn new(inner: Arc<dyn WeightSource>, updates: HashMap<String, Vec<Update>>) -> Self {
        let names = inner.names().into_iter().filter_map(|name| {
            if name.ends_with(STACKED_A) || name.ends_with(STACKED_B) {
                return None;
            }
            let asked = match name.strip_suffix(ORIGINAL) {
                Some(module) => format!("{module}.weight"),
                None => name.clone(),
            };
            Some((asked, name))
        });
        Self {
            names: names.collect(),
            inner,
            updates,
        }
    }

    fn stored<'a>(&'a self, name: &'a str) -> &'a str {
        self.names.get(name).map_or(name, String::as_str)
    }
}

impl WeightSource for Adapted {
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.names.keys().cloned().collect();
        names.sort();
        names
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.inner.info(self.names.get(name)?)
    }

    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        let stored = self.stored(name);
        let Some(updates) = self.updates.get(name) else {
            return self.inner.tensor(stored, dtype, device);
        };
        let mut weight = self.inner.tensor(stored, Some(DType::F32), &Device::Cpu)?;
        for update in updates {
            weight = added(&weight, update)?;
        }
        let kept = dtype.unwrap_or(DType::F32);
        Ok(weight.to_dtype(kept)?.to_device(device)?)
    }

    fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>> {
        if self.updates.contains_key(name) {
            return Ok(None);
        }
        self.inner.quantized(self.stored(name))
    }

    fn lined(&self, name: &str) -> Result<Option<LinedTensor>> {
        if self.updates.contains_key(name) {
            return Ok(None);
        }
        self.inner.lined(self.stored(name))
    }

    fn turned(&self, name: &str) -> bool {
        self.inner.turned(self.stored(name))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.inner.file(self.stored(name))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.inner.files()
    }

    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }
}

/// A weight with one update.
fn added(weight: &Tensor, update: &Update) -> Result<Tensor> {
    let (rows, width) = weight.dims2()?;
    let (first, count) = match update.row {
        RowsOf::All => (0, rows),
        RowsOf::Part(part, parts) => (part * (rows / parts), rows / parts),
    };
    let delta = update.delta()?;
    if delta.dims() != [count, width] {
        let reason = format!("{} does not fit the weight that it changes", update.a);
        return Err(Error::corrupt(&update.source.file(&update.a), reason));
    }
    let changed = (weight.narrow(0, first, count)? + delta)?;
    let after = first + count;
    let parts = [
        weight.narrow(0, 0, first)?,
        changed,
        weight.narrow(0, after, rows - after)?,
    ];
    let parts: Vec<&Tensor> = parts.iter().filter(|part| part.elem_count() > 0).collect();
    Ok(Tensor::cat(&parts, 0)?)
}
