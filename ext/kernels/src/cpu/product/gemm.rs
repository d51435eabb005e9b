//! Products with a matrix of f32 that was laid out once for the micro-kernels.

mod tile;
mod windowed;

use crate::cpu::isa::Isa;
use crate::cpu::product::driver::{Context, Sums, TaskRows, Tile, WeightMatrix};
use crate::cpu::product::panels::pack_panels;
pub use crate::cpu::product::panels::PANEL;
#[cfg(target_arch = "x86_64")]
use crate::cpu::product::parts;
use crate::cpu::product::store::Panels;
#[cfg(target_arch = "x86_64")]
use crate::f32_tiles;
use crate::Result;
pub(super) use tile::multiply_panel;
pub use tile::{multiply_cached_panel, Operands};
pub use windowed::multiply_windows;

/// How far ahead of the arithmetic a panel is asked for: what memory takes to answer, and a page.
const AHEAD: usize = 1024;

/// A matrix [outputs, inputs] as panels of 32 outputs, each [inputs, 32], the last padded by zeros.
#[derive(Clone)]
pub struct PackedMatrix {
    numbers: Numbers,
    pub inputs: usize,
    pub outputs: usize,
}

#[derive(Clone)]
enum Numbers {
    Singles(Panels<f32>),
    /// For tiles, of bytes.
    #[cfg(target_arch = "x86_64")]
    Parts(parts::Matrix),
}

impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedMatrix[{}, {}]", self.outputs, self.inputs)
    }
}

impl PackedMatrix {
    /// `weight` is [outputs, inputs], row after row.
    pub fn new(weight: &[f32], inputs: usize, outputs: usize) -> Result<Self> {
        #[cfg(target_arch = "x86_64")]
        if f32_tiles::are_wanted() {
            return Self::for_tiles(weight, inputs, outputs);
        }
        Self::for_vectors(weight, inputs, outputs)
    }

    /// `new` for vectors.
    pub fn for_vectors(weight: &[f32], inputs: usize, outputs: usize) -> Result<Self> {
        let panels = pack_panels(outputs, inputs * PANEL, |panel: &mut [f32], first| {
            lay_out(weight, inputs, first, panel);
        })?;
        Ok(Self {
            numbers: Numbers::Singles(panels),
            inputs,
            outputs,
        })
    }

    /// `new` for tiles, where there are any that take its numbers.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn for_tiles(weight: &[f32], inputs: usize, outputs: usize) -> Result<Self> {
        let matrix = match Isa::current()? {
            Isa::Amx => parts::Matrix::new(weight, inputs, outputs)?,
            _ => None,
        };
        let Some(matrix) = matrix else {
            return Self::for_vectors(weight, inputs, outputs);
        };
        Ok(Self {
            numbers: Numbers::Parts(matrix),
            inputs,
            outputs,
        })
    }

    /// Whether it is laid out for tiles.
    pub fn has_parts(&self) -> bool {
        match self.numbers {
            Numbers::Singles(_) => false,
            #[cfg(target_arch = "x86_64")]
            Numbers::Parts(_) => true,
        }
    }
}

/// The sums of `rows` rows of x with a panel, which goes on in memory behind its end.
///
/// # Safety
/// x and the sums have the rows, the panel the inputs.
pub(super) unsafe fn multiply_ahead(isa: Isa, operands: Operands, rows: usize, sums: Sums) {
    let ahead = (operands.panel.wrapping_add(AHEAD), PANEL);
    // SAFETY: the caller vouches for the rows, the panel and the sums.
    unsafe { multiply_panel(isa, operands, ahead, rows, sums) }
}

/// Writes the outputs from the first on into a panel.
pub(super) fn lay_out(weight: &[f32], inputs: usize, first: usize, panel: &mut [f32]) {
    let rows = weight.chunks(inputs.max(1)).skip(first).take(PANEL);
    for (column, row) in rows.enumerate() {
        for (to, &value) in panel[column..].iter_mut().step_by(PANEL).zip(row) {
            *to = value;
        }
    }
}

/// Rows of x as they are, and for tiles in parts, unless every thread cuts its own.
pub struct SingleRows<'a> {
    x: &'a [f32],
    #[cfg(target_arch = "x86_64")]
    cut: Option<parts::CutRows>,
}

