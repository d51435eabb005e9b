//! Rotary positions of every model: frequencies by scaling method, and the rotation of one forward.

use std::ops::Range;

use candle_core::{Device, Tensor};

use super::config::{RopeAxes, RopeConfig, RopeScaling};
use crate::nn::rope::{self, Rope, RopeTable};
use crate::{Error, Result};

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
    /// Of layers that have one of their own.
    others: Vec<Rope>,
    /// For each layer, which of the others it has.
    by_layer: Vec<Option<usize>>,
}

/// A run of tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where its tokens stand in their sequence.
    pub positions: Range<usize>,
    /// Which frequencies its sequence needs; see `RopeConfig::variant`.
    pub variant: usize,
    /// The coordinates of its tokens, where they are not positions; see [`RopeAxes`].
    pub places: Option<Vec<Place>>,
}

/// Time, row and column of a token.
pub type Place = [u32; 3];

/// The rotation of the tokens of one forward.
#[derive(Clone)]
pub struct Rotation<'a> {
    config: &'a RopeConfig,
    global: Rotated<'a>,
    local: Option<Rotated<'a>>,
    others: Vec<Rotated<'a>>,
    by_layer: &'a [Option<usize>],
}

#[derive(Clone)]
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
        let (others, by_layer) = distinct(&config.by_layer);
        let local = |theta: f32| make(rope::frequencies(theta, config.rotary_size), 1.0);
        let local_theta = config
            .local_theta
            .or(config.unscaled_windows.then_some(config.theta));
        Ok(Self {
            global: (0..config.variants())
                .map(|variant| {
                    let (frequencies, magnitude) = config.scaled(variant);
                    make(frequencies, magnitude)
                })
                .collect::<Result<_>>()?,
            local: local_theta.map(local).transpose()?,
            others: others
                .into_iter()
                .map(|own| {
                    let (frequencies, magnitude) = own.scaled(0);
                    make(frequencies, magnitude)
                })
                .collect::<Result<_>>()?,
            by_layer,
            config: config.clone(),
        })
    }

    /// The same by the sines and cosines of a file, side by side: [positions, rotary].
    pub fn of_table(mut self, table: &Tensor) -> Result<Self> {
        for rope in &mut self.global {
            rope.take_table(table)?;
        }
        Ok(self)
    }

    /// The same by the frequencies of a file.
    pub fn of_frequencies(
        mut self,
        frequencies: Vec<f32>,
        positions: usize,
        device: &Device,
    ) -> Result<Self> {
        if frequencies.len() != self.config.rotary_size / 2 {
            return Err(Error::CorruptModel(format!(
                "rotary positions have {} frequencies for {} dimensions",
                frequencies.len(),
                self.config.rotary_size
            )));
        }
        let prepared = positions.min(PREPARED_POSITIONS);
        self.global = vec![Rope::new(
            frequencies,
            1.0,
            self.config.pairing,
            prepared,
            device,
        )?];
        Ok(self)
    }

    /// For the tokens of these pieces, one after the other.
    pub fn of<'a>(&'a self, pieces: &[Piece], device: &Device) -> Result<Rotation<'a>> {
        if pieces.iter().any(|piece| piece.places.is_some()) {
            return self.of_places(&places(pieces), device);
        }
        let global = Rotated::new(&self.global, pieces, device)?;
        let beside = |rope: &'a Rope| -> Result<Rotated<'a>> {
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
            local: self.local.as_ref().map(beside).transpose()?,
            others: self.others.iter().map(beside).collect::<Result<_>>()?,
            by_layer: &self.by_layer,
            global,
        })
    }

    /// For tokens of texts whose positions, below `end`, lie on the device, u32 [tokens]; `None` where rotations
    /// depend on more than these.
    pub fn growing(
        &self,
        positions: &Tensor,
        end: usize,
        device: &Device,
    ) -> Result<Option<Rotation<'_>>> {
        let [global] = &self.global[..] else {
            return Ok(None);
        };
        let rotated = |rope| -> Result<Rotated<'_>> {
            Ok(Rotated {
                rope,
                table: Rope::table(rope, 0..end, device)?,
                rows: positions.clone(),
            })
        };
        Ok(Some(Rotation {
            config: &self.config,
            global: rotated(global)?,
            local: self.local.as_ref().map(rotated).transpose()?,
            others: self.others.iter().map(rotated).collect::<Result<_>>()?,
            by_layer: &self.by_layer,
        }))
    }

    /// For tokens with coordinates of their own.
    pub fn of_places(&self, places: &[Place], device: &Device) -> Result<Rotation<'_>> {
        let rope = &self.global[0];
        let axes = self.config.axis_of_frequencies();
        let rows = (0..places.len() as u32).collect();
        Ok(Rotation {
            config: &self.config,
            global: Rotated {
                rope,
                table: rope.table_of(places, &axes, device)?,
                rows: Tensor::from_vec(rows, places.len(), device)?,
            },
            local: None,
            others: Vec::new(),
            by_layer: &[],
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
                places: None,
            })
            .collect();
        self.of(&pieces, device)
    }
}

