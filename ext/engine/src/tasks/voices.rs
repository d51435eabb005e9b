//! A voice as a vector (x-vectors): layers that read states at distances, then the mean and the spread of all.

use candle_core::{DType, Tensor, D};

use crate::models::modules::Modules;
use crate::nn::{Epilogue, Inventory, Linear};
use crate::{Error, Result};
use formats::files::raw_config::RawConfig;
use kernels::Activation;

/// The tensors of the layers, which no other head has.
const LAYERS: &str = "tdnn";
/// What transformers takes where a file says nothing.
const KERNELS: [i64; 5] = [5, 3, 3, 1, 1];
const DILATIONS: [i64; 5] = [1, 2, 3, 1, 1];

/// The head of a checkpoint that tells voices apart (`ForXVector`).
pub(super) struct VoiceHead {
    projection: Linear,
    layers: Vec<SpacedLayer>,
    output: Linear,
}

/// Reads `kernel` states at once, each `dilation` behind the one before.
struct SpacedLayer {
    linear: Linear,
    kernel: usize,
    dilation: usize,
}

impl VoiceHead {
    /// Whether a checkpoint has such a head.
    pub fn is_in(modules: &Modules<'_>) -> bool {
        modules.has(LAYERS)
    }

    /// Of a model whose states are `hidden` wide.
    pub fn load(modules: &Modules<'_>, config: &RawConfig, hidden: usize) -> Result<Self> {
        let kernels = sizes(config, "tdnn_kernel", &KERNELS)?;
        let dilations = sizes(config, "tdnn_dilation", &DILATIONS)?;
        if kernels.len() != dilations.len() {
            return Err(Error::corrupt(
                config.file(),
                "tdnn_kernel and tdnn_dilation differ in length",
            ));
        }
        let projection = modules.linear("projector", hidden)?;
        let inside = modules.at(LAYERS);
        let mut width = projection.outputs();
        let mut layers = Vec::with_capacity(kernels.len());
        for (number, (&kernel, &dilation)) in kernels.iter().zip(&dilations).enumerate() {
            let linear = inside.linear(&format!("{number}.kernel"), width * kernel)?;
            width = linear.outputs();
            layers.push(SpacedLayer {
                linear,
                kernel,
                dilation,
            });
        }
        Ok(Self {
            projection,
            layers,
            output: modules.linear("feature_extractor", 2 * width)?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.projection)?;
        for layer in &self.layers {
            inventory.add_linear(&layer.linear)?;
        }
        inventory.add_linear(&self.output)
    }

    /// The length of a vector.
    pub fn dimension(&self) -> usize {
        self.output.outputs()
    }

    /// How many states it needs: two are left of so many, which have a spread.
    pub fn least_states(&self) -> usize {
        let lost = self.layers.iter().map(SpacedLayer::lost);
        lost.fold(2, usize::saturating_add)
    }

    /// [1, dimension] of an audio's states [states, hidden].
    pub fn forward(&self, states: &Tensor) -> Result<Tensor> {
        let mut x = self.projection.forward(states)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        let x = x.to_dtype(DType::F32)?;
        let spread = x.var_keepdim(0)?.sqrt()?;
        let both = Tensor::cat(&[x.mean_keepdim(0)?, spread], D::Minus1)?;
        self.output.forward(&both.to_dtype(states.dtype())?)
    }
}

impl SpacedLayer {
    /// How many states fewer come out.
    fn lost(&self) -> usize {
        (self.kernel - 1) * self.dilation
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let count = x.dim(0)?.saturating_sub(self.lost());
        let seen = (0..self.kernel).map(|place| x.narrow(0, place * self.dilation, count));
        let seen = seen.collect::<candle_core::Result<Vec<_>>>()?;
        let rectified = Epilogue {
            activation: Some(Activation::Relu),
            ..Epilogue::default()
        };
        let rows = Tensor::cat(&seen, D::Minus1)?.contiguous()?;
        self.linear.forward_with(&rows, &rectified)
    }
}

/// Numbers of a file, each from 1 to 1024.
fn sizes(config: &RawConfig, key: &str, usual: &[i64]) -> Result<Vec<usize>> {
    let given = config.opt_integers(key)?.unwrap_or_else(|| usual.to_vec());
    let size = |value: &i64| {
        usize::try_from(*value)
            .ok()
            .filter(|it| (1..=1024).contains(it))
    };
    let sizes: Option<Vec<usize>> = given.iter().map(size).collect();
    match sizes {
        Some(sizes) if (1..=64).contains(&sizes.len()) => Ok(sizes),
        _ => Err(Error::corrupt(
            config.file(),
            format!("{key} must be 1 to 64 numbers from 1 to 1024"),
        )),
    }
}
