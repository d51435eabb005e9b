//! Reads linear layers of one input: query, key and value of attention, gate and up of an MLP.

use candle_core::Tensor;

use super::config::{AttentionShape, MlpKind, QkvLayout};
use super::parameters::Parameters;
use super::parts::{Part, Place};
use crate::nn::{Linear, Projection};
use crate::{Error, Result};

/// Whether matrices that a checkpoint keeps apart become one: a single product is faster, but
/// adapters change them one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    Dense,
    Never,
}

/// Which parts an MLP is made of.
#[derive(Clone, Copy)]
pub struct MlpParts {
    pub gate: Place,
    pub up: Place,
    pub gate_up: Place,
    pub up_gate: Place,
    pub down: Place,
    /// Factors of what `down` gives.
    pub scale: Place,
}

/// The dense weights of query, key and value, however the checkpoint stores them.
pub struct Projections {
    pub weights: [Tensor; 3],
    pub biases: [Option<Tensor>; 3],
}

impl AttentionShape {
    fn widths(&self) -> [usize; 3] {
        [self.width(), self.key_width(), self.value_width()]
    }

    /// The rows of query, key and value together.
    fn rows(&self) -> usize {
        self.width() + self.key_width() + self.value_width()
    }
}

impl Parameters<'_> {
    /// Query, key and value of a layer.
    pub fn qkv(
        &self,
        layer: usize,
        shape: &AttentionShape,
        layout: QkvLayout,
        join: Join,
    ) -> Result<Projection> {
        let (hidden, widths, fused) = (shape.hidden_size, shape.widths(), Part::Qkv.at(layer));
        let dense = || Projections::load(self, layer, shape, layout)?.fuse(self);
        if self.has(fused) {
            let matrix = match layout {
                QkvLayout::Stacked => self.linear(fused, hidden, shape.rows())?,
                QkvLayout::ByHead | QkvLayout::QueryValueKey { .. } => dense()?,
            };
            return Projection::fused(matrix, &widths);
        }
        let places = [Part::Query, Part::Key, Part::Value].map(|part| part.at(layer));
        let mut blocks = false;
        for (place, outputs) in places.into_iter().zip(widths) {
            blocks |= self.keeps(place, &[outputs, hidden])?;
        }
        if join == Join::Dense && !blocks {
            return Projection::fused(dense()?, &widths);
        }
        let parts: Vec<_> = places.into_iter().zip(widths).collect();
        self.split(&parts, hidden)
    }

    /// Matrices of these outputs, apart.
    pub fn split(&self, parts: &[(Place, usize)], hidden: usize) -> Result<Projection> {
        let linears = parts.iter();
        let linears = linears.map(|&(place, outputs)| self.linear(place, hidden, outputs));
        Projection::split(linears.collect::<Result<_>>()?)
    }

    /// What goes into an MLP's inner layer, and what comes out of it.
    pub fn mlp(
        &self,
        parts: MlpParts,
        hidden: usize,
        kind: MlpKind,
        join: Join,
    ) -> Result<(Projection, Linear)> {
        let input = match kind {
            MlpKind::Plain => {
                let width = self.grouped_outputs(parts.up)?;
                Projection::split(vec![self.linear(parts.up, hidden, width)?])?
            }
            MlpKind::Gated => self.gate_and_up(parts, hidden, join)?,
        };
        let width = input.widths().first().copied().unwrap_or(0);
        let output = self.scaled_linear(parts.down, parts.scale, width, hidden)?;
        Ok((input, output))
    }

    /// GGUF calls a matrix of gate and up by the name that up has alone, so that the gate is asked
    /// for first.
    fn gate_and_up(&self, parts: MlpParts, hidden: usize, join: Join) -> Result<Projection> {
        if self.has(parts.gate) {
            let width = self.outputs(parts.gate)?;
            let shape = [width, hidden];
            let blocks = self.keeps(parts.gate, &shape)? || self.keeps(parts.up, &shape)?;
            if join == Join::Never || blocks {
                return Projection::split(vec![
                    self.linear(parts.gate, hidden, width)?,
                    self.linear(parts.up, hidden, width)?,
                ]);
            }
            let read = |place: Place| -> Result<_> {
                Ok((self.matrix(place, hidden, width)?, self.bias(place)?))
            };
            return self.joined(read(parts.gate)?, read(parts.up)?);
        }
        if self.has(parts.up_gate) {
            let rows = self.outputs(parts.up_gate)?;
            let fused = self.matrix(parts.up_gate, hidden, rows)?;
            let bias = self.bias(parts.up_gate)?;
            let half = |at: usize| -> Result<_> {
                let cut = |all: &Tensor| all.narrow(0, at * (rows / 2), rows / 2);
                Ok((cut(&fused)?, bias.as_ref().map(cut).transpose()?))
            };
            return self.joined(half(1)?, half(0)?);
        }
        let rows = self.outputs(parts.gate_up)?;
        // Transformers may store the biases of one matrix apart.
        if let (None, Some(gate), Some(up)) = (
            self.bias(parts.gate_up)?,
            self.bias(parts.gate)?,
            self.bias(parts.up)?,
        ) {
            let matrix = self.matrix(parts.gate_up, hidden, rows)?;
            let bias = Tensor::cat(&[gate, up], 0)?;
            return Projection::fused_halves(self.assemble(matrix, Some(bias))?);
        }
        Projection::fused_halves(self.linear(parts.gate_up, hidden, rows)?)
    }

    fn joined(
        &self,
        gate: (Tensor, Option<Tensor>),
        up: (Tensor, Option<Tensor>),
    ) -> Result<Projection> {
        let bias = match (gate.1, up.1) {
            (Some(gate), Some(up)) => Some(Tensor::cat(&[gate, up], 0)?),
            (None, None) => None,
            _ => {
                return Err(Error::corrupt(
                    &self.source().file(""),
                    "only one of an MLP's gate and up has a bias",
                ))
            }
        };
        Projection::fused_halves(self.assemble(Tensor::cat(&[gate.0, up.0], 0)?, bias)?)
    }
}

