//! Gemma 4's images: layers that clip what their products read and make, on patches that rotate by column and row, and
//! means of blocks of these as rows of a decoder's width.

use candle_core::{DType, Device, Tensor};

use super::patch_grid::blocks;
use crate::models::config;
use crate::models::modules::Modules;
use crate::models::rope::Place;
use crate::nn::rope::frequencies;
use crate::nn::{
    attention_among, elementwise, AttentionKind, AttentionOptions, Inventory, Linear, Norm, Rope,
};
use crate::{CancelToken, Error, Result};
use base::runtime::device::ensure_activations;
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, WIDTH};
use formats::image::{PatchOrder, View, CHANNELS};
use kernels::{Activation, Pointwise, RopeKind, Rotation};

#[derive(Debug)]
pub struct Clipped {
    sizes: Sizes,
    patches: Linear,
    order: PatchOrder,
    /// Of columns and of rows: [positions, hidden] each.
    positions: [Tensor; 2],
    rope: Rope,
    layers: Vec<Layer>,
    /// What is taken from the means, and what they are then multiplied by.
    standard: Option<[Tensor; 2]>,
    norm: Norm,
    projection: Linear,
    device: Device,
    dtype: DType,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head: usize,
    patch: usize,
    /// The edge of a block of patches that becomes one row.
    block: usize,
    layers: usize,
    epsilon: f32,
    theta: f32,
    activation: Activation,
    clips: bool,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Norm,
    query: ClippedLinear,
    key: ClippedLinear,
    value: ClippedLinear,
    query_norm: Norm,
    key_norm: Norm,
    value_norm: Norm,
    output: ClippedLinear,
    post_attention_norm: Norm,
    mlp_norm: Norm,
    gate: ClippedLinear,
    up: ClippedLinear,
    down: ClippedLinear,
    post_mlp_norm: Norm,
}

/// A product whose inputs and outputs stay within bounds.
#[derive(Debug)]
struct ClippedLinear {
    linear: Linear,
    inputs: Option<Pointwise>,
    outputs: Option<Pointwise>,
}

impl Sizes {
    fn read(raw: &RawConfig) -> Result<Self> {
        let size = |key: &str, range, usual: usize| -> Result<usize> {
            Ok(raw.opt_usize_in(key, range)?.unwrap_or(usual))
        };
        let heads = size("num_attention_heads", HEADS, 12)?;
        let rope = raw.opt_nested("rope_parameters")?;
        let rope = rope.as_ref().unwrap_or(raw);
        if let Some(other) = rope
            .opt_string("rope_type")?
            .filter(|kind| *kind != "axial")
        {
            let reason = format!("rope_type {other:?} of a vision tower is not supported");
            return Err(Error::unsupported(raw.file(), reason));
        }
        let activation = raw.opt_string(["hidden_activation", "hidden_act"])?;
        let sizes = Self {
            hidden: size("hidden_size", WIDTH, 768)?,
            heads,
            kv_heads: size("num_key_value_heads", HEADS, heads)?,
            head: size("head_dim", WIDTH, 64)?,
            patch: size("patch_size", 1..=1024, 16)?,
            block: size("pooling_kernel_size", 1..=64, 3)?,
            layers: size("num_hidden_layers", LAYERS, 16)?,
            epsilon: raw.opt_f64("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            theta: rope.opt_f64("rope_theta")?.unwrap_or(100.0) as f32,
            activation: config::activation(activation.unwrap_or("gelu_pytorch_tanh"), raw.file())?,
            clips: raw.opt_bool("use_clipped_linears")?.unwrap_or(false),
        };
        if !sizes.heads.is_multiple_of(sizes.kv_heads) || !sizes.head.is_multiple_of(4) {
            let reason = format!(
                "a vision tower of {} heads, {} of keys and values, of {} numbers each is not possible",
                sizes.heads, sizes.kv_heads, sizes.head
            );
            return Err(Error::corrupt(raw.file(), reason));
        }
        Ok(sizes)
    }

    /// Where the rows of heads come from: files have those that columns turn before those that rows turn, in pairs of
    /// each half; here an element is turned with the one half a head behind it.
    fn order(&self, heads: usize, device: &Device) -> Result<Tensor> {
        let quarter = self.head / 4;
        let parts = [0, 2, 1, 3].map(|part| part * quarter);
        let row = |at: usize| (at / self.head * self.head, at % self.head);
        let rows = (0..heads * self.head).map(|at| {
            let (start, at) = row(at);
            (start + parts[at / quarter] + at % quarter) as u32
        });
        Ok(Tensor::from_vec(
            rows.collect::<Vec<u32>>(),
            heads * self.head,
            device,
        )?)
    }
}

impl Clipped {
    /// From the configuration of the tower; rows have `outputs` numbers.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        outputs: usize,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let sizes = Sizes::read(raw)?;
        let tower = modules.at("model.vision_tower|vision_tower|v");
        let hidden = sizes.hidden;
        let (patches, order) = patches(&tower, &sizes)?;
        let table = positions(&tower, hidden)?;
        let mut layers = Vec::new();
        for number in 0..sizes.layers {
            cancel.check()?;
            let of = tower.at(format!("encoder.layers.{number}|blk.{number}"));
            layers.push(Layer::load(&sizes, &of)?);
        }
        let standard = |name: &str| -> Result<Tensor> {
            Ok(tower.shaped(name, &[hidden])?.to_dtype(DType::F32)?)
        };
        let head = sizes.head / 2;
        let of_axis = frequencies(sizes.theta, head);
        let leads = modules.at("model.embed_vision|embed_vision|mm");
        Ok(Self {
            patches,
            order,
            positions: [table.get(0)?, table.get(1)?],
            rope: Rope::new(of_axis.repeat(2), 1.0, RopeKind::Half, 1, modules.device())?,
            layers,
            standard: if raw.opt_bool("standardize")?.unwrap_or(false) {
                Some([standard("std_bias")?, standard("std_scale")?])
            } else {
                None
            },
            norm: plain_norm(hidden, sizes.epsilon, (modules.device(), modules.dtype()))?,
            projection: leads.sized_linear(
                "embedding_projection|input_projection",
                hidden,
                outputs,
            )?,
            sizes,
            device: modules.device().clone(),
            dtype: modules.dtype(),
        })
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        inventory.add_linear(&self.patches)?;
        inventory.add_linear(&self.projection)?;
        for table in &self.positions {
            inventory.add_tensor(table);
        }
        for layer in &self.layers {
            layer.list(&mut inventory)?;
        }
        inventory.add_rows("activation", &self.device)?;
        inventory.add_attention(&self.device, self.dtype, self.sizes.head)?;
        Ok(inventory)
    }

