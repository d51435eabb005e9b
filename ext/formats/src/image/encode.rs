//! Pictures to files, and what is drawn on them before.

use super::{Image, CHANNELS};
use crate::{Error, Result};

impl Image {
    /// The bytes of a PNG file.
    pub fn png(&self) -> Result<Vec<u8>> {
        let wrong = |error: png::EncodingError| {
            Error::InvalidInput(format!("the image can't be written as PNG: {error}"))
        };
        let edge = |edge: usize| {
            u32::try_from(edge).map_err(|_| {
                Error::InvalidInput(format!("an edge of {edge} pixels is too long for PNG"))
            })
        };
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, edge(self.width)?, edge(self.height)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(wrong)?;
        writer.write_image_data(&self.pixels).map_err(wrong)?;
        writer.finish().map_err(wrong)?;
        Ok(bytes)
    }

    /// Draws the outline of left, top, right and bottom, inwards; what lies outside of the picture is left out.
    pub fn outline(&mut self, corners: [f64; 4], colour: [u8; CHANNELS], thickness: usize) {
        let [left, top, right, bottom] = corners;
        if !corners.iter().all(|corner| corner.is_finite()) || right < left || bottom < top {
            return;
        }
        let within = |at: f64, size: usize| at.round().clamp(0.0, size as f64) as usize;
        let (from, to) = (within(left, self.width), within(right, self.width));
        let (first, end) = (within(top, self.height), within(bottom, self.height));
        let inner = |at: usize, from: usize, to: usize| {
            at >= from.saturating_add(thickness) && at.saturating_add(thickness) < to
        };
        for y in first..end {
            for x in from..to {
                if !(inner(x, from, to) && inner(y, first, end)) {
                    let place = (y * self.width + x) * CHANNELS;
                    self.pixels[place..place + CHANNELS].copy_from_slice(&colour);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, limits};
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let pixels = (0..5 * 4 * CHANNELS).map(|at| (at * 7) as u8).collect();
        let image = Image::new(5, 4, pixels).unwrap();
        assert_eq!(decode(&image.png().unwrap(), &limits()).unwrap(), image);
    }

    #[test]
    fn outlines_stay_within_the_picture() {
        let mut image = Image::filled(6, 5, [0; 3]).unwrap();
        image.outline([-3.0, 1.0, 4.0, 99.0], [9; 3], 1);
        let drawn = |x: usize, y: usize| image.pixels()[(y * 6 + x) * 3] == 9;
        let rows: Vec<Vec<usize>> = (0..5)
            .map(|y| (0..6).filter(|&x| drawn(x, y)).collect())
            .collect();
        let whole = vec![0, 1, 2, 3];
        assert_eq!(rows, [vec![], whole.clone(), vec![0, 3], vec![0, 3], whole]);
        let before = image.clone();
        image.outline([f64::NAN, 0.0, 3.0, 3.0], [1; 3], 1);
        image.outline([3.0, 0.0, 1.0, 3.0], [1; 3], 1);
        assert_eq!(image, before);
    }
}
