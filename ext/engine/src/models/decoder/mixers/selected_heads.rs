//! State spaces whose heads decay as a whole, as Mamba-2's do, and whose inputs, outputs and time steps are made of what
//! the convolution gives, as Mamba's are (PLaMo 2).

use candle_core::Tensor;

use super::convolution::Convolution;
use super::shared::{counted, rates, side_by_side, silu};
use super::ssm::{Heads, Ssm};
use super::{rows, values, StateMixer};
use crate::models::config::{check_size, Checked, NormConfig};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear, Norm};
use crate::Result;
use formats::files::raw_config::WIDTH;

#[derive(Clone, Debug, PartialEq)]
pub struct SelectedHeads {
    /// Of one group.
    pub ssm: Ssm,
    /// The width that time steps pass between two matrices.
    pub rank: usize,
    /// Of time steps, and of input and output of the state.
    pub norm: NormConfig,
}

impl SelectedHeads {
    pub fn sizes(&self) -> Vec<usize> {
        let (inner, ssm) = (self.ssm.inner(), &self.ssm);
        vec![Convolution::size(inner, ssm.taps), inner * ssm.state_size]
    }

    pub fn check(&self) -> Checked {
        check_size("rank of time steps", self.rank, WIDTH)?;
        self.ssm.check()
    }

    pub fn load(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Box<dyn StateMixer>> {
        let (hidden, inner, heads) = (config.hidden_size, self.ssm.inner(), self.ssm.heads);
        let (rank, kept) = (self.rank, self.ssm.state_size);
        let linear = |part: Part, inputs, outputs| -> Result<(Part, Linear)> {
            Ok((part, parameters.linear(part.at(index), inputs, outputs)?))
        };
        let norm = |part: Part, width: usize| parameters.norm(part.at(index), &[width], self.norm);
        let convolution = Part::StateConvolution.at(index);
        let size = (inner, self.ssm.taps);
        let activation = Some(self.ssm.activation);
        Ok(Box::new(SelectedLayer {
            input: linear(Part::StateInput, hidden, 2 * inner)?,
            convolution: Convolution::load(parameters, convolution, size, activation)?,
            selection: linear(Part::StateSelection, inner, rank + 2 * kept)?,
            norms: [
                norm(Part::StateIntoNorm, kept)?,
                norm(Part::StateFromNorm, kept)?,
                norm(Part::StateStepNorm, rank)?,
            ],
            steps: linear(Part::StateSteps, rank, heads)?,
            heads: Heads {
                decays: rates(parameters, index, heads)?,
                skips: counted(parameters, Part::StateSkip.at(index), heads)?,
                // The matrix of time steps adds them.
                biases: vec![0.0; heads],
                config: self.ssm.clone(),
            },
            output: linear(Part::StateOutput, inner, hidden)?,
        }))
    }
}

struct SelectedLayer {
    /// The gate and what is scanned, of one head after the other.
    input: (Part, Linear),
    convolution: Convolution,
    /// Makes input and output of the state, and time steps.
    selection: (Part, Linear),
    /// Of these three.
    norms: [Norm; 3],
    steps: (Part, Linear),
    heads: Heads,
    output: (Part, Linear),
}

impl SelectedLayer {
    fn linears(&self) -> [&(Part, Linear); 4] {
        [&self.input, &self.selection, &self.steps, &self.output]
    }
}

impl StateMixer for SelectedLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for (_, linear) in self.linears() {
            inventory.add_linear(linear)?;
        }
        let mut norms = self.norms.iter();
        norms.try_for_each(|norm| inventory.add_norm(norm))
    }

    fn modules(&self) -> Vec<Module> {
        let linears = self.linears().into_iter();
        linears
            .map(|(part, linear)| Module::single(*part, 0, linear))
            .collect()
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let config = &self.heads.config;
        let (inner, size, kept) = (config.inner(), config.head_size, config.state_size);
        let through =
            |(part, linear): &(Part, Linear), x: &Tensor| step.through(index, *part, linear, x);
        let projected = values(&through(&self.input, x)?)?;
        let halves = |half: usize| -> Vec<f32> {
            let heads = projected.chunks_exact(2 * size);
            let own = heads.flat_map(|head| &head[half * size..(half + 1) * size]);
            own.copied().collect()
        };
        let (gates, read) = (halves(0), halves(1));
        let convolved = past.scan((index, 0), &self.convolution, &read, step.batch)?;
        let selected = through(&self.selection, &rows(convolved.clone(), inner, x)?)?;
        let rank = self.steps.1.inputs();
        let parts = [(0, kept), (kept, kept), (2 * kept, rank)];
        let mut parts = parts
            .into_iter()
            .zip(&self.norms)
            .map(|((first, width), norm)| {
                norm.forward(&selected.narrow(1, first, width)?.contiguous()?)
            });
        let mut part = || parts.next().unwrap_or_else(|| Ok(selected.clone()));
        let (into, from) = (values(&part()?)?, values(&part()?)?);
        let steps = values(&through(&self.steps, &part()?)?)?;
        let scanned = side_by_side(
            [&convolved, &into, &from, &steps],
            [inner, kept, kept, config.heads],
        );
        debug_assert_eq!(scanned.len() % self.heads.inputs(), 0);
        let mut given = past.scan((index, 1), &self.heads, &scanned, step.batch)?;
        let gated = given.iter_mut().zip(&gates);
        gated.for_each(|(x, &gate)| *x *= silu(gate));
        through(&self.output, &rows(given, inner, x)?)
    }
}
