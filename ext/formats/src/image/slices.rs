//! MiniCPM-V's images: the whole in its own proportions, and slices of a larger copy.

use super::processor::{check_resized, Processor, EDGES};
use super::resample::resize_as;
use super::tiles::{Views, MOST_TILES};
use super::Image;
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Result};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slices {
    /// The edge of the square that a view has about as many pixels as.
    resolution: usize,
    most: usize,
    cuts: bool,
    /// Edges of views are multiples of this.
    multiple: usize,
    resizes: bool,
    /// Whether prompts count images.
    pub counted: bool,
}

pub fn read(raw: &RawConfig) -> Result<Slices> {
    let size = |key: &str, range, usual: usize| -> Result<usize> {
        Ok(raw.opt_usize_in(key, range)?.unwrap_or(usual))
    };
    let flag = |key: &str| -> Result<bool> { Ok(raw.opt_bool(key)?.unwrap_or(true)) };
    let merged = if raw.opt_string("downsample_mode")? == Some("4x") {
        2
    } else {
        4
    };
    Ok(Slices {
        resolution: size("scale_resolution", EDGES, 448)?,
        most: size("max_slice_nums", 1..=MOST_TILES, 9)?,
        cuts: flag("slice_mode")?,
        multiple: merged * size("patch_size", 1..=1024, 14)?,
        resizes: flag("do_resize")?,
        counted: flag("use_image_id")?,
    })
}

impl Slices {
    pub fn cut(&self, processor: &Processor, image: &Image, cancel: &CancelToken) -> Result<Views> {
        let size = (image.width(), image.height());
        let tiles = if self.cuts { self.grid(size) } else { None };
        let resized = |(width, height): (usize, usize)| -> Result<Image> {
            if !self.resizes {
                return Ok(image.clone());
            }
            check_resized(image, width, height)?;
            resize_as(
                processor.rounding,
                image,
                (width, height),
                processor.filter,
                cancel,
            )
        };
        let (wide, high) = (size.0 as f64, size.1 as f64);
        let whole = resized(self.best((wide, high), tiles.is_none()))?;
        let mut views = vec![processor.view(&whole)?];
        if let Some((columns, rows)) = tiles {
            let edge = |size: f64, count: usize| nearest(size, count) as f64 / count as f64;
            let slice = self.best((edge(wide, columns), edge(high, rows)), true);
            let large = resized((slice.0 * columns, slice.1 * rows))?;
            let (width, height) = (large.width() / columns, large.height() / rows);
            for at in 0..columns * rows {
                cancel.check()?;
                let (left, top) = (at % columns * width, at / columns * height);
                views.push(processor.view(&large.crop(left, top, width, height))?);
            }
        }
        Ok(Views {
            views,
            tiles: tiles.unwrap_or((0, 0)),
            size,
        })
    }

    /// (width, height) of about as many pixels as the square has, or of as many as there are.
    fn best(&self, (mut width, mut height): (f64, f64), grows: bool) -> (usize, usize) {
        let edge = self.resolution as f64;
        if height * width > edge * edge || grows {
            let ratio = width / height;
            height = (edge / ratio.sqrt()).trunc();
            width = (height * ratio).trunc();
        }
        (
            nearest(width, self.multiple),
            nearest(height, self.multiple),
        )
    }

    /// (columns, rows) of slices whose proportions are nearest to the image's.
    fn grid(&self, (width, height): (usize, usize)) -> Option<(usize, usize)> {
        let (w, h) = (width as f64, height as f64);
        let wanted = (w / h).ln();
        let edge = self.resolution as f64;
        let multiple = ((w * h / (edge * edge)).ceil() as usize).min(self.most);
        if multiple <= 1 {
            return None;
        }
        let (mut best, mut least) = ((1, 1), f64::INFINITY);
        for count in [multiple - 1, multiple, multiple + 1] {
            if count == 1 || count > self.most {
                continue;
            }
            for rows in (1..=count).filter(|rows| count.is_multiple_of(*rows)) {
                let columns = count / rows;
                let error = (wanted - (columns as f64 / rows as f64).ln()).abs();
                if error < least || error == least && rows > best.1 {
                    (best, least) = ((columns, rows), error);
                }
            }
        }
        Some(best)
    }
}

/// The multiple that is nearest, but not 0.
fn nearest(length: f64, multiple: usize) -> usize {
    let count = (length / multiple as f64).round_ties_even() as usize;
    (count * multiple).max(multiple)
}
