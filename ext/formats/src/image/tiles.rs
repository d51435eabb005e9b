//! Pictures cut into tiles, so that a tower for small pictures sees what is small in large ones.

use serde_json::Value;

use super::flexible::Flexible;
use super::processor::{Processor, View, EDGES};
use super::resample::{resize, resize_as};
use super::size::Target;
use super::slices::Slices;
use super::{Image, CHANNELS};
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Error, Result};

/// How a picture is cut.
#[derive(Clone, Debug, PartialEq)]
pub enum Tiling {
    /// Not at all.
    Whole,
    /// Into squares of an edge, with the whole after them; without `splits` the whole alone (Idefics 3).
    Squares { edge: usize, splits: bool },
    /// Into squares of an edge, after the whole, in that of some (width, height) which suits the picture
    /// best (LLaVA-NeXT).
    Pinpoints {
        sizes: Vec<(usize, usize)>,
        edge: usize,
        /// Only a picture that stands alone in a prompt is cut (LLaVA-OneVision).
        alone: bool,
    },
    /// Into as many tiles as suit the picture best, and the whole after them, or before, where there are several.
    Grid {
        choice: GridChoice,
        whole_first: bool,
    },
    /// Into squares of an edge, at most so many, of a picture that fills one side of them and is black beyond, and the
    /// whole after them where there are several; with `largest` it becomes as large as may be (Llama 4).
    Canvas {
        edge: usize,
        most: usize,
        largest: bool,
    },
    /// Into four, and the whole after them (Idefics 2).
    Quarters,
    /// The whole in its own proportions, and slices of a larger copy behind it (MiniCPM-V).
    Slices(Slices),
    /// A large picture into a grid, with the whole in its own proportions after it (LFM2-VL).
    Flexible(Flexible),
    /// A picture of other proportions than `ratio` into pieces along its longer side, after the whole: at most
    /// `most`, none of whose edges is below `least` (Gemma 3's pan and scan).
    Pieces {
        least: usize,
        most: usize,
        ratio: f64,
    },
}

/// How many tiles a picture is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridChoice {
    /// As many, between `least` and `most`, as have the picture's proportions best (InternVL).
    Alike { least: usize, most: usize },
    /// As few as the picture fits into without becoming smaller; where it fits none, as let it become least smaller
    /// (Command A Vision).
    Covering { most: usize },
    /// As few as keep most of the picture's pixels (Ovis 2).
    Keeping { most: usize },
}

/// What a model is shown of one picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Views {
    pub views: Vec<View>,
    /// (columns, rows) of tiles, row by row among the views; none of a picture that is shown whole alone.
    pub tiles: (usize, usize),
    /// (width, height) of the picture.
    pub size: (usize, usize),
}

/// No model has more tiles.
pub(super) const MOST_TILES: usize = 1024;

pub fn squares(raw: &RawConfig) -> Result<Tiling> {
    let size = raw.opt_nested("max_image_size")?;
    let edge = match &size {
        Some(size) => size.opt_usize_in("longest_edge", EDGES)?,
        None => None,
    };
    Ok(Tiling::Squares {
        edge: edge.unwrap_or(364),
        splits: raw.opt_bool("do_image_splitting")?.unwrap_or(true),
    })
}

/// Off unless the file says otherwise, or on where tiles cover pictures.
pub fn grid(raw: &RawConfig, covers: bool) -> Result<Tiling> {
    let count = |key: &str, usual: usize| -> Result<usize> {
        Ok(raw.opt_usize_in(key, 1..=MOST_TILES)?.unwrap_or(usual))
    };
    let (least, most) = (count("min_patches", 1)?, count("max_patches", 12)?);
    let cuts = raw.opt_bool("crop_to_patches")?.unwrap_or(covers);
    let choice = if covers {
        GridChoice::Covering { most }
    } else {
        GridChoice::Alike { least, most }
    };
    Ok(if cuts && most > 1 {
        Tiling::Grid {
            choice,
            whole_first: false,
        }
    } else {
        Tiling::Whole
    })
}

