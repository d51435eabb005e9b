//! Encoded pictures to pixels, within limits that are checked before anything is reserved.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{bmp, exif, jpeg, Image, CHANNELS};
use crate::{Error, Result};
use base::runtime::memory;

/// What a picture may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the encoded file.
    pub max_bytes: usize,
    /// Width times height.
    pub max_pixels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        limits()
    }
}

static MAX_BYTES: AtomicUsize = AtomicUsize::new(256 << 20);
static MAX_PIXELS: AtomicUsize = AtomicUsize::new(100_000_000);

/// The limits of this process.
pub fn limits() -> Limits {
    Limits {
        max_bytes: MAX_BYTES.load(Ordering::Relaxed),
        max_pixels: MAX_PIXELS.load(Ordering::Relaxed),
    }
}

pub fn set_limits(limits: Limits) {
    MAX_BYTES.store(limits.max_bytes, Ordering::Relaxed);
    MAX_PIXELS.store(limits.max_pixels, Ordering::Relaxed);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Png,
    Jpeg,
    WebP,
    Gif,
    Bmp,
}

impl Format {
    fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'B', b'M', ..] if bmp::has_header(bytes) => Some(Self::Bmp),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
        }
    }
}

/// Whether bytes begin as a picture does that [`decode`] reads.
pub fn is_encoded(bytes: &[u8]) -> bool {
    Format::of(bytes).is_some()
}

/// The picture in a file.
pub fn read_file(path: &Path, limits: &Limits) -> Result<Image> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        file.take((limits.max_bytes as u64).saturating_add(1))
            .read_to_end(&mut bytes)
    });
    read.map_err(|error| {
        Error::InvalidInput(format!(
            "the image file {} can't be read: {error}",
            path.display()
        ))
    })?;
    decode(&bytes, limits).map_err(|error| match error {
        Error::InvalidInput(reason) => Error::InvalidInput(format!("{}: {reason}", path.display())),
        other => other,
    })
}

/// The picture that bytes encode, upright, with what is transparent in white. Of several frames the
/// first counts.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Image> {
    if bytes.len() > limits.max_bytes {
        return Err(Error::InvalidInput(format!(
            "the encoded image is larger than the limit of {}",
            memory::format_bytes(limits.max_bytes)
        )));
    }
    let format = Format::of(bytes).ok_or_else(|| unknown(bytes))?;
    let decoded = match format {
        Format::Png => png(bytes, limits),
        Format::Jpeg => jpeg::decode(bytes, limits),
        Format::WebP => webp(bytes, limits),
        Format::Gif => gif(bytes, limits),
        Format::Bmp => bmp::decode(bytes, limits).map(|image| (image, None)),
    };
    let (image, orientation) = decoded.map_err(|failure| match failure {
        Failure::Damaged(reason) => {
            Error::InvalidInput(format!("the {} image is damaged: {reason}", format.name()))
        }
        Failure::Other(error) => error,
    })?;
    Ok(match orientation {
        Some(orientation) => exif::upright(image, orientation),
        None => image,
    })
}

fn unknown(bytes: &[u8]) -> Error {
    Error::InvalidInput(match bytes {
        [] => "the image is empty".to_owned(),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => {
            "HEIC and AVIF images are not read: convert it to PNG, JPEG or WebP".to_owned()
        }
        _ => "this is not an image that can be read: PNG, JPEG, WebP, GIF and BMP are".to_owned(),
    })
}

/// Why a picture could not be decoded.
pub(super) enum Failure {
    Damaged(String),
    Other(Error),
}

pub(super) type Decoded<T> = std::result::Result<T, Failure>;

