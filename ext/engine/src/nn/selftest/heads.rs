use super::Bench;
use crate::nn::HeadMatrices;
use crate::Result;

/// Tokens, heads, width and columns, and where those that are asked for begin.
const SIZES: [(usize, usize, usize, usize, usize); 5] = [
    (1, 1, 1, 1, 0),
    (9, 2, 8, 40, 3),
    (33, 3, 36, 20, 4),
    (40, 2, 64, 33, 0),
    (70, 4, 33, 100, 1),
];

pub(super) fn cases(bench: &mut Bench<'_>) -> Result<()> {
    for (tokens, heads, width, columns, start) in SIZES {
        if bench.extent.few && tokens > 40 {
            continue;
        }
        // Heads of a fused projection.
        let (fused, _) = bench.tensor(&[tokens, heads + 2, width])?;
        let x = fused.narrow(1, 1, heads)?;
        let values = super::read(&x)?;
        let (matrices, m) = bench.tensor(&[heads, width, columns])?;
        let got = HeadMatrices::new(&matrices)?.forward(&x, start..columns)?;
        let mut want = Vec::with_capacity(tokens * heads * (columns - start));
        for row in 0..tokens * heads {
            for column in start..columns {
                let matrix = &m[row % heads * width * columns..];
                let products =
                    (0..width).map(|i| values[row * width + i] * matrix[i * columns + column]);
                want.push(products.sum::<f64>());
            }
        }
        let case = format!("{tokens}x{heads}x{width} columns {start} to {columns}");
        bench.check("head_product", case, &got, &want)?;
    }
    Ok(())
}
