//! Formats of small floats: FP8 with scales for tensors, rows or blocks, and FP4 with scales for 16 or 32 elements.

use super::gptq::{integers, rows};
use super::grouped::{Group, Grouped, Layout, Levels, Rounding};
use super::parts::Parts;
use super::scheme::Scheme;
use super::{Found, Packed};
use crate::weights::element::{self, power_of_two};
use crate::weights::Element;
use crate::Result;

/// The sides of blocks where a configuration does not say them.
const USUAL_BLOCK: [usize; 2] = [128, 128];

const FP8: [Element; 2] = [Element::F8E4M3, Element::F8E5M2];

/// The levels of FP4's codes, in halves; the codes from eight on are their negatives.
pub const FP4_HALVES: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// FP8: a tensor of eight-bit floats, and beside it its scales.
pub fn find_fp8(parts: &Parts<'_>, scheme: &Scheme, name: &str) -> Result<Option<Found>> {
    let block = scheme.get("weight_block_size").and_then(|said| {
        let sides = said.as_array()?;
        let side = |at: usize| Some(sides.get(at)?.as_u64()? as usize);
        Some([side(0)?, side(1)?])
    });
    let rows = match scheme.text("activation_scheme") {
        Some(said) => ["dynamic", "static"].contains(&said),
        None => scheme.text("quant_method") == Some("fbgemm_fp8"),
    };
    fp8(parts, (block.unwrap_or(USUAL_BLOCK), rows), name)
}

/// The same, whatever configuration says so, the sides of blocks, and whether rows are rounded to FP8, too.
pub fn fp8(
    parts: &Parts<'_>,
    (block, fp8_rows): ([usize; 2], bool),
    name: &str,
) -> Result<Option<Found>> {
    let Some(element) = parts.element(name).filter(|element| FP8.contains(element)) else {
        return Ok(None);
    };
    let module = name.strip_suffix(".weight");
    let candidates = match module {
        Some(module) => vec![
            format!("{module}.weight_scale_inv"),
            format!("{module}.weight_scale"),
            format!("{module}.scale"),
        ],
        None => ["_scale_inv", "_scale", "_weight_scale"]
            .map(|ending| format!("{name}{ending}"))
            .to_vec(),
    };
    // Scales are eight-bit floats themselves in some files.
    if ["_scale", "_scale_inv", ".scale"]
        .iter()
        .any(|ending| name.ends_with(ending))
    {
        return Ok(None);
    }
    let Some(scale) = candidates.iter().find(|candidate| parts.has(candidate)) else {
        return Err(parts.corrupt(
            name,
            format!("its scales are missing ({})", candidates.join(" or ")),
        ));
    };
    let shape = parts.info(name)?.shape;
    let layout = || scale_layout(parts, scale, &shape, block);
    layout()?;
    let (weight, scales) = (name.to_owned(), scale.clone());
    let size = shape.clone();
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let layout = scale_layout(parts, &scales, &size, block)?;
        let groups = parts.scales(&scales)?.into_iter().map(Group::scaled);
        let grouped = Grouped {
            rows: size[size.len() - 2],
            columns: size[size.len() - 1],
            codes: parts.bytes(&weight)?.to_vec(),
            levels: Levels::Table(Box::new(element::eight_bit_levels(element))),
            layout,
            groups: groups.collect(),
            affine: false,
            factor: 1.0,
            rounding: Rounding::None,
        };
        parts.checked(&weight, grouped)
    };
    let beside = ["input_scale", "activation_scale", "input_scale_ub"];
    let beside = beside
        .iter()
        .filter_map(|part| Some(format!("{}.{part}", module?)));
    Ok(Some(Found {
        name: name.to_owned(),
        parts: std::iter::once(scale.clone()).chain(beside).collect(),
        packed: Packed {
            shape,
            format: element.name(),
            transposed: false,
            fp8_rows,
            unpack: Box::new(unpack),
        },
    }))
}

/// How scales lie over a weight [rows, columns] or [matrices, rows, columns]: one, one per row, or one per block.
pub fn scale_layout(
    parts: &Parts<'_>,
    scale: &str,
    weight: &[usize],
    block: [usize; 2],
) -> Result<Layout> {
    let mut shape = parts.info(scale)?.shape;
    let misfit = |shape: &[usize]| {
        parts.corrupt(
            scale,
            format!("scales of the shape {shape:?} do not fit a weight of the shape {weight:?}"),
        )
    };
    let (matrices, rows, columns) = match *weight {
        [rows, columns] => (1, rows, columns),
        [matrices, rows, columns] => (matrices, rows, columns),
        _ => return Err(misfit(&shape)),
    };
    if rows == 0 || columns == 0 || block.contains(&0) {
        return Err(misfit(&shape));
    }
    let asked = shape.clone();
    if weight.len() == 3 {
        if shape.first() != Some(&matrices) {
            return Err(misfit(&asked));
        }
        shape.remove(0);
    }
    let (high, wide) = match shape[..] {
        [] => (1, 1),
        [1] => (1, 1),
        [count] if count == rows => (rows, 1),
        [high, wide] => (high, wide),
        _ => return Err(misfit(&asked)),
    };
    // Rows with scales of their own may have any groups.
    let any = high == rows;
    let step = |count: usize, extent: usize, block: usize, any: bool| match count {
        1 => Some(extent),
        _ if count == extent => Some(1),
        _ if extent.div_ceil(block) == count => Some(block),
        _ if any && count > 0 && extent.is_multiple_of(count) => Some(extent / count),
        _ => None,
    };
    let (high, wide) = (
        step(high, rows, block[0], false),
        step(wide, columns, block[1], any),
    );
    match (high, wide) {
        (Some(rows), Some(columns)) => Ok(Layout::Grid { rows, columns }),
        _ => Err(misfit(&asked)),
    }
}

