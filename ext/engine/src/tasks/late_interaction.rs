//! Texts to one vector per token, which are compared token by token (ColBERT).

mod files;
mod visual;

use std::collections::HashSet;

use candle_core::{DType, Tensor};

use crate::nn::{Linear, PackedSequences};
use crate::{CancelToken, Error, Result};
use base::runtime::{memory, stats};
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Input, Tokenizer};

use super::loading::{subfolder, Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use super::sentence::{Dense, Prompts, TextSettings, TextTask};
use super::vision::{named, Picture};
use crate::serving::batching::{self, Excess, Tokens};
use files::{LateFiles, Projection};
use visual::Visual;

/// What replaces the checkpoint's own lengths for good.
#[derive(Clone, Copy, Debug, Default)]
pub struct LateSettings {
    pub query_length: Option<usize>,
    pub document_length: Option<usize>,
}

/// What one call may ask for; `None` means the model's own.
#[derive(Clone, Debug, Default)]
pub struct LateOptions {
    /// Put before each text.
    pub prompt: Option<String>,
    /// One of the model's own prompts.
    pub prompt_name: Option<String>,
    /// The token budget of one forward.
    pub batch_tokens: Option<usize>,
}

pub struct LateInteractionModel {
    loaded: LoadedModel,
    projection: Vec<Dense>,
    settings: TextSettings,
    prompts: Prompts,
    /// Whether the prompt of the task is used unasked.
    prompts_by_task: bool,
    query: Reading,
    document: Reading,
    /// Fills queries up.
    expansion: Option<Expansion>,
    /// Tokens of documents that get no vector.
    skipped: HashSet<u32>,
    /// What sees pictures, which stand for documents.
    visual: Option<Visual>,
}

/// How a text becomes tokens.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// The token after the first one.
    prefix: Option<u32>,
    /// The most tokens, the prefix included.
    length: usize,
}

#[derive(Clone, Copy, Debug)]
struct Expansion {
    token: u32,
    /// How many tokens a query has at least.
    length: usize,
    /// Whether the other tokens see it.
    attended: bool,
}

/// The tokens of a text, of which the first `attended` are attended to.
struct Read {
    tokens: Tokens,
    attended: usize,
}

