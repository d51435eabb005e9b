//! Reads the parts of quantized weights, with errors that name tensor and file.

use candle_core::{DType, Device};

use super::grouped::{Group, Grouped, Layout};
use crate::weights::element::power_of_two;
use crate::weights::{Element, TensorInfo, WeightSource};
use crate::{Error, Result};
use base::runtime::bytes::Bytes;

pub struct Parts<'a>(pub &'a dyn WeightSource);

impl Parts<'_> {
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        self.0.info(name).ok_or_else(|| {
            Error::corrupt(
                &self.0.file(""),
                format!("tensor {name:?}, a part of a quantized weight, is missing"),
            )
        })
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.has(name)
    }

    pub fn element(&self, name: &str) -> Option<Element> {
        self.0.raw(name).map(|(element, _)| element)
    }

    pub fn corrupt(&self, name: &str, reason: impl std::fmt::Display) -> Error {
        Error::corrupt(&self.0.file(name), format!("tensor {name:?}: {reason}"))
    }

    pub fn unsupported(&self, name: &str, reason: impl std::fmt::Display) -> Error {
        Error::unsupported(&self.0.file(name), format!("tensor {name:?}: {reason}"))
    }

    /// The two dimensions of a matrix.
    pub fn matrix(&self, name: &str) -> Result<(usize, usize)> {
        match self.info(name)?.shape[..] {
            [rows, columns] => Ok((rows, columns)),
            ref shape => Err(self.corrupt(name, format!("the shape {shape:?} is not a matrix's"))),
        }
    }

    /// A `CorruptModel` error unless the tensor has this shape.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<()> {
        let found = self.info(name)?.shape;
        if found == shape {
            return Ok(());
        }
        Err(self.corrupt(
            name,
            format!("the shape {found:?} does not fit its weight, which asks for {shape:?}"),
        ))
    }

    /// As `expect`, for elements of one of these types.
    pub fn expect_type(&self, name: &str, types: &[Element]) -> Result<()> {
        self.info(name)?;
        match self.element(name) {
            Some(element) if types.contains(&element) => Ok(()),
            element => Err(self.corrupt(
                name,
                format!(
                    "elements of the type {} are not part of this format",
                    element.map_or("unknown", Element::name)
                ),
            )),
        }
    }

    /// Elements of one byte.
    pub fn bytes(&self, name: &str) -> Result<Bytes> {
        match self.0.raw(name) {
            Some((element, bytes)) if element.size() == 1 => Ok(bytes),
            _ => Err(self.corrupt(name, "its elements are not bytes")),
        }
    }

    /// Elements of any type, as bytes.
    pub fn all_bytes(&self, name: &str) -> Result<Bytes> {
        match self.0.raw(name) {
            Some((_, bytes)) => Ok(bytes),
            None => Err(self.corrupt(name, "its elements are not numbers")),
        }
    }

    /// Elements of four bytes.
    pub fn words(&self, name: &str) -> Result<Vec<u32>> {
        match self.0.raw(name) {
            Some((Element::I32 | Element::U32, bytes)) => {
                let words = bytes.chunks_exact(4);
                Ok(words
                    .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                    .collect())
            }
            _ => Err(self.corrupt(name, "its elements are not words of 32 bits")),
        }
    }

    /// Numbers, which must be finite; bytes without a sign are exponents of two.
    pub fn scales(&self, name: &str) -> Result<Vec<f32>> {
        let scales = match self.element(name) {
            Some(Element::U8) => {
                let bytes = self.bytes(name)?;
                bytes.iter().map(|&byte| power_of_two(byte)).collect()
            }
            _ => self.numbers(name)?,
        };
        if scales.iter().all(|scale| scale.is_finite()) {
            return Ok(scales);
        }
        Err(self.corrupt(name, "a scale is not a number"))
    }

    pub fn numbers(&self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.0.tensor(name, Some(DType::F32), &Device::Cpu)?;
        Ok(tensor.flatten_all()?.to_vec1()?)
    }

    /// The number of a tensor with one element.
    pub fn number(&self, name: &str) -> Result<f32> {
        let info = self.info(name)?;
        if info.shape.iter().product::<usize>() != 1 {
            return Err(self.corrupt(
                name,
                format!("the shape {:?} is not that of one number", info.shape),
            ));
        }
        Ok(self.numbers(name)?.first().copied().unwrap_or_default())
    }

    pub fn integers(&self, name: &str) -> Result<Vec<i64>> {
        let tensor = self.0.tensor(name, Some(DType::I64), &Device::Cpu)?;
        Ok(tensor.flatten_all()?.to_vec1()?)
    }

    /// A weight of a name, if its groups are as many as its layout asks for.
    pub fn checked(&self, name: &str, grouped: Grouped) -> Result<Grouped> {
        let matrices = grouped
            .codes
            .len()
            .checked_div(grouped.rows * grouped.columns)
            .unwrap_or(0);
        let size = (matrices, grouped.rows, grouped.columns);
        let asked = Grouped::group_count(&grouped.layout, size);
        if asked == Some(grouped.groups.len()) || grouped.codes.is_empty() {
            return Ok(grouped);
        }
        Err(self.corrupt(
            name,
            format!(
                "{} scales do not fit its {} elements",
                grouped.groups.len(),
                grouped.codes.len()
            ),
        ))
    }

    /// The groups of columns that an index of them says, or evenly cut ones where it says the same.
    pub fn column_groups(
        &self,
        index: Option<&str>,
        (columns, group, count): (usize, usize, usize),
    ) -> Result<Layout> {
        let even = Layout::Grid {
            rows: 1,
            columns: group,
        };
        let Some(name) = index else {
            return Ok(even);
        };
        let of = self.integers(name)?;
        if of.iter().all(|&group| group == -1) && columns > 0 {
            return Ok(even);
        }
        if of
            .iter()
            .enumerate()
            .all(|(at, &of)| of == (at / group) as i64)
        {
            return Ok(even);
        }
        let of: Option<Vec<u32>> = of
            .iter()
            .map(|&of| u32::try_from(of).ok().filter(|&of| (of as usize) < count))
            .collect();
        match of {
            Some(of) => Ok(Layout::Columns { of, count }),
            None => Err(self.corrupt(name, format!("a column belongs to none of {count} groups"))),
        }
    }
}

