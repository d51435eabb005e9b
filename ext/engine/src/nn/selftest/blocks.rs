use candle_core::DType;

use super::{Bench, Sum};
use crate::nn::{Embedding, Epilogue, Linear, Projection};
use crate::Result;
use base::quant::noise::{fp8_matrix, random_matrix};
use base::quant::{dequantize, BlockType, QuantizedTensor};
use kernels::blocks::DeviceBlocks;
use kernels::fp8;
use kernels::selftest::ROW_NUMBERS;
use kernels::Activation;

/// Layers and tables that stay quantized in a GPU's memory.
pub(super) fn cases(bench: &mut Bench<'_>) -> Result<()> {
    if !DeviceBlocks::computed_by(bench.device, bench.dtype) {
        return Ok(());
    }
    for kind in formats(bench) {
        let whole = kind.elements();
        let (sizes, rows): (Vec<_>, &[_]) = match (bench.extent.few, bench.extent.rows) {
            (_, true) => (vec![(3, whole)], &ROW_NUMBERS),
            (true, _) => (vec![(5, whole), (70, 3 * whole)], &[1, 6, 9, 33]),
            (false, _) => (
                vec![(1, whole), (7, 2 * whole), (64, 5 * whole), (130, 768)],
                &[1, 2, 3, 4, 5, 8, 9, 31, 33, 64, 512],
            ),
        };
        for (outputs, inputs) in sizes {
            let matrix = random_matrix(kind, outputs, inputs);
            let weight = dequantize(kind, &matrix.bytes)?;
            rows_case(bench, &matrix, &weight)?;
            for &rows in rows {
                product_case(bench, &matrix, &weight, (rows, rows % 4))?;
            }
        }
        if !bench.extent.few && !bench.extent.rows {
            aligned_cases(bench, kind)?;
        }
    }
    if formats(bench).contains(&BlockType::Fp8) && !bench.extent.few && !bench.extent.rows {
        fp8_cases(bench)?;
    }
    let (mixes, orders) = [BlockType::Q6K, BlockType::Int8]
        .map(|kind| formats(bench).contains(&kind))
        .into();
    let mut rows = [1, 3, 33].into_iter().filter(|_| mixes);
    rows.try_for_each(|rows| mixed_case(bench, rows))?;
    let mut rows = [1, 3, 33].into_iter().filter(|_| orders);
    rows.try_for_each(|rows| ordered_case(bench, rows))
}

/// Matrices that a GPU may multiply with rows of FP8: with tiles that matrices and rows do not fill, and depths that
/// several of its thread blocks share, or not.
fn fp8_cases(bench: &mut Bench<'_>) -> Result<()> {
    for square in [None, Some(128)] {
        for ((outputs, inputs), rows) in [
            ((8, 256), &[17, 128][..]),
            ((136, 512), &[16, 18, 129, 300]),
            ((392, 2048), &[33, 256, 520]),
            ((1024, 768), &[64, 700]),
        ] {
            let matrix = fp8_matrix(outputs, inputs, square);
            let weight = dequantize(matrix.kind, &matrix.bytes)?;
            for &rows in rows {
                product_case(bench, &matrix, &weight, (rows, 0))?;
            }
        }
    }
    Ok(())
}

