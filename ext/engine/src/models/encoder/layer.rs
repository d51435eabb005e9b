//! One transformer layer, for every family.

use candle_core::Tensor;

use super::adapter::LanguageAdapter;
use super::attention::Attention;
use super::config::{EncoderConfig, LayerConfig, Mixer};
use super::experts::ExpertFeed;
use super::mixing::Fourier;
use super::narrow::NarrowLayer;
use super::relative::{RelativePositions, RelativeState};
use super::spans::Spans;
use crate::models::config::NormPlacement;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::projections::{Join, MlpParts};
use crate::nn::{elementwise, Epilogue, Inventory, Linear, Norm, Projection};
use crate::{CancelToken, Result};
use kernels::Activation;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a few per model")]
pub enum Layer {
    Wide(WideLayer),
    Narrow(NarrowLayer),
}

#[derive(Debug)]
pub struct WideLayer {
    mixing: Mixing,
    /// `None` where the first layer goes without (ModernBERT).
    attention_norm: Option<Norm>,
    second_attention_norm: Option<Norm>,
    post_attention_norm: Option<Norm>,
    feed: Feed,
    mlp_norm: Norm,
    post_mlp_norm: Option<Norm>,
    adapter: Option<LanguageAdapter>,
    placement: NormPlacement,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a few per model")]
enum Mixing {
    Attention(Attention, Linear),
    Fourier(Fourier),
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a few per model")]
enum Feed {
    Mlp(MlpFeed),
    Experts(ExpertFeed),
}

#[derive(Debug)]
struct MlpFeed {
    /// Gate and up in gated families, else up alone.
    up: Projection,
    down: Linear,
    activation: Activation,
}

impl Layer {
    pub fn load(
        config: &EncoderConfig,
        parameters: &Parameters<'_>,
        number: usize,
        relative: &RelativePositions,
    ) -> Result<Self> {
        Ok(match config.mechanisms.narrow {
            Some(narrow) => Self::Narrow(NarrowLayer::load(config, narrow, parameters, number)?),
            None => Self::Wide(WideLayer::load(config, parameters, number, relative)?),
        })
    }

    #[cfg(test)]
    pub(super) fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Wide(layer) => layer.linears(),
            Self::Narrow(_) => Vec::new(),
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::Wide(layer) => layer.list(inventory),
            Self::Narrow(layer) => layer.list(inventory),
        }
    }

    /// `x` is [tokens, hidden].
    pub fn forward(
        &self,
        x: &Tensor,
        spans: &Spans<'_>,
        (kind, relative): (&LayerConfig, &RelativeState<'_>),
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        match self {
            Self::Wide(layer) => layer.forward(x, spans, (kind, relative), cancel),
            Self::Narrow(layer) => layer.forward(x, spans, kind),
        }
    }
}

impl WideLayer {
    fn load(
        config: &EncoderConfig,
        parameters: &Parameters<'_>,
        number: usize,
        relative: &RelativePositions,
    ) -> Result<Self> {
        let hidden = [config.hidden_size];
        let norm =
            |part: Part| parameters.optional_norm(part.at(number), &hidden, config.layer_norm());
        let attention_norm = norm(Part::AttentionNorm)?;
        let first_goes_without = config.norm_placement == NormPlacement::Pre && number == 0;
        if attention_norm.is_none() && !first_goes_without {
            return Err(parameters.missing(Part::AttentionNorm.at(number)));
        }
        let mlp_norm = parameters.norm(Part::MlpNorm.at(number), &hidden, config.layer_norm())?;
        Ok(Self {
            mixing: Mixing::load(config, parameters, number, relative)?,
            attention_norm,
            second_attention_norm: norm(Part::SecondAttentionNorm)?,
            post_attention_norm: norm(Part::PostAttentionNorm)?,
            feed: Feed::load(config, parameters, number)?,
            adapter: match &config.mechanisms.adapter {
                Some(adapter) => Some(LanguageAdapter::load(
                    adapter, config, &mlp_norm, parameters, number,
                )?),
                None => None,
            },
            mlp_norm,
            post_mlp_norm: norm(Part::PostMlpNorm)?,
            placement: config.norm_placement,
        })
    }

    #[cfg(test)]
    fn linears(&self) -> Vec<&Linear> {
        let mut all = Vec::new();
        if let Mixing::Attention(attention, output) = &self.mixing {
            all.extend(attention.linears());
            all.push(output);
        }
        if let Feed::Mlp(feed) = &self.feed {
            all.extend(feed.up.matrices());
            all.push(&feed.down);
        }
        all
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Mixing::Attention(attention, output) = &self.mixing {
            attention.list(inventory)?;
            inventory.add_linear(output)?;
        }
        match &self.feed {
            Feed::Mlp(feed) => {
                inventory.add_projection(&feed.up)?;
                inventory.add_linear(&feed.down)?;
            }
            Feed::Experts(feed) => feed.list(inventory)?,
        }
        if let Some(adapter) = &self.adapter {
            adapter.list(inventory)?;
        }
        let norms = [
            &self.attention_norm,
            &self.second_attention_norm,
            &self.post_attention_norm,
            &self.post_mlp_norm,
        ];
        for norm in norms.into_iter().flatten().chain([&self.mlp_norm]) {
            inventory.add_norm(norm)?;
        }
        Ok(())
    }