/// The same for Ovis 2.
pub fn keeping(raw: &RawConfig) -> Result<Tiling> {
    let keeps = raw.opt_bool("use_covering_area_grid")?.unwrap_or(true);
    Ok(match grid(raw, false)? {
        Tiling::Grid { choice, .. } => Tiling::Grid {
            choice: match choice {
                GridChoice::Alike { most, .. } if keeps => GridChoice::Keeping { most },
                other => other,
            },
            whole_first: true,
        },
        other => other,
    })
}

/// `crop` is the (width, height) that tiles are cropped to; with `alone`, LLaVA-OneVision's.
pub fn pinpoints(raw: &RawConfig, crop: Option<(usize, usize)>, alone: bool) -> Result<Tiling> {
    let damaged = || {
        Error::corrupt(
            raw.file(),
            "\"image_grid_pinpoints\" is not a list of sizes",
        )
    };
    let edge = |value: &Value| {
        let edge = usize::try_from(value.as_u64()?).ok()?;
        EDGES.contains(&edge).then_some(edge)
    };
    let size = |value: &Value| match value.as_array()?.as_slice() {
        [height, width] => Some((edge(width)?, edge(height)?)),
        _ => None,
    };
    let sizes = match raw.get("image_grid_pinpoints") {
        None if alone => {
            let edges = (1..=6).flat_map(|high| (1..=6).map(move |wide| (384 * wide, 384 * high)));
            edges.collect()
        }
        None => vec![(672, 336), (336, 672), (672, 672), (336, 1008), (1008, 336)],
        Some(Value::Array(sizes)) if !sizes.is_empty() => sizes
            .iter()
            .map(size)
            .collect::<Option<_>>()
            .ok_or_else(damaged)?,
        Some(_) => return Err(damaged()),
    };
    Ok(Tiling::Pinpoints {
        sizes,
        edge: crop.map_or(if alone { 384 } else { 336 }, |(_, height)| height),
        alone,
    })
}

/// Off unless the file says otherwise.
pub fn pieces(raw: &RawConfig) -> Result<Tiling> {
    if raw.opt_bool("do_pan_and_scan")? != Some(true) {
        return Ok(Tiling::Whole);
    }
    let ratio = raw.opt_f64("pan_and_scan_min_ratio_to_activate")?;
    Ok(Tiling::Pieces {
        least: raw
            .opt_usize_in("pan_and_scan_min_crop_size", EDGES)?
            .unwrap_or(256),
        most: raw
            .opt_usize_in("pan_and_scan_max_num_crops", 1..=MOST_TILES)?
            .unwrap_or(4),
        ratio: ratio.unwrap_or(1.2),
    })
}

pub fn cut_squares(
    processor: &Processor,
    image: &Image,
    (edge, splits): (usize, bool),
    cancel: &CancelToken,
) -> Result<Views> {
    let size = (image.width(), image.height());
    let mut image = processor.resized(image, cancel)?;
    if splits {
        image = processor.resized_to(Target::Multiples(edge), &image, cancel)?;
    }
    let tiles = if splits && image.width().max(image.height()) > edge {
        (image.width() / edge, image.height() / edge)
    } else {
        (0, 0)
    };
    let mut views = cut(&image, edge, tiles, cancel, |tile| processor.view(&tile))?;
    let whole = resize_as(
        processor.rounding,
        &image,
        (edge, edge),
        processor.filter,
        cancel,
    )?;
    views.push(processor.view(&whole)?);
    Ok(Views { views, tiles, size })
}

pub fn cut_pinpoints(
    processor: &Processor,
    image: &Image,
    (sizes, edge, whole): (&[(usize, usize)], usize, (usize, usize)),
    cancel: &CancelToken,
) -> Result<Views> {
    let (width, height) = (image.width(), image.height());
    let (wide, high) = best_size(sizes, width, height);
    let mut padded = Image::filled(wide, high, [0; CHANNELS])?;
    let (inner_width, inner_height) = fitting(wide, high, width, height);
    let inner = resize(image, inner_width, inner_height, processor.filter, cancel)?;
    padded.paste(&inner, (wide - inner_width) / 2, (high - inner_height) / 2);
    let tiles = (wide.div_ceil(edge), high.div_ceil(edge));
    let whole = resize(image, whole.0, whole.1, processor.filter, cancel)?;
    let mut views = vec![processor.process(&whole, cancel)?];
    let tile = |tile: Image| processor.process(&tile, cancel);
    views.extend(cut(&padded, edge, tiles, cancel, tile)?);
    Ok(Views {
        views,
        tiles,
        size: (width, height),
    })
}

