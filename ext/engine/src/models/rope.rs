//! Rotary positions of every model: frequencies by scaling method, and the rotation of one forward.

use std::ops::Range;

use candle_core::{Device, Tensor};

use super::config::{RopeConfig, RopeScaling};
use crate::nn::rope::{self, Rope, RopeTable};
use crate::Result;

/// Contexts are mostly shorter than this.
const PREPARED_POSITIONS: usize = 1024;

/// The rotations of a model, made once.
#[derive(Debug)]
pub struct Rotations {
    config: RopeConfig,
    /// By variant; see `RopeConfig::variant`.
    global: Vec<Rope>,
    /// Of windowed layers, where those have a base of their own.
    local: Option<Rope>,
}

/// A run of tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where its tokens stand in their sequence.
    pub positions: Range<usize>,
    /// Which frequencies its sequence needs; see `RopeConfig::variant`.
    pub variant: usize,
}

/// The rotation of the tokens of one forward.
pub struct Rotation<'a> {
    config: &'a RopeConfig,
    global: Rotated<'a>,
    local: Option<Rotated<'a>>,
}

struct Rotated<'a> {
    rope: &'a Rope,
    table: RopeTable,
    /// The row of each token in the table, u32 [tokens].
    rows: Tensor,
}

impl Rotations {
    /// `positions` is how many the model has at most.
    pub fn new(config: &RopeConfig, positions: usize, device: &Device) -> Result<Self> {
        let make = |frequencies: Vec<f32>, magnitude: f32| {
            let prepared = positions.min(PREPARED_POSITIONS);
            Rope::new(frequencies, magnitude, config.pairing, prepared, device)
        };
        let local = |theta: f32| make(rope::frequencies(theta, config.rotary_size), 1.0);
        Ok(Self {
            global: (0..config.variants())
                .map(|variant| {
                    let (frequencies, magnitude) = config.scaled(variant);
                    make(frequencies, magnitude)
                })
                .collect::<Result<_>>()?,
            local: config.local_theta.map(local).transpose()?,
            config: config.clone(),
        })
    }

    /// For the tokens of these pieces, one after the other.
    pub fn of<'a>(&'a self, pieces: &[Piece], device: &Device) -> Result<Rotation<'a>> {
        let global = Rotated::new(&self.global, pieces, device)?;
        let local = |rope: &'a Rope| -> Result<Rotated<'a>> {
            if self.global.len() > 1 {
                return Rotated::new(std::slice::from_ref(rope), pieces, device);
            }
            Ok(Rotated {
                rope,
                table: rope.table(span(pieces), device)?,
                rows: global.rows.clone(),
            })
        };
        Ok(Rotation {
            config: &self.config,
            local: self.local.as_ref().map(local).transpose()?,
            global,
        })
    }

    /// For whole sequences of these lengths, each of which rotates as it would alone.
    pub fn of_sequences(
        &self,
        lengths: impl Iterator<Item = usize>,
        device: &Device,
    ) -> Result<Rotation<'_>> {
        let pieces: Vec<Piece> = lengths
            .map(|length| Piece {
                positions: 0..length,
                variant: self.config.variant(length),
            })
            .collect();
        self.of(&pieces, device)
    }
}

/// From the first to past the last position of any piece.
fn span(pieces: &[Piece]) -> Range<usize> {
    let starts = pieces.iter().map(|piece| piece.positions.start);
    let ends = pieces.iter().map(|piece| piece.positions.end);
    starts.min().unwrap_or(0)..ends.max().unwrap_or(0)
}

impl<'a> Rotated<'a> {
    /// Every piece rotates by the rope of its variant.
    fn new(ropes: &'a [Rope], pieces: &[Piece], device: &Device) -> Result<Self> {
        let variant = |piece: &Piece| piece.variant.min(ropes.len() - 1);
        let used: Vec<usize> = (0..ropes.len())
            .filter(|&number| pieces.iter().any(|piece| variant(piece) == number))
            .collect();
        let tables = used
            .iter()
            .map(|&number| ropes[number].table(span(pieces), device))
            .collect::<Result<Vec<_>>>()?;
        let table = match tables.as_slice() {
            [] => ropes[0].table(0..0, device)?,
            [one] => one.clone(),
            several => RopeTable::stack(several)?,
        };
        let height = table.height()? / used.len().max(1);
        let mut rows: Vec<u32> = Vec::new();
        for piece in pieces {
            let above = used.iter().take_while(|&&number| number < variant(piece));
            let above = above.count() * height;
            let row = |position| (above + table.row(position)) as u32;
            rows.extend(piece.positions.clone().map(row));
        }
        let count = rows.len();
        Ok(Self {
            rope: &ropes[0],
            rows: Tensor::from_vec(rows, count, device)?,
            table,
        })
    }
}

impl Rotation<'_> {
    /// Whether this layer rotates at all.
    pub fn applies(&self, layer: usize) -> bool {
        self.config.layers.get(layer).copied().unwrap_or(true)
    }

    /// `x` is [tokens, heads, head size]; `local` asks for the rotation of windowed layers.
    pub fn rotate(&self, x: &Tensor, local: bool) -> Result<Tensor> {
        let rotated = match &self.local {
            Some(rotated) if local => rotated,
            _ => &self.global,
        };
        rotated.rope.rotate(x, &rotated.table, &rotated.rows)
    }
}

