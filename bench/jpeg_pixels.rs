//! Decodes a JPEG file with zune-jpeg and prints its width and height as lines, then the bytes of its RGB pixels.
//! `bench/jpeg_pixels.rb` builds it.

use std::io::Write;

use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(std::fs::read(path)?), options);
    let pixels = decoder.decode()?;
    let (width, height) = decoder.dimensions().ok_or("no dimensions")?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "{width}\n{height}")?;
    output.write_all(&pixels)?;
    Ok(())
}
