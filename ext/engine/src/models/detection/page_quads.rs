//! Things on a page by their four corners, and which of them follow each other (PP-DocLayoutV4).

use candle_core::{DType, Tensor};

use super::attention::Mlp;
use super::deformable::numbers;
use super::page_order::{check_queries, PageOrder};
use super::proposals::anchors_with;
use super::rt_detr::{inverse, sigmoid};
use super::{check_outputs, size, Predictions};
use crate::models::modules::Modules;
use crate::nn::{Inventory, Linear};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, WIDTH};
use kernels::{tensor, Activation};

/// Numbers of a quad: a centre, and where each corner lies from it, half a page added.
pub const SIZE: usize = 10;
/// Corners lie on a page, or up to half a page around it.
const HALF: f32 = 0.5;

type Quad = [f32; SIZE];

#[derive(Debug)]
pub struct PageQuads {
    /// What each layer adds to quads.
    boxes: Vec<Mlp>,
    classes: Linear,
    /// Which thing follows another at once.
    successor: Pointer,
    /// Which one of two is read first.
    relative: Pointer,
    fusion: Fusion,
}

/// How well each pair of things fits.
#[derive(Debug)]
struct Pointer {
    projection: Linear,
    query: Linear,
    key: Linear,
}

/// What the ways from thing to thing say of the order of two.
#[derive(Debug)]
struct Fusion {
    weight: f32,
    steps: usize,
    damping: f32,
}

/// Squares in the middle of all places, before the sigmoid.
pub fn anchors(sizes: &[(usize, usize)]) -> Vec<Option<Quad>> {
    anchors_with(sizes, |[x, y], edge| {
        let (low, high) = (HALF - edge / 2.0, HALF + edge / 2.0);
        [x, y, low, low, high, low, high, high, low, high]
    })
}

/// The least and the most of corners along an axis, from the centre.
fn extremes(quad: &Quad, axis: usize) -> (f32, f32) {
    let corners = quad[2 + axis..].iter().step_by(2);
    corners.fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), &at| {
        (least.min(at - HALF), most.max(at - HALF))
    })
}

/// The box that attention looks around in: the centre as it is, and how far corners lie apart.
pub fn reach(quad: &Quad) -> [f32; 4] {
    let [wide, high] = [0, 1].map(|axis| {
        let (least, most) = extremes(quad, axis);
        most - least
    });
    [quad[0], quad[1], wide, high]
}

/// The centre and the size of the box around the corners.
fn around(quad: &Quad) -> [f32; 4] {
    let axis = |axis: usize| {
        let (least, most) = extremes(quad, axis);
        (quad[axis] + (least + most) / 2.0, most - least)
    };
    let ((x, wide), (y, high)) = (axis(0), axis(1));
    [x, y, wide, high]
}

/// In published checkpoints and as the reference calls it.
const CLOSURE: &str = "s2r_fusion.a|decoder.relative_order_head.s2r_fusion.closure_weight";

impl PageQuads {
    /// Whether a checkpoint has them.
    pub fn are_in(body: &Modules<'_>) -> bool {
        body.known(CLOSURE).is_some()
    }

