//! torchao, as safetensors files have it: `module._weight_qdata` and its fellows, whose kind the header says.

use serde_json::Value;

use super::compressed::signed_bytes;
use super::floats::scale_layout;
use super::gptq::{integers, rows};
use super::grouped::{Group, Grouped, Layout, Levels, Rounding};
use super::parts::{group_width, transposed_groups, Parts};
use super::scheme::Scheme;
use super::{Found, Packed, Unpack};
use crate::weights::{element, Element};
use crate::Result;

pub fn find(parts: &Parts<'_>, _: &Scheme, name: &str) -> Result<Option<Found>> {
    let Some(prefix) = name.strip_suffix("_qdata") else {
        return Ok(None);
    };
    let Some((module, weight)) = prefix.rsplit_once("._") else {
        return Ok(None);
    };
    let weight = format!("{module}.{}", weight);
    let said = parts.0.metadata().opt_str(&weight)?.map(str::to_owned);
    let said: Option<Value> = said.and_then(|said| serde_json::from_str(&said).ok());
    let kind = said
        .as_ref()
        .and_then(|said| said.get("_type"))
        .and_then(Value::as_str);
    let Some(kind) = kind else {
        return Err(parts.unsupported(
            name,
            "the file does not say (__metadata__) how torchao quantized it",
        ));
    };
    let part = |ending: &str| format!("{prefix}_{ending}");
    let (scales, zeros) = (part("scale"), part("zero_point"));
    let zeros = Some(zeros).filter(|name| parts.has(name));
    if parts.has(&part("act_pre_scale")) {
        return Err(parts.unsupported(
            name,
            "weights whose inputs are scaled first are not supported",
        ));
    }
    let block = said
        .as_ref()
        .and_then(|said| said.get("_data")?.get("block_size")?.as_array().cloned());
    let sides: Vec<usize> = block
        .iter()
        .flatten()
        .filter_map(|side| side.as_u64().map(|side| side as usize))
        .collect();
    let (shape, format, unpack): (Vec<usize>, &'static str, Unpack) = match kind {
        "Int8Tensor" | "IntxUnpackedToInt8Tensor" => {
            let (outputs, inputs) = parts.matrix(name)?;
            parts.expect_type(name, &[Element::I8])?;
            let sides = match sides[..] {
                [rows, columns] => [rows.max(1), columns.max(1)],
                _ => [1, inputs.max(1)],
            };
            scale_layout(parts, &scales, &[outputs, inputs], sides)?;
            let codes = name.to_owned();
            let (scales, zeros) = (scales.clone(), zeros.clone());
            let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
                let layout = scale_layout(parts, &scales, &[outputs, inputs], sides)?;
                let size = (outputs, inputs);
                let found = signed_bytes(parts, &codes, (&scales, zeros.as_deref()), layout, size)?;
                parts.checked(&codes, found)
            };
            (vec![outputs, inputs], "int8", Box::new(unpack))
        }
        "Float8Tensor" => {
            let (outputs, inputs) = parts.matrix(name)?;
            parts.expect_type(name, &[Element::F8E4M3])?;
            let sides = match sides[..] {
                [rows, columns] => [rows.max(1), columns.max(1)],
                _ => [1, inputs.max(1)],
            };
            scale_layout(parts, &scales, &[outputs, inputs], sides)?;
            let (codes, scales) = (name.to_owned(), scales.clone());
            let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
                let groups = parts.scales(&scales)?.into_iter().map(Group::scaled);
                let found = Grouped {
                    rows: outputs,
                    columns: inputs,
                    codes: parts.bytes(&codes)?.to_vec(),
                    levels: Levels::Table(Box::new(element::eight_bit_levels(Element::F8E4M3))),
                    layout: scale_layout(parts, &scales, &[outputs, inputs], sides)?,
                    groups: groups.collect(),
                    affine: false,
                    factor: 1.0,
                    rounding: Rounding::None,
                };
                parts.checked(&codes, found)
            };
            (vec![outputs, inputs], "f8_e4m3", Box::new(unpack))
        }
        "Int4Tensor" => four_bits(parts, name, (&scales, zeros.as_deref()))?,
        other => {
            return Err(parts.unsupported(name, format!("torchao's {other} is not supported")));
        }
    };
    Ok(Some(Found {
        name: weight,
        parts: [name.to_owned(), scales].into_iter().chain(zeros).collect(),
        packed: Packed {
            shape,
            format,
            transposed: false,
            fp8_rows: false,
            unpack,
        },
    }))
}

/// Signed nibbles [outputs, inputs / 2], scales and minimums [groups, outputs].
fn four_bits(
    parts: &Parts<'_>,
    name: &str,
    (scales, zeros): (&str, Option<&str>),
) -> Result<(Vec<usize>, &'static str, Unpack)> {
    let (outputs, width) = parts.matrix(name)?;
    let (count, _) = parts.matrix(scales)?;
    parts.expect(scales, &[count, outputs])?;
    let Some(zeros) = zeros else {
        return Err(parts.corrupt(name, "its zero points are missing"));
    };
    parts.expect(zeros, &[count, outputs])?;
    let inputs = 2 * width;
    let Some(group) = group_width(inputs, count, None) else {
        return Err(parts.corrupt(
            scales,
            format!("{count} groups do not divide {inputs} inputs"),
        ));
    };
    let names = [name, scales, zeros].map(str::to_owned);
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let [codes, scales, zeros] = &names;
        let bytes = parts.bytes(codes)?;
        let all = rows(outputs, inputs, |row, column| {
            let nibble = bytes[row * width + column / 2] >> (4 * (column % 2)) & 0x0f;
            nibble ^ 8
        })?;
        let (scales, minimums) = (parts.scales(scales)?, parts.scales(zeros)?);
        let groups = transposed_groups(outputs, count, |row, group| Group {
            scale: scales[group * outputs + row],
            zero: 8.0,
            minimum: minimums[group * outputs + row],
        });
        let layout = Layout::Grid {
            rows: 1,
            columns: group,
        };
        let grouped = integers((outputs, inputs), all, layout, groups);
        let grouped = Grouped {
            affine: true,
            ..grouped
        };
        parts.checked(codes, grouped)
    };
    Ok((vec![outputs, inputs], "int4", Box::new(unpack)))
}
