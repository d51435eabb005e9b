//! State spaces whose heads decay as a whole, as Mamba-2's do, and whose inputs, outputs and time steps are made of what
//! the convolution gives, as Mamba's are (PLaMo 2).

use candle_core::Tensor;

use super::shared::{convolution, convolution_size};
use super::ssm::Ssm;
use super::{as_type, beside, columns, floats, StateMixer};
use crate::models::config::{check_size, Checked, NormConfig};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear, Norm};
use crate::Result;
use formats::files::raw_config::WIDTH;
use kernels::scan::Scan;
use kernels::Activation;

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
        vec![convolution_size(inner, ssm.taps), inner * ssm.state_size]
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
        let convolved = Part::StateConvolution.at(index);
        let size = (inner, self.ssm.taps);
        Ok(Box::new(SelectedLayer {
            input: linear(Part::StateInput, hidden, 2 * inner)?,
            convolution: convolution(parameters, convolved, size, self.ssm.activation)?,
            selection: linear(Part::StateSelection, inner, rank + 2 * kept)?,
            norms: [
                norm(Part::StateIntoNorm, kept)?,
                norm(Part::StateFromNorm, kept)?,
                norm(Part::StateStepNorm, rank)?,
            ],
            steps: linear(Part::StateSteps, rank, heads)?,
            // The matrix of time steps adds biases.
            heads: self.ssm.scan(parameters, index, &vec![0.0; heads])?,
            config: self.ssm.clone(),
            output: linear(Part::StateOutput, inner, hidden)?,
        }))
    }
}

struct SelectedLayer {
    /// The gate and what is scanned, of one head after the other.
    input: (Part, Linear),
    convolution: Scan,
    /// Makes input and output of the state, and time steps.
    selection: (Part, Linear),
    /// Of these three.
    norms: [Norm; 3],
    steps: (Part, Linear),
    heads: Scan,
    config: Ssm,
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
        let config = &self.config;
        let (inner, size, kept) = (config.inner(), config.head_size, config.state_size);
        let through =
            |(part, linear): &(Part, Linear), x: &Tensor| step.through(index, *part, linear, x);
        let tokens = x.dim(0)?;
        let projected = floats(&through(&self.input, x)?)?;
        let projected = projected.reshape((tokens, config.heads, 2, size))?;
        let half = |half: usize| -> Result<Tensor> {
            let half = projected.narrow(2, half, 1)?.contiguous()?;
            Ok(half.reshape((tokens, inner))?)
        };
        let (gates, read) = (half(0)?, half(1)?);
        let convolved = past.scan((index, 0), &self.convolution, &read, step.batch)?;
        let selected = through(&self.selection, &as_type(&convolved, x.dtype())?)?;
        let rank = self.steps.1.inputs();
        let [into, from, steps] = [(0, kept), (kept, kept), (2 * kept, rank)];
        let normed = |(first, width): (usize, usize), norm: &Norm| {
            norm.forward(&columns(&selected, first, width)?)
        };
        let into = normed(into, &self.norms[0])?;
        let from = normed(from, &self.norms[1])?;
        let steps = through(&self.steps, &normed(steps, &self.norms[2])?)?;
        let scanned = beside(&[&convolved, &into, &from, &steps])?;
        let given = past.scan((index, 1), &self.heads, &scanned, step.batch)?;
        let given = kernels::gated(&gates, &given, Activation::Silu)?;
        through(&self.output, &as_type(&given, x.dtype())?)
    }
}
