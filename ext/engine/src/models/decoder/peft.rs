//! Adapters as PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::adaptable::{self, Piece};
use super::adapter::{Adapter, EmbeddingUpdate, Slot, Update};
use super::config::RowOrder;
use super::model::Decoder;
use super::stages::Home;
use crate::models::parts::{self, Names, Part};
use crate::nn::{Embedding, Linear, LowRank, RowUpdate};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::weights::{self, WeightSource};

const CONFIG: &str = "adapter_config.json";
/// What PEFT puts before the base model's own names.
const PREFIX: &str = "base_model.model.";

/// Where a module of an adapter belongs.
pub(super) enum Place {
    Layer(usize, Vec<Piece>),
    /// Beside the layers.
    Model(Vec<Piece>),
    Embedding,
    Head,
}

/// A module that an adapter can change.
pub(super) struct Target {
    /// As transformers names it, in every checkpoint of the family.
    pub names: Vec<String>,
    pub place: Place,
    pub inputs: usize,
    outputs: usize,
}

/// The updates of a model's matrices while an adapter is read. The matrices A of one stand above each other, and their
/// matrices B side by side.
#[derive(Default)]
struct Found {
    matrices: Vec<Matrix>,
}

struct Matrix {
    /// `None` beside the layers.
    layer: Option<usize>,
    slot: Slot,
    down: Vec<Tensor>,
    up: Vec<Tensor>,
}

impl Found {
    /// Notes a module's A `[rank, inputs]` and B `[outputs, rank]` at the matrices that have its rows.
    fn add(
        &mut self,
        layer: Option<usize>,
        pieces: &[Piece],
        down: &Tensor,
        up: &Tensor,
    ) -> Result<()> {
        for Piece { at, rows } in pieces {
            let rows = Tensor::new(&rows[..], up.device())?;
            let after = at.outputs - at.first - rows.elem_count();
            let own = up.index_select(&rows, 0)?;
            let own = own.pad_with_zeros(0, at.first, after)?;
            let same = |matrix: &&mut Matrix| (matrix.layer, matrix.slot) == (layer, at.slot);
            match self.matrices.iter_mut().find(same) {
                Some(matrix) => {
                    matrix.down.push(down.clone());
                    matrix.up.push(own);
                }
                None => self.matrices.push(Matrix {
                    layer,
                    slot: at.slot,
                    down: vec![down.clone()],
                    up: vec![own],
                }),
            }
        }
        Ok(())
    }

    /// Writes all into the adapter.
    fn finish(self, decoder: &Decoder, adapter: &mut Adapter) -> Result<()> {
        for matrix in self.matrices {
            let down = Tensor::cat(&matrix.down, 0)?;
            let up = Tensor::cat(&matrix.up, 1)?.contiguous()?;
            let update = match (matrix.slot, matrix.layer) {
                (Slot::LatentUp, Some(layer)) => {
                    Update::Latent(Box::new(decoder.latent_update(layer, &down, &up)?))
                }
                _ => Update::Plain(RowUpdate::Add(Box::new(LowRank {
                    down: Linear::new(down, None)?,
                    up: Linear::new(up, None)?,
                }))),
            };
            let updates = match matrix.layer {
                Some(layer) => &mut adapter.layers[layer],
                None => &mut adapter.model,
            };
            updates.set(matrix.slot, update)?;
        }
        Ok(())
    }
}

/// The tensors of one module.
#[derive(Default)]
struct Module {
    down: Option<String>,
    up: Option<String>,
    whole: Option<String>,
}

struct Reader<'a> {
    decoder: &'a Decoder,
    config: RawConfig,
    source: Arc<dyn WeightSource>,
}

/// Has an adapter's files come, from wherever they are.
pub fn fetch(files: &ModelFiles, cancel: &CancelToken) -> Result<()> {
    files.require(CONFIG, cancel)?;
    adapter_weights(files, cancel).map(|_| ())
}