impl LateInteractionModel {
    pub fn load(
        files: &ModelFiles,
        options: &LoadOptions,
        own: LateSettings,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let found = LateFiles::read(files, cancel)?;
        let inner = if found.transformer_path.is_empty() {
            None
        } else {
            Some(subfolder(files, &found.transformer_path, cancel)?)
        };
        let body_files = inner.as_ref().unwrap_or(files);
        let mut checkpoint = Checkpoint::open(body_files, options, cancel)?;
        let architecture = checkpoint.architecture()?;
        let inner = checkpoint.config.as_ref().map(visual::inner);
        let inner = inner.transpose()?.flatten();
        if let Some((kind, model)) = &inner {
            checkpoint.config = Some(visual::language(kind, model)?);
        }
        let mut loaded = LoadedModel::load(&checkpoint, body_files, options, None, cancel)?;
        let projection = load_projection(files, &found.projection, &checkpoint, cancel)?;
        check_widths(loaded.body.hidden_size(), &projection)?;
        for dense in &projection {
            dense.list(&mut loaded.info.inventory)?;
        }
        loaded.info.architecture = architecture;
        let visual = match &inner {
            Some((kind, model)) => {
                let own = Visual::load(kind, model, &checkpoint, files, &loaded, cancel)?;
                loaded.info.inventory.add(own.inventory());
                Some(own)
            }
            None => None,
        };
        let inventory = &mut loaded.info.inventory;
        inventory.add_rows("l2_normalize", &checkpoint.opened)?;
        // PyLate's settings of the transformer limit neither: they hold what was read last.
        let positions = if found.prompts_by_task {
            loaded.max_length
        } else {
            loaded.body.max_positions().unwrap_or(usize::MAX)
        };
        let reading = |prefix: &str, length: usize| -> Result<Reading> {
            Reading::new(&loaded.tokenizer, prefix, length.min(positions))
        };
        let query_length = own.query_length.unwrap_or(found.query_length);
        let document_length = own.document_length.unwrap_or(found.document_length);
        let query = reading(&found.query_prefix, query_length)?;
        let document = reading(&found.document_prefix, document_length)?;
        let expansion = if found.expands {
            Some(Expansion::new(&loaded, &found, query.length)?)
        } else {
            None
        };
        let skipped = skipped_ids(&loaded.tokenizer, &found);
        loaded.info.max_length = document.length;
        Ok(Self {
            settings: TextSettings::read(files, &found.transformer_path, cancel)?,
            loaded,
            projection,
            prompts: found.prompts,
            prompts_by_task: found.prompts_by_task,
            query,
            document,
            expansion,
            skipped,
            visual,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.loaded.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.loaded.tokenizer
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, stats::Reading)> {
        self.loaded.batcher.stats.read()
    }

    /// The length of a vector.
    pub fn dimension(&self) -> usize {
        let last = self.projection.last();
        last.map_or(0, |dense| dense.linear.outputs())
    }

    /// The most tokens of a text that are read, special ones included.
    pub fn length(&self, task: TextTask) -> usize {
        self.reading(task).length
    }

    /// The model's own prompts by name, and the name of the one that is used unasked.
    pub fn prompts(&self) -> (&[(String, String)], Option<&str>) {
        self.prompts.all()
    }

    /// Whether queries are filled up to their length.
    pub fn expands(&self) -> bool {
        self.expansion.is_some()
    }

    /// One f32 tensor [tokens, dimension] on the CPU for each text, in the order of the texts.
    pub fn embed<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        task: TextTask,
        options: &LateOptions,
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>> {
        let name = options.prompt_name.as_deref();
        let name = name.or_else(|| self.prompt_of(task));
        let prompt = self.prompts.choose(options.prompt.as_deref(), name)?;
        if let Some(visual) = &self.visual {
            if task == TextTask::Document && !texts.is_empty() {
                return Err(Error::InvalidInput(
                    "the documents of this model are images: use embed_image".into(),
                ));
            }
            let length = self.query.length;
            let read = texts.iter().map(|text| {
                let whole = format!("{prompt}{}", text.as_ref());
                let ids = visual.query(&self.loaded.tokenizer, &whole, length)?;
                Ok(Read::whole(ids))
            });
            let read = read.collect::<Result<_>>()?;
            return self.compute(read, task, options.batch_tokens, cancel);
        }
        let prepared: Vec<String> = texts
            .iter()
            .map(|text| self.prepare(prompt, text.as_ref()))
            .collect();
        let read = self.read(&prepared, task, cancel)?;
        self.compute(read, task, options.batch_tokens, cancel)
    }

    /// One f32 tensor [tokens, dimension] on the CPU for each picture, in their order. `first` is what errors call
    /// the first one.
    pub fn embed_images(
        &self,
        pictures: &[Picture],
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>> {
        let visual = self.visual.as_ref().ok_or_else(|| {
            Error::InvalidInput(format!(
                "{} reads texts only: use embed_document, or a model like ColPali or ColQwen2",
                self.loaded.info.architecture
            ))
        })?;
        let single = pictures.len() == 1 && first == 0;
        let mut tensors = Vec::with_capacity(pictures.len());
        for (index, picture) in pictures.iter().enumerate() {
            cancel.check()?;
            let states = visual.states(&self.loaded, picture, cancel);
            let states = states.map_err(|error| named(error, first + index, single))?;
            if let Some(states) = states {
                let mut sequences = PackedSequences::new();
                sequences.push(&vec![0; states.dim(0)?], None)?;
                tensors.extend(self.vectors(&states, &sequences, TextTask::Query)?);
                continue;
            }
            let seen = visual.picture(&self.loaded, picture, cancel);
            let (ids, held) = seen.map_err(|error| named(error, first + index, single))?;
            // All vectors count, as those of a query do.
            tensors.extend(self.compute(vec![Read::whole(ids)], TextTask::Query, None, cancel)?);
            drop(held);
        }
        Ok(tensors)
    }

    /// The name of the prompt that texts of a task get unasked.
    fn prompt_of(&self, task: TextTask) -> Option<&'static str> {
        let has = |name: &&str| self.prompts.named.iter().any(|(own, _)| own == *name);
        let mut names = task.prompt_names().iter().copied();
        names.find(|name| self.prompts_by_task && has(name))
    }

    fn reading(&self, task: TextTask) -> Reading {
        match task {
            TextTask::Query => self.query,
            TextTask::Document => self.document,
        }
    }

    /// The text as the tokenizer gets it.
    fn prepare(&self, prompt: &str, text: &str) -> String {
        let whole = format!("{prompt}{text}");
        self.settings.cased(whole.trim()).into_owned()
    }

    fn read(&self, texts: &[String], task: TextTask, cancel: &CancelToken) -> Result<Vec<Read>> {
        let reading = self.reading(task);
        let room = reading.length - usize::from(reading.prefix.is_some());
        let expansion = self.expansion.filter(|_| task == TextTask::Query);
        if let Some(expansion) = expansion {
            memory::ensure_elements(
                &[texts.len(), expansion.length],
                2 * size_of::<u32>(),
                format_args!("queries that are filled up to {} tokens", expansion.length),
            )?;
        }
        let inputs: Vec<Input<'_>> = texts.iter().map(|text| Input::Single(text)).collect();
        let tokens =
            batching::tokenize(&self.loaded.tokenizer, &inputs, room, Excess::Cut, cancel)?;
        let read = |mut tokens: Tokens| {
            if let Some(prefix) = reading.prefix {
                let at = tokens.ids.len().min(1);
                tokens.ids.insert(at, prefix);
                tokens.type_ids.insert(at, 0);
            }
            let mut attended = tokens.ids.len();
            if let Some(expansion) = expansion {
                let length = expansion.length.max(tokens.ids.len());
                tokens.ids.resize(length, expansion.token);
                tokens.type_ids.resize(length, 0);
                if expansion.attended {
                    attended = length;
                }
            }
            Read { tokens, attended }
        };
        Ok(tokens.into_iter().map(read).collect())
    }

    fn compute(
        &self,
        read: Vec<Read>,
        task: TextTask,
        batch_tokens: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>> {
        let (tokens, attended): (Vec<Tokens>, Vec<usize>) =
            read.into_iter().map(|r| (r.tokens, r.attended)).unzip();
        let forward = |batch: &[usize]| {
            let mut sequences = PackedSequences::new();
            for &index in batch {
                let Tokens { ids, type_ids } = &tokens[index];
                sequences.push_attended(ids, Some(type_ids), attended[index])?;
            }
            self.loaded
                .forward(&sequences, batch_tokens, cancel, |hidden| {
                    self.vectors(hidden, &sequences, task)
                })
        };
        let device = self.loaded.info.device;
        batching::collect(&tokens, batch_tokens, device, cancel, forward)
    }

    fn vectors(
        &self,
        hidden: &Tensor,
        sequences: &PackedSequences,
        task: TextTask,
    ) -> Result<Vec<Tensor>> {
        let keeps = |row: usize| match task {
            TextTask::Query => true,
            TextTask::Document => !self.skipped.contains(&sequences.ids()[row]),
        };
        let counts: Vec<usize> = sequences
            .ranges()
            .map(|range| range.filter(|&row| keeps(row)).count())
            .collect();
        let rows = (0..sequences.tokens()).filter(|&row| keeps(row));
        let rows: Vec<u32> = rows.map(|row| row as u32).collect();
        let picked = if rows.len() == sequences.tokens() {
            hidden.clone()
        } else {
            let rows = Tensor::from_slice(&rows, rows.len(), hidden.device())?;
            hidden.index_select(&rows, 0)?
        };
        let projected = self
            .projection
            .iter()
            .try_fold(picked, |x, dense| dense.forward(&x))?;
        let unit = kernels::l2_normalize(&projected.to_dtype(DType::F32)?)?;
        let values: Vec<f32> = unit.flatten_all()?.to_vec1()?;
        self.loaded.info.check_numbers(&values)?;
        let width = self.dimension();
        let mut rest = values.as_slice();
        let mut tensors = Vec::with_capacity(counts.len());
        for count in counts {
            let (own, others) = rest.split_at(count * width);
            rest = others;
            tensors.push(Tensor::from_slice(
                own,
                (count, width),
                &candle_core::Device::Cpu,
            )?);
        }
        Ok(tensors)
    }
}

impl Read {
    /// All of whose tokens are attended to.
    fn whole(ids: Vec<u32>) -> Self {
        Self {
            attended: ids.len(),
            tokens: Tokens {
                type_ids: vec![0; ids.len()],
                ids,
            },
        }
    }
}

impl Reading {
    fn new(tokenizer: &Tokenizer, prefix: &str, length: usize) -> Result<Self> {
        let prefix = match prefix {
            "" => None,
            prefix => Some(tokenizer.token_to_id(prefix).ok_or_else(|| {
                Error::UnsupportedModel(format!(
                    "the tokenizer has no token {prefix:?}, which the checkpoint puts before its texts: it is \
                     incomplete, or was never trained for late interaction"
                ))
            })?),
        };
        let least = tokenizer.added_tokens(false) + usize::from(prefix.is_some()) + 1;
        if length < least {
            return Err(Error::InvalidInput(format!(
                "a maximum length of {length} tokens leaves none for the text beside the special tokens: allow at least {least}"
            )));
        }
        Ok(Self { prefix, length })
    }
}

impl Expansion {
    /// Of queries with at most so many tokens.
    fn new(loaded: &LoadedModel, found: &LateFiles, most: usize) -> Result<Self> {
        let attended = found.attends_to_expansion;
        let special = loaded.tokenizer.special_tokens();
        let roles = ["mask_token", "eos_token", "pad_token"];
        let declared = roles.iter().find_map(|role| special.id(role));
        let known = || loaded.tokenizer.token_to_id("[MASK]");
        let named = match &found.filler {
            Some(name) => loaded.tokenizer.token_to_id(name),
            None => declared.or_else(known),
        };
        let Some(token) = named else {
            return Err(Error::UnsupportedModel(
                "the tokenizer has no mask token, which queries are filled up with".into(),
            ));
        };
        if !attended && !loaded.body.takes_unattended() {
            return Err(Error::UnsupportedModel(format!(
                "query expansion whose tokens are not attended to is not supported for {}",
                loaded.body.family()
            )));
        }
        Ok(Self {
            token,
            length: found.fills_to.map_or(most, |length| length.min(most)),
            attended,
        })
    }
}

fn load_projection(
    files: &ModelFiles,
    projection: &Projection,
    checkpoint: &Checkpoint,
    cancel: &CancelToken,
) -> Result<Vec<Dense>> {
    let (device, dtype) = (&checkpoint.opened, checkpoint.dtype);
    match projection {
        Projection::Modules(folders) => folders
            .iter()
            .map(|folder| Dense::read(files, folder, (device, dtype), cancel))
            .collect(),
        Projection::Beside(name) => {
            let source = checkpoint.source.as_ref();
            let read = |part: &str| source.tensor(&format!("{name}.{part}"), Some(dtype), device);
            let bias = source.has(&format!("{name}.bias"));
            let bias = bias.then(|| read("bias")).transpose()?;
            Ok(vec![Dense::of(Linear::new(read("weight")?, bias)?)])
        }
    }
}

/// Each matrix takes what the one before it gives.
fn check_widths(hidden: usize, projection: &[Dense]) -> Result<()> {
    projection.iter().try_fold(hidden, |width, dense| {
        if dense.linear.inputs() == width {
            return Ok(dense.linear.outputs());
        }
        Err(Error::CorruptModel(format!(
            "a Dense module takes vectors of {} and is given vectors of {width}",
            dense.linear.inputs()
        )))
    })?;
    Ok(())
}

/// A word that is not one token is the unknown token to PyLate, which is then skipped too; to
/// sentence-transformers it is nothing.
fn skipped_ids(tokenizer: &Tokenizer, found: &LateFiles) -> HashSet<u32> {
    let unknown = tokenizer.special_tokens().id("unk_token");
    let unknown = unknown.filter(|_| !found.prompts_by_task);
    let ids = found
        .skipped
        .iter()
        .filter_map(|word| tokenizer.token_to_id(word).or(unknown));
    ids.collect()
}