pub fn cut_grid(
    processor: &Processor,
    image: &Image,
    (choice, whole_first): (GridChoice, bool),
    cancel: &CancelToken,
) -> Result<Views> {
    let size = (image.width(), image.height());
    let Some((wide, high)) = processor.fixed_size() else {
        return Err(Error::InvalidInput(
            "tiles need a size of one height and width: preprocessor_config.json has none".into(),
        ));
    };
    let (columns, rows) = match choice {
        GridChoice::Alike { least, most } => alike_grid((least, most), (wide, high), size),
        GridChoice::Covering { most } => covering_grid(most, high, size),
        GridChoice::Keeping { most } => keeping_grid(most, high, size),
    };
    let target = Target::Exact {
        width: wide * columns,
        height: high * rows,
    };
    let large = processor.resized_to(target, image, cancel)?;
    let mut views = Vec::with_capacity(columns * rows + 1);
    for number in 0..columns * rows {
        cancel.check()?;
        let (left, top) = (number % columns * wide, number / columns * high);
        views.push(processor.view(&large.crop(left, top, wide, high))?);
    }
    if views.len() > 1 {
        views.push(processor.view(&processor.resized(image, cancel)?)?);
        if whole_first {
            views.rotate_right(1);
        }
    }
    Ok(Views {
        views,
        tiles: (columns, rows),
        size,
    })
}

/// Every (columns, rows) of up to so many tiles, those of fewer tiles first.
fn grids(least: usize, most: usize) -> Vec<(usize, usize)> {
    let columns = 1..=most;
    let all = columns.flat_map(|columns| (1..=most / columns).map(move |rows| (columns, rows)));
    let mut all: Vec<_> = all.filter(|(a, b)| a * b >= least).collect();
    all.sort_by_key(|(columns, rows)| columns * rows);
    all
}

/// The grid whose proportions are most like a picture's; among those alike the largest that does not enlarge the
/// picture to more than twice its area.
pub(super) fn alike_grid(
    (least, most): (usize, usize),
    (wide, high): (usize, usize),
    (width, height): (usize, usize),
) -> (usize, usize) {
    let proportion = width as f64 / height as f64;
    let area = width as f64 * height as f64;
    let (mut best, mut nearest) = ((1, 1), f64::INFINITY);
    for (columns, rows) in grids(least, most) {
        let distance = (proportion - columns as f64 / rows as f64).abs();
        let tiles = (wide * high * columns * rows) as f64;
        if distance < nearest || distance == nearest && area > 0.5 * tiles {
            (best, nearest) = ((columns, rows), distance);
        }
    }
    best
}

/// The grid of tiles of an edge that enlarges a picture least, or else makes it least smaller.
fn covering_grid(most: usize, edge: usize, (width, height): (usize, usize)) -> (usize, usize) {
    let scale = |&(columns, rows): &(usize, usize)| {
        let across = (columns * edge) as f64 / width as f64;
        across.min((rows * edge) as f64 / height as f64)
    };
    let mut best: Option<((usize, usize), f64)> = None;
    for grid in grids(1, most) {
        let found = scale(&grid);
        let better = |best: f64| {
            if best < 1.0 {
                found > best
            } else {
                (1.0..best).contains(&found)
            }
        };
        if best.is_none_or(|(_, scale)| better(scale)) {
            best = Some((grid, found));
        }
    }
    best.map_or((1, 1), |(grid, _)| grid)
}