    fn forward(
        &self,
        x: &Tensor,
        spans: &Spans<'_>,
        (kind, relative): (&LayerConfig, &RelativeState<'_>),
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        match self.placement {
            NormPlacement::Post => {
                let mut attended = self.mixing.forward(x, Some(x), spans, kind, relative)?;
                if let Some(norm) = &self.attention_norm {
                    attended = norm.forward(&attended)?;
                }
                if let Some(norm) = &self.second_attention_norm {
                    attended = norm.forward(&elementwise::add(x, &attended)?)?;
                }
                cancel.check()?;
                let fed = self.feed.forward(&attended, Some(&attended))?;
                self.mlp_norm.forward(&self.adapted(fed)?)
            }
            NormPlacement::Pre => {
                let normed = normed(&self.attention_norm, x)?;
                let x = self
                    .mixing
                    .forward(&normed, Some(x), spans, kind, relative)?;
                cancel.check()?;
                let fed = self.feed.forward(&self.mlp_norm.forward(&x)?, Some(&x))?;
                self.adapted(fed)
            }
            // What a sublayer adds is normalized too, where the file has norms for it.
            NormPlacement::Output | NormPlacement::Both => {
                let read = normed(&self.attention_norm, x)?;
                let added = self.mixing.forward(&read, None, spans, kind, relative)?;
                let x = elementwise::add(x, &normed(&self.post_attention_norm, &added)?)?;
                cancel.check()?;
                let added = self.feed.forward(&self.mlp_norm.forward(&x)?, None)?;
                elementwise::add(&x, &normed(&self.post_mlp_norm, &added)?)
            }
        }
    }

    fn adapted(&self, x: Tensor) -> Result<Tensor> {
        match &self.adapter {
            Some(adapter) => adapter.forward(&x),
            None => Ok(x),
        }
    }
}

fn normed(norm: &Option<Norm>, x: &Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(x),
        None => Ok(x.clone()),
    }
}

impl Mixing {
    fn load(
        config: &EncoderConfig,
        parameters: &Parameters<'_>,
        number: usize,
        relative: &RelativePositions,
    ) -> Result<Self> {
        if config.mechanisms.mixer == Mixer::Fourier {
            let fourier = Fourier::new(config.hidden_size, parameters.device())?;
            return Ok(Self::Fourier(fourier));
        }
        let attention = Attention::load(config, parameters, number, relative)?;
        let output = parameters.scaled_linear(
            Part::AttentionOutput.at(number),
            Part::AttentionScale.at(number),
            attention.width(),
            config.hidden_size,
        )?;
        Ok(Self::Attention(attention, output))
    }

    fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        spans: &Spans<'_>,
        layer: &LayerConfig,
        relative: &RelativeState<'_>,
    ) -> Result<Tensor> {
        match self {
            Self::Attention(attention, output) => {
                let mixed = attention.forward(x, spans, layer, relative)?;
                output.forward_with(&mixed, &with(residual))
            }
            Self::Fourier(fourier) => added(fourier.mix(x, spans)?, residual),
        }
    }
}

fn with(residual: Option<&Tensor>) -> Epilogue<'_> {
    Epilogue {
        residual,
        ..Epilogue::default()
    }
}

fn added(x: Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
    match residual {
        Some(residual) => elementwise::add(&x, residual),
        None => Ok(x),
    }
}

impl Feed {
    fn load(config: &EncoderConfig, parameters: &Parameters<'_>, number: usize) -> Result<Self> {
        let experts = config.mechanisms.experts.as_ref();
        if let Some(experts) = experts.filter(|experts| number % experts.every == 1) {
            let feed = ExpertFeed::load(experts, config, parameters, number)?;
            return Ok(Self::Experts(feed));
        }
        let (hidden_size, kind) = (config.hidden_size, config.mlp.kind);
        let (up, down) = parameters.mlp(MlpParts::of(number), hidden_size, kind, Join::Dense)?;
        Ok(Self::Mlp(MlpFeed {
            up,
            down,
            activation: config.mlp.activation,
        }))
    }

    fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        match self {
            Self::Mlp(feed) => {
                let inner = feed.up.activated(x, feed.activation, &[])?;
                feed.down.forward_with(&inner, &with(residual))
            }
            Self::Experts(feed) => added(feed.forward(x)?, residual),
        }
    }
}
