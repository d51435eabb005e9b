//! Which way up a picture is.

use super::{Image, CHANNELS};

const ORIENTATION: u16 = 0x0112;
/// More entries than any camera writes.
const MOST_ENTRIES: usize = 1024;

/// The orientation that EXIF data (a TIFF header, maybe after `Exif\0\0`) names.
pub fn orientation(data: &[u8]) -> Option<u16> {
    let data = data.strip_prefix(b"Exif\0\0").unwrap_or(data);
    let little = match data.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes: [u8; 2] = data.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little {
            u16::from_le_bytes(bytes)
        } else {
            u16::from_be_bytes(bytes)
        })
    };
    let long = |at: usize| -> Option<usize> {
        let bytes: [u8; 4] = data.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        } as usize)
    };
    let directory = long(4)?;
    let count = usize::from(short(directory)?).min(MOST_ENTRIES);
    let entries = (0..count).map(|index| directory + 2 + 12 * index);
    let entry = entries
        .into_iter()
        .find(|&entry| short(entry) == Some(ORIENTATION))?;
    short(entry + 8)
}

/// The picture as it was seen.
pub fn upright(image: Image, orientation: u16) -> Image {
    let (width, height) = (image.width, image.height);
    // Where the pixel for a place comes from.
    let source: fn(usize, usize, usize, usize) -> (usize, usize) = match orientation {
        2 => |x, y, w, _| (w - 1 - x, y),
        3 => |x, y, w, h| (w - 1 - x, h - 1 - y),
        4 => |x, y, _, h| (x, h - 1 - y),
        5 => |x, y, _, _| (y, x),
        6 => |x, y, _, h| (y, h - 1 - x),
        7 => |x, y, w, h| (w - 1 - y, h - 1 - x),
        8 => |x, y, w, _| (w - 1 - y, x),
        _ => return image,
    };
    let (columns, rows) = match orientation {
        5..=8 => (height, width),
        _ => (width, height),
    };
    let mut pixels = Vec::with_capacity(image.pixels.len());
    for y in 0..rows {
        for x in 0..columns {
            let (from_x, from_y) = source(x, y, width, height);
            let start = (from_y * width + from_x) * CHANNELS;
            pixels.extend(&image.pixels[start..start + CHANNELS]);
        }
    }
    Image {
        width: columns,
        height: rows,
        pixels,
    }
}