/// The grid of the fewest tiles of an edge that keep nine tenths of a picture; else the one that keeps the most. Rows
/// and columns are exchanged while it is measured, as the reference has it.
fn keeping_grid(most: usize, edge: usize, (width, height): (usize, usize)) -> (usize, usize) {
    let kept = |(down, across): (usize, usize)| {
        let (high, wide) = (height / down, width / across);
        let mut sum = 0.0;
        for row in 0..down {
            for column in 0..across {
                let last = |at: usize, count: usize, whole: usize, part: usize| {
                    if at == count - 1 {
                        whole - at * part
                    } else {
                        part
                    }
                };
                let (w, h) = (
                    last(column, across, width, wide),
                    last(row, down, height, high),
                );
                let (long, short) = (w.max(h) as f64, w.min(h) as f64);
                let side = edge as f64;
                sum += if long > side {
                    side * (short / long * side)
                } else {
                    long * short
                };
            }
        }
        sum / (width * height) as f64
    };
    let all: Vec<_> = grids(1, most)
        .into_iter()
        .map(|grid| (grid, kept(grid)))
        .collect();
    let count = |grid: (usize, usize)| grid.0 * grid.1;
    let mut best: Option<((usize, usize), f64)> = None;
    let enough = all.iter().any(|(_, kept)| *kept > 0.9);
    for &(grid, kept) in all.iter().filter(|(_, kept)| !enough || *kept > 0.9) {
        let better = best.is_none_or(|(other, most)| {
            if enough {
                count(grid) < count(other) || count(grid) == count(other) && kept > most
            } else {
                kept > most || kept == most && count(grid) < count(other)
            }
        });
        if better {
            best = Some((grid, kept));
        }
    }
    best.map_or((1, 1), |(grid, _)| grid)
}

pub fn cut_quarters(processor: &Processor, image: &Image, cancel: &CancelToken) -> Result<Views> {
    let (width, height) = (image.width(), image.height());
    let (across, down) = (width / 2, height / 2);
    if across == 0 || down == 0 {
        return Err(Error::InvalidInput(format!(
            "an image of {width}x{height} pixels is too small to be cut into four"
        )));
    }
    let mut views = Vec::with_capacity(5);
    for (top, high) in [(0, down), (down, height - down)] {
        for (left, wide) in [(0, across), (across, width - across)] {
            views.push(processor.process(&image.crop(left, top, wide, high), cancel)?);
        }
    }
    views.push(processor.process(image, cancel)?);
    Ok(Views {
        views,
        tiles: (2, 2),
        size: (width, height),
    })
}

pub fn cut_pieces(
    processor: &Processor,
    image: &Image,
    bounds: (usize, usize, f64),
    cancel: &CancelToken,
) -> Result<Views> {
    let size = (image.width(), image.height());
    let (columns, rows) = piece_counts(bounds, size);
    let mut views = vec![processor.process(image, cancel)?];
    let (wide, high) = match columns * rows {
        0 => size,
        _ => (size.0.div_ceil(columns), size.1.div_ceil(rows)),
    };
    for row in 0..rows {
        for column in 0..columns {
            cancel.check()?;
            let (left, top) = (column * wide, row * high);
            let (width, height) = (wide.min(size.0 - left), high.min(size.1 - top));
            views.push(processor.process(&image.crop(left, top, width, height), cancel)?);
        }
    }
    Ok(Views {
        views,
        tiles: (columns, rows),
        size,
    })
}

/// (columns, rows) of the pieces of a picture of some (width, height); (0, 0) for one that is not cut.
fn piece_counts(
    (least, most, ratio): (usize, usize, f64),
    (width, height): (usize, usize),
) -> (usize, usize) {
    let (long, short) = (width.max(height), width.min(height));
    let proportion = long as f64 / short as f64;
    if proportion < ratio {
        return (0, 0);
    }
    let count = ((proportion + 0.5).floor() as usize).min(long / least);
    let count = count.max(2).min(most);
    let edge = long.div_ceil(count);
    // The last of very many pieces would begin beyond the picture.
    if edge.min(short) < least || edge * (count - 1) >= long {
        return (0, 0);
    }
    if width >= height {
        (count, 1)
    } else {
        (1, count)
    }
}