/// Reads an adapter for `decoder`; `names` are those of its family in safetensors.
pub fn load(
    decoder: &Decoder,
    names: &Names,
    name: &str,
    files: &ModelFiles,
    cancel: &CancelToken,
) -> Result<Adapter> {
    let config = RawConfig::read(&files.require(CONFIG, cancel)?)?;
    check(&config)?;
    if decoder.config().row_order == RowOrder::Changed {
        let architecture = &decoder.config().architecture;
        return Err(Error::unsupported(
            config.file(),
            format!(
                "GGUF files of {architecture} hold other weights than the checkpoint that adapters are made for. Load the \
                 base model's safetensors instead"
            ),
        ));
    }
    let reader = Reader {
        decoder,
        source: weights::open(&adapter_weights(files, cancel)?)?,
        config,
    };
    let targets = targets(decoder, names);
    let runs = decoder.config().stacks.map(|stacks| stacks.runs());
    let mut adapter = Adapter::new(name, decoder.layers().len(), runs);
    let mut found = Found::default();
    for (module, tensors) in reader.modules()? {
        cancel.check()?;
        let mut ours = targets.iter().filter(|_| !of_tower(&module));
        match ours.find(|target| target.names.iter().any(|name| same(name, &module))) {
            Some(target) => {
                reader.place((&mut adapter, &mut found), target, &module, &tensors)?;
            }
            None => reader.place_stack(&mut found, names, &module, &tensors)?,
        }
    }
    found.finish(decoder, &mut adapter)?;
    Ok(adapter)
}

fn adapter_weights(files: &ModelFiles, cancel: &CancelToken) -> Result<WeightFiles> {
    if let Some(path) = files.file("adapter_model.safetensors", cancel)? {
        return Ok(WeightFiles::Safetensors(vec![path]));
    }
    let path: PathBuf = match files.file("adapter_model.bin", cancel)? {
        Some(path) => path,
        None => files.require("adapter_model.safetensors", cancel)?,
    };
    Ok(WeightFiles::Pickle(vec![path]))
}

/// Refuses what would silently give other results than PEFT.
fn check(config: &RawConfig) -> Result<()> {
    let unsupported = |what: String| {
        let advice = "Merge the adapter into its base model with PEFT and load the result";
        Err(Error::unsupported(
            config.file(),
            format!("{what} is not supported. {advice}"),
        ))
    };
    match config.opt_string("peft_type")? {
        Some("LORA") => {}
        other => return unsupported(format!("an adapter of the kind {:?}", other.unwrap_or(""))),
    }
    for flag in ["use_dora", "use_qalora", "lora_bias"] {
        if config.opt_bool(flag)?.unwrap_or(false) {
            return unsupported(flag.to_owned());
        }
    }
    for setting in ["layer_replication", "alora_invocation_tokens"] {
        if config.has(setting) {
            return unsupported(setting.to_owned());
        }
    }
    if let Some(bias @ ("all" | "lora_only")) = config.opt_string("bias")? {
        return unsupported(format!("bias: {bias:?}"));
    }
    // These start from another base than the one at hand.
    let start = config
        .get("init_lora_weights")
        .and_then(|value| value.as_str());
    if let Some(start) = start.filter(|start| {
        let start = start.to_ascii_lowercase();
        ["pissa", "olora", "corda", "loftq"]
            .iter()
            .any(|kind| start.starts_with(kind))
    }) {
        return unsupported(format!("init_lora_weights: {start:?}"));
    }
    Ok(())
}

/// Every module of the decoder that can be adapted.
pub(super) fn targets(decoder: &Decoder, names: &Names) -> Vec<Target> {
    let target =
        |names: &Names, part: parts::Place, place: Place, inputs: usize, outputs: usize| {
            // The head stands beside the body, not in it.
            let body = match place {
                Place::Head => "",
                _ => names.body,
            };
            // The decoder of a larger model stands deeper in it.
            let modules = names.modules(part).into_iter();
            let modules = modules.flat_map(|name| [format!("{body}{name}"), name]);
            Target {
                names: modules.collect(),
                place,
                inputs,
                outputs,
            }
        };
    let mut targets = Vec::new();
    let config = decoder.config();
    let high = names.of_high_stack();
    for (index, layer) in decoder.layers().iter().enumerate() {
        // Of two stacks, both count their layers from 0.
        let (names, number) = match config.stacks {
            Some(stacks) if index >= stacks.layers => (&high, index - stacks.layers),
            _ => (names, index),
        };
        for module in adaptable::of_layer(layer, number, config) {
            let part = module.part.at(number).expert(module.number);
            let (inputs, outputs) = (module.inputs, module.outputs());
            let place = Place::Layer(index, module.pieces);
            targets.push(target(names, part, place, inputs, outputs));
        }
    }
    for module in decoder.modules() {
        let part = module.part.at(0).expert(module.number);
        let (inputs, outputs) = (module.inputs, module.outputs());
        let place = Place::Model(module.pieces);
        targets.push(target(names, part, place, inputs, outputs));
    }
    let (vocabulary, head) = (config.vocab_size, config.head_width());
    let (embedding, width) = (Part::TokenEmbedding.into(), config.embedding_size);
    let place = Place::Embedding;
    targets.push(target(names, embedding, place, vocabulary, width));
    let place = Place::Head;
    targets.push(target(names, Part::Head.into(), place, head, vocabulary));
    targets
}

