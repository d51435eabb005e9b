//! The modules of a decoder that an adapter can change, as transformers has them, and where their rows are here:
//! matrices that one of the two keeps as one may be several in the other.

use super::adapter::{MlpOf, Slot};
use super::attention::{AttentionLayer, Qkv};
use super::config::{DecoderConfig, ExpertLayout, RowOrder};
use super::experts::ExpertLayer;
use super::latent::{LatentProjections, QUERY_SLOT};
use super::layer::{FeedForward, Layer, MlpLayer};
use super::mixers::Mixer;
use crate::models::config::{AttentionShape, QkvLayout};
use crate::models::parts::Part;
use crate::models::projections::{unblocked_rows, ungrouped_rows};
use crate::nn::{Linear, Projection};

/// A module that an adapter can change.
pub struct Module {
    pub part: Part,
    /// The number of an expert, or of any other module that a place has several of.
    pub number: usize,
    pub inputs: usize,
    pub pieces: Vec<Piece>,
}

/// Some rows of a module.
pub struct Piece {
    pub at: RowsAt,
    /// Which rows of the module they are.
    pub rows: Vec<u32>,
}

/// Where rows are.
#[derive(Clone, Copy)]
pub struct RowsAt {
    pub slot: Slot,
    /// How many rows the slot's matrix has, and which of them is the first.
    pub outputs: usize,
    pub first: usize,
}

impl Module {
    pub fn outputs(&self) -> usize {
        self.pieces.iter().map(|piece| piece.rows.len()).sum()
    }

    /// A matrix that is the same here and there.
    pub fn whole(part: Part, number: usize, slot: Slot, (inputs, outputs): (usize, usize)) -> Self {
        let at = RowsAt {
            slot,
            outputs,
            first: 0,
        };
        let rows = (0..outputs as u32).collect();
        Self {
            part,
            number,
            inputs,
            pieces: vec![Piece { at, rows }],
        }
    }

    /// A matrix that a layer, or a model, has one of by this number.
    pub fn single(part: Part, number: usize, linear: &Linear) -> Self {
        Self::whole(part, number, Slot::Part(part, number), shape(linear))
    }
}

fn shape(linear: &Linear) -> (usize, usize) {
    (linear.inputs(), linear.outputs())
}

/// All modules of a layer.
pub fn of_layer(layer: &Layer, index: usize, config: &DecoderConfig) -> Vec<Module> {
    let mut modules = Vec::new();
    if let Some(attention) = layer.mixer.as_ref().and_then(Mixer::attention) {
        modules.extend(of_attention(attention, index, config));
    }
    if let Some(state) = layer.mixer.as_ref().and_then(Mixer::state) {
        modules.extend(state.modules());
    }
    if let Some(block) = &layer.block {
        modules.extend(block.modules(config));
    }
    match &layer.mlp {
        Some(FeedForward::Mlp(mlp)) => modules.extend(of_mlp(mlp, MlpOf::Layer)),
        Some(FeedForward::Experts(experts)) => modules.extend(of_experts(experts)),
        Some(FeedForward::Both(mlp, _, experts)) => {
            modules.extend(of_mlp(mlp, MlpOf::Layer));
            modules.extend(of_experts(experts));
        }
        Some(FeedForward::State(state)) => modules.extend(state.modules()),
        None => {}
    }
    modules.extend(layer.postponed.iter().flat_map(of_experts));
    for gate in [&layer.attention_gate, &layer.mlp_gate]
        .into_iter()
        .flatten()
    {
        let [down, up] = gate.parts;
        modules.push(Module::single(down, 0, &gate.down));
        modules.push(Module::single(up, 0, &gate.up));
    }
    let inputs = layer.input.iter().flat_map(|input| input.linears());
    let lanes = layer.lanes.iter().flat_map(|lanes| lanes.linears());
    let singles = inputs.chain(lanes);
    modules.extend(singles.map(|(part, linear)| Module::single(part, 0, linear)));
    modules
}

pub fn of_attention(
    attention: &AttentionLayer,
    index: usize,
    config: &DecoderConfig,
) -> Vec<Module> {
    let shape = config.attention_shape(index);
    let mut modules = match &attention.qkv {
        Qkv::Plain(qkv) => of_qkv(qkv, attention.gate.as_ref(), &shape, config),
        Qkv::Latent(latent) => of_latent(latent, config.head_count),
        Qkv::Experts(experts) => {
            let at = places(&experts.shared, Slot::Qkv);
            let inputs = experts.shared.inputs();
            vec![joined(Part::Qkv, inputs, &at, None)]
        }
    };
    let singles = [
        (Part::AttentionOutput, &attention.output),
        (Part::OutputGate, &attention.gate),
    ];
    for (part, linear) in singles {
        modules.extend(linear.iter().map(|linear| Module::single(part, 0, linear)));
    }
    let indexer = attention
        .indexer
        .iter()
        .flat_map(|indexer| indexer.linears());
    modules.extend(indexer.map(|(part, linear)| Module::single(part, 0, linear)));
    modules
}