pub(super) fn cut(
    image: &Image,
    edge: usize,
    (columns, rows): (usize, usize),
    cancel: &CancelToken,
    view: impl Fn(Image) -> Result<View>,
) -> Result<Vec<View>> {
    if columns.saturating_mul(rows) > MOST_TILES {
        return Err(Error::InvalidInput(format!(
            "an image of {}x{} pixels would become {columns}x{rows} tiles, which is more than {MOST_TILES}",
            image.width(),
            image.height()
        )));
    }
    let mut views = Vec::with_capacity(columns * rows + 1);
    for row in 0..rows {
        for column in 0..columns {
            cancel.check()?;
            let (left, top) = (column * edge, row * edge);
            let width = edge.min(image.width() - left);
            let height = edge.min(image.height() - top);
            views.push(view(image.crop(left, top, width, height))?);
        }
    }
    Ok(views)
}

/// The (width, height) that keeps the most of a picture, and wastes the least.
fn best_size(sizes: &[(usize, usize)], width: usize, height: usize) -> (usize, usize) {
    let (w, h) = (width as f64, height as f64);
    let score = |&(wide, high): &(usize, usize)| {
        let scale = (wide as f64 / w).min(high as f64 / h);
        let kept = (w * scale) as usize * (h * scale) as usize;
        let kept = kept.min(width * height);
        (kept, std::cmp::Reverse(wide * high - kept))
    };
    let mut best = sizes.first().copied().unwrap_or((1, 1));
    for size in sizes {
        if score(size) > score(&best) {
            best = *size;
        }
    }
    best
}

/// The largest (width, height) of a picture's proportions within another.
fn fitting(wide: usize, high: usize, width: usize, height: usize) -> (usize, usize) {
    let (w, h) = (width as f64, height as f64);
    let (across, down) = (wide as f64 / w, high as f64 / h);
    if across < down {
        (wide, ((h * across).ceil() as usize).clamp(1, high))
    } else {
        (((w * down).ceil() as usize).clamp(1, wide), high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_that_wastes_least_is_chosen() {
        let sizes = [(672, 336), (336, 672), (672, 672), (1008, 336)];
        assert_eq!(best_size(&sizes, 1000, 300), (1008, 336));
        assert_eq!(best_size(&sizes, 300, 300), (672, 336));
        assert_eq!(best_size(&sizes, 300, 600), (336, 672));
        assert_eq!(best_size(&sizes, 600, 600), (672, 672));
        assert_eq!(fitting(672, 336, 100, 10), (672, 68));
        assert_eq!(fitting(672, 336, 1, 1000), (1, 336));
    }

    #[test]
    fn grids_have_the_proportions_of_pictures() {
        assert_eq!(grids(1, 4)[..4], [(1, 1), (1, 2), (2, 1), (1, 3)]);
        let alike = |size| alike_grid((1, 12), (448, 448), size);
        assert_eq!(alike((800, 800)), (2, 2));
        assert_eq!(alike((1000, 1000)), (3, 3));
        assert_eq!(alike((300, 300)), (1, 1));
        assert_eq!(alike((2000, 1000)), (4, 2));
        assert_eq!(alike((100, 1200)), (1, 12));
    }

    #[test]
    fn grids_cover_pictures() {
        assert_eq!(covering_grid(12, 512, (512, 512)), (1, 1));
        assert_eq!(covering_grid(12, 512, (513, 200)), (2, 1));
        assert_eq!(covering_grid(12, 512, (600, 1100)), (2, 3));
        assert_eq!(covering_grid(4, 512, (4000, 1000)), (4, 1));
    }

    #[test]
    fn only_long_pictures_are_cut_into_pieces() {
        let bounds = (256, 4, 1.2);
        assert_eq!(piece_counts(bounds, (1000, 900)), (0, 0));
        assert_eq!(piece_counts(bounds, (1200, 900)), (2, 1));
        assert_eq!(piece_counts(bounds, (900, 2700)), (1, 3));
        assert_eq!(piece_counts(bounds, (9000, 900)), (4, 1));
        assert_eq!(piece_counts(bounds, (400, 200)), (0, 0));
        assert_eq!(piece_counts((1, 1024, 1.2), (1025, 1)), (0, 0));
    }
}
