//! From the parts of a checkpoint to a layer of experts, however it stores them.

use candle_core::{DType, Tensor};

use super::config::{DecoderConfig, ExpertLayout, Experts, Shared};
use super::device_experts::DeviceExperts;
use super::experts::{ExpertLayer, ExpertNorms, SharedExpert};
use super::layer::{MlpActivation, MlpLayer};
use super::loading::mlp;
use crate::models::config::MlpKind;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::models::projections::{Join, MlpParts};
use crate::nn::{elementwise, Linear, Norm, Projection};
use crate::Result;
use base::quant::QuantizedTensor;

pub fn experts(
    parameters: &Parameters<'_>,
    index: usize,
    experts: &Experts,
    config: &DecoderConfig,
) -> Result<ExpertLayer> {
    let hidden = config.hidden_size;
    let choices = experts.count + experts.identities;
    let list = match experts.layout {
        ExpertLayout::Parts if parameters.has(Part::ExpertGateUp.at(index)) => {
            fused(parameters, index, experts, config, (false, false))?
        }
        ExpertLayout::Parts if parameters.names().separates_experts() => {
            separate(parameters, index, experts, config)?
        }
        ExpertLayout::Parts => stacked(parameters, index, experts, config)?,
        ExpertLayout::Fused {
            transposed,
            interleaved,
        } => fused(
            parameters,
            index,
            experts,
            config,
            (transposed, interleaved),
        )?,
        ExpertLayout::Rows => by_rows(parameters, index, experts.count, config)?,
    };
    let bias = if experts.biased {
        let bias = parameters.tensor(Part::RouterBias.at(index))?;
        if bias.elem_count() != choices {
            return Err(parameters.misfit(Part::RouterBias.at(index), &[choices]));
        }
        Some(bias.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    } else {
        None
    };
    let norms = if experts.beside_mlp {
        Some(norms(parameters, index, config)?)
    } else {
        None
    };
    let scales = if experts.beside_mlp {
        let scales = parameters.shaped(Part::ExpertScales.at(index), &[experts.count])?;
        Some(scales.to_dtype(DType::F32)?.to_vec1()?)
    } else {
        None
    };
    let mut layer = ExpertLayer {
        device: None,
        norms,
        scales,
        router: parameters.exact_linear(Part::Router.at(index), hidden, choices)?,
        bias,
        experts: list,
        shared: shared(parameters, index, experts, config)?,
        latent: latent(parameters, index, experts, config)?,
        total_bias: parameters.optional_tensor(Part::ExpertTotalBias.at(index))?,
        config: experts.clone(),
    };
    layer.device = DeviceExperts::new(&layer)?;
    Ok(layer)
}

/// What leads to the rows that experts read, and back.
fn latent(
    parameters: &Parameters<'_>,
    index: usize,
    experts: &Experts,
    config: &DecoderConfig,
) -> Result<Option<(Linear, Linear)>> {
    let (Some(width), hidden) = (experts.latent, config.hidden_size) else {
        return Ok(None);
    };
    let [down, up] = [Part::ExpertLatentDown, Part::ExpertLatentUp].map(|part| part.at(index));
    Ok(Some((
        parameters.linear(down, hidden, width)?,
        parameters.linear(up, width, hidden)?,
    )))
}

/// Of experts that stand beside an MLP.
fn norms(parameters: &Parameters<'_>, index: usize, config: &DecoderConfig) -> Result<ExpertNorms> {
    let hidden = config.hidden_size;
    let norm = |part: Part| parameters.norm(part.at(index), &[hidden], config.norm);
    let scale = parameters.shaped(Part::RouterNorm.at(index), &[hidden])?;
    let scale = elementwise::scale(&scale, (hidden as f32).sqrt().recip())?;
    Ok(ExpertNorms {
        router: Norm::rms(scale, 0.0, config.norm.epsilon),
        input: norm(Part::ExpertInputNorm)?,
        output: norm(Part::ExpertOutputNorm)?,
    })
}

fn parts(index: usize, [gate, up, down]: [Place; 3]) -> MlpParts {
    MlpParts {
        gate,
        up,
        down,
        ..MlpParts::of(index)
    }
}

fn kind(experts: &Experts) -> MlpKind {
    if experts.gated {
        MlpKind::Gated
    } else {
        MlpKind::Plain
    }
}

fn separate(
    parameters: &Parameters<'_>,
    index: usize,
    experts: &Experts,
    config: &DecoderConfig,
) -> Result<Vec<MlpLayer>> {
    (0..experts.count)
        .map(|number| {
            let places = [Part::ExpertGate, Part::ExpertUp, Part::ExpertDown];
            let places = places.map(|part| part.at(index).expert(number));
            let (parts, kind) = (parts(index, places), kind(experts));
            let width = experts.latent.unwrap_or(config.hidden_size);
            let (input, output) = parameters.mlp(parts, width, kind, Join::Never)?;
            expert(input, output, config)
        })
        .collect()
}

/// GGUF keeps all experts of a part in one tensor `[experts, out, in]`, and gates, where there are any, and ups in one
/// or in two.
fn stacked(
    parameters: &Parameters<'_>,
    index: usize,
    experts: &Experts,
    config: &DecoderConfig,
) -> Result<Vec<MlpLayer>> {
    let stack = |part: Part| parameters.stacked_linears(part.at(index), experts.count);
    if parameters.has(Part::ExpertGateUp.at(index)) {
        let inputs = stack(Part::ExpertGateUp)?.into_iter();
        return inputs
            .zip(stack(Part::ExpertDown)?)
            .map(|(input, output)| expert(Projection::fused_halves(input)?, output, config))
            .collect();
    }
    let ups = stack(Part::ExpertUp)?.into_iter();
    let downs = stack(Part::ExpertDown)?.into_iter();
    if !experts.gated {
        return ups
            .zip(downs)
            .map(|(up, output)| expert(Projection::split(vec![up])?, output, config))
            .collect();
    }
    let gates = stack(Part::ExpertGate)?.into_iter();
    gates
        .zip(ups)
        .zip(downs)
        .map(|((gate, up), output)| expert(Projection::split(vec![gate, up])?, output, config))
        .collect()
}

fn expert(input: Projection, output: Linear, config: &DecoderConfig) -> Result<MlpLayer> {
    let experts = config.experts.as_ref();
    let glu = experts.and_then(|experts| experts.glu);
    let own = experts.and_then(|experts| experts.activation);
    Ok(MlpLayer {
        input,
        output,
        activation: match glu {
            Some(glu) => MlpActivation::Clamped(glu),
            None => MlpActivation::Plain(own.unwrap_or(config.mlp.activation)),
        },
        sub_norm: None,
    })
}

/// Gates and ups of all experts in one tensor.
fn fused(
    parameters: &Parameters<'_>,
    index: usize,
    experts: &Experts,
    config: &DecoderConfig,
    (transposed, interleaved): (bool, bool),
) -> Result<Vec<MlpLayer>> {
    let place = Part::ExpertGateUp.at(index);
    // Files of one type have it either way (Qwen3-VL): where the width stands tells.
    let straight = parameters.has(place) && {
        let shape = parameters.shape(place)?;
        shape.get(1) != Some(&config.hidden_size) && shape.get(2) == Some(&config.hidden_size)
    };
    let transposed = transposed && !straight;
    let stack = |part: Part| -> Result<Tensor> {
        let place = part.at(index);
        let stack = parameters.tensor(place)?;
        match stack.dims() {
            [count, _, _] if *count == experts.count => {}
            _ => return Err(parameters.misfit(place, &[experts.count])),
        }
        if transposed {
            Ok(stack.transpose(1, 2)?.contiguous()?)
        } else {
            Ok(stack)
        }
    };
    let bias = |part: Part| parameters.optional_tensor(part.at(index));
    let (input_bias, output_bias) = (bias(Part::ExpertGateUpBias)?, bias(Part::ExpertDownBias)?);
    let biases = (&input_bias, &output_bias);
    let order = (transposed, interleaved);
    if let Some(list) = fused_blocks(parameters, index, config, order, biases)? {
        return Ok(list);
    }
    let (inputs, outputs) = (stack(Part::ExpertGateUp)?, stack(Part::ExpertDown)?);
    let rows = inputs.dim(1)?;
    let order: Vec<u32> = if interleaved {
        (0..rows as u32)
            .step_by(2)
            .chain((1..rows as u32).step_by(2))
            .collect()
    } else {
        (0..rows as u32).collect()
    };
    let order = Tensor::from_vec(order, rows, inputs.device())?;
    let one = |stack: &Option<Tensor>, expert: usize| -> Result<Option<Tensor>> {
        Ok(stack.as_ref().map(|stack| stack.get(expert)).transpose()?)
    };
    (0..experts.count)
        .map(|number| {
            let weight = inputs.get(number)?.index_select(&order, 0)?;
            let bias = one(&input_bias, number)?;
            let bias = bias.map(|bias| bias.index_select(&order, 0)).transpose()?;
            let input = Projection::fused_halves(parameters.assemble(weight, bias)?)?;
            let output = parameters.assemble(
                outputs.get(number)?.contiguous()?,
                one(&output_bias, number)?,
            )?;
            expert(input, output, config)
        })
        .collect()
}

/// The same, of quantized weights that stay as they are, where their rows are outputs.
fn fused_blocks(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
    (transposed, interleaved): (bool, bool),
    (input_bias, output_bias): (&Option<Tensor>, &Option<Tensor>),
) -> Result<Option<Vec<MlpLayer>>> {
    let stack = |part: Part| -> Result<Option<QuantizedTensor>> {
        let place = part.at(index);
        if parameters.turned(place) != transposed {
            return Ok(None);
        }
        match parameters.shape(place)?[..] {
            [count, rows, columns] if transposed => {
                parameters.blocks(place, &[count, columns, rows])
            }
            [count, rows, columns] => parameters.blocks(place, &[count, rows, columns]),
            _ => Ok(None),
        }
    };
    let Some(inputs) = stack(Part::ExpertGateUp)? else {
        return Ok(None);
    };
    let Some(outputs) = stack(Part::ExpertDown)? else {
        return Ok(None);
    };
    let count = config.experts.as_ref().map_or(0, |experts| experts.count);
    for (part, found) in [(Part::ExpertGateUp, &inputs), (Part::ExpertDown, &outputs)] {
        if found.shape[0] != count {
            return Err(parameters.misfit(part.at(index), &[count]));
        }
    }
    let one = |stack: &Option<Tensor>, expert: usize| -> Result<Option<Tensor>> {
        Ok(stack.as_ref().map(|stack| stack.get(expert)).transpose()?)
    };
    let pairs = inputs.split_first_dimension().into_iter();
    let pairs = pairs.zip(outputs.split_first_dimension()).enumerate();
    pairs
        .map(|(number, (input, output))| {
            let rows = input.shape[0];
            let mut bias = one(input_bias, number)?;
            let input = if interleaved {
                let order: Vec<usize> = (0..rows).step_by(2).chain((1..rows).step_by(2)).collect();
                let numbers = order.iter().map(|&row| row as u32).collect::<Vec<_>>();
                if let Some(all) = &bias {
                    let numbers = Tensor::from_vec(numbers, rows, all.device())?;
                    bias = Some(all.index_select(&numbers, 0)?);
                }
                input.reordered(&order)
            } else {
                input
            };
            let input = Projection::fused_halves(parameters.assemble_blocks(input, bias)?)?;
            let output = parameters.assemble_blocks(output, one(output_bias, number)?)?;
            expert(input, output, config)
        })
        .collect::<Result<Vec<_>>>()
        .map(Some)
}

/// The rows of all experts in one matrix per part, of which the last is transposed.
fn by_rows(
    parameters: &Parameters<'_>,
    index: usize,
    count: usize,
    config: &DecoderConfig,
) -> Result<Vec<MlpLayer>> {
    let hidden = config.hidden_size;
    let stack = |part: Part| -> Result<Tensor> {
        let place = part.at(index);
        let rows = parameters.shape(place)?.first().copied().unwrap_or(0);
        let matrix = parameters.shaped(place, &[rows, hidden])?;
        if !rows.is_multiple_of(count) {
            return Err(parameters.misfit(place, &[count, hidden]));
        }
        Ok(matrix.reshape((count, rows / count, hidden))?)
    };
    let gates = stack(Part::ExpertGate)?;
    let (ups, downs) = (stack(Part::ExpertUp)?, stack(Part::ExpertDown)?);
    (0..count)
        .map(|number| {
            let linear = |stack: &Tensor| -> Result<Linear> {
                parameters.assemble(stack.get(number)?.contiguous()?, None)
            };
            let input = Projection::split(vec![linear(&gates)?, linear(&ups)?])?;
            let down = downs.get(number)?.t()?.contiguous()?;
            expert(input, parameters.assemble(down, None)?, config)
        })
        .collect()
}

fn shared(
    parameters: &Parameters<'_>,
    index: usize,
    experts: &Experts,
    config: &DecoderConfig,
) -> Result<Option<SharedExpert>> {
    if experts.shared == Shared::None {
        return Ok(None);
    }
    let places = [Part::SharedGate, Part::SharedUp, Part::SharedDown].map(|part| part.at(index));
    let parts = MlpParts {
        gate_up: Part::SharedGateUp.at(index),
        ..parts(index, places)
    };
    let gate = match experts.shared {
        Shared::Gated => {
            // GGUF stores this one-row matrix as a vector.
            let router = parameters.tensor(Part::SharedRouter.at(index))?;
            Some(Linear::new(router.reshape((1, config.hidden_size))?, None)?)
        }
        _ => None,
    };
    Ok(Some(SharedExpert {
        mlp: mlp(parameters, parts, kind(experts), config)?,
        gate,
    }))
}
