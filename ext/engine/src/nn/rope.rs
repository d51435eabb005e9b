//! Rotary position tables.

use candle_core::{Device, Tensor};

use crate::kernels::{self, RopeKind};
use crate::Result;

/// The tables that most calls need are made once; a longer sequence gets its own.
const PREPARED: usize = 512;

#[derive(Clone, Debug)]
pub struct Rope {
    /// Radians per position, one for each pair of elements.
    frequencies: Vec<f32>,
    kind: RopeKind,
    prepared: RopeTable,
}

/// f32 [positions, rotary / 2] each.
#[derive(Clone, Debug)]
pub struct RopeTable {
    cosines: Tensor,
    sines: Tensor,
    positions: usize,
}

impl Rope {
    /// Frequencies theta^(−2i / rotary) / divisor, in single precision as the references have them.
    pub fn new(
        theta: f32,
        rotary: usize,
        divisor: f32,
        kind: RopeKind,
        device: &Device,
    ) -> Result<Self> {
        let frequencies: Vec<f32> = (0..rotary / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / rotary as f32;
                1.0 / f64::from(theta).powf(f64::from(exponent)) as f32 / divisor
            })
            .collect();
        let prepared = RopeTable::new(&frequencies, PREPARED, device)?;
        Ok(Self {
            frequencies,
            kind,
            prepared,
        })
    }

    /// Tables for positions below `positions`.
    pub fn table(&self, positions: usize, device: &Device) -> Result<RopeTable> {
        if positions <= self.prepared.positions {
            return Ok(self.prepared.clone());
        }
        RopeTable::new(&self.frequencies, positions, device)
    }

    /// `x` is [tokens, heads, width], `positions` u32 [tokens].
    pub fn turn(&self, x: &Tensor, table: &RopeTable, positions: &Tensor) -> Result<Tensor> {
        let rotary = 2 * self.frequencies.len();
        kernels::rope(
            x,
            &table.cosines,
            &table.sines,
            positions,
            self.kind,
            rotary,
        )
    }
}

impl RopeTable {
    fn new(frequencies: &[f32], positions: usize, device: &Device) -> Result<Self> {
        let angles: Vec<f32> = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |f| position as f32 * f))
            .collect();
        let shape = (positions, frequencies.len());
        let cosines = angles.iter().map(|a| a.cos()).collect();
        let sines = angles.iter().map(|a| a.sin()).collect();
        Ok(Self {
            cosines: Tensor::from_vec::<_, f32>(cosines, shape, device)?,
            sines: Tensor::from_vec::<_, f32>(sines, shape, device)?,
            positions,
        })
    }
}
