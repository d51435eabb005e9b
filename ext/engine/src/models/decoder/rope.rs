//! Rotary positions: what configs say of them, and frequencies by scaling method.

use candle_core::{Device, Tensor};

use super::batch::{Batch, Piece};
use super::config::{RopeConfig, RopeScaling};
use crate::files::raw_config::RawConfig;
use crate::kernels::RopeKind;
use crate::nn::rope::{self, Rope, RopeTable};
use crate::{Error, Result};

/// Contexts are mostly shorter than this.
const PREPARED_POSITIONS: usize = 1024;

/// The rotations of a model, made once.
pub struct Rotations {
    /// By regime.
    global: Vec<Rope>,
    /// Of windowed layers, where those have a base of their own.
    local: Option<Rope>,
}

/// The rotation of the positions of one forward.
pub struct Rotation<'a> {
    config: &'a RopeConfig,
    global: Turn<'a>,
    local: Option<Turn<'a>>,
}

struct Turn<'a> {
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
            global: (0..config.regimes())
                .map(|regime| {
                    let (frequencies, magnitude) = config.scaled(regime);
                    make(frequencies, magnitude)
                })
                .collect::<Result<_>>()?,
            local: config.local_theta.map(local).transpose()?,
        })
    }

    pub fn at<'a>(
        &'a self,
        config: &'a RopeConfig,
        batch: &Batch<'_>,
        device: &Device,
    ) -> Result<Rotation<'a>> {
        let global = Turn::new(&self.global, batch, device)?;
        let local = |rope: &'a Rope| -> Result<_> {
            if self.global.len() > 1 {
                return Turn::new(std::slice::from_ref(rope), batch, device);
            }
            Ok(Turn {
                rope,
                table: rope.table(batch.span(), device)?,
                rows: global.rows.clone(),
            })
        };
        Ok(Rotation {
            config,
            local: self.local.as_ref().map(local).transpose()?,
            global,
        })
    }
}

impl<'a> Turn<'a> {
    /// Every piece of the batch turns by the rope of its regime.
    fn new(ropes: &'a [Rope], batch: &Batch<'_>, device: &Device) -> Result<Self> {
        let regime = |piece: &Piece| piece.regime.min(ropes.len() - 1);
        let used: Vec<usize> = (0..ropes.len())
            .filter(|&number| batch.pieces().iter().any(|piece| regime(piece) == number))
            .collect();
        let tables = used
            .iter()
            .map(|&number| ropes[number].table(batch.span(), device))
            .collect::<Result<Vec<_>>>()?;
        let table = match tables.as_slice() {
            [] => ropes[0].table(0..0, device)?,
            [one] => one.clone(),
            several => RopeTable::stack(several)?,
        };
        let height = table.height()? / used.len().max(1);
        let mut rows = Vec::with_capacity(batch.ids.len());
        for piece in batch.pieces() {
            let above = used.iter().take_while(|&&number| number < regime(piece));
            let above = above.count() * height;
            let row = |position| (above + table.row(position)) as u32;
            rows.extend(piece.positions.clone().map(row));
        }
        Ok(Self {
            rope: &ropes[0],
            rows: Tensor::from_vec(rows, batch.ids.len(), device)?,
            table,
        })
    }
}

impl Rotation<'_> {
    /// Whether this layer rotates at all.
    pub fn applies(&self, layer: usize) -> bool {
        self.config.layers[layer]
    }

    /// `x` is [tokens, heads, head size]; `local` asks for the rotation of windowed layers.
    pub fn rotate(&self, x: &Tensor, local: bool) -> Result<Tensor> {
        let rotation = match &self.local {
            Some(rotation) if local => rotation,
            _ => &self.global,
        };
        rotation.rope.rotate(x, &rotation.table, &rotation.rows)
    }
}

impl RopeConfig {
    /// Keys cached at one length are wrong for another when this differs between the two.
    pub fn regime(&self, length: usize) -> usize {
        match &self.scaling {
            RopeScaling::LongRope {
                original_positions, ..
            } => usize::from(length > *original_positions),
            _ => 0,
        }
    }

    fn regimes(&self) -> usize {
        match &self.scaling {
            RopeScaling::LongRope { .. } => 2,
            _ => 1,
        }
    }

    /// Frequencies, and what cosines and sines are multiplied with.
    fn scaled(&self, regime: usize) -> (Vec<f32>, f32) {
        let mut frequencies = rope::frequencies(self.theta, self.rotary_size);
        let divide = |frequencies: &mut [f32], divisors: &[f32]| {
            let pairs = frequencies.iter_mut().zip(divisors);
            pairs.for_each(|(frequency, divisor)| *frequency /= divisor);
        };
        let mut magnitude = 1.0;
        match &self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= factor),
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
                self.scale_yarn(&mut frequencies, self.theta);
            }
            RopeScaling::LongRope {
                short,
                long,
                attention_factor,
                ..
            } => {
                magnitude = *attention_factor;
                divide(&mut frequencies, if regime == 1 { long } else { short });
            }
            RopeScaling::Divisors(divisors) => divide(&mut frequencies, divisors),
        }
        (frequencies, magnitude)
    }

    /// Fast dimensions keep their frequency, slow ones are interpolated, with a ramp in between.
    fn scale_yarn(&self, inverse: &mut [f32], theta: f32) {
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
        let turns_at = |turns: f32| {
            let positions = *original_positions as f32;
            size * (positions / (turns * std::f32::consts::TAU)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (turns_at(*beta_fast), turns_at(*beta_slow));
        if *truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(size - 1.0));
        if low == high {
            high += 0.001;
        }
        for (i, frequency) in inverse.iter_mut().enumerate() {
            let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
            *frequency = *frequency / factor * ramp + *frequency * (1.0 - ramp);
        }
    }
}

