//! Pages of documents as Donut and Nougat prepare them: without margins, upright, within a size, and in its middle.

use serde_json::Value;

use super::processor::check_resized;
use super::resample::{resize, Filter};
use super::size::Target;
use super::{Image, CHANNELS};
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Error, Result};

/// Darker than this, of 255 after stretching, is not margin.
const MARGIN: f64 = 200.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    width: usize,
    height: usize,
    crops_margin: bool,
    turns: bool,
    resizes: bool,
    /// The filter that a page is made smaller with, where it is.
    thumbnail: Option<Thumbnail>,
    pads: bool,
    /// Whether it is Nougat's.
    pub nougat: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thumbnail {
    /// That of the file.
    Same,
    Bicubic,
}

/// `target` is what the size of the file means.
pub fn read(raw: &RawConfig, nougat: bool, target: Target) -> Result<Page> {
    let Target::Exact { width, height } = target else {
        let reason = "\"size\" of a page has neither height and width nor two numbers";
        return Err(Error::unsupported(raw.file(), reason));
    };
    // Donut's older files have width before height.
    let turned = !nougat && matches!(raw.get("size"), Some(Value::Array(_)));
    let (width, height) = if turned {
        (height, width)
    } else {
        (width, height)
    };
    let flag = |key: &str, usual: bool| -> Result<bool> { Ok(raw.opt_bool(key)?.unwrap_or(usual)) };
    let thumbnail = if nougat {
        Thumbnail::Bicubic
    } else {
        Thumbnail::Same
    };
    Ok(Page {
        width,
        height,
        crops_margin: flag("do_crop_margin", nougat)? && nougat,
        turns: flag("do_align_long_axis", false)?,
        resizes: flag("do_resize", true)?,
        thumbnail: flag("do_thumbnail", true)?.then_some(thumbnail),
        pads: flag("do_pad", true)?,
        nougat,
    })
}

impl Page {
    pub fn process(&self, image: &Image, filter: Filter, cancel: &CancelToken) -> Result<Image> {
        let mut image = if self.crops_margin {
            without_margin(image)
        } else {
            image.clone()
        };
        let (wide, high) = (self.width, self.height);
        let lies = image.width() > image.height() && wide < high;
        let stands = image.width() < image.height() && wide > high;
        if self.turns && (lies || stands) {
            image = turned(&image)?;
        }
        if self.resizes {
            let (width, height) =
                Target::Shortest(wide.min(high)).of(image.width(), image.height());
            check_resized(&image, width, height)?;
            image = resize(&image, width, height, filter, cancel)?;
        }
        if let Some(thumbnail) = self.thumbnail {
            let (width, height) = self.thumbnail_of(image.width(), image.height());
            image = match thumbnail {
                Thumbnail::Same => resize(&image, width, height, filter, cancel)?,
                Thumbnail::Bicubic => reduced(&image, (width, height), cancel)?,
            };
        }
        if !self.pads || (image.width(), image.height()) == (wide, high) {
            return Ok(image);
        }
        if image.width() > wide || image.height() > high {
            return Err(Error::InvalidInput(format!(
                "a page of {}x{} pixels does not fit into {wide}x{high}: its preprocessor_config.json turns do_thumbnail off",
                image.width(),
                image.height()
            )));
        }
        let mut page = Image::filled(wide, high, [0; CHANNELS])?;
        page.paste(
            &image,
            (wide - image.width()) / 2,
            (high - image.height()) / 2,
        );
        Ok(page)
    }

    /// (width, height) within the size; a square only loses what is beyond it.
    fn thumbnail_of(&self, width: usize, height: usize) -> (usize, usize) {
        let (mut wide, mut high) = (width.min(self.width), height.min(self.height));
        if (wide, high) == (width, height) {
            return (wide, high);
        }
        if height > width {
            wide = (width as f64 * high as f64 / height as f64) as usize;
        } else if width > height {
            high = (height as f64 * wide as f64 / width as f64) as usize;
        }
        (wide.max(1), high.max(1))
    }
}

/// Resized with the bicubic filter, of means of whole blocks where it becomes much smaller, as Pillow does with a
/// reducing gap of 2.
fn reduced(image: &Image, (width, height): (usize, usize), cancel: &CancelToken) -> Result<Image> {
    let factor = |from: usize, to: usize| ((from as f64 / to as f64 / 2.0) as usize).max(1);
    let (across, down) = (factor(image.width(), width), factor(image.height(), height));
    if across * down > 1 {
        return Err(Error::InvalidInput(format!(
            "a page of {}x{} pixels is too long and narrow for {width}x{height}",
            image.width(),
            image.height()
        )));
    }
    resize(image, width, height, Filter::Bicubic, cancel)
}

/// By 90 degrees to the right.
fn turned(image: &Image) -> Result<Image> {
    let (width, height) = (image.width(), image.height());
    let mut pixels = Vec::with_capacity(image.pixels().len());
    for x in 0..width {
        for y in (0..height).rev() {
            let start = (y * width + x) * CHANNELS;
            pixels.extend(&image.pixels()[start..start + CHANNELS]);
        }
    }
    Image::new(height, width, pixels)
}

/// The part around everything that is dark beside the rest.
fn without_margin(image: &Image) -> Image {
    let grey: Vec<u8> = image.pixels().chunks_exact(CHANNELS).map(grey).collect();
    let (Some(&least), Some(&most)) = (grey.iter().min(), grey.iter().max()) else {
        return image.clone();
    };
    if least == most {
        return image.clone();
    }
    let range = f64::from(most) - f64::from(least);
    let dark = |value: u8| f64::from(value - least) / range * 255.0 < MARGIN;
    let (mut left, mut top, mut right, mut bottom) = (usize::MAX, usize::MAX, 0, 0);
    for (at, &value) in grey.iter().enumerate() {
        if dark(value) {
            let (x, y) = (at % image.width(), at / image.width());
            (left, top) = (left.min(x), top.min(y));
            (right, bottom) = (right.max(x), bottom.max(y));
        }
    }
    image.crop(left, top, right - left + 1, bottom - top + 1)
}

/// Pillow's brightness.
fn grey(pixel: &[u8]) -> u8 {
    let weights = [19_595u32, 38_470, 7_471];
    let sum: u32 = pixel
        .iter()
        .zip(weights)
        .map(|(&value, weight)| u32::from(value) * weight)
        .sum();
    ((sum + 0x8000) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margins_are_cut_and_pages_turned() {
        let mut image = Image::filled(5, 4, [255; 3]).unwrap();
        image.paste(&Image::filled(2, 1, [0; 3]).unwrap(), 1, 2);
        let cut = without_margin(&image);
        assert_eq!((cut.width(), cut.height()), (2, 1));
        let turned = turned(&image).unwrap();
        assert_eq!((turned.width(), turned.height()), (4, 5));
        assert_eq!(turned.pixels()[(4 + 1) * 3], 0);
        let blank = Image::filled(3, 3, [9; 3]).unwrap();
        assert_eq!(without_margin(&blank), blank);
    }
}
