//! MiniCPM-V 4.6's images: SigLIP's layers, which merge windows of patches on their way, and blocks of these as rows of a
//! decoder's width.

use candle_core::{DType, Device, Tensor};

use super::patch_grid::blocks;
use super::positions::nearest;
use crate::models::config;
use crate::models::detection::attention::check_heads;
use crate::models::modules::Modules;
use crate::nn::{
    attention, attention_among, elementwise, AttentionKind, AttentionOptions, Epilogue, Inventory,
    Linear, Norm,
};
use crate::{CancelToken, Error, Result};
use base::runtime::device::ensure_activations;
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, WIDTH};
use formats::image::{PatchOrder, View, CHANNELS};
use kernels::Activation;

/// The edge of windows and of blocks.
const EDGE: usize = 2;
/// Of the norms before the products that lead to the decoder.
const EPSILON: f32 = 1e-6;
/// More rounds of merging than any model has.
const MOST_ROUNDS: usize = 16;

#[derive(Debug)]
pub struct Merged {
    patches: Linear,
    /// [places, width], row by row.
    positions: Tensor,
    /// Places to a side.
    side: usize,
    layers: Vec<Layer>,
    windows: Option<Windows>,
    norm: Norm,
    rounds: Vec<Feed>,
    patch: usize,
    width: usize,
    device: Device,
    dtype: DType,
}

#[derive(Debug)]
struct Layer {
    norm: Norm,
    attention: Attention,
    mlp: Feed,
}

#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
}

/// A norm, and two products with an activation between them.
#[derive(Debug)]
struct Feed {
    norm: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
}

/// What makes one row of each window, behind a layer.
#[derive(Debug)]
struct Windows {
    behind: usize,
    norm: Norm,
    attention: Attention,
    feed: Feed,
}

