//! HQQ: groups of a flattened weight, whose codes share bytes with those of other groups, and real zero points.

use super::grouped::{Group, Grouped, Layout, Levels, Rounding};
use super::parts::Parts;
use super::scheme::Scheme;
use super::{Found, Packed};
use crate::weights::Element;
use crate::Result;

pub const FORMAT: &str = "hqq";
/// What else a module of HQQ stores, which the numbers do not depend on or which is read by name.
const SETTINGS: [&str; 16] = [
    "scale",
    "zero",
    "shape",
    "nbits",
    "axis",
    "group_size",
    "packing",
    "unpack_view_dtype",
    "view_as_float",
    "compute_dtype",
    "channel_wise",
    "optimize",
    "round_zero",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
];

pub fn find(parts: &Parts<'_>, _: &Scheme, name: &str) -> Result<Option<Found>> {
    let Some(module) = name.strip_suffix(".W_q") else {
        return Ok(None);
    };
    let part = |ending: &str| format!("{module}.{ending}");
    if parts.has(&part("quant_scale")) && parts.number(&part("quant_scale"))? != 0.0 {
        return Err(parts.unsupported(
            name,
            "scales that are quantized themselves are not supported",
        ));
    }
    let whole = |ending: &str| -> Result<usize> {
        let number = parts.number(&part(ending))?;
        if number.fract() == 0.0 && number >= 0.0 {
            Ok(number as usize)
        } else {
            Err(parts.corrupt(&part(ending), format!("{number} is not a size")))
        }
    };
    let (bits, axis) = (whole("nbits")?, whole("axis")?);
    let shape = parts.integers(&part("shape"))?;
    let sides: Option<Vec<usize>> = shape
        .iter()
        .map(|&side| usize::try_from(side).ok())
        .collect();
    let Some(sides) =
        sides.filter(|sides| sides.len() == 2 && sides.iter().all(|&side| side < 1 << 32))
    else {
        return Err(parts.corrupt(
            &part("shape"),
            format!("{shape:?} is not the shape of a matrix"),
        ));
    };
    let elements = sides[0] * sides[1];
    let group = if parts.has(&part("group_size")) {
        whole("group_size")?
    } else {
        sides[1 - axis.min(1)]
    };
    if axis > 1 || group == 0 || !elements.is_multiple_of(group) {
        return Err(parts.corrupt(
            name,
            format!("groups of {group} elements along the axis {axis} do not divide the shape {sides:?}"),
        ));
    }
    let count = elements / group;
    // Groups are the lines of a matrix, or its columns.
    let (lines, width) = if axis == 1 {
        (count, group)
    } else {
        (group, count)
    };
    let (per_byte, word) = match bits {
        8 => (1, Element::U8),
        4 => (2, Element::U8),
        2 => (4, Element::U8),
        1 => (8, Element::U8),
        3 => (10, Element::I32),
        _ => return Err(parts.unsupported(name, format!("HQQ with {bits} bits is not supported"))),
    };
    let high = lines.div_ceil(per_byte);
    parts.expect_type(name, &[word])?;
    parts.expect(name, &[high, width])?;
    let scale_shape = if axis == 1 { [count, 1] } else { [1, count] };
    let [scales, zeros] = ["scale", "zero"].map(part);
    parts.expect(&scales, &scale_shape)?;
    parts.expect(&zeros, &scale_shape)?;
    let codes = name.to_owned();
    let (rows, columns) = (sides[0], sides[1]);
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let words: Vec<u32> = match word {
            Element::U8 => parts
                .bytes(&codes)?
                .iter()
                .map(|&byte| byte.into())
                .collect(),
            _ => parts.words(&codes)?,
        };
        // The first of the lines that share words are in the upper bits.
        let mask = (1u32 << bits) - 1;
        let code = |at: usize| {
            let (line, column) = (at / width, at % width);
            let shift = bits * (per_byte - 1 - line / high);
            (words[line % high * width + column] >> shift & mask) as u8
        };
        let (scales, zeros) = (parts.scales(&scales)?, parts.scales(&zeros)?);
        let groups: Vec<Group> = scales
            .iter()
            .zip(&zeros)
            .map(|(&scale, &zero)| Group {
                scale,
                zero,
                minimum: 0.0,
            })
            .collect();
        // Along the other axis, neighbours have different groups, and those of whole rows come in turns.
        let (layout, groups) = match axis {
            1 => (Layout::Run(group), groups),
            _ if columns > 0 && count.is_multiple_of(columns) => {
                (Layout::Lines(count / columns), groups)
            }
            _ => (
                Layout::Run(1),
                (0..elements).map(|at| groups[at % count]).collect(),
            ),
        };
        let grouped = Grouped {
            rows,
            columns,
            codes: (0..elements).map(code).collect(),
            levels: Levels::Codes,
            layout,
            groups,
            affine: false,
            factor: 1.0,
            rounding: Rounding::None,
        };
        parts.checked(&codes, grouped)
    };
    let settings = SETTINGS.iter().map(|setting| part(setting));
    Ok(Some(Found {
        name: part("weight"),
        parts: settings.chain([name.to_owned()]).collect(),
        packed: Packed {
            shape: sides,
            format: FORMAT,
            transposed: false,
            fp8_rows: false,
            unpack: Box::new(unpack),
        },
    }))
}