    /// What stands for a view: [rows, width].
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Tensor> {
        let sizes = &self.sizes;
        let (columns, rows) = (view.width / sizes.patch, view.height / sizes.patch);
        let count = columns * rows;
        if count == 0 {
            return Err(super::too_small(view));
        }
        ensure_activations(count, sizes.hidden, self.dtype, &self.device)?;
        let places = (0..count).map(|at| [0, (at / columns) as u32, (at % columns) as u32]);
        let places: Vec<Place> = places.collect();
        let mut x = self.embed(view, &places)?;
        let quarter = sizes.head / 4;
        let axes = [vec![2; quarter], vec![1; quarter]].concat();
        let table = self.rope.table_of(&places, &axes, &self.device)?;
        let numbers: Vec<u32> = (0..count as u32).collect();
        let numbers = Tensor::from_vec(numbers, count, &self.device)?;
        let rotation = self.rope.rotation(&table, &numbers);
        for layer in &self.layers {
            cancel.check()?;
            x = layer.forward(sizes, &x, &rotation, cancel)?;
        }
        let means = self.means(&x, (columns, rows))?;
        self.projection.forward(&self.norm.forward(&means)?)
    }

    fn embed(&self, view: &View, places: &[Place]) -> Result<Tensor> {
        let (patch, hidden) = (self.sizes.patch, self.sizes.hidden);
        let mut values = Vec::new();
        view.patches(patch, self.order, &mut values);
        // The tower wants pixels from -1 to 1.
        values
            .iter_mut()
            .for_each(|value| *value = 2.0 * *value - 1.0);
        let shape = (places.len(), CHANNELS * patch * patch);
        let patches = Tensor::from_vec(values, shape, &self.device)?;
        let mut x = self.patches.forward(&patches.to_dtype(self.dtype)?)?;
        for (table, axis) in self.positions.iter().zip([2, 1]) {
            let at: Vec<u32> = places.iter().map(|place| place[axis]).collect();
            let most = at.iter().copied().max().unwrap_or(0) as usize;
            if most >= table.dim(0)? {
                return Err(Error::InvalidInput(format!(
                    "an image of {}x{} pixels has more patches than the model has positions",
                    view.width, view.height
                )));
            }
            let at = Tensor::from_vec(at, places.len(), &self.device)?;
            x = elementwise::add(&x, &table.index_select(&at, 0)?.reshape(((), hidden))?)?;
        }
        Ok(x)
    }

