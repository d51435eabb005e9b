//! MLX: streams of codes in words, and a scale and a bias for every group of a row.

use serde_json::Value;

use super::floats::mxfp4;
use super::gptq::{integers, rows};
use super::grouped::{Group, Grouped, Layout};
use super::parts::{field, Parts};
use super::scheme::Scheme;
use super::{Found, Packed};
use crate::weights::Element;
use crate::Result;

pub fn find(parts: &Parts<'_>, scheme: &Scheme, name: &str) -> Result<Option<Found>> {
    let Some(module) = name.strip_suffix(".scales") else {
        return Ok(None);
    };
    let part = |ending: &str| format!("{module}.{ending}");
    let [codes, biases] = ["weight", "biases"].map(part);
    parts.expect_type(&codes, &[Element::U32, Element::I32])?;
    let (outputs, width) = parts.matrix(&codes)?;
    let (height, count) = parts.matrix(name)?;
    // A layer may have settings of its own, by its name.
    let own = scheme.get(module);
    let said = |key: &str| {
        let own = own.and_then(|own| own.get(key));
        own.or_else(|| scheme.get(key)).and_then(Value::as_u64)
    };
    let mode = own
        .and_then(|own| own.get("mode"))
        .and_then(Value::as_str)
        .or_else(|| scheme.text("mode"));
    let (Some(bits), Some(group)) = (said("bits"), said("group_size")) else {
        return Err(parts.corrupt(
            &codes,
            "the configuration does not say its bits and group_size",
        ));
    };
    let (bits, group) = (bits as usize, group as usize);
    if ![2, 3, 4, 5, 6, 8].contains(&bits) {
        return Err(parts.unsupported(&codes, format!("MLX with {bits} bits is not supported")));
    }
    let inputs = count.checked_mul(group).filter(|inputs| {
        group > 0 && height == outputs && inputs.checked_mul(bits) == Some(32 * width)
    });
    let Some(inputs) = inputs else {
        return Err(parts.corrupt(
            name,
            format!(
                "{count} groups of {group} elements do not fit words of the shape {:?}",
                [outputs, width]
            ),
        ));
    };
    let found = |format: &'static str, unpack: super::Unpack| Found {
        name: part("weight"),
        parts: vec![name.to_owned(), biases.clone()],
        packed: Packed {
            shape: vec![outputs, inputs],
            format,
            transposed: false,
            fp8_rows: false,
            unpack,
        },
    };
    let scales = name.to_owned();
    if mode == Some("mxfp4") {
        if group != 32 || bits != 4 {
            return Err(parts.corrupt(&codes, "MXFP4 has groups of 32 elements of four bits"));
        }
        parts.expect_type(name, &[Element::U8])?;
        let words = codes.clone();
        let unpack =
            move |parts: &Parts<'_>| mxfp4(parts, (&words, &scales), (outputs, inputs), outputs);
        return Ok(Some(found("mxfp4", Box::new(unpack))));
    }
    parts.expect(&biases, &[outputs, count])?;
    let minimums = biases.clone();
    let unpack = move |parts: &Parts<'_>| -> Result<Grouped> {
        let words = parts.words(&codes)?;
        let all = rows(outputs, inputs, |row, column| {
            field(|at| words[row * width + at], column * bits, bits)
        })?;
        let (scales, minimums) = (parts.scales(&scales)?, parts.scales(&minimums)?);
        let groups = scales.iter().zip(&minimums);
        let groups = groups.map(|(&scale, &minimum)| Group {
            scale,
            zero: 0.0,
            minimum,
        });
        let layout = Layout::Grid {
            rows: 1,
            columns: group,
        };
        let grouped = integers((outputs, inputs), all, layout, groups.collect());
        let grouped = Grouped {
            affine: true,
            ..grouped
        };
        parts.checked(&codes, grouped)
    };
    Ok(Some(found("mlx", Box::new(unpack))))
}