/// Matrices whose columns are in another order, of which some share it.
fn ordered_case(bench: &mut Bench<'_>, rows: usize) -> Result<()> {
    let (inputs, outputs) = (256, 20);
    let (x, values) = bench.tensor(&[rows, inputs])?;
    let mut layers = Vec::new();
    let mut wanted = Vec::new();
    for (kind, step) in [
        (BlockType::Int8, 37),
        (BlockType::Q4_0, 37),
        (BlockType::Nf4, 101),
        (BlockType::Nf4, 1),
    ] {
        let mut matrix = random_matrix(kind, outputs, inputs);
        let columns = 0..inputs as u32;
        matrix.order = (step > 1).then(|| columns.map(|at| at * step % inputs as u32).collect());
        wanted.push(products_of(&values, &matrix.dequantize()?, inputs));
        let place = (bench.device, bench.dtype);
        layers.push(Linear::quantized(matrix, None, place)?);
    }
    for (at, others) in [(0, 1), (1, 2), (2, 3)] {
        let case = format!("{rows} rows in another order, {at}");
        bench.check_sums("blocks", case, &layers[at].forward(&x)?, &wanted[at])?;
        let pair = vec![layers[at].clone(), layers[others].clone()];
        let heads = Projection::split(pair)?.heads(&x, 1, &[])?;
        for (part, want) in heads.iter().zip([&wanted[at], &wanted[others]]) {
            let case = format!("{rows} rows in two orders, {at}");
            bench.check_sums("blocks", case, part, want)?;
        }
    }
    if bench.dtype == DType::F16 {
        return Ok(());
    }
    let want = gated(&wanted[0], &wanted[1], Activation::Gelu, bench.dtype);
    layers.truncate(2);
    let got = Projection::split(layers)?.activated(&x, Activation::Gelu, &[])?;
    let case = format!("{rows} rows in one order gated");
    bench.check_sums("blocks", case, &got, &want)
}

/// Rows that begin where a GPU reads 16 bytes at once, times more outputs than it makes at a time, and inputs that
/// several of its thread blocks share.
fn aligned_cases(bench: &mut Bench<'_>, kind: BlockType) -> Result<()> {
    for ((outputs, inputs), rows) in [
        ((32, 2560), [1, 2, 3, 20, 100]),
        ((6400, 512), [1, 2, 3, 5, 8]),
    ] {
        let matrix = random_matrix(kind, outputs, inputs);
        let weight = dequantize(kind, &matrix.bytes)?;
        for rows in rows {
            product_case(bench, &matrix, &weight, (rows, 0))?;
        }
    }
    Ok(())
}

/// Matrices of several formats in one product, as files mix them.
fn mixed_case(bench: &mut Bench<'_>, rows: usize) -> Result<()> {
    let (inputs, outputs) = (512, 10);
    let (x, values) = bench.tensor(&[rows, inputs])?;
    let mut layers = Vec::new();
    let mut wanted = Vec::new();
    for kind in [BlockType::Q4K, BlockType::Q6K, BlockType::Q8_0] {
        let matrix = random_matrix(kind, outputs, inputs);
        let weight = dequantize(kind, &matrix.bytes)?;
        wanted.push(products_of(&values, &weight, inputs));
        layers.push(Linear::quantized(
            matrix,
            None,
            (bench.device, bench.dtype),
        )?);
    }
    let split = Projection::split(layers.clone())?;
    for (part, want) in split.heads(&x, 1, &[])?.iter().zip(&wanted) {
        bench.check_sums("blocks", format!("{rows} rows mixed"), part, want)?;
    }
    if bench.dtype == DType::F16 {
        return Ok(());
    }
    let want = gated(&wanted[0], &wanted[1], Activation::Gelu, bench.dtype);
    layers.truncate(2);
    let got = Projection::split(layers)?.activated(&x, Activation::Gelu, &[])?;
    bench.check_sums("blocks", format!("{rows} rows mixed gated"), &got, &want)
}

/// Those that were named, or all; how they expand has nothing to do with the dtype.
fn formats(bench: &Bench<'_>) -> Vec<BlockType> {
    let named = |kind: &BlockType| bench.named.contains(&kind.name());
    let found: Vec<BlockType> = BlockType::every().filter(named).collect();
    if !found.is_empty() {
        return found;
    }
    let bounded = bench.extent.few || bench.extent.rows;
    if bounded && bench.dtype != DType::F32 {
        vec![
            BlockType::Q4_0,
            BlockType::Q6K,
            BlockType::Nf4Bf16,
            BlockType::Int8,
        ]
    } else {
        BlockType::every().collect()
    }
}

fn rows_case(bench: &mut Bench<'_>, matrix: &QuantizedTensor, weight: &[f32]) -> Result<()> {
    let (outputs, inputs) = (matrix.shape[0], matrix.shape[1]);
    let table = Embedding::quantized(matrix.clone(), bench.device, bench.dtype)?;
    let last = outputs as u32 - 1;
    let asked = [last, 0, last / 2, last];
    let want: Vec<f64> = asked
        .iter()
        .flat_map(|&row| &weight[row as usize * inputs..][..inputs])
        .map(|&value| f64::from(value))
        .collect();
    let case = format!("{} {outputs}x{inputs}", matrix.kind.name());
    let got = table.rows(&asked)?;
    bench.check("block_rows", case, &got, &want)
}