    pub fn load(raw: &RawConfig, body: &Modules<'_>, width: usize) -> Result<Self> {
        check_queries(raw)?;
        let decoder = body.at("decoder");
        let layers = size(raw, "decoder_layers", 6, 1..=1 << 12)?;
        let mut boxes = Vec::new();
        for number in 0..layers {
            let of = decoder.at(format!("bbox_embed.{number}"));
            let mlp = Mlp::numbered(&of, width, Activation::Relu)?;
            check_outputs(&of, &mlp, SIZE)?;
            boxes.push(mlp);
        }
        let last = layers - 1;
        let weight = body.values(body.known(CLOSURE).unwrap_or(CLOSURE))?;
        let [weight] = weight[..] else {
            return Err(body.corrupt("its closure weight is not one number".to_string()));
        };
        let head = size(raw, "global_pointer_head_size", 64, WIDTH)?;
        let pointer = |order: &str, pairs: &str| -> Result<Pointer> {
            let pairs = body.at(pairs);
            Ok(Pointer {
                projection: body
                    .at(order)
                    .sized_linear(&last.to_string(), width, width)?,
                query: pairs.sized_linear("q_proj", width, head)?,
                key: pairs.sized_linear("k_proj", width, head)?,
            })
        };
        Ok(Self {
            boxes,
            classes: decoder.linear(&format!("class_embed.{last}"), width)?,
            successor: pointer(
                "decoder_roor_order_head|decoder.successor_order_head.proj",
                "decoder_roor_global_pointer|decoder.successor_order_head.global_pointer",
            )?,
            relative: pointer(
                "decoder_order_head|decoder.relative_order_head.proj",
                "decoder_global_pointer|decoder.relative_order_head.global_pointer",
            )?,
            fusion: Fusion {
                weight,
                steps: size(raw, "s2r_steps", 3, 0..=64)?,
                damping: raw.opt_f64("s2r_damping")?.unwrap_or(0.5) as f32,
            },
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.boxes.iter().try_for_each(|mlp| mlp.list(inventory))?;
        inventory.add_linear(&self.classes)?;
        for pointer in [&self.successor, &self.relative] {
            for linear in [&pointer.projection, &pointer.query, &pointer.key] {
                inventory.add_linear(linear)?;
            }
        }
        Ok(())
    }

    /// Quads after a layer.
    pub fn refine(&self, layer: usize, x: &Tensor, quads: &[Quad]) -> Result<Vec<Quad>> {
        let head = self.boxes.get(layer);
        let head = head.ok_or_else(|| Error::Internal("a layer without a head".into()))?;
        let added = numbers(&head.forward(x)?)?;
        let pairs = quads.iter().zip(added.chunks_exact(SIZE));
        let refined = pairs
            .map(|(quad, added)| std::array::from_fn(|at| sigmoid(added[at] + inverse(quad[at]))));
        Ok(refined.collect())
    }

    /// Of the last states.
    pub fn predictions(&self, x: &Tensor, quads: &[Quad]) -> Result<Predictions> {
        let successor = self.successor.scores(x)?;
        let relative = self.relative.scores(x)?;
        let relative = relative.antisymmetric();
        let order = PageOrder::Pairs {
            relative: self.fusion.of(&relative, &successor)?,
            successor: successor.values,
            things: quads.len(),
        };
        Ok(Predictions {
            order: Some(order),
            ..Predictions::new(
                &self.classes.forward(x)?,
                quads.iter().map(around).collect(),
            )?
        })
    }
}

/// A number for each pair of things, row by row.
struct Square {
    values: Vec<f32>,
    side: usize,
}

impl Square {
    /// What a pair has more than the same pair the other way around.
    fn antisymmetric(&self) -> Self {
        let side = self.side;
        let value = |at: usize| self.values[at] - self.values[at % side * side + at / side];
        Self {
            values: (0..side * side).map(value).collect(),
            side,
        }
    }

    /// Row by column.
    fn product(&self, other: &Self) -> Result<Self> {
        let tensor = |of: &Self| {
            Tensor::from_slice(
                &of.values,
                (self.side, self.side),
                &candle_core::Device::Cpu,
            )
        };
        let found = tensor::matmul::matmul(&tensor(self)?, &tensor(other)?, &CancelToken::new())?;
        Ok(Self {
            values: numbers(&found)?,
            side: self.side,
        })
    }
}

impl Pointer {
    fn scores(&self, x: &Tensor) -> Result<Square> {
        let x = self.projection.forward(x)?;
        let wide = |linear: &Linear| -> Result<Tensor> {
            Ok(linear.forward(&x)?.to_dtype(DType::F32)?.contiguous()?)
        };
        let (query, key) = (wide(&self.query)?, wide(&self.key)?);
        let (side, width) = query.dims2()?;
        let scores = tensor::matmul::matmul(&query, &key.t()?, &CancelToken::new())?;
        let scale = 1.0 / (width as f32).sqrt();
        let mut values = numbers(&scores)?;
        values.iter_mut().for_each(|value| *value *= scale);
        Ok(Square { values, side })
    }
}

impl Fusion {
    fn of(&self, relative: &Square, successor: &Square) -> Result<Vec<f32>> {
        let side = successor.side;
        let mut ways = Vec::with_capacity(side * side);
        for (number, row) in successor.values.chunks_exact(side.max(1)).enumerate() {
            let row = row.iter().copied().map(sigmoid).enumerate();
            let row: Vec<f32> = row
                .map(|(at, way)| if at == number { 0.0 } else { way })
                .collect();
            let sum = row.iter().sum::<f32>().max(1.0);
            ways.extend(row.iter().map(|way| way / sum));
        }
        let ways = Square { values: ways, side };
        let mut closure = ways.values.clone();
        let mut power = Square {
            values: ways.values.clone(),
            side,
        };
        for _ in 1..self.steps {
            power = ways.product(&power)?;
            for (sum, value) in closure.iter_mut().zip(&mut power.values) {
                *value *= self.damping;
                *sum += *value;
            }
        }
        let closure = Square {
            values: closure,
            side,
        };
        let closure = closure.antisymmetric();
        let pairs = closure.values.iter().zip(&relative.values);
        Ok(pairs.map(|(way, own)| self.weight * way + own).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_stand_around_corners() {
        let quad = [0.5, 0.25, 0.375, 0.5, 0.75, 0.5, 0.625, 0.75, 0.5, 0.625];
        assert_eq!(reach(&quad), [0.5, 0.25, 0.375, 0.25]);
        assert_eq!(around(&quad), [0.5625, 0.375, 0.375, 0.25]);
    }
}
