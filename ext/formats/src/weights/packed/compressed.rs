//! compressed-tensors (llm-compressor) and ModelOpt: packed integers, bytes, FP8, NVFP4 and MXFP4, by what the parts of
//! a module are.

use serde_json::Value;

use super::floats::{fp8, mxfp4, nvfp4, scale_layout};
use super::gptq::{integers, rows};
use super::grouped::{Group, Grouped, Layout};
use super::parts::{field, group_width, Parts};
use super::scheme::Scheme;
use super::{Found, Packed, Unpack};
use crate::weights::Element;
use crate::Result;

/// Parts that say how inputs are rounded, which weights alone do not ask for.
const OF_INPUTS: [&str; 4] = [
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "weight_shape",
];

pub fn find(parts: &Parts<'_>, scheme: &Scheme, name: &str) -> Result<Option<Found>> {
    let settings = group_settings(scheme);
    if let Some(module) = name.strip_suffix(".weight_packed") {
        return match parts.element(name) {
            Some(Element::U8) => packed_floats(parts, module),
            _ => packed_integers(parts, &settings, module),
        }
        .map(Some);
    }
    let Some(module) = name.strip_suffix(".weight") else {
        return Ok(None);
    };
    match parts.element(name) {
        Some(Element::I8) => bytes(parts, module).map(Some),
        Some(Element::F8E4M3 | Element::F8E5M2) => {
            let block = settings.iter().find_map(|group| group.block);
            let rows = settings.iter().any(|group| group.fp8_rows);
            fp8(parts, (block.unwrap_or([128, 128]), rows), name)
        }
        _ => Ok(None),
    }
}

/// What a group of modules says of its weights.
struct Settings {
    bits: Option<usize>,
    group: Option<usize>,
    block: Option<[usize; 2]>,
    /// Whether its weights and the rows that they are multiplied with are floats of eight bits.
    fp8_rows: bool,
}

fn group_settings(scheme: &Scheme) -> Vec<Settings> {
    let groups = scheme.get("config_groups").and_then(Value::as_object);
    let groups = groups.into_iter().flat_map(|groups| groups.values());
    let size = |value: &Value, key: &str| value.get(key)?.as_u64().map(|size| size as usize);
    let is_fp8 = |value: &Value| {
        let kind = value.get("type").and_then(Value::as_str);
        size(value, "num_bits") == Some(8) && kind == Some("float")
    };
    groups
        .filter_map(|group| Some((group.get("weights")?, group.get("input_activations"))))
        .map(|(weights, inputs)| Settings {
            fp8_rows: is_fp8(weights) && inputs.is_some_and(is_fp8),
            bits: size(weights, "num_bits"),
            group: size(weights, "group_size"),
            block: weights.get("block_structure").and_then(|block| {
                let side = |at: usize| Some(block.as_array()?.get(at)?.as_u64()? as usize);
                Some([side(0)?, side(1)?])
            }),
        })
        .collect()
}

fn found(
    module: &str,
    parts: Vec<String>,
    shape: Vec<usize>,
    format: &'static str,
    unpack: Unpack,
) -> Found {
    let beside = OF_INPUTS.iter().map(|part| format!("{module}.{part}"));
    Found {
        name: format!("{module}.weight"),
        parts: parts.into_iter().chain(beside).collect(),
        packed: Packed {
            shape,
            format,
            transposed: false,
            fp8_rows: false,
            unpack,
        },
    }
}

/// The rows and columns that `weight_shape` says.
fn said_shape(parts: &Parts<'_>, name: &str) -> Result<(usize, usize)> {
    parts.info(name)?;
    let sides = parts.integers(name)?;
    match sides[..] {
        [rows, columns] if (0..1 << 40).contains(&rows) && (0..1 << 40).contains(&columns) => {
            Ok((rows as usize, columns as usize))
        }
        _ => Err(parts.corrupt(name, format!("{sides:?} is not the shape of a matrix"))),
    }
}

