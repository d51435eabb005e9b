//! Pictures: what is in their files, and what models are shown of it.

mod bmp;
mod canvas;
mod decode;
mod encode;
mod exif;
mod flexible;
mod jpeg;
mod page;
mod processor;
mod resample;
mod size;
mod slices;
mod smooth;
mod stacks;
mod target_config;
mod tiles;
mod usual;
mod video;

pub use decode::{decode, is_encoded, limits, read_file, set_limits, Limits};
pub use processor::{PatchOrder, Processor, View};
pub use resample::{resize, Filter};
pub use tiles::Views;
pub use video::{FrameKind, Frames, VideoProcessor};

use crate::{Error, Result};
use base::runtime::memory;

/// A decoded picture: red, green and blue of each pixel, row by row from the top.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

pub const CHANNELS: usize = 3;

impl Image {
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Result<Self> {
        let wanted = width
            .checked_mul(height)
            .and_then(|n| n.checked_mul(CHANNELS));
        if width == 0 || height == 0 || wanted != Some(pixels.len()) {
            return Err(Error::InvalidInput(format!(
                "{} bytes are not the red, green and blue of {width}x{height} pixels",
                pixels.len()
            )));
        }
        Ok(Self {
            width,
            height,
            pixels,
        })
    }

    /// Of one colour.
    pub fn filled(width: usize, height: usize, colour: [u8; CHANNELS]) -> Result<Self> {
        memory::ensure_elements(&[width, height, CHANNELS], 1, "an image")?;
        let pixels = colour.iter().copied().cycle();
        Self::new(
            width,
            height,
            pixels.take(width * height * CHANNELS).collect(),
        )
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn height(&self) -> usize {
        self.height
    }

    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    fn row(&self, y: usize) -> &[u8] {
        &self.pixels[y * self.width * CHANNELS..][..self.width * CHANNELS]
    }

    /// `other`, as far as it fits, with its left upper corner at a place of this one.
    pub fn paste(&mut self, other: &Image, left: usize, top: usize) {
        let width = other.width.min(self.width.saturating_sub(left)) * CHANNELS;
        let height = other.height.min(self.height.saturating_sub(top));
        for y in 0..height {
            let start = ((top + y) * self.width + left) * CHANNELS;
            self.pixels[start..start + width].copy_from_slice(&other.row(y)[..width]);
        }
    }

    /// The part from `left` and `top` on, which must lie within.
    pub fn crop(&self, left: usize, top: usize, width: usize, height: usize) -> Image {
        let mut pixels = Vec::with_capacity(width * height * CHANNELS);
        for y in top..top + height {
            pixels.extend(&self.row(y)[left * CHANNELS..(left + width) * CHANNELS]);
        }
        Image {
            width,
            height,
            pixels,
        }
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Image({}x{})", self.width, self.height)
    }
}
