//! The norm of what heads give, and its gate, as most layers that keep a state end.

use candle_core::{DType, Tensor};

use crate::{gated, join_columns, rms_norm, Activation, Result};

/// Normalizes parts of rows, each by itself, and multiplies by a function of a gate.
#[derive(Debug)]
pub struct GatedNorm {
    /// Of a part, or of a row. In f32, as `ones`.
    weight: Tensor,
    /// As many as a part has, where the weight is a row's.
    ones: Option<Tensor>,
    part: usize,
    epsilon: f32,
    activation: Activation,
    order: GateOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    NormFirst,
    GateFirst,
}

impl GatedNorm {
    /// `weight` is `[part]`, the same for all parts, or as long as rows.
    pub fn new(
        weight: &Tensor,
        part: usize,
        epsilon: f32,
        activation: Activation,
        order: GateOrder,
    ) -> Result<Self> {
        let weight = weight.to_dtype(DType::F32)?.contiguous()?;
        let ones = if weight.dims1()? == part {
            None
        } else {
            Some(Tensor::ones(part, DType::F32, weight.device())?)
        };
        Ok(Self {
            weight,
            ones,
            part,
            epsilon,
            activation,
            order,
        })
    }

    /// `x` is f32 `[tokens, width]` and contiguous, `gate` of the same size and maybe columns of a wider tensor. The
    /// result is of type `dtype`.
    pub fn forward(&self, x: &Tensor, gate: &Tensor, dtype: DType) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() && matches!(self.activation, Activation::Silu | Activation::Sigmoid)
        {
            let launch = crate::cuda::gated_norm::Launch {
                weight: &self.weight,
                part: self.part,
                epsilon: self.epsilon,
                sigmoid: self.activation == Activation::Sigmoid,
                norm_first: self.order == GateOrder::NormFirst,
            };
            return Ok(launch.forward(x, gate, dtype)?);
        }
        let gate = if gate.dtype() == DType::F32 {
            gate.clone()
        } else {
            join_columns(&[gate], DType::F32)?
        };
        let open = |x: &Tensor| gated(&gate, x, self.activation);
        let given = match self.order {
            GateOrder::NormFirst => open(&self.norm(x)?)?,
            GateOrder::GateFirst => self.norm(&open(x)?)?,
        };
        join_columns(&[&given], dtype)
    }

    fn norm(&self, x: &Tensor) -> Result<Tensor> {
        let (tokens, width) = x.dims2()?;
        let parts = x.reshape((tokens * width / self.part, self.part))?;
        let weight = self.ones.as_ref().unwrap_or(&self.weight);
        let normed = rms_norm(&parts, weight, self.epsilon)?.reshape((tokens, width))?;
        match self.ones {
            Some(_) => {
                let weight = self.weight.broadcast_as(normed.shape())?;
                gated(&normed, &weight, Activation::Identity)
            }
            None => Ok(normed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn expected(
        x: &[f32],
        gate: &[f32],
        weight: &[f32],
        part: usize,
        order: GateOrder,
    ) -> Vec<f64> {
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let open: Vec<f64> = gate.iter().map(|&gate| silu(gate.into())).collect();
        let mut out = Vec::new();
        for (at, values) in x.chunks(part).enumerate() {
            let gates = &open[at * part..];
            let given = values.iter().zip(gates).map(|(&x, &open)| match order {
                GateOrder::NormFirst => f64::from(x),
                GateOrder::GateFirst => f64::from(x) * open,
            });
            let given: Vec<f64> = given.collect();
            let mean = given.iter().map(|x| x * x).sum::<f64>() / part as f64;
            let inverse = 1.0 / (mean + 1e-5).sqrt();
            out.extend(given.iter().enumerate().map(|(i, x)| {
                let weight = f64::from(weight[(at * part + i) % weight.len()]);
                let after = match order {
                    GateOrder::NormFirst => gates[i],
                    GateOrder::GateFirst => 1.0,
                };
                x * inverse * weight * after
            }));
        }
        out
    }

    #[test]
    fn parts_are_normalized_and_gated_in_both_orders() {
        let (tokens, width) = (3, 24);
        let numbers = |seed: u32| -> Vec<f32> {
            let values = (0..tokens as u32 * width as u32).map(|i| (i * 37 + seed) % 23);
            values.map(|value| value as f32 / 8.0 - 1.3).collect()
        };
        let (x, gate) = (numbers(5), numbers(11));
        let tensor = |values: &[f32]| {
            Tensor::from_vec(values.to_vec(), (tokens, width), &Device::Cpu).unwrap()
        };
        let wide = Tensor::cat(&[tensor(&numbers(2)), tensor(&gate)], 1).unwrap();
        let columns = wide.narrow(1, width, width).unwrap();
        for (part, weights) in [(24, 24), (8, 24), (8, 8)] {
            let weight = &numbers(3)[..weights];
            let weight_tensor = Tensor::from_slice(weight, weights, &Device::Cpu).unwrap();
            for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
                let norm = GatedNorm::new(&weight_tensor, part, 1e-5, Activation::Silu, order);
                let given = norm.unwrap().forward(&tensor(&x), &columns, DType::F32);
                let given: Vec<f32> = given.unwrap().flatten_all().unwrap().to_vec1().unwrap();
                let wanted = expected(&x, &gate, weight, part, order);
                for (given, wanted) in given.iter().zip(wanted) {
                    let off = (f64::from(*given) - wanted).abs();
                    assert!(off < 1e-5, "{part} {weights} {order:?}: {given} {wanted}");
                }
            }
        }
    }
}