impl WeightMatrix<f32> for PackedMatrix {
    const PANEL: usize = PANEL;
    type Rows<'a> = SingleRows<'a>;
    #[cfg(target_arch = "x86_64")]
    type Workspace = parts::Workspace;
    #[cfg(not(target_arch = "x86_64"))]
    type Workspace = ();

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn task_rows(&self, isa: Isa) -> TaskRows {
        #[cfg(target_arch = "x86_64")]
        if self.takes_tile_registers(isa) {
            return parts::task_rows(self.inputs);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = isa;
        TaskRows {
            most: 96,
            unit: 4,
            together: 96,
            padded: false,
        }
    }

    fn prepare<'a>(&self, isa: Isa, x: &'a [f32], rows: usize) -> SingleRows<'a> {
        #[cfg(target_arch = "x86_64")]
        let is_one_task = self.takes_tile_registers(isa) && rows <= self.task_rows(isa).most;
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (isa, rows);
        SingleRows {
            x,
            #[cfg(target_arch = "x86_64")]
            cut: is_one_task.then(|| parts::CutRows::new(x, self.inputs)),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn takes_tile_registers(&self, isa: Isa) -> bool {
        self.has_parts() && isa == Isa::Amx
    }

    unsafe fn multiply_tile(
        &self,
        context: &Context,
        workspace: &mut Self::Workspace,
        rows: &SingleRows<'_>,
        tile: Tile,
    ) {
        let (inputs, length) = (self.inputs, self.inputs * PANEL);
        let x = &rows.x[tile.row * inputs..][..tile.rows * inputs];
        let multiply = |panel: &[f32], row: usize, rows: usize| {
            let operands = Operands {
                x: x[row * inputs..][..rows * inputs].as_ptr(),
                x_stride: inputs,
                panel: panel[..length].as_ptr(),
                inputs,
            };
            // SAFETY: x has the rows and the panel its inputs; the caller vouches for the sums.
            unsafe { multiply_ahead(context.isa, operands, rows, tile.sums.at(row, 0)) };
        };
        match &self.numbers {
            Numbers::Singles(panels) => multiply(&panels[tile.panel * length..], 0, tile.rows),
            #[cfg(target_arch = "x86_64")]
            Numbers::Parts(matrix) => {
                let Some(tiles) = &context.tiles else {
                    return multiply(&matrix.numbers(tile.panel), 0, tile.rows);
                };
                let rows = parts::Rows {
                    x: rows.x,
                    inputs,
                    cut: rows.cut.as_ref(),
                };
                // SAFETY: tasks begin with whole blocks, as `task_rows` asks for; the caller vouches for the rows,
                // the sums and the workspace; `Tiles` exists only on a CPU with AMX and AVX-512.
                unsafe { parts::multiply(tiles, workspace, rows, matrix, tile, multiply) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let () = workspace;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::product::GemmEpilogue;
    use crate::cpu::test_numbers::numbers;
    use crate::Activation;

    #[test]
    fn every_instruction_set_multiplies_like_the_definition() {
        multiplies_like_the_definition(PackedMatrix::new);
        multiplies_like_the_definition(PackedMatrix::for_vectors);
    }

    fn multiplies_like_the_definition(pack: fn(&[f32], usize, usize) -> Result<PackedMatrix>) {
        let shapes = [
            (1, 1, 1),
            (7, 5, 31),
            (6, 6, 33),
            (11, 35, 40),
            (13, 33, 65),
            (12, 64, 32),
            (100, 17, 200),
            (193, 40, 161),
            (8, 389, 40),
        ];
        for (rows, inputs, outputs) in shapes {
            let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
            let (bias, residual) = (numbers(outputs, 3), numbers(rows * outputs, 4));
            let packed = pack(&weight, inputs, outputs).unwrap();
            let epilogue = GemmEpilogue {
                bias: Some(&bias),
                activation: Some(Activation::Relu),
                residual: Some(&residual),
            };
            for &isa in Isa::available() {
                let full = packed.multiply(isa, &x, rows, &epilogue);
                let plain = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
                for r in 0..rows {
                    for o in 0..outputs {
                        let dot: f64 = (0..inputs)
                            .map(|i| {
                                f64::from(x[r * inputs + i]) * f64::from(weight[o * inputs + i])
                            })
                            .sum();
                        let at = r * outputs + o;
                        assert!((f64::from(plain[at]) - dot).abs() < 1e-4, "{}", isa.name());
                        let want = (dot + f64::from(bias[o])).max(0.0) + f64::from(residual[at]);
                        assert!((f64::from(full[at]) - want).abs() < 1e-4, "{}", isa.name());
                    }
                }
            }
        }
    }
}
