//! Rotary positions.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use crate::{Error, Result};
use kernels::{RopeKind, Rotation};

#[derive(Clone, Debug)]
pub struct Rope {
    /// Radians per position, one for each pair of elements.
    frequencies: Vec<f32>,
    /// Factor on cosines and sines.
    magnitude: f32,
    kind: RopeKind,
    prepared: RopeTable,
}

/// f32 [positions, rotary / 2] each.
#[derive(Clone, Debug)]
pub struct RopeTable {
    cosines: Tensor,
    sines: Tensor,
    /// The position of row 0.
    first: usize,
}

/// Frequencies theta^(−2i / rotary), in single precision as the references have them.
pub fn frequencies(theta: f32, rotary: usize) -> Vec<f32> {
    (0..rotary / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / rotary as f32;
            1.0 / f64::from(theta).powf(f64::from(exponent)) as f32
        })
        .collect()
}

impl Rope {
    /// Tables for positions below `prepared`, which most calls need, are made once; what lies
    /// beyond gets its own.
    pub fn new(
        frequencies: Vec<f32>,
        magnitude: f32,
        kind: RopeKind,
        prepared: usize,
        device: &Device,
    ) -> Result<Self> {
        let prepared = RopeTable::new(&frequencies, magnitude, 0..prepared, device)?;
        Ok(Self {
            frequencies,
            magnitude,
            kind,
            prepared,
        })
    }

    /// Takes the sines and cosines of a file, side by side, f32 [positions, rotary].
    pub fn take_table(&mut self, table: &Tensor) -> Result<()> {
        let count = self.frequencies.len();
        if table.rank() != 2 || table.dim(1)? != 2 * count {
            return Err(Error::CorruptModel(format!(
                "a table of rotary positions has the shape {:?}, and should have rows of {}",
                table.dims(),
                2 * count
            )));
        }
        let table = table.to_dtype(DType::F32)?;
        self.prepared = RopeTable {
            sines: table.narrow(1, 0, count)?.contiguous()?,
            cosines: table.narrow(1, count, count)?.contiguous()?,
            first: 0,
        };
        Ok(())
    }

    /// A table that has these positions.
    pub fn table(&self, positions: Range<usize>, device: &Device) -> Result<RopeTable> {
        if positions.end <= self.prepared.cosines.dim(0)? {
            return Ok(self.prepared.clone());
        }
        RopeTable::new(&self.frequencies, self.magnitude, positions, device)
    }

    /// A table with a row per token, in which frequency i turns by the coordinate `axes[i]`.
    pub fn table_of(
        &self,
        places: &[[u32; 3]],
        axes: &[usize],
        device: &Device,
    ) -> Result<RopeTable> {
        let angles = places.iter().flat_map(|place| {
            let frequencies = self.frequencies.iter().zip(axes);
            frequencies.map(|(frequency, &axis)| place[axis] as f32 * frequency)
        });
        let shape = (places.len(), self.frequencies.len());
        RopeTable::of_angles(angles, self.magnitude, shape, 0, device)
    }

    /// `rows` is u32 [tokens], the rows of the table by which they rotate.
    pub fn rotation<'a>(&self, table: &'a RopeTable, rows: &'a Tensor) -> Rotation<'a> {
        Rotation {
            cosines: &table.cosines,
            sines: &table.sines,
            rows,
            kind: self.kind,
            rotary: 2 * self.frequencies.len(),
        }
    }
}

impl RopeTable {
    fn new(
        frequencies: &[f32],
        magnitude: f32,
        positions: Range<usize>,
        device: &Device,
    ) -> Result<Self> {
        let first = positions.start;
        let shape = (positions.len(), frequencies.len());
        let angles =
            positions.flat_map(|position| frequencies.iter().map(move |f| position as f32 * f));
        Self::of_angles(angles, magnitude, shape, first, device)
    }

    /// Row after row.
    fn of_angles(
        angles: impl Iterator<Item = f32>,
        magnitude: f32,
        shape: (usize, usize),
        first: usize,
        device: &Device,
    ) -> Result<Self> {
        let (sines, cosines): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| {
                let (sine, cosine) = f64::from(angle).sin_cos();
                (sine as f32 * magnitude, cosine as f32 * magnitude)
            })
            .unzip();
        Ok(Self {
            cosines: Tensor::from_vec(cosines, shape, device)?,
            sines: Tensor::from_vec(sines, shape, device)?,
            first,
        })
    }

    /// Tables of the same positions, one below the other.
    pub fn stack(tables: &[Self]) -> Result<Self> {
        let join = |part: fn(&Self) -> &Tensor| -> Result<Tensor> {
            let parts: Vec<&Tensor> = tables.iter().map(part).collect();
            Ok(Tensor::cat(&parts, 0)?)
        };
        Ok(Self {
            cosines: join(|table| &table.cosines)?,
            sines: join(|table| &table.sines)?,
            first: tables.first().map_or(0, |table| table.first),
        })
    }

    /// How many positions it has.
    pub fn height(&self) -> Result<usize> {
        Ok(self.cosines.dim(0)?)
    }

    /// The row of a position.
    pub fn row(&self, position: usize) -> usize {
        position - self.first
    }
}