/// Whether a module is of what makes embeddings of images or sounds, whose layers are often called as the decoder's.
fn of_tower(module: &str) -> bool {
    let towers = ["vision", "visual", "audio"];
    let mut words = module.split('.');
    words.any(|word| towers.iter().any(|tower| word.starts_with(tower)))
}

/// Tensor names in adapters of an inner model have no prefix; those of an outer model have one.
fn same(target: &str, module: &str) -> bool {
    let ends = |long: &str, short: &str| {
        long.strip_suffix(short)
            .is_some_and(|start| start.is_empty() || start.ends_with('.'))
    };
    ends(target, module) || ends(module, target)
}

/// Where a module keeps the name of one of its tensors.
type TensorName = fn(&mut Module) -> &mut Option<String>;

impl Reader<'_> {
    /// The adapter's tensors by module.
    fn modules(&self) -> Result<BTreeMap<String, Module>> {
        let mut modules: BTreeMap<String, Module> = BTreeMap::new();
        for name in self.source.names() {
            let inner = name.strip_prefix(PREFIX).unwrap_or(&name);
            let endings: [(&str, TensorName); 6] = [
                (".lora_A.weight", |module| &mut module.down),
                (".lora_B.weight", |module| &mut module.up),
                (".lora_embedding_A", |module| &mut module.down),
                (".lora_embedding_B", |module| &mut module.up),
                (".base_layer.weight", |module| &mut module.whole),
                (".weight", |module| &mut module.whole),
            ];
            let found = endings
                .iter()
                .find_map(|(ending, slot)| Some((inner.strip_suffix(ending)?, slot)));
            let Some((module, slot)) = found else {
                return Err(Error::unsupported(
                    &self.source.file(&name),
                    format!("tensor {name} is of a kind that is not supported"),
                ));
            };
            *slot(modules.entry(module.to_owned()).or_default()) = Some(name.clone());
        }
        Ok(modules)
    }

    fn unplaced(&self, module: &str) -> Error {
        let config = self.decoder.config();
        Error::unsupported(
            self.config.file(),
            format!(
                "it changes {module}, which a {} model of {} layers does not have, or which cannot be adapted \
                 (norms). Check that the adapter belongs to this base model",
                config.architecture, config.layer_count
            ),
        )
    }

    fn place(
        &self,
        (adapter, found): (&mut Adapter, &mut Found),
        target: &Target,
        module: &str,
        tensors: &Module,
    ) -> Result<()> {
        if let Some(name) = &tensors.whole {
            self.replace(adapter, target, module, name)?;
        }
        let Some((down, up)) = self.both(module, tensors)? else {
            return Ok(());
        };
        let rank = self.rank(down, target)?;
        let home = self.home_of(target);
        let up = self.tensor(up, [target.outputs, rank], home)?;
        let up = (up * f64::from(self.scale(module, rank)?))?;
        let down = self.tensor(down, [rank, target.inputs], home)?;
        match &target.place {
            Place::Layer(layer, pieces) => found.add(Some(*layer), pieces, &down, &up)?,
            Place::Model(pieces) => found.add(None, pieces, &down, &up)?,
            Place::Head => {
                let (down, up) = (Linear::new(down, None)?, Linear::new(up, None)?);
                adapter.head = Some(RowUpdate::Add(Box::new(LowRank { down, up })));
            }
            Place::Embedding => {
                let (rows, up) = (down.t()?.contiguous()?, Linear::new(up, None)?);
                adapter.embedding = Some(EmbeddingUpdate { rows, up });
            }
        }
        Ok(())
    }

    /// The names of a module's two matrices; `None` where it has neither.
    fn both<'a>(&self, module: &str, tensors: &'a Module) -> Result<Option<(&'a str, &'a str)>> {
        match (&tensors.down, &tensors.up) {
            (Some(down), Some(up)) => Ok(Some((down, up))),
            (None, None) => Ok(None),
            _ => Err(Error::corrupt(
                &self.source.file(module),
                format!("module {module} has only one of its two matrices"),
            )),
        }
    }

    /// All experts of a layer, whose matrices transformers keeps as one parameter: A is `[experts · rank, inputs]`, and
    /// B `[outputs, rank · experts]`, of which the experts' columns take turns.
    fn place_stack(
        &self,
        found: &mut Found,
        names: &Names,
        module: &str,
        tensors: &Module,
    ) -> Result<()> {
        let config = self.decoder.config();
        let container = module.trim_end_matches(".base_layer");
        let within = |index: &usize| {
            let mut starts = names.layers(*index).into_iter();
            starts.any(|start| {
                let at = container.find(&start);
                at.is_some_and(|at| at == 0 || container.as_bytes()[at - 1] == b'.')
            })
        };
        let layer = (0..self.decoder.layers().len()).find(within);
        let layer = layer.filter(|_| container.ends_with("experts"));
        let (Some(layer), Some((down, up))) = (layer, self.both(module, tensors)?) else {
            return Err(self.unplaced(module));
        };
        let shape = |name: &str| self.source.info(name).map(|info| info.shape);
        let (Some(down_shape), Some(up_shape)) = (shape(down), shape(up)) else {
            return Err(self.unplaced(module));
        };
        let stacks = adaptable::stacks(&self.decoder.layers()[layer], config);
        let mut named = ["gate_up_proj", "down_proj"].iter().zip(&stacks);
        // PEFT takes the inputs of Llama 4's experts for their outputs.
        let turned = config.experts.as_ref().is_some_and(|one| one.weighs_input);
        let stack = named.find(|(_, stack)| {
            stack.first().is_some_and(|first| {
                let (inputs, outputs) = if turned {
                    (first.outputs(), first.inputs)
                } else {
                    (first.inputs, first.outputs())
                };
                down_shape.get(1) == Some(&inputs)
                    && up_shape.first() == Some(&outputs)
                    && down_shape[0].is_multiple_of(stack.len())
            })
        });
        let Some(((name, stack), rows)) = stack.zip(down_shape.first()) else {
            return Err(self.misfit(down, &down_shape, module));
        };
        let (count, rank) = (stack.len(), rows / stack.len());
        if rank == 0 {
            return Err(self.misfit(down, &down_shape, module));
        }
        let (inputs, outputs) = (down_shape[1], up_shape[0]);
        let home = self.decoder.stages().home_of(layer);
        let down = self.tensor(down, [*rows, inputs], home)?;
        let up = self.tensor(up, [outputs, *rows], home)?;
        let scale = self.scale(&format!("{container}.{name}"), rank)?;
        let up = (up * f64::from(scale))?;
        let up = up.reshape((outputs, rank, count))?;
        for (number, expert) in stack.iter().enumerate() {
            let mut down = down.narrow(0, number * rank, rank)?;
            let mut up = up.narrow(2, number, 1)?.squeeze(2)?.contiguous()?;
            if turned {
                (down, up) = (up.t()?.contiguous()?, down.t()?.contiguous()?);
            }
            found.add(Some(layer), &expert.pieces, &down, &up)?;
        }
        Ok(())
    }

    /// A module that was trained in full (`modules_to_save`).
    fn replace(
        &self,
        adapter: &mut Adapter,
        target: &Target,
        module: &str,
        name: &str,
    ) -> Result<()> {
        match target.place {
            Place::Embedding => {
                let shape = [target.inputs, target.outputs];
                let table = self.tensor(name, shape, self.decoder.stages().main())?;
                if self.decoder.config().tied_head {
                    adapter.whole_head = Some(Linear::shared(table.clone(), None)?);
                }
                adapter.whole_embedding = Some(Embedding::Dense(table));
            }
            Place::Head => {
                let shape = [target.outputs, target.inputs];
                let weight = self.tensor(name, shape, self.decoder.stages().main())?;
                adapter.whole_head = Some(Linear::new(weight, None)?);
            }
            Place::Layer(..) | Place::Model(_) => {
                return Err(Error::unsupported(
                    self.config.file(),
                    format!("it replaces {module} in full, which only embeddings and heads can be"),
                ))
            }
        }
        Ok(())
    }

    /// The first matrix is [rank, inputs].
    fn rank(&self, down: &str, target: &Target) -> Result<usize> {
        let shape = self.source.info(down).map(|info| info.shape);
        match shape.as_deref() {
            Some([rank, inputs]) if *rank > 0 && *inputs == target.inputs => Ok(*rank),
            other => Err(self.misfit(down, other.unwrap_or_default(), &target.names[0])),
        }
    }

    /// Where the matrices of a module are.
    fn home_of(&self, target: &Target) -> &Home {
        let stages = self.decoder.stages();
        match target.place {
            Place::Layer(layer, _) => stages.home_of(layer),
            Place::Model(_) | Place::Embedding | Place::Head => stages.main(),
        }
    }

    fn tensor(&self, name: &str, shape: [usize; 2], home: &Home) -> Result<Tensor> {
        let found = self.source.info(name).map(|info| info.shape);
        if found.as_deref() != Some(&shape[..]) {
            return Err(self.misfit(name, found.as_deref().unwrap_or_default(), name));
        }
        let tensor = self.source.tensor(name, Some(DType::F32), &home.device)?;
        Ok(tensor.to_dtype(home.dtype)?)
    }

    fn misfit(&self, name: &str, shape: &[usize], target: &str) -> Error {
        let config = self.decoder.config();
        let base = self.config.opt_string("base_model_name_or_path");
        Error::unsupported(
            &self.source.file(name),
            format!(
                "tensor {name} of shape {shape:?} does not fit {target} of this {} model (hidden size {}). The adapter \
                 was made for {}",
                config.architecture,
                config.hidden_size,
                base.ok().flatten().unwrap_or("another base model")
            ),
        )
    }

    /// alpha / rank, or alpha / √rank with rank stabilization; patterns give modules their own alpha.
    fn scale(&self, module: &str, rank: usize) -> Result<f32> {
        let mut alpha = self.config.opt_f64("lora_alpha")?.unwrap_or(8.0);
        if let Some(patterns) = self.config.opt_nested("alpha_pattern")? {
            for pattern in patterns.keys() {
                if self.matches(pattern, module)? {
                    alpha = patterns.f64(pattern)?;
                    break;
                }
            }
        }
        let stabilized = self.config.opt_bool("use_rslora")?.unwrap_or(false);
        let divisor = if stabilized {
            (rank as f64).sqrt()
        } else {
            rank as f64
        };
        Ok((alpha / divisor) as f32)
    }

    /// A pattern is the end of a module's name, or all of it after `^`.
    fn matches(&self, pattern: &str, module: &str) -> Result<bool> {
        let (whole, plain) = match pattern.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        // As PEFT writes it for the parameters of experts.
        let plain = plain.strip_prefix(r".*\.").unwrap_or(plain);
        if plain.contains(|c: char| "*+?()[]{}|\\^$".contains(c)) {
            return Err(Error::unsupported(
                self.config.file(),
                format!(
                    "alpha_pattern {pattern:?} is a regular expression, which is not supported"
                ),
            ));
        }
        Ok(if whole {
            module == plain
        } else {
            module
                .strip_suffix(plain)
                .is_some_and(|start| start.is_empty() || start.ends_with('.'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_with_and_without_a_prefix() {
        let target = "model.layers.1.self_attn.q_proj";
        assert!(same(target, target));
        assert!(same(target, "layers.1.self_attn.q_proj"));
        assert!(same(
            target,
            "language_model.model.layers.1.self_attn.q_proj"
        ));
        assert!(!same(target, "model.layers.11.self_attn.q_proj"));
        assert!(!same(
            "model.layers.11.self_attn.q_proj",
            "layers.1.self_attn.q_proj"
        ));
        assert!(!same(target, "model.layers.1.self_attn.k_proj"));
    }
}
