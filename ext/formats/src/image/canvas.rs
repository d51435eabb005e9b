//! Llama 4's tiles: a picture keeps its proportions and fills one side of a grid of squares.

use super::processor::Processor;
use super::size::Target;
use super::tiles::{cut as cut_tiles, Tiling, Views, MOST_TILES};
use super::{Image, CHANNELS};
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Error, Result};

pub fn read(raw: &RawConfig, target: Target) -> Result<Tiling> {
    let Target::Exact { width, height } = target else {
        return Err(Error::unsupported(
            raw.file(),
            "\"size\" has no height and width",
        ));
    };
    if width != height || raw.opt_bool("do_resize")? == Some(false) {
        return Err(Error::unsupported(
            raw.file(),
            "tiles that are not square, and pictures that are not resized, are not supported",
        ));
    }
    let most = raw.opt_usize_in("max_patches", 1..=MOST_TILES)?;
    Ok(Tiling::Canvas {
        edge: height,
        most: most.unwrap_or(16),
        largest: raw.opt_bool("resize_to_max_canvas")?.unwrap_or(false),
    })
}

/// (value · factor − mean) / deviation, each step in 16 bits.
pub fn rounded(value: f32, [factor, mean, deviation]: [f32; 3]) -> f32 {
    let round = |value: f32| half::bf16::from_f32(value).to_f32();
    let scaled = round(value * factor);
    round(round(scaled - round(mean)) / round(deviation))
}

pub fn cut(
    processor: &Processor,
    image: &Image,
    (edge, most, largest): (usize, usize, bool),
    cancel: &CancelToken,
) -> Result<Views> {
    let (width, height) = (image.width(), image.height());
    let (columns, rows) = best_grid((edge, most, largest), (width, height));
    let (wide, high) = (columns * edge, rows * edge);
    let (inner_width, inner_height) = inner((width, height), (wide, high), (edge, largest));
    let target = Target::Exact {
        width: inner_width,
        height: inner_height,
    };
    let mut canvas = Image::filled(wide, high, [0; CHANNELS])?;
    canvas.paste(&processor.resized_to(target, image, cancel)?, 0, 0);
    let mut views = cut_tiles(&canvas, edge, (columns, rows), cancel, |tile| {
        processor.view(&tile)
    })?;
    let several = columns * rows > 1;
    if several {
        views.push(processor.view(&processor.resized(image, cancel)?)?);
    }
    Ok(Views {
        views,
        tiles: if several { (columns, rows) } else { (0, 0) },
        size: (width, height),
    })
}

/// All (columns, rows) of at most so many tiles: those of one proportion together, as the first of them comes when the
/// largest come first.
fn grids(most: usize) -> Vec<(usize, usize)> {
    let mut alike: Vec<Vec<(usize, usize)>> = Vec::new();
    for count in (1..=most).rev() {
        for rows in (1..=count).filter(|rows| count.is_multiple_of(*rows)) {
            let columns = count / rows;
            let same = |other: &&mut Vec<(usize, usize)>| {
                let (across, down) = other[0];
                down * columns == rows * across
            };
            match alike.iter_mut().find(same) {
                Some(others) => others.push((columns, rows)),
                None => alike.push(vec![(columns, rows)]),
            }
        }
    }
    alike.concat()
}

/// The grid that enlarges a picture least, or most where it is to be as large as may be; where it fits none, the one that
/// makes it least smaller. Of several the one of the fewest tiles. The reference computes in 32 bits.
fn best_grid(
    (edge, most, largest): (usize, usize, bool),
    (width, height): (usize, usize),
) -> (usize, usize) {
    let scale = |&(columns, rows): &(usize, usize)| {
        let across = (columns * edge) as f32 / width as f32;
        let down = (rows * edge) as f32 / height as f32;
        across.min(down)
    };
    let all = grids(most);
    let larger = all.iter().map(scale).filter(|scale| *scale >= 1.0);
    let chosen = if largest {
        larger.max_by(f32::total_cmp)
    } else {
        larger.min_by(f32::total_cmp)
    };
    let chosen = chosen.or(all.iter().map(scale).max_by(f32::total_cmp));
    let fits = all.iter().filter(|grid| Some(scale(grid)) == chosen);
    let best = fits.min_by_key(|(columns, rows)| columns * rows);
    best.copied().unwrap_or((1, 1))
}

/// (width, height) of the picture inside its tiles. The reference computes in 32 bits with edges of these, and in 64 with
/// others.
fn inner(
    (width, height): (usize, usize),
    (wide, high): (usize, usize),
    (edge, largest): (usize, bool),
) -> (usize, usize) {
    let bound = |size: usize, whole: usize| {
        let own = size.max(edge);
        if largest || whole < own {
            (whole, true)
        } else {
            (own, false)
        }
    };
    let ((wide, wide_is_tile), (high, high_is_tile)) = (bound(width, wide), bound(height, high));
    let scale = |to: usize, from: usize, short: bool| {
        if short {
            f64::from(to as f32 / from as f32)
        } else {
            to as f64 / from as f64
        }
    };
    let times = |size: usize, scale: f64, short: bool| {
        if short {
            (size as f32 * scale as f32).floor() as usize
        } else {
            (size as f64 * scale).floor() as usize
        }
    };
    let across = scale(wide, width, wide_is_tile);
    let down = scale(high, height, high_is_tile);
    let (inner_width, inner_height) = if across < down {
        (wide, times(height, across, wide_is_tile).min(high))
    } else {
        (times(width, down, high_is_tile).min(wide), high)
    };
    (inner_width.max(1), inner_height.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_come_by_proportion() {
        let four = [
            (4, 1),
            (2, 2),
            (1, 1),
            (1, 4),
            (3, 1),
            (1, 3),
            (2, 1),
            (1, 2),
        ];
        assert_eq!(grids(4), four);
    }

    #[test]
    fn the_smallest_grid_that_fits_is_chosen() {
        assert_eq!(best_grid((336, 16, false), (300, 200)), (1, 1));
        assert_eq!(best_grid((336, 16, false), (600, 400)), (2, 2));
        assert_eq!(best_grid((336, 4, false), (5000, 300)), (4, 1));
        assert_eq!(inner((600, 400), (672, 672), (336, false)), (600, 400));
        assert_eq!(inner((100, 50), (336, 336), (336, false)), (336, 168));
    }
}
