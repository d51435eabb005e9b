//! JPEG pictures: grey, colour, and the four inks of print.

use std::io::Cursor;

use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::decode::{check_size, damaged, from_grey, Decoded, Limits};
use super::{exif, Image, CHANNELS};

/// Progressive pictures have ten or so; thousands are made to keep a decoder busy.
const MOST_SCANS: usize = 256;

pub fn decode(bytes: &[u8], limits: &Limits) -> Decoded<(Image, Option<u16>)> {
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_max_scans(MOST_SCANS);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
    decoder.decode_headers().map_err(damaged)?;
    let info = decoder.info().ok_or_else(|| damaged("it has no header"))?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check_size(width, height, 12, limits)?;
    let stored = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => ColorSpace::Luma,
        Some(ColorSpace::CMYK | ColorSpace::YCCK) => ColorSpace::CMYK,
        _ => ColorSpace::RGB,
    };
    decoder.set_options(options.jpeg_set_out_colorspace(stored));
    let samples = decoder.decode().map_err(damaged)?;
    let orientation = decoder.exif().and_then(|exif| exif::orientation(exif));
    let pixels = match stored {
        ColorSpace::Luma => from_grey(&samples),
        ColorSpace::CMYK => from_inks(&samples),
        _ => samples,
    };
    Ok((Image::new(width, height, pixels)?, orientation))
}

/// Photoshop's inverted inks, as every program writes them: 255 is no ink.
fn from_inks(samples: &[u8]) -> Vec<u8> {
    let mixed = |ink: u8, black: u8| {
        // Pillow's rounding of a product of two bytes.
        let product = (255 - u32::from(ink)) * u32::from(black) + 128;
        black.saturating_sub((((product >> 8) + product) >> 8) as u8)
    };
    let pixels = samples.chunks_exact(4);
    let mut rgb = Vec::with_capacity(samples.len() / 4 * CHANNELS);
    for pixel in pixels {
        rgb.extend(pixel[..3].iter().map(|&ink| mixed(ink, pixel[3])));
    }
    rgb
}
