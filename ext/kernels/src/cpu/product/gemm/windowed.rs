//! Windows of a map times a packed matrix: each task lays out its own windows, which stay in the cache of its thread.

use std::ops::Range;

use super::{multiply_ahead, Numbers, Operands, PackedMatrix, PANEL};
use crate::cpu::isa::Isa;
use crate::cpu::product::driver::{
    multiply_prepared, Context, TaskRows, Tile, WeightMatrix, TASK_COLUMNS,
};
use crate::cpu::product::GemmEpilogue;
use crate::cpu::windows::Windows;
use base::runtime::threads;

/// Numbers that the windows of a task take.
const MOST_IN_CACHE: usize = 1 << 17;
/// Windows of a task: whole tiles.
const MOST: usize = 96;
const LEAST: usize = 24;

/// With fewer blocks of windows for a thread, and for so many outputs, too much would be laid out twice: tasks have some
/// of the outputs.
const BLOCKS_PER_THREAD: usize = 4;
const OUTPUTS: usize = 2 * TASK_COLUMNS;

/// A matrix whose inputs are what a window sees.
struct Windowed<'a> {
    matrix: &'a PackedMatrix,
    panels: &'a [f32],
    windows: &'a Windows,
}

/// Windows as rows.
#[derive(Default)]
struct LaidOut {
    rows: Range<usize>,
    numbers: Vec<f32>,
}

impl Windowed<'_> {
    fn most_rows(&self) -> usize {
        (MOST_IN_CACHE / self.matrix.inputs.max(1) / LEAST * LEAST).clamp(LEAST, MOST)
    }
}

impl WeightMatrix<f32> for Windowed<'_> {
    const PANEL: usize = PANEL;
    /// The map.
    type Rows<'a> = &'a [f32];
    type Workspace = LaidOut;

    fn inputs(&self) -> usize {
        self.matrix.inputs
    }

    fn outputs(&self) -> usize {
        self.matrix.outputs
    }

    fn task_rows(&self, _: Isa) -> TaskRows {
        let most = self.most_rows();
        TaskRows {
            most,
            unit: 4,
            together: most,
            padded: false,
        }
    }

    fn prepare<'a>(&self, _: Isa, x: &'a [f32], _: usize) -> &'a [f32] {
        x
    }

    unsafe fn multiply_tile(
        &self,
        context: &Context,
        workspace: &mut LaidOut,
        map: &&[f32],
        tile: Tile,
    ) {
        let (inputs, length) = (self.matrix.inputs, self.matrix.inputs * PANEL);
        let rows = tile.row..tile.row + tile.rows;
        if workspace.rows != rows {
            self.windows
                .lay_out(map, rows.clone(), &mut workspace.numbers);
            workspace.rows = rows;
        }
        let operands = Operands {
            x: workspace.numbers.as_ptr(),
            x_stride: inputs,
            panel: self.panels[tile.panel * length..][..length].as_ptr(),
            inputs,
        };
        // SAFETY: the rows were laid out, and the panel has its inputs; the caller vouches for the sums.
        unsafe { multiply_ahead(context.isa, operands, tile.rows, tile.sums) };
    }
}

/// The products of all windows of a map, [places, channels]; `None` where the matrix is laid out for tiles, or where so
/// few windows are better laid out once for all threads.
pub fn multiply_windows(
    isa: Isa,
    matrix: &PackedMatrix,
    (map, windows): (&[f32], &Windows),
    epilogue: &GemmEpilogue<'_>,
) -> Option<Vec<f32>> {
    let panels = match &matrix.numbers {
        Numbers::Singles(panels) => panels,
        #[cfg(target_arch = "x86_64")]
        Numbers::Parts(_) => return None,
    };
    let windowed = Windowed {
        matrix,
        panels,
        windows,
    };
    let count = windows.down * windows.across;
    let wanted = BLOCKS_PER_THREAD * threads::count() * matrix.outputs.div_ceil(OUTPUTS);
    if count / windowed.most_rows() < wanted {
        return None;
    }
    let (places, edge) = (
        windows.height * windows.width,
        windows.kernel * windows.kernel,
    );
    assert_eq!(map.len() * edge, places * matrix.inputs);
    let factors = [(&windowed, *epilogue)];
    multiply_prepared(isa, &map, count, &factors).pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::numbers;
    use crate::Activation;

    #[test]
    fn windows_of_tasks_have_the_bits_of_windows_laid_out_before() {
        for (channels, kernel, stride, padding, dilation) in [
            (3, 7, 2, 3, 1),
            (5, 3, 2, 1, 1),
            (4, 3, 1, 2, 2),
            (1, 1, 3, 0, 1),
        ] {
            let width = 40;
            let across = (width + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1;
            let down = BLOCKS_PER_THREAD * threads::count() * MOST / across + 2;
            let height = (down - 1) * stride + (kernel - 1) * dilation + 1 - 2 * padding;
            let windows = Windows {
                height,
                width,
                kernel,
                stride,
                padding,
                dilation,
                down,
                across,
            };
            let (inputs, outputs) = (kernel * kernel * channels, 37);
            let map = numbers(height * width * channels, 1);
            let (weight, bias) = (numbers(outputs * inputs, 2), numbers(outputs, 3));
            let matrix = PackedMatrix::for_vectors(&weight, inputs, outputs).unwrap();
            let epilogue = GemmEpilogue {
                bias: Some(&bias),
                activation: Some(Activation::Relu),
                residual: None,
            };
            let mut rows = Vec::new();
            windows.lay_out(&map, 0..down * across, &mut rows);
            for isa in Isa::for_rows().unwrap() {
                let found = multiply_windows(isa, &matrix, (&map, &windows), &epilogue).unwrap();
                let wanted = matrix.multiply(isa, &rows, down * across, &epilogue);
                assert!(found == wanted, "{} {kernel} {stride}", isa.name());
            }
            let few = Windows { down: 1, ..windows };
            let found = multiply_windows(Isa::Scalar, &matrix, (&map, &few), &epilogue);
            assert!(found.is_none());
        }
    }
}
