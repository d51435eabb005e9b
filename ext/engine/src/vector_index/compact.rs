//! Vectors in less space, for stores that take them so.

/// The greatest magnitude becomes 127, so that cosines stay what they were.
pub fn to_int8(vector: &[f32]) -> Vec<i8> {
    let greatest = vector
        .iter()
        .fold(0f32, |most, value| most.max(value.abs()));
    if greatest == 0.0 {
        return vec![0; vector.len()];
    }
    let scale = 127.0 / greatest;
    // A cast of a float saturates, and takes NaN for 0.
    vector
        .iter()
        .map(|value| (value * scale).round() as i8)
        .collect()
}

/// One bit per component, set where it is positive; the first is the highest of its byte.
pub fn to_bits(vector: &[f32]) -> Vec<u8> {
    let byte = |part: &[f32]| {
        let bit = |(at, value): (usize, &f32)| u8::from(*value > 0.0) << (7 - at);
        part.iter().enumerate().map(bit).sum()
    };
    vector.chunks(8).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_component_takes_the_whole_range() {
        assert_eq!(to_int8(&[0.5, -0.25, 0.0, 0.1]), [127, -64, 0, 25]);
        assert_eq!(to_int8(&[-4.0, 4.0]), [-127, 127]);
        assert_eq!(to_int8(&[0.0, 0.0]), [0, 0]);
        assert_eq!(to_int8(&[]), [0i8; 0]);
    }

    #[test]
    fn signs_become_bits_from_the_left() {
        assert_eq!(to_bits(&[1.0, -1.0, 0.0, 2.0]), [0b1001_0000]);
        assert_eq!(to_bits(&[1.0; 9]), [0xff, 0x80]);
    }
}
