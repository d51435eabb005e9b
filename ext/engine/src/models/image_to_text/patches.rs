//! Pix2Struct's encoder: patches of a picture in its own proportions, with learned rows and columns, and T5's layers.

use candle_core::{DType, Device, Tensor};

use crate::models::config;
use crate::models::detection::attention::check_heads;
use crate::models::modules::Modules;
use crate::models::vision::too_small;
use crate::nn::{
    attention_among, elementwise, AttentionKind, AttentionOptions, Epilogue, Inventory, Linear,
    Norm,
};
use crate::{CancelToken, Error, Result};
use base::runtime::device::ensure_activations;
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, WIDTH};
use formats::image::{PatchOrder, View, CHANNELS};
use kernels::Activation;

#[derive(Debug)]
pub struct Patches {
    projection: Linear,
    /// [positions, width] each; the first is that of nothing.
    rows: Tensor,
    columns: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    patch: usize,
    width: usize,
    place: (Device, DType),
}

#[derive(Debug)]
struct Layer {
    attention_norm: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    mlp_norm: Norm,
    gate: Linear,
    up: Linear,
    down: Linear,
    heads: usize,
    activation: Activation,
}

impl Patches {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        let width = raw.opt_usize_in("hidden_size", WIDTH)?.unwrap_or(768);
        let count = raw.opt_usize_in("num_hidden_layers", LAYERS)?.unwrap_or(12);
        let epsilon = raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-6) as f32;
        let embeddings = modules.at("embeddings");
        let inputs = embeddings.at("patch_projection").shape("weight")?;
        let inputs = inputs.get(1).copied().unwrap_or(0);
        let patch = (inputs / CHANNELS).isqrt();
        if patch == 0 || CHANNELS * patch * patch != inputs {
            let reason = format!("patches of {inputs} numbers are not square and of 3 channels");
            return Err(Error::unsupported(raw.file(), reason));
        }
        let table = |name: &str| -> Result<Tensor> {
            let table = embeddings.at(name);
            let rows = table.shape("weight")?.first().copied().unwrap_or(0);
            table.shaped("weight", &[rows, width])
        };
        let mut layers = Vec::new();
        for number in 0..count {
            cancel.check()?;
            let of = modules.at(format!("encoder.layer.{number}"));
            layers.push(Layer::load(raw, &of, (width, epsilon))?);
        }
        Ok(Self {
            projection: embeddings.sized_linear("patch_projection", inputs, width)?,
            rows: table("row_embedder")?,
            columns: table("column_embedder")?,
            layers,
            norm: modules.rms_norm("layernorm", width, epsilon)?,
            patch,
            width,
            place: (modules.device().clone(), modules.dtype()),
        })
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.projection)?;
        inventory.add_tensor(&self.rows);
        inventory.add_tensor(&self.columns);
        inventory.add_norm(&self.norm)?;
        self.layers
            .iter()
            .try_for_each(|layer| layer.list(inventory))
    }

    /// [patches, width]
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Tensor> {
        let (device, dtype) = (&self.place.0, self.place.1);
        let (columns, rows) = (view.width / self.patch, view.height / self.patch);
        let count = columns * rows;
        if count == 0 {
            return Err(too_small(view));
        }
        ensure_activations(count, self.width, dtype, device)?;
        let mut values = Vec::new();
        view.patches(self.patch, PatchOrder::ByPixel, &mut values);
        let shape = (count, CHANNELS * self.patch * self.patch);
        let patches = Tensor::from_vec(values, shape, device)?.to_dtype(dtype)?;
        let mut x = self.projection.forward(&patches)?;
        for (table, step, length) in [(&self.rows, columns, rows), (&self.columns, 1, columns)] {
            if columns.max(rows) >= table.dim(0)? {
                return Err(Error::InvalidInput(format!(
                    "an image of {columns}x{rows} patches has more than the model has positions"
                )));
            }
            let place = |at: usize| 1 + (at / step % length) as u32;
            let at: Vec<u32> = (0..count).map(place).collect();
            let at = Tensor::from_vec(at, count, device)?;
            x = elementwise::add(&x, &table.index_select(&at, 0)?)?;
        }
        for layer in &self.layers {
            cancel.check()?;
            x = layer.forward(&x, cancel)?;
        }
        self.norm.forward(&x)
    }
}

impl Layer {
    fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        (width, epsilon): (usize, f32),
    ) -> Result<Self> {
        let heads = raw.opt_usize_in("num_attention_heads", HEADS)?;
        let heads = heads.unwrap_or(12);
        let inner = heads * raw.opt_usize_in("d_kv", WIDTH)?.unwrap_or(64);
        check_heads(modules, inner, heads)?;
        let (of, mlp) = (modules.at("attention"), modules.at("mlp"));
        let up = mlp.linear("wi_1", width)?;
        let name = raw.opt_string("dense_act_fn")?.unwrap_or("gelu_new");
        Ok(Self {
            attention_norm: modules.rms_norm("pre_attention_layer_norm", width, epsilon)?,
            query: of.sized_linear("query", width, inner)?,
            key: of.sized_linear("key", width, inner)?,
            value: of.sized_linear("value", width, inner)?,
            output: of.sized_linear("output", inner, width)?,
            mlp_norm: modules.rms_norm("pre_mlp_layer_norm", width, epsilon)?,
            gate: mlp.sized_linear("wi_0", width, up.outputs())?,
            down: mlp.sized_linear("wo", up.outputs(), width)?,
            up,
            heads,
            activation: config::activation(name, raw.file())?,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_norm(&self.attention_norm)?;
        inventory.add_norm(&self.mlp_norm)?;
        let (query, key, value) = (&self.query, &self.key, &self.value);
        [
            query,
            key,
            value,
            &self.output,
            &self.gate,
            &self.up,
            &self.down,
        ]
        .into_iter()
        .try_for_each(|linear| inventory.add_linear(linear))
    }

    fn forward(&self, x: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
        let residual = |x| Epilogue {
            residual: Some(x),
            ..Epilogue::default()
        };
        let count = x.dim(0)?;
        let normed = self.attention_norm.forward(x)?;
        let heads = |linear: &Linear| -> Result<Tensor> {
            Ok(linear.forward(&normed)?.reshape((count, self.heads, ()))?)
        };
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let options = AttentionOptions::new(AttentionKind::Bidirectional, 1.0);
        let mixed = attention_among([&q, &k, &v], &options, cancel)?;
        let x = self
            .output
            .forward_with(&mixed.flatten_from(1)?, &residual(x))?;
        let inner = self.mlp_norm.forward(&x)?;
        let (gate, up) = (self.gate.forward(&inner)?, self.up.forward(&inner)?);
        let inner = kernels::gated(&gate, &up, self.activation)?;
        self.down.forward_with(&inner, &residual(&x))
    }
}
