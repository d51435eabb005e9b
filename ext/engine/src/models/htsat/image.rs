//! From a spectrogram to a square image.

use super::HtsatConfig;
use crate::models::modules::{Modules, BATCH_NORM_EPSILON};
use crate::{Error, Result};

/// Of bicubic interpolation.
const SHARPNESS: f32 = -0.75;

/// Normalizes bands, stretches time and folds both into a square.
#[derive(Debug)]
pub struct Folding {
    bands: usize,
    folds: usize,
    /// What each band is multiplied by, and what is added.
    factors: Vec<f32>,
    shifts: Vec<f32>,
}

impl Folding {
    pub fn load(config: &HtsatConfig, modules: &Modules<'_>) -> Result<Self> {
        let norm = modules.batch_norm("batch_norm", BATCH_NORM_EPSILON)?;
        let factors: Vec<f32> = norm.scale.flatten_all()?.to_vec1()?;
        if factors.len() != config.bands {
            modules.at("batch_norm").shaped("weight", &[config.bands])?;
        }
        Ok(Self {
            bands: config.bands,
            folds: config.folds(),
            factors,
            shifts: norm.shift.flatten_all()?.to_vec1()?,
        })
    }

    /// [edge · edge] of [frames, bands]: stretches of time stand below each other, bands by rows.
    pub fn fold(&self, values: &[f32]) -> Result<Vec<f32>> {
        let (bands, frames) = (self.bands, values.len() / self.bands.max(1));
        let wanted = bands * self.folds * self.folds;
        if frames == 0 || frames > wanted {
            return Err(Error::InvalidInput(format!(
                "a spectrogram of {frames} frames does not fit a model that reads up to {wanted}"
            )));
        }
        let normalized: Vec<f32> = values
            .chunks_exact(bands)
            .flat_map(|row| {
                let bands = row.iter().zip(&self.factors).zip(&self.shifts);
                bands.map(|((value, factor), shift)| value * factor + shift)
            })
            .collect();
        let stretched = if frames == wanted {
            normalized
        } else {
            stretched(&normalized, bands, wanted)
        };
        let stretch = wanted / self.folds;
        let mut image = vec![0f32; wanted * bands];
        for (frame, row) in stretched.chunks_exact(bands).enumerate() {
            let (fold, column) = (frame / stretch, frame % stretch);
            for (band, &value) in row.iter().enumerate() {
                image[(fold * bands + band) * stretch + column] = value;
            }
        }
        Ok(image)
    }
}

/// Rows of bands brought to another number of frames by cubic interpolation, of which the first and the last stay.
fn stretched(values: &[f32], bands: usize, wanted: usize) -> Vec<f32> {
    let frames = values.len() / bands;
    let scale = if wanted > 1 {
        (frames - 1) as f32 / (wanted - 1) as f32
    } else {
        0.0
    };
    let mut result = Vec::with_capacity(wanted * bands);
    for frame in 0..wanted {
        let place = frame as f32 * scale;
        let first = place.floor();
        let part = place - first;
        let weights = [
            far(part + 1.0),
            near(part),
            near(1.0 - part),
            far(2.0 - part),
        ];
        let row = |distance: i64| {
            let row = (first as i64 + distance).clamp(0, frames as i64 - 1) as usize;
            &values[row * bands..(row + 1) * bands]
        };
        let rows = [row(-1), row(0), row(1), row(2)];
        result.extend((0..bands).map(|band| {
            let terms = rows
                .iter()
                .zip(weights)
                .map(|(row, weight)| row[band] * weight);
            terms.sum::<f32>()
        }));
    }
    result
}

fn near(x: f32) -> f32 {
    ((SHARPNESS + 2.0) * x - (SHARPNESS + 3.0)) * x * x + 1.0
}

fn far(x: f32) -> f32 {
    ((SHARPNESS * x - 5.0 * SHARPNESS) * x + 8.0 * SHARPNESS) * x - 4.0 * SHARPNESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_last_frames_stay() {
        let values = [1.0, 5.0, 2.0, 7.0, 4.0, 6.0];
        let found = stretched(&values, 2, 5);
        assert_eq!(found[..2], [1.0, 5.0]);
        assert_eq!(found[4..6], [2.0, 7.0]);
        assert_eq!(found[8..], [4.0, 6.0]);
    }
}