impl Projections {
    pub fn load(
        parameters: &Parameters<'_>,
        layer: usize,
        shape: &AttentionShape,
        layout: QkvLayout,
    ) -> Result<Self> {
        let hidden = shape.hidden_size;
        let [width, key_width, value_width] = shape.widths();
        let fused = Part::Qkv.at(layer);
        if !parameters.has(fused) {
            let each = [
                (Part::Query, width),
                (Part::Key, key_width),
                (Part::Value, value_width),
            ];
            let [q, k, v] =
                each.map(|(part, rows)| parameters.matrix(part.at(layer), hidden, rows));
            let [qb, kb, vb] = each.map(|(part, _)| parameters.bias(part.at(layer)));
            return Ok(Self {
                weights: [q?, k?, v?],
                biases: [qb?, kb?, vb?],
            });
        }
        let cut = |all: Tensor| -> Result<[Tensor; 3]> {
            let all = match layout {
                QkvLayout::Stacked => all,
                QkvLayout::ByHead => {
                    let order = ungrouped_rows(shape);
                    all.index_select(&Tensor::new(order, all.device())?, 0)?
                }
                QkvLayout::QueryValueKey { blocks } => {
                    let order = unblocked_rows(shape, blocks);
                    all.index_select(&Tensor::new(order, all.device())?, 0)?
                }
            };
            Ok([
                all.narrow(0, 0, width)?,
                all.narrow(0, width, key_width)?,
                all.narrow(0, width + key_width, value_width)?,
            ])
        };
        let bias = parameters.bias(fused)?;
        if bias
            .as_ref()
            .is_some_and(|bias| bias.dims() != [shape.rows()])
        {
            return Err(parameters.misfit(fused, &[shape.rows(), hidden]));
        }
        Ok(Self {
            weights: cut(parameters.matrix(fused, hidden, shape.rows())?)?,
            biases: match bias {
                Some(bias) => cut(bias)?.map(Some),
                None => [
                    parameters.optional_tensor(Part::QueryBias.at(layer))?,
                    None,
                    parameters.optional_tensor(Part::ValueBias.at(layer))?,
                ],
            },
        })
    }

    fn fuse(self, parameters: &Parameters<'_>) -> Result<Linear> {
        let fill = |(weight, bias): (&Tensor, Option<Tensor>)| -> Result<Tensor> {
            match bias {
                Some(bias) => Ok(bias),
                None => {
                    let (dtype, device) = (weight.dtype(), weight.device());
                    Ok(Tensor::zeros(weight.dim(0)?, dtype, device)?)
                }
            }
        };
        let bias = if self.biases.iter().any(Option::is_some) {
            let all: Result<Vec<_>> = self.weights.iter().zip(self.biases).map(fill).collect();
            Some(Tensor::cat(&all?, 0)?)
        } else {
            None
        };
        parameters.assemble(Tensor::cat(&self.weights, 0)?, bias)
    }
}

/// The row order that turns per-head groups (queries, key, value) into all queries, keys, values.
pub fn ungrouped_rows(shape: &AttentionShape) -> Vec<u32> {
    let size = shape.head_size;
    let per_group = shape.head_count / shape.kv_head_count;
    let groups = 0..shape.kv_head_count;
    let rows_of = |group: usize, slot: usize| {
        let first = (group * (per_group + 2) + slot) * size;
        first as u32..(first + size) as u32
    };
    let mut rows = Vec::with_capacity(shape.rows());
    for group in groups.clone() {
        for slot in 0..per_group {
            rows.extend(rows_of(group, slot));
        }
    }
    for slot in [per_group, per_group + 1] {
        for group in groups.clone() {
            rows.extend(rows_of(group, slot));
        }
    }
    rows
}

/// The row order that turns blocks of queries, values and keys into all queries, keys, values.
pub fn unblocked_rows(shape: &AttentionShape, blocks: usize) -> Vec<u32> {
    let part = (shape.width() / blocks.max(1)) as u32;
    let rows = |kind: u32| {
        (0..blocks as u32).flat_map(move |block| {
            let first = (block * 3 + kind) * part;
            first..first + part
        })
    };
    rows(0).chain(rows(2)).chain(rows(1)).collect()
}

impl MlpParts {
    pub fn of(layer: usize) -> Self {
        Self {
            gate: Part::Gate.at(layer),
            up: Part::Up.at(layer),
            gate_up: Part::GateUp.at(layer),
            up_gate: Part::UpGate.at(layer),
            down: Part::Down.at(layer),
            scale: Part::MlpScale.at(layer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouped_rows_are_sorted_by_part() {
        // Two groups of two queries, a key and a value each, one row per head.
        let shape = AttentionShape {
            hidden_size: 4,
            head_count: 4,
            kv_head_count: 2,
            head_size: 1,
            value_size: 1,
        };
        assert_eq!(ungrouped_rows(&shape), [0, 1, 4, 5, 2, 6, 3, 7]);
    }
}
