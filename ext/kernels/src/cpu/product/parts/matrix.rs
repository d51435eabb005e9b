//! A matrix [outputs, inputs] in parts.

use std::arch::x86_64::*;
use std::sync::{Arc, Mutex, PoisonError};

use super::outliers::{Column, PanelColumns};
use super::{cut, lines_of, scale, tiles, Line, LINES, MOST_INPUTS, STEP};
use crate::cpu::isa::Isa;
use crate::cpu::product::amx::TILE;
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::store::Panels;
use crate::cpu::{for_each_range, Output};
use crate::Result;

/// Inputs at least: with fewer, f32 adds less error than the integers do.
pub(super) const LEAST_INPUTS: usize = 128;

/// Lines of a panel that come before its parts: the units of its outputs.
pub(super) const UNITS: usize = PANEL * size_of::<f32>() / size_of::<Line>();

/// Weights of four bytes: three are the parts that tiles multiply, panel by panel. The fourth is what those leave
/// out, for outliers of rows, and lies behind them all.
#[derive(Clone)]
pub(crate) struct Matrix {
    lines: Panels<Line>,
    columns: Arc<[PanelColumns]>,
    inputs: usize,
}

impl Matrix {
    /// `None` without AVX-512, and for numbers or depths that the integers are not for.
    pub fn new(weight: &[f32], inputs: usize, outputs: usize) -> Result<Option<Self>> {
        let is_deep_enough = (LEAST_INPUTS..=MOST_INPUTS).contains(&inputs);
        if !Isa::available().contains(&Isa::Avx512) || !is_deep_enough {
            return Ok(None);
        }
        let count = outputs.div_ceil(PANEL);
        let (length, rest_length) = (panel_lines(inputs), rest_lines(inputs));
        let columns = Mutex::new(vec![Some(PanelColumns::default()); count]);
        // SAFETY: every panel's lines and rests are written once, and lie apart from the others'; zeroed
        // bytes are lines.
        let lines = unsafe {
            Panels::build(count * (length + rest_length), |out: Output<Line>| {
                for_each_range(count, length * STEP / 4, |range| {
                    for panel in range {
                        let lines = out.at(panel * length);
                        let rests = out.at(count * length + panel * rest_length);
                        lines.write_bytes(0, length);
                        rests.write_bytes(0, rest_length);
                        let lines = std::slice::from_raw_parts_mut(lines, length);
                        let rests = std::slice::from_raw_parts_mut(rests, rest_length);
                        let rows = weight.chunks(PANEL * inputs).nth(panel).unwrap_or(&[]);
                        let found = fill(rows, inputs, lines, rests);
                        columns.lock().unwrap_or_else(PoisonError::into_inner)[panel] = found;
                    }
                })
            })
        }?;
        let columns = columns.into_inner().unwrap_or_else(PoisonError::into_inner);
        let columns: Option<Arc<[_]>> = columns.into_iter().collect();
        Ok(columns.map(|columns| Self {
            lines,
            columns,
            inputs,
        }))
    }

    /// The units and the parts of one.
    pub(super) fn panel(&self, number: usize) -> &[Line] {
        let length = panel_lines(self.inputs);
        &self.lines[number * length..][..length]
    }

    #[cfg(test)]
    pub(super) fn panels(&self) -> usize {
        self.columns.len()
    }

    pub(super) fn columns(&self, panel: usize) -> &PanelColumns {
        &self.columns[panel]
    }

    fn rests(&self, panel: usize) -> &[Line] {
        let length = rest_lines(self.inputs);
        let first = self.columns.len() * panel_lines(self.inputs);
        &self.lines[first + panel * length..][..length]
    }

    /// Asks for the fourth bytes of an input in a panel.
    pub(super) fn ask_for_rests(&self, panel: usize, input: usize) {
        let rests = self.rests(panel);
        for half in rests.chunks_exact(rests.len() / 2) {
            let line = &half[input / STEP * TILE + input % STEP / 4];
            tiles::ask_for(line, 1);
        }
    }

    /// The weights of an input in a panel; zeros if it is split off.
    pub(super) fn column(&self, panel: usize, input: usize) -> Column {
        let small = &self.columns[panel].small;
        match small.binary_search_by_key(&input, |(input, _)| *input) {
            Ok(at) => small[at].1,
            // SAFETY: a matrix exists only where AVX-512 does.
            Err(_) => unsafe { self.join_column(panel, input) },
        }
    }

