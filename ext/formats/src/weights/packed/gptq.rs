//! GPTQ and AWQ: codes of several rows or columns in words of 32 bits, and scales and zero points by group.

use rayon::prelude::*;

use super::grouped::{Group, Grouped, Layout, Levels, Rounding};
use super::parts::{field, group_width, transposed_groups, Parts};
use super::scheme::Scheme;
use super::{Found, Packed};
use crate::weights::Element;
use crate::Result;
use base::runtime::threads;

/// The parts of a module.
#[derive(Clone)]
struct Names {
    module: String,
    codes: String,
    zeros: String,
    scales: String,
    order: Option<String>,
}

impl Names {
    fn of(parts: &Parts<'_>, name: &str) -> Option<Self> {
        let module = name.strip_suffix(".qweight")?;
        let part = |ending: &str| format!("{module}.{ending}");
        Some(Self {
            module: module.to_owned(),
            codes: name.to_owned(),
            zeros: part("qzeros"),
            scales: part("scales"),
            order: Some(part("g_idx")).filter(|name| parts.has(name)),
        })
    }

    fn found(self, shape: Vec<usize>, format: &'static str, unpack: super::Unpack) -> Found {
        let all = [self.codes, self.zeros, self.scales].into_iter();
        Found {
            name: format!("{}.weight", self.module),
            parts: all.chain(self.order).collect(),
            packed: Packed {
                shape,
                format,
                transposed: false,
                fp8_rows: false,
                unpack,
            },
        }
    }
}

const WORDS: &[Element] = &[Element::I32, Element::U32];

/// GPTQ: codes [inputs · bits / 32, outputs], zero points [groups, outputs · bits / 32], scales [groups, outputs].
pub fn find(parts: &Parts<'_>, scheme: &Scheme, name: &str) -> Result<Option<Found>> {
    let Some(names) = Names::of(parts, name) else {
        return Ok(None);
    };
    parts.expect_type(name, WORDS)?;
    parts.expect_type(&names.zeros, WORDS)?;
    let (height, outputs) = parts.matrix(name)?;
    let (count, zero_width) = parts.matrix(&names.zeros)?;
    // Layers may have other bits than the configuration says; zero points show them.
    let bits = (zero_width * 32).checked_div(outputs).unwrap_or(0);
    if ![2, 3, 4, 8].contains(&bits) || bits * outputs != zero_width * 32 {
        return Err(parts.corrupt(
            &names.zeros,
            format!("{zero_width} words do not hold zero points of {outputs} outputs with 2, 3, 4 or 8 bits each"),
        ));
    }
    let inputs = height * 32 / bits;
    if inputs * bits != height * 32 {
        return Err(parts.corrupt(
            name,
            format!("{height} words are not whole rows of {bits} bits"),
        ));
    }
    parts.expect(&names.scales, &[count, outputs])?;
    if let Some(order) = &names.order {
        parts.expect(order, &[inputs])?;
    }
    let group = group_width(inputs, count, scheme.size(&["group_size", "q_group_size"]));
    let Some(group) = group else {
        return Err(parts.corrupt(
            &names.scales,
            format!("{count} groups do not divide {inputs} inputs"),
        ));
    };
    // The first version stores one less than the zero point.
    let version = scheme.text("checkpoint_format").unwrap_or("gptq");
    let added = u8::from(version != "gptq_v2");
    let all = names.clone();
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let words = parts.words(&all.codes)?;
        let codes = rows(outputs, inputs, |row, column| {
            field(|at| words[at * outputs + row], column * bits, bits)
        })?;
        let zeros = parts.words(&all.zeros)?;
        let scales = parts.scales(&all.scales)?;
        let most = ((1u16 << bits) - 1) as u8;
        let groups = transposed_groups(outputs, count, |row, group| {
            let zero = field(|at| zeros[group * zero_width + at], row * bits, bits);
            Group {
                scale: scales[group * outputs + row],
                zero: f32::from(zero.wrapping_add(added) & most),
                minimum: 0.0,
            }
        });
        let layout = parts.column_groups(all.order.as_deref(), (inputs, group, count))?;
        parts.checked(
            &all.codes,
            integers((outputs, inputs), codes, layout, groups),
        )
    };
    Ok(Some(names.found(
        vec![outputs, inputs],
        "gptq",
        Box::new(unpack),
    )))
}

/// Which of eight columns a nibble of AWQ's words holds.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// AWQ: codes [inputs, outputs / 8], zero points [groups, outputs / 8], scales [groups, outputs].
pub fn find_awq(parts: &Parts<'_>, scheme: &Scheme, name: &str) -> Result<Option<Found>> {
    let Some(names) = Names::of(parts, name) else {
        return Ok(None);
    };
    parts.expect_type(name, WORDS)?;
    parts.expect_type(&names.zeros, WORDS)?;
    let (inputs, width) = parts.matrix(name)?;
    let (count, outputs) = parts.matrix(&names.scales)?;
    if outputs != 8 * width {
        return Err(parts.corrupt(
            &names.scales,
            format!("scales of {outputs} outputs do not fit {width} words of eight"),
        ));
    }
    parts.expect(&names.zeros, &[count, width])?;
    let group = group_width(inputs, count, scheme.size(&["group_size", "q_group_size"]));
    let Some(group) = group else {
        return Err(parts.corrupt(
            &names.scales,
            format!("{count} groups do not divide {inputs} inputs"),
        ));
    };
    // Where the nibble of a column is.
    let mut shifts = [0; 8];
    for (nibble, column) in AWQ_ORDER.into_iter().enumerate() {
        shifts[column] = 4 * nibble;
    }
    let all = names.clone();
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let words = parts.words(&all.codes)?;
        let nibble = |words: &[u32], line: usize, row: usize| {
            (words[line * width + row / 8] >> shifts[row % 8] & 0x0f) as u8
        };
        let codes = rows(outputs, inputs, |row, column| nibble(&words, column, row))?;
        let (zeros, scales) = (parts.words(&all.zeros)?, parts.scales(&all.scales)?);
        let groups = transposed_groups(outputs, count, |row, group| Group {
            scale: scales[group * outputs + row],
            zero: f32::from(nibble(&zeros, group, row)),
            minimum: 0.0,
        });
        let layout = Layout::Grid {
            rows: 1,
            columns: group,
        };
        parts.checked(
            &all.codes,
            integers((outputs, inputs), codes, layout, groups),
        )
    };
    Ok(Some(names.found(
        vec![outputs, inputs],
        "awq",
        Box::new(unpack),
    )))
}

/// Codes [rows, columns], each computed from its place.
pub fn rows(
    rows: usize,
    columns: usize,
    code: impl Fn(usize, usize) -> u8 + Sync + Send,
) -> Result<Vec<u8>> {
    let mut codes = vec![0u8; rows * columns];
    if codes.is_empty() {
        return Ok(codes);
    }
    threads::install(|| {
        let lines = codes.par_chunks_exact_mut(columns).enumerate();
        lines.for_each(|(row, line)| {
            for (column, found) in line.iter_mut().enumerate() {
                *found = code(row, column);
            }
        });
    })?;
    Ok(codes)
}

/// A matrix whose codes are integers with zero points.
pub fn integers(
    (rows, columns): (usize, usize),
    codes: Vec<u8>,
    layout: Layout,
    groups: Vec<Group>,
) -> Grouped {
    Grouped {
        rows,
        columns,
        codes,
        levels: Levels::Codes,
        layout,
        groups,
        affine: false,
        factor: 1.0,
        rounding: Rounding::None,
    }
}
