//! BMP pictures: 1 to 32 bits per pixel, plain, with masks, or in runs.

use super::decode::{check_size, damaged, from_rgba, Decoded, Limits};
use super::{Image, CHANNELS};

const FILE_HEADER: usize = 14;

/// Whether the headers are there; two letters alone may begin any text.
pub fn has_header(bytes: &[u8]) -> bool {
    let Some(size) = long(bytes, FILE_HEADER) else {
        return false;
    };
    let sizes = [12, 16, 40, 52, 56, 64, 108, 124];
    sizes.contains(&size) && bytes.len() >= FILE_HEADER + size as usize
}

struct Header {
    width: usize,
    height: usize,
    /// Rows from the top, instead of from the bottom.
    top_down: bool,
    bits: usize,
    compression: u32,
    /// Where the palette begins, how many colours it has, and the bytes of each.
    palette: (usize, usize, usize),
    masks: [u32; 4],
    pixels: usize,
}

pub fn decode(bytes: &[u8], limits: &Limits) -> Decoded<Image> {
    let header = Header::read(bytes).ok_or_else(|| damaged("its header is cut off"))?;
    let count = check_size(header.width, header.height, 5, limits)?;
    let pixels = match (header.compression, header.bits) {
        (0, 1 | 2 | 4 | 8) => header.indexed(bytes)?,
        (1, 8) | (2, 4) => header.runs(bytes, count)?,
        (0 | 3 | 6, 16 | 24 | 32) => header.direct(bytes)?,
        (compression, bits) => {
            return Err(damaged(format!(
                "compression {compression} with {bits} bits per pixel is not known"
            )))
        }
    };
    Ok(Image::new(header.width, header.height, pixels)?)
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Self> {
        let size = long(bytes, FILE_HEADER)? as usize;
        let old = size == 12;
        let (width, height) = if old {
            (short(bytes, 18)?.into(), short(bytes, 20)?.into())
        } else {
            (
                long(bytes, 18)?.cast_signed(),
                long(bytes, 22)?.cast_signed(),
            )
        };
        let bits = usize::from(short(bytes, if old { 24 } else { 28 })?);
        let compression = if size >= 40 { long(bytes, 30)? } else { 0 };
        let mut after = FILE_HEADER + size;
        let mut masks = match bits {
            16 => [0x7c00, 0x03e0, 0x001f, 0],
            _ => [0xff_0000, 0xff00, 0xff, 0],
        };
        if matches!(compression, 3 | 6) {
            // In longer headers the masks are part of them.
            let known = if compression == 6 || size >= 56 { 4 } else { 3 };
            for (number, mask) in masks.iter_mut().enumerate().take(known) {
                *mask = long(bytes, FILE_HEADER + 40 + 4 * number)?;
            }
            if size == 40 {
                after += 4 * known;
            }
        }
        let used = if size >= 40 {
            long(bytes, 46)? as usize
        } else {
            0
        };
        let colours = match bits {
            1..=8 if used == 0 || used > 1 << bits => 1 << bits,
            1..=8 => used,
            _ => 0,
        };
        Some(Self {
            width: usize::try_from(width).ok()?,
            height: height.unsigned_abs() as usize,
            top_down: height < 0,
            bits,
            compression,
            palette: (after, colours, if old { 3 } else { 4 }),
            masks,
            pixels: long(bytes, 10)? as usize,
        })
    }

    fn colour(&self, bytes: &[u8], index: usize) -> [u8; CHANNELS] {
        let (start, count, size) = self.palette;
        let entry = bytes
            .get(start + index * size..)
            .and_then(|entry| entry.get(..3));
        match entry {
            Some(entry) if index < count => [entry[2], entry[1], entry[0]],
            _ => [0; CHANNELS],
        }
    }

    /// A row of the file by its place in the picture.
    fn row<'a>(&self, bytes: &'a [u8], y: usize) -> Decoded<&'a [u8]> {
        let stride = (self.width * self.bits).div_ceil(32) * 4;
        let number = if self.top_down {
            y
        } else {
            self.height - 1 - y
        };
        let start = number
            .checked_mul(stride)
            .and_then(|at| at.checked_add(self.pixels));
        let needed = (self.width * self.bits).div_ceil(8);
        start
            .and_then(|start| bytes.get(start..)?.get(..needed))
            .ok_or_else(|| damaged("its pixels are cut off"))
    }

    fn indexed(&self, bytes: &[u8]) -> Decoded<Vec<u8>> {
        let mut pixels = Vec::new();
        for y in 0..self.height {
            let row = self.row(bytes, y)?;
            for x in 0..self.width {
                let bit = x * self.bits;
                let shift = 8 - self.bits - bit % 8;
                let index = (usize::from(row[bit / 8]) >> shift) & ((1 << self.bits) - 1);
                pixels.extend(self.colour(bytes, index));
            }
        }
        Ok(pixels)
    }

    fn direct(&self, bytes: &[u8]) -> Decoded<Vec<u8>> {
        let mut samples = Vec::new();
        for y in 0..self.height {
            let row = self.row(bytes, y)?;
            for pixel in row.chunks_exact(self.bits / 8) {
                let mut value = [0; 4];
                value[..pixel.len()].copy_from_slice(pixel);
                let value = u32::from_le_bytes(value);
                samples.extend(self.masks[..3].iter().map(|&mask| masked(value, mask)));
                samples.push(match self.masks[3] {
                    0 => 255,
                    mask => masked(value, mask),
                });
            }
        }
        Ok(from_rgba(&samples))
    }

    /// Run lengths; what they leave out is the first colour.
    fn runs(&self, bytes: &[u8], count: usize) -> Decoded<Vec<u8>> {
        let mut indexes = vec![0u8; count];
        let mut data = bytes.get(self.pixels..).unwrap_or_default().iter().copied();
        let (mut x, mut y) = (0, 0);
        let mut put = |x: &mut usize, y: usize, index: u8| {
            if *x < self.width && y < self.height {
                let row = if self.top_down {
                    y
                } else {
                    self.height - 1 - y
                };
                indexes[row * self.width + *x] = index;
            }
            *x += 1;
        };
        let half = |byte: u8, number: usize| match (self.bits, number % 2) {
            (4, 0) => byte >> 4,
            (4, _) => byte & 15,
            _ => byte,
        };
        while let (Some(first), Some(second)) = (data.next(), data.next()) {
            match (first, second) {
                (0, 0) => (x, y) = (0, y + 1),
                (0, 1) => break,
                (0, 2) => {
                    x += usize::from(data.next().unwrap_or(0));
                    y += usize::from(data.next().unwrap_or(0));
                }
                (0, literal) => {
                    let literal = usize::from(literal);
                    let length = (literal * self.bits).div_ceil(8);
                    let run: Vec<u8> = data.by_ref().take(length + length % 2).collect();
                    for number in 0..literal {
                        let byte = run.get(number * self.bits / 8).copied().unwrap_or(0);
                        put(&mut x, y, half(byte, number));
                    }
                }
                (length, byte) => {
                    (0..usize::from(length)).for_each(|number| put(&mut x, y, half(byte, number)));
                }
            }
        }
        let colours = indexes.iter();
        Ok(colours
            .flat_map(|&index| self.colour(bytes, index.into()))
            .collect())
    }
}

/// The bits of a mask as a byte.
fn masked(value: u32, mask: u32) -> u8 {
    if mask == 0 {
        return 0;
    }
    let most = mask >> mask.trailing_zeros();
    let found = (value & mask) >> mask.trailing_zeros();
    ((u64::from(found) * 255) / u64::from(most)) as u8
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}