    /// A panel [inputs, 32] in f32.
    pub fn numbers(&self, panel: usize) -> Vec<f32> {
        let columns = (0..self.inputs).flat_map(|input| self.column(panel, input));
        let mut numbers: Vec<f32> = columns.collect();
        for (input, column) in &self.columns[panel].split {
            numbers[input * PANEL..][..PANEL].copy_from_slice(column);
        }
        numbers
    }

    /// # Safety
    /// The CPU has AVX-512.
    #[target_feature(enable = "avx512f")]
    unsafe fn join_column(&self, panel: usize, input: usize) -> Column {
        let (units, parts) = self.panel(panel).split_at(UNITS);
        let rests = self.rests(panel);
        let (step, four) = (input / STEP, input % STEP / 4);
        // The byte goes to the top, and back to the bottom with its sign.
        let up = _mm_cvtsi32_si128(24 - 8 * (input % 4) as i32);
        let byte = |line: &Line| {
            // SAFETY: a line is a vector, and aligned as such; AVX-512F is enabled.
            let fours = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
            _mm512_srai_epi32::<24>(_mm512_sll_epi32(fours, up))
        };
        let mut column = [0.0; PANEL];
        for (half, to) in column.chunks_exact_mut(TILE).enumerate() {
            let tiles = &parts[half * parts.len() / 2 + step * LINES..][..LINES];
            let [high, middle, low] = [0, 1, 2].map(|part| byte(&tiles[part * TILE + four]));
            let rest = byte(&rests[half * rests.len() / 2 + step * TILE + four]);
            let upper = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), middle);
            let whole = _mm512_add_epi32(_mm512_slli_epi32::<8>(upper), low);
            let (whole, rest) = (_mm512_cvtepi32_ps(whole), _mm512_cvtepi32_ps(rest));
            let whole = _mm512_fmadd_ps(rest, _mm512_set1_ps(1.0 / 256.0), whole);
            // SAFETY: a line of units is a vector of f32, and half a column is as long; AVX-512F is enabled.
            unsafe {
                let unit = _mm512_load_ps(units[half].0.as_ptr().cast());
                let lowest = _mm512_mul_ps(unit, _mm512_set1_ps(1.0 / 65536.0));
                _mm512_storeu_ps(to.as_mut_ptr(), _mm512_mul_ps(whole, lowest));
            }
        }
        column
    }
}

/// Writes the parts and the rests of a panel's outputs, and says which inputs they do not suffice for; `None` if an
/// output is not usual.
fn fill(
    rows: &[f32],
    inputs: usize,
    lines: &mut [Line],
    rests: &mut [Line],
) -> Option<PanelColumns> {
    let mut rows = rows.to_vec();
    let mut columns = PanelColumns::split_off(&mut rows, inputs)?;
    let (unit_lines, parts) = lines.split_at_mut(UNITS);
    let mut units = Vec::with_capacity(PANEL);
    let (half, half_rest) = (parts.len() / 2, rests.len() / 2);
    for (column, row) in rows.chunks(inputs).enumerate() {
        let largest = scale::largest(row.iter().copied());
        let unit = scale::unit(largest, f32::MAX, scale::SHARE_OF_WEIGHTS);
        // SAFETY: the CPU has AVX-512; half a panel has the lines of 16 rows, all steps of them.
        unsafe {
            let parts = &mut parts[column / TILE * half..][..half];
            cut::cut(row, unit, parts[column % TILE..].as_mut_ptr());
            let rests = &mut rests[column / TILE * half_rest..][..half_rest];
            cut::cut_rest(row, unit, rests[column % TILE..].as_mut_ptr());
        }
        unit_lines[column / TILE].0[column % TILE] = unit.to_bits();
        units.push(unit);
    }
    columns.keep_small(&rows, inputs, &units);
    parts.chunks_exact_mut(TILE).for_each(transpose);
    rests.chunks_exact_mut(TILE).for_each(transpose);
    Some(columns)
}

/// A tile of outputs instead of rows: fours of inputs, one after the other.
fn transpose(tile: &mut [Line]) {
    for row in 1..TILE {
        let (above, below) = tile.split_at_mut(row);
        for (column, line) in above.iter_mut().enumerate() {
            std::mem::swap(&mut line.0[row], &mut below[0].0[column]);
        }
    }
}

fn panel_lines(inputs: usize) -> usize {
    UNITS + lines_of(PANEL, inputs)
}

fn rest_lines(inputs: usize) -> usize {
    lines_of(PANEL, inputs) / 3
}