fn of_latent(latent: &LatentProjections, heads: usize) -> Vec<Module> {
    let first = match &latent.query {
        Some(_) => Part::QueryDown,
        None => Part::Query,
    };
    let inputs = latent
        .input
        .matrices()
        .iter()
        .zip([first, Part::LatentDown]);
    let mut modules: Vec<_> = inputs
        .enumerate()
        .map(|(at, (linear, part))| Module::whole(part, 0, Slot::Qkv(at), shape(linear)))
        .collect();
    if let Some((_, linear)) = &latent.query {
        let slot = Slot::Qkv(QUERY_SLOT);
        modules.push(Module::whole(Part::QueryUp, 0, slot, shape(linear)));
    }
    let up = latent.up_shape(heads);
    modules.push(Module::whole(Part::LatentUp, 0, Slot::LatentUp, up));
    modules
}

/// The places and widths of a projection's parts.
fn places(projection: &Projection, slot: impl Fn(usize) -> Slot) -> Vec<(RowsAt, usize)> {
    let widths = projection.widths();
    let fused = projection.matrices().len() < widths.len();
    let mut first = 0;
    let parts = widths.iter().enumerate();
    parts
        .map(|(at, &width)| {
            let place = RowsAt {
                slot: slot(if fused { 0 } else { at }),
                outputs: if fused { widths.iter().sum() } else { width },
                first: if fused { first } else { 0 },
            };
            first += width;
            (place, width)
        })
        .collect()
}

/// A module with the rows of several parts, one part after the other, or in an order that sorts them so.
pub fn joined(
    part: Part,
    inputs: usize,
    parts: &[(RowsAt, usize)],
    order: Option<Vec<u32>>,
) -> Module {
    let total: usize = parts.iter().map(|(_, width)| width).sum();
    let order = order.unwrap_or_else(|| (0..total as u32).collect());
    let mut rest = order.into_iter();
    let pieces = parts.iter().map(|&(at, width)| Piece {
        at,
        rows: rest.by_ref().take(width).collect(),
    });
    Module {
        part,
        number: 0,
        inputs,
        pieces: pieces.collect(),
    }
}

fn of_qkv(
    qkv: &Projection,
    gate: Option<&Linear>,
    shape: &AttentionShape,
    config: &DecoderConfig,
) -> Vec<Module> {
    let (at, inputs) = (places(qkv, Slot::Qkv), qkv.inputs());
    let heads = [shape.head_count, shape.kv_head_count];
    let heads = heads.map(|heads| neighbours(heads, shape.head_size));
    let apart = config.row_order == RowOrder::Neighbours;
    let orders = heads.map(|order| Some(order).filter(|_| apart));
    let orders = orders.into_iter().chain([None]);
    let parts = [Part::Query, Part::Key, Part::Value]
        .into_iter()
        .zip(orders);
    let mut modules: Vec<_> = parts
        .zip(&at)
        .map(|((part, order), at)| joined(part, inputs, &[*at], order))
        .collect();
    let order = match (config.qkv, config.row_order) {
        (QkvLayout::QueryValueKey { blocks }, _) => Some(unblocked_rows(shape, blocks)),
        (_, RowOrder::Grouped) => Some(ungrouped_rows(shape)),
        _ => None,
    };
    modules.push(joined(Part::Qkv, inputs, &at, order));
    let Some((gate, query)) = gate.zip(at.first()) else {
        return modules;
    };
    let width = gate.outputs();
    let gate = RowsAt {
        slot: Slot::Part(Part::OutputGate, 0),
        outputs: width,
        first: 0,
    };
    let all: Vec<_> = [(gate, width)].into_iter().chain(at.clone()).collect();
    modules.push(joined(Part::GateQkv, inputs, &all, None));
    let both = [*query, (gate, width)];
    let order = (0..2).flat_map(|half| halves_of_heads(half, shape));
    modules.push(joined(
        Part::QueryGate,
        inputs,
        &both,
        Some(order.collect()),
    ));
    modules
}

/// The rows of the first or the second half of every head's two.
fn halves_of_heads(half: usize, shape: &AttentionShape) -> impl Iterator<Item = u32> {
    let size = shape.head_size;
    (0..shape.head_count).flat_map(move |head| {
        let first = (2 * head + half) * size;
        first as u32..(first + size) as u32
    })
}

/// The order that sorts by part the rows of so many groups, each of which has parts of these sizes.
pub fn sorted_rows(groups: usize, sizes: &[usize]) -> Vec<u32> {
    let whole: usize = sizes.iter().sum();
    let mut start = 0;
    let parts = sizes.iter().map(|&size| {
        start += size;
        (start - size, size)
    });
    let rows = parts.flat_map(|(start, size)| {
        (0..groups).flat_map(move |group| (0..size).map(move |row| group * whole + start + row))
    });
    rows.map(|row| row as u32).collect()
}