fn scale_llama3(inverse: &mut [f32], factor: f32, low: f32, high: f32, original: f32) {
    for frequency in inverse {
        let wavelength = std::f32::consts::TAU / *frequency;
        if wavelength > original / low {
            *frequency /= factor;
        } else if wavelength >= original / high {
            let smooth = (original / wavelength - low) / (high - low);
            *frequency = (1.0 - smooth) * *frequency / factor + smooth * *frequency;
        }
    }
}

/// Reads both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`.
pub fn from_config(
    raw: &RawConfig,
    head_size: usize,
    layer_count: usize,
    rotated_share: f64,
) -> Result<RopeConfig> {
    let parameters = match raw.opt_nested("rope_parameters")? {
        Some(parameters) => Some(match parameters.opt_nested("full_attention")? {
            Some(global) => global,
            None => parameters,
        }),
        None => raw.opt_nested("rope_scaling")?,
    };
    let in_parameters = |key: &str| match &parameters {
        Some(parameters) => parameters.opt_f64(key),
        None => Ok(None),
    };
    let theta = match in_parameters("rope_theta")? {
        Some(theta) => theta,
        None => raw
            .opt_f64(["rope_theta", "rotary_emb_base"])?
            .unwrap_or(10_000.0),
    };
    let share = match in_parameters("partial_rotary_factor")? {
        Some(share) => share,
        None => raw
            .opt_f64(["partial_rotary_factor", "rotary_pct"])?
            .unwrap_or(rotated_share),
    };
    let rotary_size = (head_size as f64 * share) as usize;
    if !(0.0..=1.0).contains(&share)
        || !rotary_size.is_multiple_of(2)
        || theta.is_nan()
        || theta <= 0.0
    {
        return Err(Error::corrupt(
            raw.file(),
            format!("rotary positions with base {theta} over {share} of {head_size} dimensions are impossible"),
        ));
    }
    let scaling = match &parameters {
        Some(parameters) => scaling(raw, parameters, rotary_size)?,
        None => RopeScaling::None,
    };
    Ok(RopeConfig {
        theta: theta as f32,
        local_theta: None,
        rotary_size,
        pairing: RopeKind::Half,
        scaling,
        layers: vec![true; layer_count],
    })
}

fn scaling(raw: &RawConfig, parameters: &RawConfig, rotary_size: usize) -> Result<RopeScaling> {
    let kind = parameters
        .opt_string(["rope_type", "type"])?
        .unwrap_or("default");
    let number = |key: &str| -> Result<Option<f32>> {
        Ok(parameters.opt_f64(key)?.map(|value| value as f32))
    };
    let original = match parameters.opt_usize("original_max_position_embeddings")? {
        Some(original) => Some(original),
        None => raw.opt_usize("original_max_position_embeddings")?,
    };
    let original = match original {
        Some(original) => original,
        None => raw.opt_usize("max_position_embeddings")?.unwrap_or(2048),
    };
    let longest = raw
        .opt_usize("max_position_embeddings")?
        .unwrap_or(original);
    let factor = number("factor")?.unwrap_or(longest as f32 / original as f32);
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor,
            low_frequency_factor: number("low_freq_factor")?.unwrap_or(1.0),
            high_frequency_factor: number("high_freq_factor")?.unwrap_or(4.0),
            original_positions: original,
        }),
        "yarn" => {
            let magnitude = |scale: f32| {
                if factor <= 1.0 {
                    1.0
                } else {
                    0.1 * scale * factor.ln() + 1.0
                }
            };
            let (scale, all) = (number("mscale")?, number("mscale_all_dim")?);
            let default = match (scale, all) {
                (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => {
                    magnitude(scale) / magnitude(all)
                }
                _ => magnitude(1.0),
            };
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: number("beta_fast")?.unwrap_or(32.0),
                beta_slow: number("beta_slow")?.unwrap_or(1.0),
                original_positions: original,
                attention_factor: number("attention_factor")?.unwrap_or(default),
                truncate: parameters.opt_bool("truncate")?.unwrap_or(true),
            })
        }
        "longrope" | "su" => {
            let divisors = |key: &str| -> Result<Vec<f32>> {
                let divisors = parameters.opt_numbers(key)?.unwrap_or_default();
                if divisors.len() != rotary_size / 2 {
                    return Err(Error::corrupt(
                        raw.file(),
                        format!(
                            "{key} has {} entries instead of {}",
                            divisors.len(),
                            rotary_size / 2
                        ),
                    ));
                }
                Ok(divisors.into_iter().map(|divisor| divisor as f32).collect())
            };
            // These checkpoints state the factor by their two lengths.
            let factor = longest as f32 / original as f32;
            let default = if factor <= 1.0 {
                1.0
            } else {
                (1.0 + factor.ln() / (original as f32).ln()).sqrt()
            };
            Ok(RopeScaling::LongRope {
                short: divisors("short_factor")?,
                long: divisors("long_factor")?,
                original_positions: original,
                attention_factor: number("attention_factor")?.unwrap_or(default),
            })
        }
        other => Err(Error::unsupported(
            raw.file(),
            format!("rope scaling {other:?} is not supported"),
        )),
    }
}
