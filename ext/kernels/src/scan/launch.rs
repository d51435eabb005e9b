//! What a launch on a GPU tells the kernel of a scan, or of what stands around it, and over what grid it runs.

use candle_core::Result;

use super::{groups, Decay, Kind, Rule, Scan, SlotStates, UnitHeads};
use crate::parameter_block::parameter_block;

/// Lanes of a threadgroup, and of the groups that exchange numbers, as in the sources.
pub const SCAN_LANES: usize = 128;
pub const SIMD_WIDTH: usize = 32;
/// Rows that a lane of a convolution makes at least, where there are so many.
const CONVOLVED_ROWS: usize = 64;

parameter_block! {
    #[derive(Default)]
    ScanParameters {
        inputs: u32,
        outputs: u32,
        state: u32,
        slot: u32,
        trail: u32,
        trail_slot: u32,
        columns: u32,
        count: u32,
        size: u32,
        tasks: u32,
        part: u32,
        activation: u32,
        least: f32,
        most: f32,
    }
}

parameter_block! {
    GateParameters {
        width: u32,
        rule: u32,
        number: f32,
    }
}

parameter_block! {
    UnitParameters {
        width: u32,
        size: u32,
        first_heads: u32,
        heads: u32,
        first: f32,
        second: f32,
        epsilon: f32,
    }
}

/// What the kernel of a scan is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScanSource {
    Matrix {
        rule: Rule,
        keys: usize,
        groups: usize,
    },
    Selective {
        kept: usize,
    },
    /// Recurrent units, RWKV and convolutions.
    Channels,
}

impl ScanSource {
    pub fn of(kind: &Kind) -> Self {
        match kind {
            Kind::Matrix(one) => Self::Matrix {
                rule: one.rule(),
                keys: one.shape.keys,
                groups: groups(one.shape.keys),
            },
            Kind::Selective(one) => Self::Selective { kept: one.kept },
            Kind::Rglru { .. } | Kind::Rwkv(_) | Kind::Convolution(_) => Self::Channels,
        }
    }
}

pub fn kernel(kind: &Kind) -> &'static str {
    match kind {
        Kind::Matrix(_) => "scan_matrix",
        Kind::Selective(_) => "scan_selective",
        Kind::Rglru { .. } => "scan_rglru",
        Kind::Rwkv(_) => "scan_rwkv",
        Kind::Convolution(_) => "scan_convolution",
    }
}

fn narrow(value: usize) -> Result<u32> {
    Ok(u32::try_from(value)?)
}

/// What the kernel is told, and how many threadgroups each sequence has.
pub fn geometry(scan: &Scan, places: &SlotStates<'_>) -> Result<(ScanParameters, usize)> {
    let trails = places.trails.map_or(Ok((0, 0)), |(trails, first)| {
        trails.dim(1).map(|width| (width, first))
    })?;
    let mut parameters = ScanParameters {
        inputs: narrow(scan.inputs())?,
        outputs: narrow(scan.outputs())?,
        state: narrow(places.first)?,
        slot: narrow(places.states.dim(1)?)?,
        trail: narrow(trails.1)?,
        trail_slot: narrow(trails.0)?,
        columns: narrow(scan.lane_outputs())?,
        count: narrow(scan.outputs())?,
        ..ScanParameters::default()
    };
    let channels = scan.outputs().div_ceil(SCAN_LANES);
    let groups = match scan.kind() {
        Kind::Matrix(one) => {
            let tasks = one.tasks();
            parameters.size = narrow(one.shape.size)?;
            parameters.count = narrow(one.heads.len())?;
            parameters.tasks = narrow(tasks)?;
            (parameters.least, parameters.most) = one.bounds();
            tasks.div_ceil(SCAN_LANES / SIMD_WIDTH)
        }
        Kind::Convolution(one) => {
            let part = CONVOLVED_ROWS.max(one.taps);
            parameters.size = narrow(one.taps)?;
            parameters.part = narrow(part)?;
            parameters.activation = one.activation.number();
            channels * places.table.longest.div_ceil(part)
        }
        Kind::Selective(_) | Kind::Rglru { .. } | Kind::Rwkv(_) => channels,
    };
    Ok((parameters, groups))
}

impl GateParameters {
    pub fn new(width: usize, rule: Decay) -> Result<Self> {
        let (rule, number) = rule.number();
        Ok(Self {
            width: narrow(width)?,
            rule,
            number,
        })
    }
}

impl UnitParameters {
    pub fn new(width: usize, heads: UnitHeads) -> Result<Self> {
        let [first, second] = heads.counts;
        Ok(Self {
            width: narrow(width)?,
            size: narrow(heads.size)?,
            first_heads: narrow(first)?,
            heads: narrow(first + second)?,
            first: heads.factors[0],
            second: heads.factors[1],
            epsilon: heads.epsilon,
        })
    }
}