/// Words with a stream of codes for every row, whose zero is in the middle unless zero points are beside it.
fn packed_integers(parts: &Parts<'_>, settings: &[Settings], module: &str) -> Result<Found> {
    let part = |ending: &str| format!("{module}.{ending}");
    let [codes, scales, zeros, shape, order] = [
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_g_idx",
    ]
    .map(part);
    parts.expect_type(&codes, &[Element::I32, Element::U32])?;
    let (height, width) = parts.matrix(&codes)?;
    let (outputs, inputs) = said_shape(parts, &shape)?;
    let fits = |bits: usize| (inputs * bits).div_ceil(32) == width;
    let said = settings.iter().filter_map(|group| group.bits);
    let bits = said
        .chain([4, 8, 2, 3, 5, 6, 7, 1])
        .find(|&bits| (1..=8).contains(&bits) && fits(bits));
    let Some(bits) = bits.filter(|_| outputs == height) else {
        return Err(parts.corrupt(
            &codes,
            format!(
                "words of the shape {:?} do not hold a weight of the shape {:?}",
                [height, width],
                [outputs, inputs]
            ),
        ));
    };
    let order = Some(order).filter(|name| parts.has(name));
    if let Some(order) = &order {
        parts.expect(order, &[inputs])?;
    }
    let said = settings.iter().find_map(|group| group.group);
    let (count, rows_per_scale) = scale_counts(parts, &scales, outputs)?;
    let Some(group) = group_width(inputs, count, said) else {
        return Err(parts.corrupt(
            &scales,
            format!("{count} groups do not divide {inputs} inputs"),
        ));
    };
    let zeros = Some(zeros).filter(|name| parts.has(name));
    let zero_height = (outputs * bits).div_ceil(32);
    if let Some(zeros) = &zeros {
        match parts.element(zeros) {
            Some(Element::I8) => parts.expect(zeros, &[outputs / rows_per_scale, count])?,
            _ => parts.expect(zeros, &[zero_height, count])?,
        }
    }
    let all = [codes.clone(), scales.clone()].into_iter();
    let all = all.chain(zeros.clone()).chain(order.clone()).collect();
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let words = parts.words(&codes)?;
        let all = rows(outputs, inputs, |row, column| {
            field(|at| words[row * width + at], column * bits, bits)
        })?;
        let middle = 1i32 << (bits - 1);
        let zero = zero_points(parts, zeros.as_deref(), (count, bits))?;
        let scales = parts.scales(&scales)?;
        let groups = (0..outputs * count).map(|at| {
            let (row, group) = (at / count, at % count);
            Group {
                scale: scales[row / rows_per_scale * count + group],
                zero: zero(row / rows_per_scale, group).unwrap_or(middle) as f32,
                minimum: 0.0,
            }
        });
        let groups = groups.collect();
        let layout = parts.column_groups(order.as_deref(), (inputs, group, count))?;
        parts.checked(&codes, integers((outputs, inputs), all, layout, groups))
    };
    Ok(found(
        module,
        all,
        vec![outputs, inputs],
        "packed-int",
        Box::new(unpack),
    ))
}

/// How many groups a row has, and how many rows share them.
fn scale_counts(parts: &Parts<'_>, name: &str, rows: usize) -> Result<(usize, usize)> {
    let shape = parts.info(name)?.shape;
    match shape[..] {
        [] | [1] | [1, 1] => Ok((1, rows.max(1))),
        [high] if high == rows => Ok((1, 1)),
        [high, count] if high == rows => Ok((count, 1)),
        _ => Err(parts.corrupt(
            name,
            format!("scales of the shape {shape:?} do not fit {rows} outputs"),
        )),
    }
}

type ZeroPoint<'a> = Box<dyn Fn(usize, usize) -> Option<i32> + 'a>;

/// The zero point of a row's group as a code: packed along the rows, or a signed byte each.
fn zero_points<'a>(
    parts: &Parts<'_>,
    name: Option<&str>,
    (count, bits): (usize, usize),
) -> Result<ZeroPoint<'a>> {
    let Some(name) = name else {
        return Ok(Box::new(|_, _| None));
    };
    let middle = 1i32 << (bits - 1);
    if parts.element(name) == Some(Element::I8) {
        let zeros = parts.bytes(name)?;
        let inside = |&zero: &u8| (-middle..middle).contains(&i32::from(zero as i8));
        if !zeros.iter().all(inside) {
            return Err(parts.corrupt(name, format!("a zero point is not within {bits} bits")));
        }
        return Ok(Box::new(move |row, group| {
            Some(i32::from(zeros[row * count + group] as i8) + middle)
        }));
    }
    let words = parts.words(name)?;
    Ok(Box::new(move |row, group| {
        let word = |at: usize| words[at * count + group];
        Some(i32::from(field(word, row * bits, bits)))
    }))
}

