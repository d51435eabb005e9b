//! Adapters as PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::adapter::{Adapter, EmbeddingUpdate, LayerAdapter, Slot};
use super::config::RowOrder;
use super::model::Decoder;
use crate::models::parts::{self, Names, Part};
use crate::models::projections::ungrouped_rows;
use crate::nn::{Embedding, Linear, LowRank};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::weights::{self, WeightSource};

const CONFIG: &str = "adapter_config.json";
/// What PEFT puts before the base model's own names.
const PREFIX: &str = "base_model.model.";

/// Where a module of an adapter belongs.
enum Place {
    Layer(usize, Part, Slot),
    Embedding,
    Head,
}

/// A module that an adapter can change.
struct Target {
    /// As transformers names it, in every checkpoint of the family.
    names: Vec<String>,
    place: Place,
    inputs: usize,
    outputs: usize,
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
    let reader = Reader {
        decoder,
        source: weights::open(&adapter_weights(files, cancel)?)?,
        config,
    };
    let targets = targets(decoder, names);
    let mut adapter = Adapter {
        name: name.to_owned(),
        layers: decoder
            .layers()
            .iter()
            .map(|_| LayerAdapter::default())
            .collect(),
        embedding: None,
        head: None,
        whole_embedding: None,
        whole_head: None,
    };
    for (module, tensors) in reader.modules()? {
        cancel.check()?;
        let target = targets
            .iter()
            .find(|target| target.names.iter().any(|name| same(name, &module)))
            .ok_or_else(|| reader.unplaced(&module))?;
        reader.place(&mut adapter, target, &module, &tensors)?;
    }
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
fn targets(decoder: &Decoder, names: &Names) -> Vec<Target> {
    let target = |part: parts::Place, place: Place, inputs: usize, outputs: usize| {
        // The head stands beside the body, not in it.
        let body = match place {
            Place::Head => "",
            _ => names.body,
        };
        let modules = names.modules(part).into_iter();
        Target {
            names: modules.map(|name| format!("{body}{name}")).collect(),
            place,
            inputs,
            outputs,
        }
    };
    let mut targets = Vec::new();
    let config = decoder.config();
    // Layers that run several times have one number per run, but one name.
    let layers = decoder.layers().iter().enumerate();
    for (index, layer) in layers.filter(|_| config.stacks.is_none()) {
        for (part, slot, linear) in layer.linears() {
            let place = Place::Layer(index, part, slot);
            let (inputs, outputs) = (linear.inputs(), linear.outputs());
            targets.push(target(part.at(index), place, inputs, outputs));
        }
    }
    let (vocabulary, head) = (config.vocab_size, config.head_width());
    let (embedding, width) = (Part::TokenEmbedding.into(), config.embedding_size);
    targets.push(target(embedding, Place::Embedding, vocabulary, width));
    targets.push(target(Part::Head.into(), Place::Head, head, vocabulary));
    targets
}

/// Adapters of an inner or an outer model lack or have a beginning.
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
                 (experts, routers and norms). Check that the adapter belongs to this base model",
                config.architecture, config.layer_count
            ),
        )
    }

    fn place(
        &self,
        adapter: &mut Adapter,
        target: &Target,
        module: &str,
        tensors: &Module,
    ) -> Result<()> {
        if let Some(name) = &tensors.whole {
            self.replace(adapter, target, module, name)?;
        }
        let (down, up) = match (&tensors.down, &tensors.up) {
            (Some(down), Some(up)) => (down, up),
            (None, None) => return Ok(()),
            _ => {
                return Err(Error::corrupt(
                    &self.source.file(module),
                    format!("module {module} has only one of its two matrices"),
                ))
            }
        };
        let rank = self.rank(down, target)?;
        let up = self.tensor(up, [target.outputs, rank])?;
        let up = (up * f64::from(self.scale(module, rank)?))?;
        let up = match self.order(&target.place) {
            Some(order) => up.index_select(&Tensor::new(order, up.device())?, 0)?,
            None => up,
        };
        let up = Linear::new(up, None)?;
        let down = self.tensor(down, [rank, target.inputs])?;
        match target.place {
            Place::Layer(layer, _, slot) => {
                let down = Linear::new(down, None)?;
                *adapter.layers[layer].slot(slot) = Some(LowRank { down, up });
            }
            Place::Head => {
                let down = Linear::new(down, None)?;
                adapter.head = Some(LowRank { down, up });
            }
            Place::Embedding => {
                let rows = down.t()?.contiguous()?;
                adapter.embedding = Some(EmbeddingUpdate { rows, up });
            }
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
                let table = self.tensor(name, [target.inputs, target.outputs])?;
                if self.decoder.config().tied_head {
                    adapter.whole_head = Some(Linear::shared(table.clone(), None)?);
                }
                adapter.whole_embedding = Some(Embedding::Dense(table));
            }
            Place::Head => {
                let weight = self.tensor(name, [target.outputs, target.inputs])?;
                adapter.whole_head = Some(Linear::new(weight, None)?);
            }
            Place::Layer(..) => {
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

    fn tensor(&self, name: &str, shape: [usize; 2]) -> Result<Tensor> {
        let found = self.source.info(name).map(|info| info.shape);
        if found.as_deref() != Some(&shape[..]) {
            return Err(self.misfit(name, found.as_deref().unwrap_or_default(), name));
        }
        let tensor = self
            .source
            .tensor(name, Some(DType::F32), self.decoder.device())?;
        Ok(tensor.to_dtype(self.decoder.dtype())?)
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

    /// The order in which the base has the rows that the adapter writes.
    fn order(&self, place: &Place) -> Option<Vec<u32>> {
        let config = self.decoder.config();
        let Place::Layer(layer, part, _) = place else {
            return None;
        };
        let shape = config.attention_shape(*layer);
        match (config.row_order, part) {
            (RowOrder::Grouped, Part::Qkv) => Some(ungrouped_rows(&shape)),
            (RowOrder::Neighbours, Part::Query) => {
                Some(neighbours(shape.head_count, shape.head_size))
            }
            (RowOrder::Neighbours, Part::Key) => {
                Some(neighbours(shape.kv_head_count, shape.head_size))
            }
            _ => None,
        }
    }
}

/// The row order that puts what rotates together side by side.
fn neighbours(heads: usize, size: usize) -> Vec<u32> {
    let half = size / 2;
    (0..heads)
        .flat_map(|head| (0..half).flat_map(move |i| [head * size + i, head * size + half + i]))
        .map(|row| row as u32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_neighbours() {
        assert_eq!(neighbours(2, 4), [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    fn modules_are_found_with_and_without_their_beginning() {
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
