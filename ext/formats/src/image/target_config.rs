//! The sizes that a checkpoint's `preprocessor_config.json` says.

use serde_json::Value;

use super::processor::{EDGES, MOST_PIXELS};
use super::size::Target;
use super::CHANNELS;
use crate::files::raw_config::RawConfig;
use crate::{Error, Result};

/// Bounds of the number of pixels, which older files name after edges.
pub(super) fn pixels(raw: &RawConfig, (least, most): (usize, usize)) -> Result<Target> {
    let edge = |key: &str, usual: usize| -> Result<usize> {
        Ok(raw.opt_usize_in(key, EDGES)?.unwrap_or(usual))
    };
    let size = raw.opt_nested("size")?;
    let bound = |own: &str, edge: &str, usual: usize| -> Result<usize> {
        let nested = match &size {
            Some(size) => size.opt_usize_in([edge, own], 1..=MOST_PIXELS)?,
            None => None,
        };
        let own = raw.opt_usize_in(own, 1..=MOST_PIXELS)?;
        Ok(own.or(nested).unwrap_or(usual))
    };
    Ok(Target::Pixels {
        factor: edge("patch_size", 14)? * edge("merge_size", 2)?,
        least: bound("min_pixels", "shortest_edge", least)?,
        most: bound("max_pixels", "longest_edge", most)?,
    })
}

/// Gemma 4's, which says how many blocks of patches there may be.
pub(super) fn patch_blocks(raw: &RawConfig) -> Result<Target> {
    let block = raw
        .opt_usize_in("pooling_kernel_size", 1..=64)?
        .unwrap_or(3);
    let rows = raw.opt_usize_in("max_soft_tokens", EDGES)?.unwrap_or(280);
    Ok(Target::PatchBlocks {
        patch: raw.opt_usize_in("patch_size", 1..=1024)?.unwrap_or(16),
        block,
        most: rows * block * block,
    })
}

/// GLM-4V's, which counts the pixels of all frames.
pub(super) fn frame_pixels(raw: &RawConfig) -> Result<Target> {
    let edge = |key: &str, usual: usize| -> Result<usize> {
        Ok(raw.opt_usize_in(key, EDGES)?.unwrap_or(usual))
    };
    let size = raw.opt_nested("size")?;
    let bound = |edge: &str, usual: usize| -> Result<usize> {
        let Some(size) = &size else { return Ok(usual) };
        size.usize_in(edge, 1..=MOST_PIXELS)
    };
    Ok(Target::FramePixels {
        factor: edge("patch_size", 14)? * edge("merge_size", 2)?,
        frames: edge("temporal_patch_size", 2)?,
        least: bound("shortest_edge", 112 * 112)?,
        most: bound("longest_edge", 28 * 28 * 15_000)?,
    })
}

/// DETR's, whose older files say the longest edge apart; YOLOS wants whole patches of 16 pixels.
pub(super) fn detr(raw: &RawConfig, whole: bool) -> Result<Target> {
    let longest = raw.opt_usize_in("max_size", EDGES)?.unwrap_or(1333);
    let within = |edge: usize, longest: usize| {
        if whole {
            Target::ShortestWithinPatches(edge, longest)
        } else {
            Target::ShortestWithin(edge, longest)
        }
    };
    Ok(match target(raw, "size", false)? {
        None => within(800, longest),
        Some(Target::Shortest(edge)) => within(edge, longest),
        Some(Target::ShortestWithin(edge, longest)) => within(edge, longest),
        Some(other) => other,
    })
}

/// MaskFormer's, whose edges grow to multiples of `size_divisor`.
pub(super) fn in_multiples(raw: &RawConfig) -> Result<Target> {
    let multiple = raw
        .opt_usize_in("size_divisor", 0..=16_384)?
        .unwrap_or(32)
        .max(1);
    Ok(match detr(raw, false)? {
        Target::ShortestWithin(edge, longest) => Target::ShortestWithinMultiples {
            edge,
            longest,
            multiple,
        },
        Target::Exact { width, height } => Target::Exact {
            width: width.next_multiple_of(multiple),
            height: height.next_multiple_of(multiple),
        },
        _ => {
            let reason = "\"size\" has neither height and width nor shortest_edge";
            return Err(Error::unsupported(raw.file(), reason));
        }
    })
}

/// DPT's, which may keep proportions.
pub(super) fn nearest(raw: &RawConfig) -> Result<Target> {
    let size = target(raw, "size", true)?;
    let Target::Exact { width, height } = size.unwrap_or(Target::Exact {
        width: 384,
        height: 384,
    }) else {
        let reason = "\"size\" of a DPT processor has no height and width";
        return Err(Error::unsupported(raw.file(), reason));
    };
    Ok(Target::Nearest {
        width,
        height,
        multiple: raw.opt_usize_in("ensure_multiple_of", EDGES)?.unwrap_or(1),
        keeps: raw.opt_bool("keep_aspect_ratio")?.unwrap_or(false),
    })
}

/// Below 384 pixels more is kept than is shown: the middle is cut out.
pub(super) fn convnext(raw: &RawConfig, edge: usize) -> Result<(Target, Option<(usize, usize)>)> {
    if edge >= 384 {
        let (width, height) = (edge, edge);
        return Ok((Target::Exact { width, height }, None));
    }
    let part = raw.opt_f64("crop_pct")?.unwrap_or(224.0 / 256.0);
    let kept = (edge as f64 / part) as usize;
    if !(part > 0.0 && part <= 1.0 && EDGES.contains(&kept)) {
        return Err(Error::corrupt(
            raw.file(),
            "\"crop_pct\" is not a part of an edge",
        ));
    }
    Ok((Target::Shortest(kept), Some((edge, edge))))
}