pub(super) fn damaged(reason: impl std::fmt::Display) -> Failure {
    Failure::Damaged(reason.to_string())
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// The number of pixels, unless it is beyond the limit or `bytes` for each are not to be had.
pub(super) fn check_size(
    width: usize,
    height: usize,
    bytes: usize,
    limits: &Limits,
) -> Decoded<usize> {
    if width == 0 || height == 0 {
        return Err(damaged(format!("it is {width}x{height} pixels large")));
    }
    match width.checked_mul(height) {
        Some(pixels) if pixels <= limits.max_pixels => {
            memory::ensure_elements(&[pixels], bytes + CHANNELS, "an image")?;
            Ok(pixels)
        }
        _ => Err(Failure::Other(Error::InvalidInput(format!(
            "an image of {width}x{height} pixels is larger than the limit of {} pixels",
            limits.max_pixels
        )))),
    }
}

type Oriented = (Image, Option<u16>);

fn png(bytes: &[u8], limits: &Limits) -> Decoded<Oriented> {
    let mut decoder =
        png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: 16 << 20 });
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(damaged)?;
    let (width, height) = (header.width as usize, header.height as usize);
    let pixels = check_size(width, height, 4, limits)?;
    // What is needed for a row; the limit is not about the picture that is asked for.
    decoder.set_limits(png::Limits {
        bytes: (16 << 20) + pixels * 8,
    });
    let mut reader = decoder.read_info().map_err(damaged)?;
    let orientation = reader
        .info()
        .exif_metadata
        .as_deref()
        .and_then(exif::orientation);
    let (colour, _) = reader.output_color_type();
    let size = reader
        .output_buffer_size()
        .filter(|&size| size <= pixels * 4);
    let mut samples = vec![0; size.ok_or_else(|| damaged("its pixels have no size"))?];
    reader.next_frame(&mut samples).map_err(damaged)?;
    let pixels = match colour {
        png::ColorType::Grayscale => from_grey(&samples),
        png::ColorType::GrayscaleAlpha => {
            coloured(&samples, 2, |pixel| over_white([pixel[0]; 3], pixel[1]))
        }
        png::ColorType::Rgba => from_rgba(&samples),
        png::ColorType::Rgb => samples,
        png::ColorType::Indexed => return Err(damaged("its palette is missing")),
    };
    Ok((Image::new(width, height, pixels)?, orientation))
}

fn webp(bytes: &[u8], limits: &Limits) -> Decoded<Oriented> {
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    let pixels = check_size(width, height, 12, limits)?;
    decoder.set_memory_limit((16 << 20) + pixels * 4);
    let has_alpha = decoder.has_alpha();
    let size = decoder
        .output_buffer_size()
        .filter(|&size| size <= pixels * 4);
    let mut samples = vec![0; size.ok_or_else(|| damaged("its pixels have no size"))?];
    if decoder.is_animated() {
        decoder.read_frame(&mut samples).map(drop)
    } else {
        decoder.read_image(&mut samples)
    }
    .map_err(damaged)?;
    let orientation = decoder.exif_metadata().ok().flatten();
    let orientation = orientation.as_deref().and_then(exif::orientation);
    let pixels = if has_alpha {
        from_rgba(&samples)
    } else {
        samples
    };
    Ok((Image::new(width, height, pixels)?, orientation))
}

/// The first frame on its screen, of which what it does not cover stays white.
fn gif(bytes: &[u8], limits: &Limits) -> Decoded<Oriented> {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    let limit = std::num::NonZeroU64::new((limits.max_pixels as u64).saturating_mul(4));
    options.set_memory_limit(match limit {
        Some(limit) => gif::MemoryLimit::Bytes(limit),
        None => gif::MemoryLimit::Unlimited,
    });
    let mut decoder = options.read_info(bytes).map_err(damaged)?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let frame = decoder.next_frame_info().map_err(damaged)?;
    let frame = frame.ok_or_else(|| damaged("it has no frame"))?;
    let place = (usize::from(frame.left), usize::from(frame.top));
    let size = (usize::from(frame.width), usize::from(frame.height));
    // A frame may reach beyond its screen, which then grows.
    let (width, height) = (width.max(place.0 + size.0), height.max(place.1 + size.1));
    check_size(width, height, 8, limits)?;
    check_size(size.0, size.1, 4, limits)?;
    let mut samples = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut samples).map_err(damaged)?;
    let frame = Image::new(size.0, size.1, from_rgba(&samples))?;
    let mut screen = Image::filled(width, height, [255; CHANNELS])?;
    screen.paste(&frame, place.0, place.1);
    Ok((screen, None))
}

fn from_grey(samples: &[u8]) -> Vec<u8> {
    coloured(samples, 1, |pixel| [pixel[0]; CHANNELS])
}

pub(super) fn from_rgba(samples: &[u8]) -> Vec<u8> {
    coloured(samples, 4, |pixel| {
        over_white([pixel[0], pixel[1], pixel[2]], pixel[3])
    })
}

/// The colours of pixels of so many samples. A vector that grew on the way would take twice what `check_size` asked
/// for.
fn coloured(samples: &[u8], each: usize, colour: impl Fn(&[u8]) -> [u8; CHANNELS]) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(samples.len() / each * CHANNELS);
    for pixel in samples.chunks_exact(each) {
        pixels.extend(colour(pixel));
    }
    pixels
}

/// A colour laid over white, rounded as Pillow's `alpha_composite` rounds.
fn over_white(colour: [u8; CHANNELS], alpha: u8) -> [u8; CHANNELS] {
    let alpha = u32::from(alpha);
    colour.map(|value| {
        let sum = (u32::from(value) * alpha + 255 * (255 - alpha) + 0x80) << 7;
        ((((sum >> 8) + sum) >> 8) >> 7) as u8
    })
}