impl Merged {
    /// From the configuration of the whole model; rows have `outputs` numbers.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        outputs: usize,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let vision = raw.nested("vision_config")?;
        let size = |key: &str, range, usual: usize| -> Result<usize> {
            Ok(vision.opt_usize_in(key, range)?.unwrap_or(usual))
        };
        let (width, patch) = (
            size("hidden_size", WIDTH, 768)?,
            size("patch_size", 1..=1024, 16)?,
        );
        let count = size("num_hidden_layers", LAYERS, 12)?;
        let heads = size("num_attention_heads", HEADS, 12)?;
        let epsilon = vision.opt_f64("layer_norm_eps")?.unwrap_or(1e-6) as f32;
        let name = vision.opt_string("hidden_act")?;
        let activation = config::activation(name.unwrap_or("gelu_pytorch_tanh"), raw.file())?;
        check_edges(raw, &vision)?;
        let tower = modules.at("model.vision_tower|vision_tower|v");
        check_heads(&tower, width, heads)?;
        let mut layers = Vec::new();
        for number in 0..count {
            cancel.check()?;
            let of = tower.at(format!("encoder.layers.{number}|blk.{number}"));
            layers.push(Layer::load(&of, (width, heads, epsilon), activation)?);
        }
        let merges = raw.opt_string("downsample_mode")?.unwrap_or("16x") != "4x";
        let behind = vision.opt_usize_in("insert_layer_id", 0..=count)?;
        let behind = behind.or(raw.opt_usize_in("insert_layer_id", 0..=count)?);
        let windows = if merges {
            let sizes = (width, heads, epsilon);
            Some(Windows::load(
                &tower.at("vit_merger"),
                behind.unwrap_or(6),
                sizes,
            )?)
        } else {
            None
        };
        let table = tower.at("embeddings.position_embedding|position_embd");
        let side = table.shape("weight")?.first().copied().unwrap_or(0).isqrt();
        let merger = modules.at("model.merger.mlp|merger.mlp|mm");
        let times = raw
            .opt_usize_in("merger_times", 1..=MOST_ROUNDS)?
            .unwrap_or(1);
        let round = |number: usize| {
            let made = if number + 1 == times { outputs } else { width };
            // GGUF files have one round, which has no number.
            let of = if merger.has("input_norm") {
                merger.clone()
            } else {
                merger.at(number.to_string())
            };
            let sizes = (EDGE * EDGE * width, made);
            Feed::load(
                &of,
                ["pre_norm|input_norm", "linear_1|up", "linear_2|down"],
                sizes,
                (EPSILON, Activation::Gelu),
            )
        };
        let convolution = tower.at("embeddings.patch_embedding|patch_embd");
        let weight = convolution.shaped("weight", &[width, CHANNELS, patch, patch])?;
        let bias = convolution.optional("bias")?;
        Ok(Self {
            patches: Linear::new(weight.reshape((width, CHANNELS * patch * patch))?, bias)?,
            positions: table.shaped("weight", &[side * side, width])?,
            side,
            layers,
            windows,
            norm: tower.layer_norm("post_layernorm|post_ln", width, epsilon)?,
            rounds: (0..times).map(round).collect::<Result<_>>()?,
            patch,
            width,
            device: modules.device().clone(),
            dtype: modules.dtype(),
        })
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        inventory.add_linear(&self.patches)?;
        inventory.add_tensor(&self.positions);
        inventory.add_norm(&self.norm)?;
        for layer in &self.layers {
            inventory.add_norm(&layer.norm)?;
            layer.attention.list(&mut inventory)?;
            layer.mlp.list(&mut inventory)?;
        }
        if let Some(windows) = &self.windows {
            inventory.add_norm(&windows.norm)?;
            windows.attention.list(&mut inventory)?;
            windows.feed.list(&mut inventory)?;
        }
        for round in &self.rounds {
            round.list(&mut inventory)?;
        }
        inventory.add_rows("activation", &self.device)?;
        Ok(inventory)
    }

    /// What stands for a view: [rows, width].
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Tensor> {
        let mut grid = (view.width / self.patch, view.height / self.patch);
        if grid.0 * grid.1 == 0 {
            return Err(super::too_small(view));
        }
        ensure_activations(grid.0 * grid.1, self.width, self.dtype, &self.device)?;
        let mut x = self.embed(view, grid)?;
        for (number, layer) in self.layers.iter().enumerate() {
            cancel.check()?;
            let normed = layer.norm.forward(&x)?;
            let mixed = layer.attention.forward(&normed, None, cancel)?;
            x = elementwise::add(&x, &mixed)?;
            x = elementwise::add(&x, &layer.mlp.forward(&x)?)?;
            if let Some(windows) = self.windows.as_ref().filter(|it| it.behind == number) {
                x = windows.forward(&x, grid, cancel)?;
                grid = (grid.0 / EDGE, grid.1 / EDGE);
            }
        }
        x = self.norm.forward(&x)?;
        for round in &self.rounds {
            x = round.forward(&blocks(&x, grid, EDGE)?)?;
            grid = (grid.0 / EDGE, grid.1 / EDGE);
        }
        Ok(x)
    }

    fn embed(&self, view: &View, (columns, rows): (usize, usize)) -> Result<Tensor> {
        let mut values = Vec::new();
        view.patches(self.patch, PatchOrder::ByChannel, &mut values);
        let shape = (columns * rows, CHANNELS * self.patch * self.patch);
        let patches = Tensor::from_vec(values, shape, &self.device)?;
        let patches = self.patches.forward(&patches.to_dtype(self.dtype)?)?;
        let (across, down) = (nearest(self.side, columns), nearest(self.side, rows));
        let side = self.side as u32;
        let places = down
            .iter()
            .flat_map(|row| across.iter().map(move |column| row * side + column));
        let places: Vec<u32> = places.collect();
        let places = Tensor::from_vec(places, columns * rows, &self.device)?;
        elementwise::add(&patches, &self.positions.index_select(&places, 0)?)
    }
}

/// No model has windows or blocks of other edges.
fn check_edges(raw: &RawConfig, vision: &RawConfig) -> Result<()> {
    let edges = [
        vision.opt_integers("window_kernel_size")?,
        raw.opt_integers("merge_kernel_size")?,
    ];
    let other = |edges: &&Vec<i64>| edges.iter().any(|&edge| edge != EDGE as i64);
    match edges.iter().flatten().find(other) {
        Some(edges) => {
            let reason = format!("windows and blocks of {edges:?} patches are not supported");
            Err(Error::unsupported(raw.file(), reason))
        }
        None => Ok(()),
    }
}

