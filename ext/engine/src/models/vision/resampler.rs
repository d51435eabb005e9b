//! Learned queries that look at the rows of an image, of which any number becomes as many as there are queries
//! (Idefics 2).

use candle_core::{DType, Device, Tensor};

use crate::models::config::NormConfig;
use crate::models::modules::Modules;
use crate::nn::{
    attention, elementwise, AttentionKind, AttentionOptions, Epilogue, Inventory, Linear, Norm,
};
use crate::Result;
use formats::weights::WeightSource;
use kernels::Activation;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResamplerConfig {
    pub queries: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub activation: Activation,
    pub norm: NormConfig,
}

#[derive(Debug)]
pub struct Resampler {
    config: ResamplerConfig,
    /// [queries, width]
    queries: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
}

#[derive(Debug)]
struct Layer {
    queries_norm: Norm,
    rows_norm: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    mlp_norm: Norm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Resampler {
    pub fn load(
        config: ResamplerConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        width: usize,
    ) -> Result<Self> {
        let names = source.names();
        let modules = Modules::new(source, &names, (device, dtype), false);
        let modules =
            modules.at("model.connector.perceiver_resampler|connector.perceiver_resampler");
        let layers = (0..config.layers)
            .map(|number| Layer::load(&config, &modules.at(format!("layers.{number}")), width));
        Ok(Self {
            queries: modules.shaped("latents", &[config.queries, width])?,
            layers: layers.collect::<Result<_>>()?,
            norm: modules.rms_norm("norm", width, config.norm.epsilon)?,
            config,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.queries);
        inventory.add_norm(&self.norm)?;
        self.layers
            .iter()
            .try_for_each(|layer| layer.list(inventory))
    }

    /// What the queries find in `rows`: [queries, width].
    pub fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        let rows = rows.contiguous()?;
        let mut x = self.queries.clone();
        for layer in &self.layers {
            x = layer.forward(&self.config, &x, &rows)?;
        }
        self.norm.forward(&x)
    }
}

impl Layer {
    fn load(config: &ResamplerConfig, modules: &Modules<'_>, width: usize) -> Result<Self> {
        let norm = |name: &str| modules.rms_norm(name, width, config.norm.epsilon);
        let inner = config.heads * config.head_size;
        let kv = config.kv_heads * config.head_size;
        let of = modules.at("self_attn");
        let mlp = modules.at("mlp");
        let up = mlp.linear("up_proj", width)?;
        Ok(Self {
            queries_norm: norm("input_latents_norm")?,
            rows_norm: norm("input_context_norm")?,
            query: of.sized_linear("q_proj", width, inner)?,
            key: of.sized_linear("k_proj", width, kv)?,
            value: of.sized_linear("v_proj", width, kv)?,
            output: of.sized_linear("o_proj", inner, width)?,
            mlp_norm: norm("post_attention_layernorm")?,
            gate: mlp.sized_linear("gate_proj", width, up.outputs())?,
            down: mlp.sized_linear("down_proj", up.outputs(), width)?,
            up,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for norm in [&self.queries_norm, &self.rows_norm, &self.mlp_norm] {
            inventory.add_norm(norm)?;
        }
        let (query, key, value) = (&self.query, &self.key, &self.value);
        let linears = [query, key, value, &self.output, &self.gate, &self.up];
        linears
            .into_iter()
            .chain([&self.down])
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    fn forward(&self, config: &ResamplerConfig, x: &Tensor, rows: &Tensor) -> Result<Tensor> {
        let queries = self.queries_norm.forward(x)?;
        let keys = Tensor::cat(&[&self.rows_norm.forward(rows)?, &queries], 0)?;
        let heads = |x: Tensor, count: usize| x.reshape((x.dim(0)?, count, config.head_size));
        let q = heads(self.query.forward(&queries)?, config.heads)?;
        let k = heads(self.key.forward(&keys)?, config.kv_heads)?;
        let v = heads(self.value.forward(&keys)?, config.kv_heads)?;
        let scale = 1.0 / (config.head_size as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let count = |x: &Tensor| -> Result<[u32; 2]> { Ok([0, x.dim(0)? as u32]) };
        let mixed = attention(&q, &k, &v, &count(&q)?, &count(&k)?, &options)?;
        let residual = |x| Epilogue {
            residual: Some(x),
            ..Epilogue::default()
        };
        let x = self
            .output
            .forward_with(&mixed.flatten_from(1)?, &residual(x))?;
        let inner = self.mlp_norm.forward(&x)?;
        let activation = Epilogue {
            activation: Some(config.activation),
            ..Epilogue::default()
        };
        let gate = self.gate.forward_with(&inner, &activation)?;
        let inner = elementwise::multiply(&gate, &self.up.forward(&inner)?)?;
        self.down.forward_with(&inner, &residual(&x))
    }
}
