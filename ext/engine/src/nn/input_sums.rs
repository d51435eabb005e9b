//! Sums of a matrix's squared inputs, which tell a quantizer how much each column matters.

use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Tensor};

use crate::{Error, Result};

#[derive(Debug)]
pub struct InputSums(Mutex<Sums>);

#[derive(Clone, Debug)]
pub struct Sums {
    /// For each column.
    pub squares: Vec<f64>,
    /// How many inputs there were.
    pub rows: u64,
}

impl InputSums {
    pub fn new(inputs: usize) -> Self {
        Self(Mutex::new(Sums {
            squares: vec![0.0; inputs],
            rows: 0,
        }))
    }

    /// Adds rows of inputs `[rows, inputs]`.
    pub(super) fn add(&self, x: &Tensor) -> Result<()> {
        let (rows, inputs) = x.dims2()?;
        let values = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sums.squares.len() != inputs {
            return Err(Error::Internal(format!(
                "{inputs} inputs of a matrix of {}",
                sums.squares.len()
            )));
        }
        for row in values.chunks_exact(inputs.max(1)) {
            for (sum, &value) in sums.squares.iter_mut().zip(row) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        sums.rows += rows as u64;
        Ok(())
    }

    pub fn read(&self) -> Sums {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