impl Layer {
    fn load(
        modules: &Modules<'_>,
        (width, heads, epsilon): (usize, usize, f32),
        activation: Activation,
    ) -> Result<Self> {
        let parts = ["layer_norm2|ln2", "mlp.fc1|ffn_up", "mlp.fc2|ffn_down"];
        Ok(Self {
            norm: modules.layer_norm("layer_norm1|ln1", width, epsilon)?,
            attention: Attention::load(modules, width, heads)?,
            mlp: Feed::load(modules, parts, (width, width), (epsilon, activation))?,
        })
    }
}

impl Attention {
    fn load(modules: &Modules<'_>, width: usize, heads: usize) -> Result<Self> {
        let linear = |name: &str| modules.sized_linear(name, width, width);
        Ok(Self {
            query: linear("self_attn.q_proj|attn_q")?,
            key: linear("self_attn.k_proj|attn_k")?,
            value: linear("self_attn.v_proj|attn_v")?,
            output: linear("self_attn.out_proj|attn_out")?,
            heads,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        [&self.query, &self.key, &self.value, &self.output]
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// Rows between boundaries attend to each other, or all do.
    fn forward(
        &self,
        x: &Tensor,
        boundaries: Option<&[u32]>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (count, width) = x.dims2()?;
        let size = width / self.heads;
        let heads = |linear: &Linear| -> Result<Tensor> {
            Ok(linear.forward(x)?.reshape((count, self.heads, size))?)
        };
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let scale = 1.0 / (size as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let mixed = match boundaries {
            Some(boundaries) => attention(&q, &k, &v, boundaries, boundaries, &options)?,
            None => attention_among([&q, &k, &v], &options, cancel)?,
        };
        self.output.forward(&mixed.flatten_from(1)?)
    }
}

impl Feed {
    fn load(
        modules: &Modules<'_>,
        [norm, up, down]: [&str; 3],
        (inputs, outputs): (usize, usize),
        (epsilon, activation): (f32, Activation),
    ) -> Result<Self> {
        let up = modules.linear(up, inputs)?;
        Ok(Self {
            norm: modules.layer_norm(norm, inputs, epsilon)?,
            down: modules.sized_linear(down, up.outputs(), outputs)?,
            up,
            activation,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_norm(&self.norm)?;
        inventory.add_linear(&self.up)?;
        inventory.add_linear(&self.down)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let epilogue = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let inner = self.up.forward_with(&self.norm.forward(x)?, &epilogue)?;
        self.down.forward(&inner)
    }
}

impl Windows {
    fn load(
        modules: &Modules<'_>,
        behind: usize,
        (width, heads, epsilon): (usize, usize, f32),
    ) -> Result<Self> {
        let parts = [
            "pre_norm|ds_ln",
            "linear_1|ds_ffn_up",
            "linear_2|ds_ffn_down",
        ];
        let sizes = (EDGE * EDGE * width, width);
        Ok(Self {
            behind,
            norm: modules.layer_norm("layer_norm1|ln1", width, epsilon)?,
            attention: Attention::load(modules, width, heads)?,
            feed: Feed::load(modules, parts, sizes, (epsilon, Activation::GeluTanh))?,
        })
    }

    /// One row of each window.
    fn forward(&self, x: &Tensor, grid: (usize, usize), cancel: &CancelToken) -> Result<Tensor> {
        let (count, width) = x.dims2()?;
        let area = EDGE * EDGE;
        let x = blocks(x, grid, EDGE)?.reshape((count, width))?;
        let starts: Vec<u32> = (0..=count / area).map(|at| (at * area) as u32).collect();
        let normed = self.norm.forward(&x)?;
        let mixed = self.attention.forward(&normed, Some(&starts), cancel)?;
        let x = elementwise::add(&x, &mixed)?;
        // Kernels of devices would add numbers of 16 bits in 16 bits.
        let windows = x.reshape((count / area, area, width))?;
        let mean = windows.to_dtype(DType::F32)?.mean(1)?;
        let mean = mean.to_dtype(x.dtype())?;
        let flat = x.reshape((count / area, area * width))?;
        elementwise::add(&self.feed.forward(&flat)?, &mean)
    }
}
