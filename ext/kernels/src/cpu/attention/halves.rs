//! Keys and values that are read again for every token.

use candle_core::{DType, Storage, Tensor};
use half::f16;

use crate::cpu::{build, for_each_range, rows_of, Element, Isa, Output, RowView};
use crate::rows::row_major;
use crate::Result;

/// [tokens, heads, width] with the rows of a head one after the other in memory, f32 in f16 and bf16 as it is; `None`
/// for other tensors.
pub fn halves_by_head(x: &Tensor) -> Result<Option<Tensor>> {
    if !x.device().is_cpu() {
        return Ok(None);
    }
    match x.dtype() {
        DType::F32 => rounded_by_head(x),
        DType::BF16 => Ok(Some(x.transpose(0, 1)?.contiguous()?.transpose(0, 1)?)),
        _ => Ok(None),
    }
}

fn rounded_by_head(x: &Tensor) -> Result<Option<Tensor>> {
    let (tokens, heads, width) = x.dims3()?;
    let x = row_major(x)?;
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(values) = &*storage else {
        return Ok(None);
    };
    rows_of(layout)?;
    let (isa, rows) = (Isa::current()?, RowView::<f32>::new(values, layout)?);
    // SAFETY: ranges of tokens are disjoint and cover all, so that every row of every head is written once, at a place
    // within the output.
    let halves = unsafe {
        build(tokens * heads * width, |out: Output<f16>| {
            for_each_range(tokens, heads * width, |range| {
                for token in range {
                    for head in 0..heads {
                        let to = out.at((head * tokens + token) * width);
                        f16::narrow(isa, rows.row(token * heads + head), to);
                    }
                }
            })
        })
    };
    let by_head = Tensor::from_vec(halves, (heads, tokens, width), x.device())?;
    Ok(Some(by_head.transpose(0, 1)?))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::cpu::test_numbers::numbers;

    #[test]
    fn every_row_is_rounded_and_found_under_its_head() {
        let (tokens, heads, width) = (70, 3, 20);
        let values = numbers(tokens * heads * width, 1);
        let x = Tensor::from_vec(values, (tokens, heads, width), &Device::Cpu).unwrap();
        let found = halves_by_head(&x).unwrap().unwrap();
        assert_eq!(
            (found.dims(), found.stride()),
            (x.dims(), &[width, tokens * width, 1][..])
        );
        let wanted = x.to_dtype(DType::F16).unwrap();
        let [found, wanted] = [&found, &wanted].map(|x| x.flatten_all().unwrap().to_vec1::<f16>());
        assert_eq!(found.unwrap(), wanted.unwrap());
    }

    #[test]
    fn bf16_stays_and_other_types_are_left_alone() {
        let (tokens, heads, width) = (9, 3, 20);
        let x = Tensor::from_vec(
            numbers(tokens * heads * width, 1),
            (tokens, heads, width),
            &Device::Cpu,
        )
        .unwrap();
        let x = x.to_dtype(DType::BF16).unwrap();
        let found = halves_by_head(&x).unwrap().unwrap();
        assert_eq!(found.stride(), [width, tokens * width, 1]);
        let numbers = |x: &Tensor| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        assert_eq!(numbers(&found).unwrap(), numbers(&x).unwrap());
        assert!(halves_by_head(&x.to_dtype(DType::F16).unwrap())
            .unwrap()
            .is_none());
    }
}