/// An edge of a size that is a number or an object.
pub(super) fn edge_of(raw: &RawConfig, key: &str, edge: &str) -> Result<Option<usize>> {
    match raw.get(key) {
        Some(Value::Object(_)) => raw.nested(key)?.opt_usize_in(edge, EDGES),
        _ => raw.opt_usize_in(key, EDGES),
    }
}

pub(super) fn whole_patches(raw: &RawConfig) -> Result<Target> {
    Ok(Target::WholePatches {
        longest: edge_of(raw, "size", "longest_edge")?.unwrap_or(1024),
        patch: edge_of(raw, "patch_size", "height")?.unwrap_or(16),
    })
}

pub(super) fn longest(raw: &RawConfig) -> Result<Option<Target>> {
    let Some(size) = raw.opt_nested("size")? else {
        return Ok(None);
    };
    match size.opt_usize_in("longest_edge", EDGES)? {
        Some(edge) => Ok(Some(Target::Longest(edge))),
        None => target(raw, "size", true),
    }
}

/// Idefics 2's, which has both edges or a size.
pub(super) fn bounded(raw: &RawConfig) -> Result<Target> {
    let edge = |key: &str, usual: usize| -> Result<usize> {
        let size = raw.opt_nested("size")?;
        let edge = size.map(|size| size.opt_usize_in(key, EDGES)).transpose()?;
        Ok(edge.flatten().unwrap_or(usual))
    };
    match target(raw, "size", true)? {
        Some(Target::ShortestWithin(..)) | None => Ok(Target::Bounded {
            longest: edge("longest_edge", 980)?,
            least: edge("shortest_edge", 378)?,
        }),
        Some(exact @ Target::Exact { .. }) => Ok(exact),
        Some(_) => Err(Error::unsupported(
            raw.file(),
            "\"size\" has neither height and width nor both shortest_edge and longest_edge",
        )),
    }
}

/// (width, height) that every picture gets, or the edge of a square that its shorter side gets.
pub(super) fn edges(target: Target) -> Option<(usize, usize)> {
    match target {
        Target::Exact { width, height } => Some((width, height)),
        Target::Shortest(edge) => Some((edge, edge)),
        _ => None,
    }
}

pub(super) fn target_of_crop(raw: &RawConfig) -> Result<Option<(usize, usize)>> {
    target_of(raw, "crop_size")
}

pub(super) fn target_of(raw: &RawConfig, key: &str) -> Result<Option<(usize, usize)>> {
    Ok(match target(raw, key, true)? {
        Some(Target::Exact { width, height }) => Some((width, height)),
        Some(Target::Shortest(edge)) => Some((edge, edge)),
        _ => None,
    })
}

/// A size as files write it: a number, a pair of height and width, or an object.
pub(super) fn target(raw: &RawConfig, key: &str, square: bool) -> Result<Option<Target>> {
    let lone = |edge: usize| {
        if square {
            Target::Exact {
                width: edge,
                height: edge,
            }
        } else {
            Target::Shortest(edge)
        }
    };
    let size = match raw.get(key) {
        None => return Ok(None),
        Some(Value::Number(_)) => return raw.opt_usize_in(key, EDGES).map(|edge| edge.map(lone)),
        Some(Value::Array(_)) => {
            let edges = raw.opt_integers(key)?.unwrap_or_default();
            let edges: Option<Vec<usize>> = edges
                .iter()
                .map(|&edge| {
                    usize::try_from(edge)
                        .ok()
                        .filter(|edge| EDGES.contains(edge))
                })
                .collect();
            return match edges.as_deref() {
                Some([height, width]) => Ok(Some(Target::Exact {
                    width: *width,
                    height: *height,
                })),
                Some([edge]) => Ok(Some(lone(*edge))),
                _ => Err(Error::corrupt(raw.file(), format!("{key:?} is not a size"))),
            };
        }
        Some(_) => raw.nested(key)?,
    };
    let edge = |key: &str| size.opt_usize_in(key, EDGES);
    let found = (
        edge("width")?.zip(edge("height")?),
        edge("shortest_edge")?,
        edge("longest_edge")?,
        edge("max_width")?.zip(edge("max_height")?),
    );
    match found {
        (Some((width, height)), ..) => Ok(Some(Target::Exact { width, height })),
        (None, Some(short), Some(long), _) => Ok(Some(Target::ShortestWithin(short, long))),
        (None, Some(short), None, _) => Ok(Some(Target::Shortest(short))),
        (.., Some((width, height))) => Ok(Some(Target::Within { width, height })),
        _ => Err(Error::unsupported(
            raw.file(),
            format!("{key:?} has neither height and width nor shortest_edge"),
        )),
    }
}

/// Three numbers, or one for all.
pub(super) fn channels(raw: &RawConfig, key: &str) -> Result<Option<[f64; CHANNELS]>> {
    if matches!(raw.get(key), Some(Value::Number(_))) {
        return Ok(raw.opt_f64(key)?.map(|number| [number; CHANNELS]));
    }
    match raw.opt_numbers(key)? {
        None => Ok(None),
        Some(numbers) => <[f64; CHANNELS]>::try_from(numbers)
            .map(Some)
            .map_err(|numbers| {
                Error::corrupt(
                    raw.file(),
                    format!("{key:?} has {} numbers for 3 channels", numbers.len()),
                )
            }),
    }
}