/// A signed byte for each element.
fn bytes(parts: &Parts<'_>, module: &str) -> Result<Found> {
    let part = |ending: &str| format!("{module}.{ending}");
    let [codes, scales, zeros] = ["weight", "weight_scale", "weight_zero_point"].map(part);
    let (outputs, inputs) = parts.matrix(&codes)?;
    if !parts.has(&scales) {
        return Err(parts.corrupt(&codes, format!("its scales ({scales}) are missing")));
    }
    let layout = scale_layout(parts, &scales, &[outputs, inputs], [128, 128])?;
    drop(layout);
    let zeros = Some(zeros).filter(|name| parts.has(name));
    if let Some(zeros) = &zeros {
        parts.expect_type(zeros, &[Element::I8])?;
        parts.expect(zeros, &parts.info(&scales)?.shape)?;
    }
    let all = [codes.clone(), scales.clone()]
        .into_iter()
        .chain(zeros.clone());
    let all = all.skip(1).collect();
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let layout = scale_layout(parts, &scales, &[outputs, inputs], [128, 128])?;
        let found = signed_bytes(
            parts,
            &codes,
            (&scales, zeros.as_deref()),
            layout,
            (outputs, inputs),
        )?;
        parts.checked(&codes, found)
    };
    Ok(found(
        module,
        all,
        vec![outputs, inputs],
        "int8",
        Box::new(unpack),
    ))
}

/// Signed bytes become codes around 128.
pub fn signed_bytes(
    parts: &Parts<'_>,
    codes: &str,
    (scales, zeros): (&str, Option<&str>),
    layout: Layout,
    size: (usize, usize),
) -> Result<Grouped> {
    let zeros = zeros.map(|zeros| parts.integers(zeros)).transpose()?;
    let zero = |at: usize| zeros.as_ref().map_or(0, |zeros| zeros[at]);
    let scales = parts.scales(scales)?;
    if zeros
        .as_ref()
        .is_some_and(|zeros| zeros.len() != scales.len())
    {
        return Err(parts.corrupt(codes, "it has other numbers of scales and zero points"));
    }
    let groups = scales.iter().enumerate().map(|(at, &scale)| Group {
        scale,
        zero: (128 + zero(at)) as f32,
        minimum: 0.0,
    });
    let groups = groups.collect();
    let codes = parts.bytes(codes)?.iter().map(|byte| byte ^ 0x80).collect();
    Ok(integers(size, codes, layout, groups))
}

/// NVFP4, or MXFP4 where scales are powers of two.
fn packed_floats(parts: &Parts<'_>, module: &str) -> Result<Found> {
    let part = |ending: &str| format!("{module}.{ending}");
    let [codes, scales, total] = ["weight_packed", "weight_scale", "weight_global_scale"].map(part);
    let (outputs, width) = parts.matrix(&codes)?;
    let inputs = 2 * width;
    let powers = matches!(parts.element(&scales), Some(Element::U8 | Element::F8E8M0));
    let step = if powers { 32 } else { 16 };
    if !inputs.is_multiple_of(step) {
        return Err(parts.corrupt(
            &codes,
            format!("{inputs} inputs are not whole groups of {step}"),
        ));
    }
    parts.expect(&scales, &[outputs, inputs / step])?;
    if !powers {
        parts.number(&total)?;
    }
    let all = vec![codes.clone(), scales.clone(), total.clone()];
    let format = if powers { "mxfp4" } else { "nvfp4" };
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        if powers {
            return mxfp4(parts, (&codes, &scales), (outputs, inputs), outputs);
        }
        let total = parts.number(&total)?;
        nvfp4(parts, (&codes, &scales), (outputs, inputs), |scale| {
            scale / total
        })
    };
    Ok(found(
        module,
        all,
        vec![outputs, inputs],
        format,
        Box::new(unpack),
    ))
}

/// ModelOpt: FP8 as others have it, and NVFP4 whose two scales are multiplied.
pub fn find_model_opt(parts: &Parts<'_>, _: &Scheme, name: &str) -> Result<Option<Found>> {
    let Some(module) = name.strip_suffix(".weight") else {
        return Ok(None);
    };
    if parts.element(name) != Some(Element::U8) {
        let rows = parts.has(&format!("{module}.input_scale"));
        return fp8(parts, ([128, 128], rows), name);
    }
    let part = |ending: &str| format!("{module}.{ending}");
    let [scales, total] = ["weight_scale", "weight_scale_2"].map(part);
    let (outputs, width) = parts.matrix(name)?;
    let inputs = 2 * width;
    if !inputs.is_multiple_of(16) {
        return Err(parts.corrupt(name, format!("{inputs} inputs are not whole groups of 16")));
    }
    parts.expect(&scales, &[outputs, inputs / 16])?;
    parts.number(&total)?;
    let (codes, all) = (name.to_owned(), vec![scales.clone(), total.clone()]);
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let total = parts.number(&total)?;
        nvfp4(parts, (&codes, &scales), (outputs, inputs), |scale| {
            scale * total
        })
    };
    Ok(Some(found(
        module,
        all,
        vec![outputs, inputs],
        "nvfp4",
        Box::new(unpack),
    )))
}
