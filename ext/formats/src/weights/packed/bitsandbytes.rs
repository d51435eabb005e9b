//! bitsandbytes: NF4 and FP4 with a table of levels and scales that may be quantized themselves, and LLM.int8.

use serde_json::Value;

use super::compressed::signed_bytes;
use super::grouped::{Group, Grouped, Layout, Levels, Rounding};
use super::parts::Parts;
use super::scheme::Scheme;
use super::{Found, Packed};
use crate::weights::Element;
use crate::Result;

/// What a state of four bits is called after its weight.
const STATES: [(&str, &str); 2] = [
    (".quant_state.bitsandbytes__nf4", "nf4"),
    (".quant_state.bitsandbytes__fp4", "fp4"),
];

/// One over 127, as the reference multiplies by it.
const BYTE_STEP: f32 = 7.874_016e-3;

pub fn find(parts: &Parts<'_>, _: &Scheme, name: &str) -> Result<Option<Found>> {
    for (ending, format) in STATES {
        if let Some(weight) = name.strip_suffix(ending) {
            return four_bits(parts, weight, name, format).map(Some);
        }
    }
    let Some(module) = name.strip_suffix(".weight") else {
        return Ok(None);
    };
    let scales = format!("{module}.SCB");
    match parts.element(name) {
        Some(Element::I8) => eight_bits(parts, module, name, scales).map(Some),
        Some(Element::U8)
            if STATES
                .iter()
                .all(|(ending, _)| !parts.has(&format!("{name}{ending}"))) =>
        {
            Err(parts.corrupt(name, "it is packed, and its quant_state is missing"))
        }
        _ => Ok(None),
    }
}

/// Rows of signed bytes, with the largest number of each.
fn eight_bits(parts: &Parts<'_>, module: &str, name: &str, scales: String) -> Result<Found> {
    let (outputs, inputs) = parts.matrix(name)?;
    parts.expect(&scales, &[outputs])?;
    let format = format!("{module}.weight_format");
    if parts.has(&format) && parts.number(&format)? != 0.0 {
        return Err(parts.unsupported(&format, "bytes in the order of columns are not supported"));
    }
    let (codes, largest) = (name.to_owned(), scales.clone());
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let layout = Layout::Grid {
            rows: 1,
            columns: inputs.max(1),
        };
        let grouped = signed_bytes(parts, &codes, (&largest, None), layout, (outputs, inputs))?;
        let grouped = Grouped {
            factor: BYTE_STEP,
            ..grouped
        };
        parts.checked(&codes, grouped)
    };
    Ok(Found {
        name: name.to_owned(),
        parts: vec![scales, format],
        packed: Packed {
            shape: vec![outputs, inputs],
            format: "int8",
            transposed: false,
            fp8_rows: false,
            unpack: Box::new(unpack),
        },
    })
}

/// What the state of a weight says of it, in JSON.
struct State {
    shape: Vec<usize>,
    block: usize,
    rounding: Rounding,
    nested: Option<(usize, f32)>,
}

impl State {
    fn read(parts: &Parts<'_>, name: &str) -> Result<Self> {
        let bytes = parts.bytes(name)?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| parts.corrupt(name, format!("its JSON is malformed ({error})")))?;
        let size = |key: &str| {
            value
                .get(key)
                .and_then(Value::as_u64)
                .map(|size| size as usize)
        };
        let missing = |key: &str| parts.corrupt(name, format!("it does not say {key:?}"));
        let shape = value.get("shape").and_then(Value::as_array);
        let sides = shape.map(|sides| sides.iter().map(|side| Some(side.as_u64()? as usize)));
        let shape: Option<Vec<usize>> = sides.and_then(|mut sides| sides.by_ref().collect());
        let block = size("blocksize").filter(|&size| size > 0);
        let offset = value.get("nested_offset").and_then(Value::as_f64);
        let nested = match (size("nested_blocksize"), offset) {
            (Some(size), Some(offset)) if size > 0 => Some((size, offset as f32)),
            (None, None) => None,
            _ => return Err(missing("nested_blocksize and nested_offset")),
        };
        Ok(Self {
            shape: shape
                .filter(|shape| shape.len() == 2)
                .ok_or_else(|| missing("shape"))?,
            block: block.ok_or_else(|| missing("blocksize"))?,
            rounding: match value.get("dtype").and_then(Value::as_str) {
                Some("float16") => Rounding::F16,
                Some("bfloat16") => Rounding::Bf16,
                Some("float32") => Rounding::None,
                _ => return Err(missing("dtype")),
            },
            nested,
        })
    }
}

fn four_bits(
    parts: &Parts<'_>,
    weight: &str,
    state_name: &str,
    format: &'static str,
) -> Result<Found> {
    let state = State::read(parts, state_name)?;
    let part = |ending: &str| format!("{weight}.{ending}");
    let [scales, levels, inner_scales, inner_levels] =
        ["absmax", "quant_map", "nested_absmax", "nested_quant_map"].map(part);
    let (rows, columns) = (state.shape[0], state.shape[1]);
    let elements = rows.checked_mul(columns).filter(|&count| count < 1 << 48);
    let held = parts.info(weight)?.bytes;
    let Some(elements) = elements.filter(|count| count.div_ceil(2) == held) else {
        return Err(parts.corrupt(
            weight,
            format!(
                "its {held} bytes do not hold a weight of the shape {:?}",
                state.shape
            ),
        ));
    };
    parts.expect_type(weight, &[Element::U8])?;
    parts.expect(&levels, &[16])?;
    parts.expect_type(&levels, &[Element::F32])?;
    let count = elements.div_ceil(state.block);
    parts.expect(&scales, &[count])?;
    if let Some((size, _)) = state.nested {
        parts.expect_type(&scales, &[Element::U8])?;
        parts.expect(&inner_scales, &[count.div_ceil(size)])?;
        parts.expect(&inner_levels, &[256])?;
        parts.expect_type(&inner_levels, &[Element::F32])?;
    } else {
        parts.expect_type(&scales, &[Element::F32])?;
    }
    let mut all = vec![state_name.to_owned(), scales.clone(), levels.clone()];
    all.extend([inner_scales.clone(), inner_levels.clone()]);
    let shape = state.shape.clone();
    let codes = weight.to_owned();
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let groups = match state.nested {
            Some((size, offset)) => {
                let (levels, scale) = (parts.scales(&inner_levels)?, parts.scales(&inner_scales)?);
                let bytes = parts.bytes(&scales)?;
                let scale = |(at, &byte): (usize, &u8)| {
                    levels[usize::from(byte)] * scale[at / size] + offset
                };
                bytes.iter().enumerate().map(scale).collect()
            }
            None => parts.scales(&scales)?,
        };
        let mut table = [0f32; 256];
        table[..16].copy_from_slice(&parts.scales(&levels)?);
        let bytes = parts.bytes(&codes)?;
        // The first of two elements is in the upper half of its byte.
        let nibbles = (0..elements).map(|at| bytes[at / 2] >> (4 * (1 - at % 2)) & 0x0f);
        let grouped = Grouped {
            rows,
            columns,
            codes: nibbles.collect(),
            levels: Levels::Table(Box::new(table)),
            layout: Layout::Run(state.block),
            groups: groups.into_iter().map(Group::scaled).collect(),
            affine: false,
            factor: 1.0,
            rounding: state.rounding,
        };
        parts.checked(&codes, grouped)
    };
    Ok(Found {
        name: weight.to_owned(),
        parts: all,
        packed: Packed {
            shape,
            format,
            transposed: false,
            fp8_rows: false,
            unpack: Box::new(unpack),
        },
    })
}