/// The rotations that layers have of their own, each once, and for each layer which of them it has.
fn distinct(by_layer: &[Option<RopeConfig>]) -> (Vec<&RopeConfig>, Vec<Option<usize>>) {
    let mut found: Vec<&RopeConfig> = Vec::new();
    let which = by_layer.iter().map(|own| {
        let own = own.as_ref()?;
        let at = found.iter().position(|other| *other == own);
        Some(at.unwrap_or_else(|| {
            found.push(own);
            found.len() - 1
        }))
    });
    let which = which.collect();
    (found, which)
}

/// Of the tokens of all pieces; those without places stand at their positions.
fn places(pieces: &[Piece]) -> Vec<Place> {
    let of_piece = |piece: &Piece| match &piece.places {
        Some(places) => places.clone(),
        None => {
            let positions = piece.positions.clone();
            positions.map(|at| [at as u32; 3]).collect()
        }
    };
    pieces.iter().flat_map(of_piece).collect()
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

    fn rotation(&self) -> kernels::Rotation<'_> {
        self.rope.rotation(&self.table, &self.rows)
    }
}

impl Rotation<'_> {
    /// What it reads on the device: tables, and the rows of tokens in them.
    pub fn tables(&self) -> Vec<(RopeTable, Tensor)> {
        let all = std::iter::once(&self.global)
            .chain(&self.local)
            .chain(&self.others);
        all.map(|one| (one.table.clone(), one.rows.clone()))
            .collect()
    }

    /// Whether this layer rotates at all.
    pub fn applies(&self, layer: usize) -> bool {
        self.config.layers.get(layer).copied().unwrap_or(true)
    }

    /// `local` says whether the layer has a window.
    pub fn of_layer(&self, layer: usize, local: bool) -> kernels::Rotation<'_> {
        let own = self.by_layer.get(layer).copied().flatten();
        match own.and_then(|own| self.others.get(own)) {
            Some(rotated) => rotated.rotation(),
            None => self.shared(local),
        }
    }

    /// That of layers which have none of their own.
    fn shared(&self, local: bool) -> kernels::Rotation<'_> {
        match &self.local {
            Some(rotated) if local => rotated.rotation(),
            _ => self.global.rotation(),
        }
    }

    /// `x` is [tokens, heads, head size]; `local` asks for the rotation of windowed layers.
    pub fn rotate(&self, x: &Tensor, local: bool) -> Result<Tensor> {
        self.shared(local).rotate(x)
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

    /// How many sets of frequencies there are.
    pub fn variants(&self) -> usize {
        match &self.scaling {
            RopeScaling::LongRope { .. } => 2,
            _ => 1,
        }
    }

    /// Which coordinate each frequency belongs to.
    fn axis_of_frequencies(&self) -> Vec<usize> {
        let count = self.rotary_size / 2;
        let runs = match self.axes {
            RopeAxes::Line => [count, 0, 0],
            RopeAxes::Turns(lengths) => {
                let axis = |at: usize| if at < 3 * lengths[at % 3] { at % 3 } else { 0 };
                return (0..count).map(axis).collect();
            }
            RopeAxes::Sections(lengths) => lengths,
            RopeAxes::Grid | RopeAxes::GridTurns => [0, count / 2, count / 2],
        };
        let run = |(axis, length): (usize, usize)| std::iter::repeat_n(axis, length);
        runs.into_iter().enumerate().flat_map(run).collect()
    }

    /// Frequencies, and what cosines and sines are multiplied with.
    fn scaled(&self, variant: usize) -> (Vec<f32>, f32) {
        let mut frequencies = match self.axes {
            RopeAxes::Grid => rope::frequencies(self.theta, self.rotary_size / 2).repeat(2),
            RopeAxes::GridTurns => {
                let all = rope::frequencies(self.theta, self.rotary_size);
                let every_second = |first: usize| all.iter().copied().skip(first).step_by(2);
                every_second(0).chain(every_second(1)).collect()
            }
            _ => rope::frequencies(self.theta, self.rotary_size),
        };
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
            RopeScaling::Proportional { turning, factor } => {
                for (i, frequency) in frequencies.iter_mut().enumerate() {
                    *frequency = if i < *turning {
                        *frequency / factor
                    } else {
                        0.0
                    };
                }
            }
        }
        if self.backwards {
            frequencies.iter_mut().for_each(|f| *f = -*f);
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
    use kernels::RopeKind;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig {
            theta: 10_000.0,
            local_theta: None,
            rotary_size: 4,
            pairing: RopeKind::Half,
            scaling,
            layers: Vec::new(),
            by_layer: Vec::new(),
            unscaled_windows: false,
            backwards: false,
            axes: RopeAxes::Line,
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
        let proportional = RopeScaling::Proportional {
            turning: 1,
            factor: 2.0,
        };
        assert_eq!(config(proportional).scaled(0).0, [0.5, 0.0]);
    }

    #[test]
    fn frequencies_belong_to_coordinates() {
        let mut config = config(RopeScaling::None);
        config.rotary_size = 8;
        config.axes = RopeAxes::Sections([1, 2, 1]);
        assert_eq!(config.axis_of_frequencies(), [0, 1, 1, 2]);
        assert_eq!(config.check(8, 1), Ok(()));
        assert!(config.check(6, 1).is_err());
        config.axes = RopeAxes::Turns([2, 1, 1]);
        assert_eq!(config.axis_of_frequencies(), [0, 1, 2, 0]);
        assert!(config.check(6, 1).is_err());
        config.axes = RopeAxes::Grid;
        assert_eq!(config.axis_of_frequencies(), [1, 1, 2, 2]);
        assert_eq!(config.scaled(0).0, [1.0, 0.01, 1.0, 0.01]);
        config.axes = RopeAxes::GridTurns;
        assert_eq!(config.axis_of_frequencies(), [1, 1, 2, 2]);
        let turns = config.scaled(0).0;
        assert!(
            (turns[1] - 0.01).abs() < 1e-6 && (turns[2] - 0.1).abs() < 1e-6,
            "{turns:?}"
        );
        config.axes = RopeAxes::Sections([4, 0, 0]);
        let rotations = Rotations::new(&config, 16, &Device::Cpu).unwrap();
        let x = Tensor::arange(0f32, 16.0, &Device::Cpu).unwrap();
        let x = x.reshape((2, 1, 8)).unwrap();
        let rotate = |rotation: Rotation<'_>| -> Vec<f32> {
            let rotated = rotation.rotate(&x, false).unwrap();
            rotated.flatten_all().unwrap().to_vec1().unwrap()
        };
        let line = rotations.of_sequences([2].into_iter(), &Device::Cpu);
        let places = rotations.of_places(&[[0, 5, 6], [1, 7, 8]], &Device::Cpu);
        assert_eq!(rotate(line.unwrap()), rotate(places.unwrap()));
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