/// Columns of a group, given how many groups a row has and what the configuration says: the last may be short.
pub fn group_width(columns: usize, count: usize, said: Option<usize>) -> Option<usize> {
    match said.filter(|&said| said > 0) {
        _ if count == 0 || columns == 0 => None,
        _ if count == 1 => Some(columns),
        Some(said) if columns.div_ceil(said) == count => Some(said),
        _ if columns.is_multiple_of(count) => Some(columns / count),
        _ => None,
    }
}

/// Groups [rows, count] from parts in the order [count, rows].
pub fn transposed_groups(
    rows: usize,
    count: usize,
    group: impl Fn(usize, usize) -> Group,
) -> Vec<Group> {
    (0..rows * count)
        .map(|at| group(at / count, at % count))
        .collect()
}

/// So many bits of a stream of words, from a bit on: values go on in the next word.
pub fn field(word: impl Fn(usize) -> u32, bit: usize, bits: usize) -> u8 {
    let (at, shift) = (bit / 32, bit % 32);
    let mut value = word(at) >> shift;
    if shift + bits > 32 {
        value |= word(at + 1) << (32 - shift);
    }
    (value & ((1 << bits) - 1)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_go_on_in_the_next_word() {
        // Elements 0 to 31 of three bits, whose values are their own low bits.
        let mut stream = 0u128;
        for at in 0..32 {
            stream |= ((at % 8) as u128) << (3 * at);
        }
        let word = |at: usize| (stream >> (32 * at)) as u32;
        for at in 0..32 {
            assert_eq!(field(word, 3 * at, 3), (at % 8) as u8);
        }
    }

    #[test]
    fn groups_of_a_row_are_cut_as_the_configuration_says() {
        assert_eq!(group_width(96, 3, Some(32)), Some(32));
        assert_eq!(group_width(100, 4, Some(32)), Some(32));
        assert_eq!(group_width(96, 3, None), Some(32));
        assert_eq!(group_width(96, 1, Some(32)), Some(96));
        assert_eq!(group_width(97, 3, Some(16)), None);
        assert_eq!(group_width(96, 0, None), None);
    }
}