/// The code of level + 12 halves that an FP4 code stands for, which block types can have.
fn shifted_level(code: u8) -> u8 {
    let level = FP4_HALVES[usize::from(code & 7)];
    match code & 8 {
        0 => 12 + level,
        _ => 12 - level,
    }
}

/// MXFP4: nibbles in the order of elements, low ones first, and a power of two for every 32 of them. Codes are bytes or
/// words, whose types and shapes callers have looked at.
pub fn mxfp4(
    parts: &Parts<'_>,
    (codes, scales): (&str, &str),
    (matrix_rows, columns): (usize, usize),
    total_rows: usize,
) -> Result<Grouped> {
    let (nibbles, bytes) = (parts.all_bytes(codes)?, parts.bytes(scales)?);
    let width = columns / 2;
    let all = rows(total_rows, columns, |row, column| {
        let byte = nibbles[row * width + column / 2];
        shifted_level(byte >> (4 * (column % 2)) & 0x0f)
    })?;
    let groups: Vec<Group> = bytes
        .iter()
        .map(|&byte| Group {
            scale: power_of_two(byte) / 2.0,
            zero: 12.0,
            minimum: 0.0,
        })
        .collect();
    if bytes.contains(&255) {
        return Err(parts.corrupt(scales, "a scale is not a number"));
    }
    let layout = Layout::Grid {
        rows: 1,
        columns: 32,
    };
    parts.checked(codes, integers((matrix_rows, columns), all, layout, groups))
}

/// gpt-oss: `X_blocks` [experts, outputs, groups, 16] and `X_scales` [experts, outputs, groups] of the weight `X`,
/// which its architecture has as [experts, inputs, outputs].
pub fn find_experts(parts: &Parts<'_>, _: &Scheme, name: &str) -> Result<Option<Found>> {
    let Some(weight) = name.strip_suffix("_blocks") else {
        return Ok(None);
    };
    let scales = format!("{weight}_scales");
    let shape = parts.info(name)?.shape;
    let [experts, outputs, groups, 16] = shape[..] else {
        return Err(parts.corrupt(
            name,
            format!("the shape {shape:?} is not that of blocks of 16 bytes"),
        ));
    };
    parts.expect_type(name, &[Element::U8])?;
    parts.expect_type(&scales, &[Element::U8, Element::F8E8M0])?;
    parts.expect(&scales, &[experts, outputs, groups])?;
    let (codes, powers) = (name.to_owned(), scales.clone());
    let unpack = move |parts: &Parts<'_>| {
        let size = (outputs, 32 * groups);
        mxfp4(parts, (&codes, &powers), size, experts * outputs)
    };
    Ok(Some(Found {
        name: weight.to_owned(),
        parts: vec![name.to_owned(), scales],
        packed: Packed {
            shape: vec![experts, 32 * groups, outputs],
            format: "mxfp4",
            transposed: true,
            fp8_rows: false,
            unpack: Box::new(unpack),
        },
    }))
}

/// NVFP4: nibbles, low ones first, a scale of eight bits for every 16 of them, and one for the tensor.
pub fn nvfp4(
    parts: &Parts<'_>,
    (codes, scales): (&str, &str),
    (height, columns): (usize, usize),
    total: impl Fn(f32) -> f32,
) -> Result<Grouped> {
    let nibbles = parts.bytes(codes)?;
    let width = columns / 2;
    let all = rows(height, columns, |row, column| {
        nibbles[row * width + column / 2] >> (4 * (column % 2)) & 0x0f
    })?;
    let mut table = [0f32; 256];
    for (code, level) in table.iter_mut().take(16).enumerate() {
        let size = f32::from(FP4_HALVES[code & 7]) / 2.0;
        *level = if code < 8 { size } else { -size };
    }
    let scales = parts.scales(scales)?;
    let groups = scales.into_iter().map(|scale| Group::scaled(total(scale)));
    let grouped = Grouped {
        rows: height,
        columns,
        codes: all,
        levels: Levels::Table(Box::new(table)),
        layout: Layout::Grid {
            rows: 1,
            columns: 16,
        },
        groups: groups.collect(),
        affine: false,
        factor: 1.0,
        rounding: Rounding::None,
    };
    parts.checked(codes, grouped)
}