impl RopeConfig {
    /// Which of its sets of frequencies a sequence of this length rotates by. Keys cached at one length
    /// are wrong for another when this differs between the two.
    pub fn variant(&self, length: usize) -> usize {
        match &self.scaling {
            RopeScaling::LongRope {
                original_positions, ..
            } => usize::from(length > *original_positions),
            _ => 0,
        }
    }

    fn variants(&self) -> usize {
        match &self.scaling {
            RopeScaling::LongRope { .. } => 2,
            _ => 1,
        }
    }

    /// Frequencies, and what cosines and sines are multiplied with.
    fn scaled(&self, variant: usize) -> (Vec<f32>, f32) {
        let mut frequencies = rope::frequencies(self.theta, self.rotary_size);
        let divide = |frequencies: &mut [f32], divisors: &[f32]| {
            let pairs = frequencies.iter_mut().zip(divisors);
            pairs.for_each(|(frequency, divisor)| *frequency /= divisor);
        };
        let mut magnitude = 1.0;
        match &self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= factor),
            RopeScaling::Ntk { factor } => {
                frequencies = rope::frequencies(self.theta * factor, self.rotary_size);
                let divisor = factor.powf(2.0 / self.rotary_size as f32);
                frequencies.iter_mut().for_each(|f| *f /= divisor);
            }
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor,
                high_frequency_factor,
                original_positions,
            } => scale_llama3(
                &mut frequencies,
                *factor,
                *low_frequency_factor,
                *high_frequency_factor,
                *original_positions as f32,
            ),
            RopeScaling::Yarn {
                attention_factor, ..
            } => {
                magnitude = *attention_factor;
                self.scale_yarn(&mut frequencies);
            }
            RopeScaling::LongRope {
                short,
                long,
                attention_factor,
                ..
            } => {
                magnitude = *attention_factor;
                divide(&mut frequencies, if variant == 1 { long } else { short });
            }
            RopeScaling::Divisors(divisors) => divide(&mut frequencies, divisors),
        }
        (frequencies, magnitude)
    }

    /// Fast dimensions keep their frequency, slow ones are interpolated, with a ramp in between.
    fn scale_yarn(&self, frequencies: &mut [f32]) {
        let RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_positions,
            truncate,
            ..
        } = &self.scaling
        else {
            return;
        };
        let size = self.rotary_size as f32;
        let dimension_of = |rotations: f32| {
            let positions = *original_positions as f32;
            size * (positions / (rotations * std::f32::consts::TAU)).ln() / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (dimension_of(*beta_fast), dimension_of(*beta_slow));
        if *truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(size - 1.0));
        if low == high {
            high += 0.001;
        }
        for (i, frequency) in frequencies.iter_mut().enumerate() {
            let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
            *frequency = *frequency / factor * ramp + *frequency * (1.0 - ramp);
        }
    }
}

fn scale_llama3(frequencies: &mut [f32], factor: f32, low: f32, high: f32, original: f32) {
    for frequency in frequencies {
        let wavelength = std::f32::consts::TAU / *frequency;
        if wavelength > original / low {
            *frequency /= factor;
        } else if wavelength >= original / high {
            let smooth = (original / wavelength - low) / (high - low);
            *frequency = (1.0 - smooth) * *frequency / factor + smooth * *frequency;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::RopeKind;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig {
            theta: 10_000.0,
            local_theta: None,
            rotary_size: 4,
            pairing: RopeKind::Half,
            scaling,
            layers: Vec::new(),
        }
    }

    #[test]
    fn frequencies_follow_the_scaling() {
        let plain = config(RopeScaling::None).scaled(0).0;
        assert_eq!(plain, [1.0, 0.01]);
        let linear = config(RopeScaling::Linear { factor: 2.0 }).scaled(0).0;
        assert_eq!(linear, [0.5, 0.005]);
        let stretched = config(RopeScaling::Ntk { factor: 4.0 }).scaled(0).0;
        assert_eq!(stretched[0], 0.5);
        assert!((stretched[1] - 0.0025).abs() < 1e-7, "{stretched:?}");
        let divisors = config(RopeScaling::Divisors(vec![1.0, 4.0])).scaled(0).0;
        assert_eq!(divisors, [1.0, 0.0025]);
    }

    #[test]
    fn a_sequence_rotates_in_a_batch_as_it_does_alone() {
        let scaling = RopeScaling::LongRope {
            short: vec![1.0, 1.0],
            long: vec![2.0, 3.0],
            original_positions: 3,
            attention_factor: 1.5,
        };
        let rotations = Rotations::new(&config(scaling), 16, &Device::Cpu).unwrap();
        let x = Tensor::arange(0f32, 9.0 * 4.0, &Device::Cpu).unwrap();
        let x = x.reshape((9, 1, 4)).unwrap();
        let rotate = |lengths: &[usize], x: &Tensor| -> Vec<Vec<f32>> {
            let rotation = rotations.of_sequences(lengths.iter().copied(), &Device::Cpu);
            let rotated = rotation.unwrap().rotate(x, false).unwrap();
            rotated.squeeze(1).unwrap().to_vec2().unwrap()
        };
        let together = rotate(&[2, 5, 2], &x);
        let mut apart = rotate(&[2], &x.narrow(0, 0, 2).unwrap());
        apart.extend(rotate(&[5], &x.narrow(0, 2, 5).unwrap()));
        apart.extend(rotate(&[2], &x.narrow(0, 7, 2).unwrap()));
        assert_eq!(together, apart);
    }
}
