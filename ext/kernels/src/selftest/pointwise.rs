//! The cases of functions with parameters.

use super::cases::{inputs, residual};
use super::data::{input, Fill, Placement, Random};
use super::Bench;
use crate::{reference, ClampedGlu, Pointwise, Result, Xielu};

pub(super) fn pointwise(bench: &mut Bench<'_>) -> Result<()> {
    let functions = [
        Pointwise::Clamp {
            least: -0.7,
            most: 0.9,
        },
        Pointwise::Xielu(Xielu {
            positive: 0.8,
            negative: 1.3,
            linear: 0.5,
            most: -1e-6,
        }),
    ];
    let mut all = inputs(bench)?;
    let mut random = Random::new(83);
    for spread in [1e-3, 8.0, 60.0] {
        let style = (Fill::Around { mean: 0.0, spread }, Placement::Contiguous);
        let size = (3, 1000);
        all.push(input(&mut random, size, style, bench.dtype, bench.device)?);
    }
    for x in all {
        for function in functions {
            let got = crate::pointwise(&x.tensor, function)?;
            let values = x.values.iter();
            let want: Vec<f64> = values.map(|&v| reference::pointwise(v, function)).collect();
            bench.check(format!("{function:?} {}", x.label), &got, &want)?;
        }
    }
    Ok(())
}

pub(super) fn clamped_glu(bench: &mut Bench<'_>) -> Result<()> {
    let glu = ClampedGlu {
        limit: 0.8,
        alpha: 1.702,
    };
    for x in inputs(bench)? {
        let (up, u) = residual(bench, &x)?;
        let got = crate::clamped_glu(&x.tensor, &up, glu)?;
        let pairs = x.values.iter().zip(&u);
        let want: Vec<f64> = pairs
            .map(|(&gate, &up)| reference::clamped_glu(gate, up, glu))
            .collect();
        bench.check(x.label.clone(), &got, &want)?;
    }
    Ok(())
}