/// The row order that puts what rotates together side by side.
fn neighbours(heads: usize, size: usize) -> Vec<u32> {
    let half = size / 2;
    (0..heads)
        .flat_map(|head| (0..half).flat_map(move |i| [head * size + i, head * size + half + i]))
        .map(|row| row as u32)
        .collect()
}

/// What the parts of an MLP are called.
struct MlpParts {
    gate: Part,
    up: Part,
    joined: [Part; 2],
    down: Part,
}

impl MlpParts {
    fn of(which: MlpOf) -> Self {
        match which {
            MlpOf::Layer => Self {
                gate: Part::Gate,
                up: Part::Up,
                joined: [Part::GateUp, Part::UpGate],
                down: Part::Down,
            },
            MlpOf::SharedExpert => Self {
                gate: Part::SharedGate,
                up: Part::SharedUp,
                joined: [Part::SharedGateUp; 2],
                down: Part::SharedDown,
            },
            MlpOf::Expert(_) => Self {
                gate: Part::ExpertGate,
                up: Part::ExpertUp,
                joined: [Part::ExpertGateUp; 2],
                down: Part::ExpertDown,
            },
        }
    }
}

pub fn of_mlp(mlp: &MlpLayer, which: MlpOf) -> Vec<Module> {
    let parts = MlpParts::of(which);
    let at = places(&mlp.input, |matrix| Slot::MlpInput(which, matrix));
    let inputs = mlp.input.inputs();
    let mut modules = match at[..] {
        [gate, up] => vec![
            joined(parts.gate, inputs, &[gate], None),
            joined(parts.up, inputs, &[up], None),
            joined(parts.joined[0], inputs, &[gate, up], None),
            joined(parts.joined[1], inputs, &[up, gate], None),
        ],
        _ => vec![joined(parts.up, inputs, &at, None)],
    };
    if parts.joined[0] == parts.joined[1] {
        modules.truncate(3);
    }
    let output = shape(&mlp.output);
    modules.push(Module::whole(parts.down, 0, Slot::MlpOutput(which), output));
    let number = match which {
        MlpOf::Expert(number) => number,
        MlpOf::Layer | MlpOf::SharedExpert => 0,
    };
    for module in &mut modules {
        module.number = number;
    }
    modules
}

fn of_experts(layer: &ExpertLayer) -> Vec<Module> {
    let experts = layer.experts.iter().enumerate();
    let mut modules: Vec<_> = experts
        .flat_map(|(number, mlp)| of_mlp(mlp, MlpOf::Expert(number)))
        .collect();
    modules.push(Module::single(Part::Router, 0, &layer.router));
    if let Some(shared) = &layer.shared {
        modules.extend(of_mlp(&shared.mlp, MlpOf::SharedExpert));
        let gate = shared.gate.iter();
        modules.extend(gate.map(|gate| Module::single(Part::SharedRouter, 0, gate)));
    }
    if let Some((down, up)) = &layer.latent {
        modules.push(Module::single(Part::ExpertLatentDown, 0, down));
        modules.push(Module::single(Part::ExpertLatentUp, 0, up));
    }
    modules
}

/// What the experts of a layer have of one kind each, where an adapter keeps them as one: gate and up, and down.
pub fn stacks(layer: &Layer, config: &DecoderConfig) -> Vec<Vec<Module>> {
    let own = match &layer.mlp {
        Some(FeedForward::Experts(experts) | FeedForward::Both(_, _, experts)) => Some(experts),
        _ => layer.postponed.as_ref(),
    };
    let mlps = own.map_or(&[][..], |layer| &layer.experts[..]);
    // gpt-oss has gate and up in turns, which GGUF files keep apart.
    let interleaved = config.experts.as_ref().is_some_and(|experts| {
        let layout = experts.layout;
        let in_turns = matches!(
            layout,
            ExpertLayout::Fused {
                interleaved: true,
                ..
            }
        );
        in_turns || experts.glu.is_some()
    });
    let inputs = mlps.iter().enumerate().map(|(number, mlp)| {
        let at = places(&mlp.input, |matrix| {
            Slot::MlpInput(MlpOf::Expert(number), matrix)
        });
        let rows = mlp.input.widths().iter().sum::<usize>() as u32;
        let order = (0..rows).step_by(2).chain((1..rows).step_by(2));
        let order = interleaved.then(|| order.collect());
        joined(Part::ExpertGateUp, mlp.input.inputs(), &at, order)
    });
    let outputs = mlps.iter().enumerate().map(|(number, mlp)| {
        let slot = Slot::MlpOutput(MlpOf::Expert(number));
        Module::whole(Part::ExpertDown, number, slot, shape(&mlp.output))
    });
    vec![inputs.collect(), outputs.collect()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_neighbours() {
        assert_eq!(neighbours(2, 4), [0, 2, 1, 3, 4, 6, 5, 7]);
    }
}
