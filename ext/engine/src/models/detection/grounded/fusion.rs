//! Layers in which the places of a picture and the tokens of a text look at each other.

use candle_core::Tensor;

use super::super::attention::{check_heads, placed, residual, Attention, Mlp, Order, Sizes};
use super::super::deformable::{Levels, Settings};
use super::super::levels::DeformableLayer;
use crate::models::modules::Modules;
use crate::nn::{attention, elementwise, AttentionKind, AttentionOptions};
use crate::nn::{Inventory, Linear, Norm};
use crate::Result;

/// What every place finds among tokens, and every token among places, by the same scores.
#[derive(Debug)]
struct Exchange {
    place_norm: Norm,
    token_norm: Norm,
    places: Linear,
    tokens: Linear,
    place_values: Linear,
    token_values: Linear,
    /// What is found is multiplied by learned factors, which are a part of these.
    to_places: Linear,
    to_tokens: Linear,
    heads: usize,
}

impl Exchange {
    fn load(modules: &Modules<'_>, sizes: Sizes) -> Result<Self> {
        let width = sizes.width;
        let norm = |name: &str| modules.layer_norm(name, width, sizes.epsilon);
        let own = modules.at("attn");
        let places = own.linear("vision_proj", width)?;
        let inner = places.outputs();
        check_heads(&own, inner, sizes.heads)?;
        let linear = |name: &str| own.sized_linear(name, width, inner);
        let output = |name: &str, factors: &str| {
            modules.scaled_linear(&format!("attn.{name}"), factors, (inner, width))
        };
        Ok(Self {
            place_norm: norm("layer_norm_vision")?,
            token_norm: norm("layer_norm_text")?,
            places,
            tokens: linear("text_proj")?,
            place_values: linear("values_vision_proj")?,
            token_values: linear("values_text_proj")?,
            to_places: output("out_vision_proj", "vision_param")?,
            to_tokens: output("out_text_proj", "text_param")?,
            heads: sizes.heads,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in [
            &self.places,
            &self.tokens,
            &self.place_values,
            &self.token_values,
            &self.to_places,
            &self.to_tokens,
        ] {
            inventory.add_linear(linear)?;
        }
        inventory.add_norm(&self.place_norm)?;
        inventory.add_norm(&self.token_norm)
    }

    fn forward(&self, places: &Tensor, tokens: &Tensor) -> Result<(Tensor, Tensor)> {
        let places = self.place_norm.forward(places)?;
        let tokens = self.token_norm.forward(tokens)?;
        let split = |linear: &Linear, x: &Tensor| -> Result<Tensor> {
            let rows = linear.forward(x)?;
            let (count, width) = rows.dims2()?;
            Ok(rows.reshape((count, self.heads, width / self.heads))?)
        };
        let (q, k) = (split(&self.places, &places)?, split(&self.tokens, &tokens)?);
        let seen = split(&self.place_values, &places)?;
        let said = split(&self.token_values, &tokens)?;
        let (count, heads, width) = q.dims3()?;
        let scale = 1.0 / (width as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let (all, words) = ([0, count as u32], [0, k.dim(0)? as u32]);
        let found = attention(&q, &k, &said, &all, &words, &options)?;
        let found = self
            .to_places
            .forward(&found.reshape((count, heads * width))?)?;
        let read = attention(&k, &q, &seen, &words, &all, &options)?;
        let read = read.reshape((k.dim(0)?, heads * width))?;
        let read = self.to_tokens.forward(&read)?;
        Ok((
            elementwise::add(&places, &found)?,
            elementwise::add(&tokens, &read)?,
        ))
    }
}

#[derive(Debug)]
pub struct Layer {
    exchange: Exchange,
    /// Of tokens, inside the phrases that they belong to.
    words: Attention,
    words_norm: Norm,
    words_mlp: Mlp,
    words_mlp_norm: Norm,
    places: DeformableLayer,
}

/// What all layers read beside places and tokens.
pub struct Beside<'a> {
    pub place_positions: &'a Tensor,
    pub token_positions: &'a Tensor,
    /// Where phrases end.
    pub phrases: &'a [u32],
    /// The middle of every place.
    pub centres: &'a [[f32; 4]],
    pub sizes: &'a [(usize, usize)],
}

impl Layer {
    /// `sizes` are those of the layers over places; tokens have half of the heads.
    pub fn load(modules: &Modules<'_>, sizes: Sizes, settings: &Settings) -> Result<Self> {
        let half = Sizes {
            heads: sizes.heads / 2,
            ..sizes
        };
        let text = modules.at("text_enhancer_layer");
        let norm = |name: &str| text.layer_norm(name, sizes.width, sizes.epsilon);
        let names = ["query", "key", "value", "out_proj"];
        Ok(Self {
            exchange: Exchange::load(&modules.at("fusion_layer"), half)?,
            words: Attention::named(&text.at("self_attn"), names, half.width, half.heads)?,
            words_norm: norm("layer_norm_before")?,
            words_mlp: Mlp::pair(&text, half.width, half.activation)?,
            words_mlp_norm: norm("layer_norm_after")?,
            places: DeformableLayer::load(&modules.at("deformable_layer"), sizes, settings)?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.exchange.list(inventory)?;
        self.words.list(inventory)?;
        self.words_mlp.list(inventory)?;
        inventory.add_norm(&self.words_norm)?;
        inventory.add_norm(&self.words_mlp_norm)?;
        self.places.list(inventory)
    }

    pub fn forward(
        &self,
        (places, tokens): (&Tensor, &Tensor),
        beside: &Beside<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let (places, tokens) = self.exchange.forward(places, tokens)?;
        let tokens = residual(&tokens, &self.words_norm, Order::Post, |x| {
            let own = placed(x, Some(beside.token_positions))?;
            let inputs = [&own, &own, x];
            self.words.within(inputs, beside.phrases, beside.phrases)
        })?;
        let tokens = residual(&tokens, &self.words_mlp_norm, Order::Post, |x| {
            self.words_mlp.forward(x)
        })?;
        let levels = Levels {
            rows: places,
            sizes: beside.sizes.to_vec(),
        };
        let places = self
            .places
            .forward(&levels, beside.place_positions, beside.centres)?;
        Ok((places, tokens))
    }
}