fn product_case(
    bench: &mut Bench<'_>,
    matrix: &QuantizedTensor,
    weight: &[f32],
    (rows, first): (usize, usize),
) -> Result<()> {
    let (outputs, inputs) = (matrix.shape[0], matrix.shape[1]);
    // A part of a wider tensor, from its given element on.
    let (wide, _) = bench.tensor(&[rows * inputs + 3])?;
    let x = wide
        .narrow(0, first, rows * inputs)?
        .reshape((rows, inputs))?;
    let held = DeviceBlocks::new(matrix, bench.device)?;
    let mut values = super::read(&x)?;
    if let Some(width) = held.rounded_width(rows, bench.dtype) {
        values = fp8::rounded_row(&values, width);
    }
    let (bias, b) = bench.tensor(&[outputs])?;
    let (residual, r) = bench.tensor(&[rows, outputs])?;
    let products = products_of(&values, weight, inputs);
    let place = (bench.device, bench.dtype);
    let plain = Linear::quantized(matrix.clone(), None, place)?;
    let biased = Linear::quantized(matrix.clone(), Some(bias), place)?;
    let rounded = match held.rounded_width(rows, bench.dtype) {
        Some(width) => format!(" rounded by {width}"),
        None => String::new(),
    };
    let case = format!("{}{rounded} {rows}x{inputs}x{outputs}", matrix.kind.name());
    bench.check_sums("blocks", case.clone(), &plain.forward(&x)?, &products)?;
    let epilogue = Epilogue {
        residual: Some(&residual),
        ..Epilogue::default()
    };
    let got = biased.forward_with(&x, &epilogue)?;
    let biased_products: Vec<Sum> = products
        .iter()
        .enumerate()
        .map(|(at, product)| product.plus(b[at % outputs]))
        .collect();
    let sums = biased_products.iter().zip(&r);
    let want: Vec<Sum> = sums.map(|(sum, &addend)| sum.plus(addend)).collect();
    bench.check_sums("blocks", format!("{case} bias and residual"), &got, &want)?;
    let both = Projection::split(vec![plain, biased])?;
    let wanted = [&products, &biased_products];
    for (part, want) in both.heads(&x, 1, &[])?.iter().zip(wanted) {
        bench.check_sums("blocks", format!("{case} joined"), part, want)?;
    }
    // The products of two sums may be more than f16 holds.
    if bench.dtype == DType::F16 {
        return Ok(());
    }
    let want = gated(&products, &biased_products, Activation::Silu, bench.dtype);
    let got = both.activated(&x, Activation::Silu, &[])?;
    bench.check_sums("blocks", format!("{case} gated"), &got, &want)
}

/// Rows of `x` times those of a matrix.
fn products_of(x: &[f64], weight: &[f32], inputs: usize) -> Vec<Sum> {
    let with = |x: &[f64], row: &[f32]| Sum::of(row.iter().zip(x).map(|(&w, x)| f64::from(w) * x));
    x.chunks(inputs)
        .flat_map(|x| weight.chunks(inputs).map(move |row| with(x, row)))
        .collect()
}

fn gated(gates: &[Sum], ups: &[Sum], activation: Activation, dtype: DType) -> Vec<Sum> {
    let pairs = gates.iter().zip(ups);
    pairs
        .map(|(gate, &up)| gate.gated(up, activation, dtype))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_blocks_are_numbers_of_ordinary_size() {
        for kind in BlockType::ALL {
            let matrix = random_matrix(kind, 3, 256);
            let values = dequantize(kind, &matrix.bytes).unwrap();
            let most = values.iter().fold(0f32, |most, v| most.max(v.abs()));
            assert!(most.is_finite() && most > 0.1, "{}: {most}", kind.name());
        }
    }
}