    /// Of the states in blocks of patches, in f32: they may become larger than numbers of 16 bits.
    fn means(&self, x: &Tensor, grid: (usize, usize)) -> Result<Tensor> {
        let (hidden, block) = (self.sizes.hidden, self.sizes.block);
        let gathered = blocks(x, grid, block)?;
        let count = gathered.dim(0)?;
        let gathered = gathered.reshape((count, block * block, hidden))?;
        let means = gathered.to_dtype(DType::F32)?.mean(1)?;
        let means = elementwise::scale(&means, (hidden as f32).sqrt())?;
        let means = match &self.standard {
            Some([shift, scale]) => {
                elementwise::multiply(&elementwise::subtract(&means, shift)?, scale)?
            }
            None => means,
        };
        Ok(means.to_dtype(self.dtype)?)
    }
}

/// Of the pixels of a patch. llama.cpp's converter makes a convolution of them, which has them channel by channel.
fn patches(tower: &Modules<'_>, sizes: &Sizes) -> Result<(Linear, PatchOrder)> {
    let (patch, hidden) = (sizes.patch, sizes.hidden);
    let inputs = CHANNELS * patch * patch;
    if tower.has("patch_embd") {
        let weight = tower.at("patch_embd");
        let weight = weight.shaped("weight", &[hidden, CHANNELS, patch, patch])?;
        let linear = tower.assemble(weight.reshape((hidden, inputs))?, None)?;
        return Ok((linear, PatchOrder::ByChannel));
    }
    let linear = tower.sized_linear("patch_embedder.input_proj", inputs, hidden)?;
    Ok((linear, PatchOrder::ByPixel))
}

/// Of columns and of rows: [2, positions, hidden].
fn positions(tower: &Modules<'_>, hidden: usize) -> Result<Tensor> {
    let names = "patch_embedder.position_embedding_table|position_embd.weight";
    let name = tower.known(names).unwrap_or(names);
    let count = tower.shape(name)?.get(1).copied().unwrap_or(0);
    tower.shaped(name, &[2, count, hidden])
}

fn plain_norm(width: usize, epsilon: f32, (device, dtype): (&Device, DType)) -> Result<Norm> {
    Ok(Norm::rms(Tensor::ones(width, dtype, device)?, 0.0, epsilon))
}

