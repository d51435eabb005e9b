//! Pictures in their own proportions, and large ones in tiles before that (LFM2-VL).

use super::processor::{Processor, EDGES};
use super::size::Target;
use super::tiles::{alike_grid, Views, MOST_TILES};
use super::Image;
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Error, Result};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flexible {
    /// The edge of a patch, in pixels, and how many of them beside each other become one row.
    patch: usize,
    merged: usize,
    /// How many rows a picture becomes.
    least: usize,
    most: usize,
    /// How many times more pixels than that a picture has that is cut.
    tolerance: f64,
    /// Between how many tiles; `None` where none is cut.
    tiles: Option<(usize, usize)>,
    edge: usize,
    /// Whether the whole is shown behind its tiles.
    whole: bool,
}

pub fn read(raw: &RawConfig) -> Result<Flexible> {
    let number = |key: &str, usual: usize, most: usize| -> Result<usize> {
        Ok(raw.opt_usize_in(key, 1..=most)?.unwrap_or(usual))
    };
    let flag = |key: &str| -> Result<bool> { Ok(raw.opt_bool(key)?.unwrap_or(true)) };
    let (fewest, most) = (
        number("min_tiles", 2, MOST_TILES)?,
        number("max_tiles", 10, MOST_TILES)?,
    );
    let splits = flag("do_image_splitting")?;
    if splits && fewest > most {
        return Err(Error::corrupt(
            raw.file(),
            format!("\"min_tiles\" is {fewest}, and \"max_tiles\" is {most}"),
        ));
    }
    Ok(Flexible {
        patch: number("encoder_patch_size", 16, *EDGES.end())?,
        merged: number("downsample_factor", 2, 64)?,
        least: number("min_image_tokens", 64, 1 << 20)?,
        most: number("max_image_tokens", 256, 1 << 20)?,
        tolerance: raw.opt_f64("max_pixels_tolerance")?.unwrap_or(2.0),
        tiles: (splits && most > 1).then_some((fewest, most)),
        edge: number("tile_size", 512, *EDGES.end())?,
        whole: flag("use_thumbnail")?,
    })
}

impl Flexible {
    pub(super) fn cut(
        &self,
        processor: &Processor,
        image: &Image,
        cancel: &CancelToken,
    ) -> Result<Views> {
        let size = (image.width(), image.height());
        let edge = self.edge;
        let grid = self.tiles.filter(|_| self.is_large(size));
        let grid = grid.map(|counts| alike_grid(counts, (edge, edge), size));
        let (columns, rows) = grid.unwrap_or((0, 0));
        let mut views = Vec::with_capacity(columns * rows + 1);
        if columns * rows > 0 {
            let target = exact(edge * columns, edge * rows);
            let large = processor.resized_to(target, image, cancel)?;
            for number in 0..columns * rows {
                cancel.check()?;
                let (left, top) = (number % columns * edge, number / columns * edge);
                views.push(processor.view(&large.crop(left, top, edge, edge))?);
            }
        }
        if columns * rows == 0 || columns * rows > 1 && self.whole {
            let (width, height) = self.fitting(size);
            let whole = processor.resized_to(exact(width, height), image, cancel)?;
            views.push(processor.view(&whole)?);
        }
        Ok(Views {
            views,
            tiles: (columns, rows),
            size,
        })
    }

    fn factor(&self) -> f64 {
        (self.patch * self.merged) as f64
    }

    fn is_large(&self, (width, height): (usize, usize)) -> bool {
        let factor = self.factor();
        let whole = |edge: usize| {
            let edge = (edge as f64 / factor).round_ties_even() * factor;
            edge.max(self.patch as f64)
        };
        whole(width) * whole(height) > self.most as f64 * factor * factor * self.tolerance
    }

    /// (width, height) of whole rows, not fewer and not more than there may be.
    fn fitting(&self, (width, height): (usize, usize)) -> (usize, usize) {
        let factor = self.factor();
        let (w, h) = (width as f64, height as f64);
        let (least, most) = (self.least as f64, self.most as f64);
        let (least, most) = (least * factor * factor, most * factor * factor);
        let nearest = |edge: f64| ((edge / factor).round_ties_even() * factor).max(factor);
        let area = nearest(w) * nearest(h);
        let scaled = |edge: f64| {
            if area > most {
                let edge = edge / (h * w / most).sqrt();
                ((edge / factor).floor() * factor).max(factor)
            } else if area < least {
                (edge * (least / (h * w)).sqrt() / factor).ceil() * factor
            } else {
                nearest(edge)
            }
        };
        (scaled(w) as usize, scaled(h) as usize)
    }
}

fn exact(width: usize, height: usize) -> Target {
    Target::Exact { width, height }
}
