//! Queries that look at each other, at the tokens of a text and at some places of a picture.

use candle_core::Tensor;

use super::super::attention::{placed, residual, Attention, Mlp, Order, Sizes};
use super::super::deformable::{Deformable, Levels, Settings};
use crate::models::modules::Modules;
use crate::nn::{Inventory, Norm};
use crate::Result;

#[derive(Debug)]
pub struct Layer {
    among: Attention,
    among_norm: Norm,
    tokens: Attention,
    tokens_norm: Norm,
    places: Deformable,
    places_norm: Norm,
    mlp: Mlp,
    mlp_norm: Norm,
}

impl Layer {
    pub fn load(modules: &Modules<'_>, sizes: Sizes, settings: &Settings) -> Result<Self> {
        let norm = |name: &str| modules.layer_norm(name, sizes.width, sizes.epsilon);
        let names = ["query", "key", "value", "out_proj"];
        let attention =
            |name: &str| Attention::named(&modules.at(name), names, sizes.width, sizes.heads);
        let around = modules.at("encoder_attn");
        Ok(Self {
            among: attention("self_attn")?,
            among_norm: norm("self_attn_layer_norm")?,
            tokens: attention("encoder_attn_text")?,
            tokens_norm: norm("encoder_attn_text_layer_norm")?,
            places: Deformable::load(&around, (sizes.width, sizes.heads), settings.clone())?,
            places_norm: norm("encoder_attn_layer_norm")?,
            mlp: Mlp::pair(modules, sizes.width, sizes.activation)?,
            mlp_norm: norm("final_layer_norm")?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.among.list(inventory)?;
        self.tokens.list(inventory)?;
        self.places.list(inventory)?;
        self.mlp.list(inventory)?;
        [
            &self.among_norm,
            &self.tokens_norm,
            &self.places_norm,
            &self.mlp_norm,
        ]
        .into_iter()
        .try_for_each(|norm| inventory.add_norm(norm))
    }

    pub fn forward(
        &self,
        x: &Tensor,
        positions: &Tensor,
        boxes: &[[f32; 4]],
        (levels, tokens): (&Levels, &Tensor),
    ) -> Result<Tensor> {
        let x = residual(x, &self.among_norm, Order::Post, |x| {
            let placed = placed(x, Some(positions))?;
            self.among.forward(&placed, &placed, x)
        })?;
        let x = residual(&x, &self.tokens_norm, Order::Post, |x| {
            self.tokens
                .forward(&placed(x, Some(positions))?, tokens, tokens)
        })?;
        let x = residual(&x, &self.places_norm, Order::Post, |x| {
            self.places
                .forward(&placed(x, Some(positions))?, boxes, levels)
        })?;
        residual(&x, &self.mlp_norm, Order::Post, |x| self.mlp.forward(x))
    }
}