impl Layer {
    /// By the names of checkpoints, and behind them those of GGUF files.
    fn load(sizes: &Sizes, modules: &Modules<'_>) -> Result<Self> {
        let hidden = sizes.hidden;
        let norm = |names: &str| modules.rms_norm(names, hidden, sizes.epsilon);
        let (width, kv) = (sizes.heads * sizes.head, sizes.kv_heads * sizes.head);
        let place = (modules.device(), modules.dtype());
        let linear = |names: [&str; 2], extents: (usize, usize), turns: bool| {
            ClippedLinear::load(modules, names, extents, (sizes, turns))
        };
        let head_norm = |names: &str| -> Result<Norm> {
            let weight = modules.at(names).shaped("weight", &[sizes.head])?;
            let weight = weight.index_select(&sizes.order(1, modules.device())?, 0)?;
            Ok(Norm::rms(weight, 0.0, sizes.epsilon))
        };
        let inner = modules.at("mlp.up_proj.linear|ffn_up").shape("weight")?;
        let inner = inner.first().copied().unwrap_or(0);
        Ok(Self {
            attention_norm: norm("input_layernorm|ln1")?,
            query: linear(["self_attn.q_proj", "attn_q"], (hidden, width), true)?,
            key: linear(["self_attn.k_proj", "attn_k"], (hidden, kv), true)?,
            value: linear(["self_attn.v_proj", "attn_v"], (hidden, kv), false)?,
            query_norm: head_norm("self_attn.q_norm|attn_q_norm")?,
            key_norm: head_norm("self_attn.k_norm|attn_k_norm")?,
            value_norm: plain_norm(sizes.head, sizes.epsilon, place)?,
            output: linear(["self_attn.o_proj", "attn_out"], (width, hidden), false)?,
            post_attention_norm: norm("post_attention_layernorm|attn_post_norm")?,
            mlp_norm: norm("pre_feedforward_layernorm|ln2")?,
            gate: linear(["mlp.gate_proj", "ffn_gate"], (hidden, inner), false)?,
            up: linear(["mlp.up_proj", "ffn_up"], (hidden, inner), false)?,
            down: linear(["mlp.down_proj", "ffn_down"], (inner, hidden), false)?,
            post_mlp_norm: norm("post_feedforward_layernorm|ffn_post_norm")?,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let (query, key, value) = (&self.query, &self.key, &self.value);
        for product in [
            query,
            key,
            value,
            &self.output,
            &self.gate,
            &self.up,
            &self.down,
        ] {
            inventory.add_linear(&product.linear)?;
        }
        let norms = [&self.attention_norm, &self.query_norm, &self.key_norm];
        let behind = [
            &self.post_attention_norm,
            &self.mlp_norm,
            &self.post_mlp_norm,
        ];
        norms
            .into_iter()
            .chain(behind)
            .try_for_each(|norm| inventory.add_norm(norm))
    }

    fn forward(
        &self,
        sizes: &Sizes,
        x: &Tensor,
        rotation: &Rotation<'_>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let count = x.dim(0)?;
        let normed = self.attention_norm.forward(x)?;
        let heads = |product: &ClippedLinear, norm: &Norm, heads: usize| -> Result<Tensor> {
            let rows = product.forward(&normed)?;
            norm.forward(&rows.reshape((count, heads, sizes.head))?)
        };
        let q = rotation.rotate(&heads(&self.query, &self.query_norm, sizes.heads)?)?;
        let k = rotation.rotate(&heads(&self.key, &self.key_norm, sizes.kv_heads)?)?;
        let v = heads(&self.value, &self.value_norm, sizes.kv_heads)?;
        let options = AttentionOptions::new(AttentionKind::Bidirectional, 1.0);
        let mixed = attention_among([&q, &k, &v], &options, cancel)?;
        let mixed = self.output.forward(&mixed.flatten_from(1)?)?;
        let x = elementwise::add(x, &self.post_attention_norm.forward(&mixed)?)?;
        let inner = self.mlp_norm.forward(&x)?;
        let (gate, up) = (self.gate.forward(&inner)?, self.up.forward(&inner)?);
        let inner = kernels::gated(&gate, &up, sizes.activation)?;
        let fed = self.down.forward(&inner)?;
        elementwise::add(&x, &self.post_mlp_norm.forward(&fed)?)
    }
}

impl ClippedLinear {
    /// By its name in a checkpoint and in a GGUF file; where it `turns`, with its rows in the order of heads.
    fn load(
        modules: &Modules<'_>,
        [name, converted]: [&str; 2],
        (inputs, outputs): (usize, usize),
        (sizes, turns): (&Sizes, bool),
    ) -> Result<Self> {
        let inner = modules.at(format!("{name}.linear|{converted}"));
        let linear = if turns {
            let weight = inner.shaped("weight", &[outputs, inputs])?;
            let order = sizes.order(outputs / sizes.head, modules.device())?;
            modules.assemble(weight.index_select(&order, 0)?, None)?
        } else {
            inner.sized_linear("", inputs, outputs)?
        };
        let modules = modules.at(format!("{name}|{converted}"));
        let bounds = |least: &str, most: &str| -> Result<Option<Pointwise>> {
            if !sizes.clips {
                return Ok(None);
            }
            match (&modules.values(least)?[..], &modules.values(most)?[..]) {
                ([least], [most]) if least.is_infinite() && most.is_infinite() => Ok(None),
                (&[least], &[most]) if least <= most => Ok(Some(Pointwise::Clamp { least, most })),
                _ => Err(modules.corrupt(format!(
                    "tensors {path}{least} and {path}{most} are not two bounds",
                    path = modules.path()
                ))),
            }
        };
        Ok(Self {
            linear,
            inputs: bounds("input_min", "input_max")?,
            outputs: bounds("output_min", "output_max")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let within = |x: Tensor, bounds: Option<Pointwise>| match bounds {
            Some(bounds) => kernels::pointwise(&x, bounds),
            None => Ok(x),
        };
        let made = self.linear.forward(&within(x.clone(), self.inputs)?)?;
        within(made, self.outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_head_stand_half_a_head_from_their_pair() {
        let raw = RawConfig::parse(std::path::Path::new("config.json"), "{\"head_dim\": 8}");
        let sizes = Sizes::read(&raw.unwrap()).unwrap();
        let order: Vec<u32> = sizes.order(2, &Device::Cpu).unwrap().to_vec1().unwrap();
        assert_eq!(order[..8], [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(order[8..], [8, 9, 12, 13, 10, 11, 14, 15]);
    }
}
