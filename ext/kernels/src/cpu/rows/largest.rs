//! The largest number of a row.

use candle_core::{DType, Result, Storage, Tensor};

use crate::cpu::{build, for_each_range, Output, RowView};
use crate::Largest;

/// Numbers that are compared side by side.
const LANES: usize = 16;

/// `None` where they are not rows of f32.
pub fn largest(x: &Tensor) -> Result<Option<Vec<Largest>>> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Ok(None);
    };
    if x.dtype() != DType::F32 {
        return Ok(None);
    }
    let x = RowView::<f32>::new(storage, layout)?;
    let (count, width) = (x.rows.count, x.rows.width);
    // SAFETY: ranges are disjoint and cover all rows, so every element of the output is written once, at an offset
    // below `count`.
    let found = unsafe {
        build(count, |out: Output<Option<(u32, f32)>>| {
            for_each_range(count, width, |range| {
                for row in range {
                    let numbers = x.row(row);
                    let found = of_row(numbers).map(|place| (place, numbers[place as usize]));
                    out.at(row).write(found);
                }
            })
        })
    };
    let rows = found.into_iter().map(|one| one.into_iter().collect());
    Ok(Some(rows.collect()))
}

/// Where the first of the largest finite numbers is.
pub fn of_row(row: &[f32]) -> Option<u32> {
    let larger = |most: f32, value: f32| value > most && value < f32::INFINITY;
    let mut most = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (most, &value) in most.iter_mut().zip(chunk) {
            *most = if larger(*most, value) { value } else { *most };
        }
    }
    let all = most.into_iter().chain(rest.iter().copied());
    let most = all.fold(f32::NEG_INFINITY, |most, value| {
        if larger(most, value) {
            value
        } else {
            most
        }
    });
    if most == f32::NEG_INFINITY {
        return None;
    }
    let place = row.iter().position(|&value| value == most);
    place.map(|place| place as u32)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_first_of_the_largest_finite_numbers_is_found() {
        let none = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for width in [1, 3, 15, 16, 17, 40, 100] {
            for place in 0..width {
                let mut row: Vec<f32> = (0..width).map(|at| none[at % 3]).collect();
                assert_eq!(of_row(&row), None);
                row[place] = -7.5;
                assert_eq!(of_row(&row), Some(place as u32));
                let after = row.len() - 1;
                row[after] = row[place];
                assert_eq!(of_row(&row), Some(place as u32));
                row[after] = -7.0;
                assert_eq!(of_row(&row), Some(after as u32));
            }
        }
        assert_eq!(of_row(&[]), None);
    }

    #[test]
    fn every_row_has_its_own() {
        let values: Vec<f32> = (0..300 * 200).map(|i| (i * 37 % 1009) as f32).collect();
        let x = Tensor::from_vec(values.clone(), (300, 200), &Device::Cpu).unwrap();
        let expected = values.chunks(200).map(|row| {
            let place = of_row(row).unwrap();
            vec![(place, row[place as usize])]
        });
        let expected: Vec<_> = expected.collect();
        assert_eq!(largest(&x).unwrap(), Some(expected.clone()));
        let part = x.narrow(0, 7, 5).unwrap();
        assert_eq!(largest(&part).unwrap(), Some(expected[7..12].to_vec()));
        let halves = x.to_dtype(DType::F16).unwrap();
        assert_eq!(largest(&halves).unwrap(), None);
    }
}
