//! The sizes that processors bring pictures to. Widths and heights are computed in doubles and cut,
//! as Python computes them.

/// Where resizing leads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    Exact {
        width: usize,
        height: usize,
    },
    /// The shorter edge gets a length, and the other what keeps the proportions.
    Shortest(usize),
    /// `Shortest`, as long as the longer edge stays within the second.
    ShortestWithin(usize, usize),
    /// The same in whole patches of 16 pixels (YOLOS).
    ShortestWithinPatches(usize, usize),
    /// `ShortestWithin`, and then at least as large in multiples of an edge (MaskFormer).
    ShortestWithinMultiples {
        edge: usize,
        longest: usize,
        multiple: usize,
    },
    /// As large as fits into both.
    Within {
        width: usize,
        height: usize,
    },
    /// As many patches of a size as there may be, whole ones in both directions (SigLIP 2).
    Patches {
        patch: usize,
        most: usize,
    },
    /// The longer edge gets a length, and the other an even one that keeps the proportions (Idefics 3).
    Longest(usize),
    /// Multiples of an edge that are at least as large (Idefics 3).
    Multiples(usize),
    /// Within a square, and then at least as large in multiples of `patch` (Pixtral).
    WholePatches {
        longest: usize,
        patch: usize,
    },
    /// The longer edge gets a length, and the other what keeps the proportions, but not less than `least` (Janus).
    LongestFrom {
        longest: usize,
        least: usize,
    },
    /// `Pixels`, of a picture whose edges were brought to `factor` before (PaddleOCR-VL).
    GrownPixels {
        factor: usize,
        least: usize,
        most: usize,
    },
    /// A longer edge than `longest` gets that length, and the other what keeps the proportions; none becomes shorter than
    /// `least` (Idefics 2).
    Bounded {
        longest: usize,
        least: usize,
    },
    /// `Pixels` of so many frames, of a picture that was scaled up until both edges have `factor` (GLM-4V).
    FramePixels {
        factor: usize,
        frames: usize,
        least: usize,
        most: usize,
    },
    /// The longer edge gets a length, and the other the nearest one that keeps the proportions (SAM).
    LongestNearest(usize),
    /// Multiples of an edge that are nearest to a size, or to what keeps the proportions and has one of its edges (DPT).
    Nearest {
        width: usize,
        height: usize,
        multiple: usize,
        keeps: bool,
    },
    /// `Pixels` of all frames of a video, of which two at a time count, in frames that were scaled up until both edges
    /// have `factor` (Qwen3-VL).
    VideoPixels {
        factor: usize,
        frames: usize,
        least: usize,
        most: usize,
    },
    /// As many patches as keep the proportions, of not more than `most` (Pix2Struct).
    MostPatches {
        patch: usize,
        most: usize,
    },
    /// The most blocks of patches, so many to a side, that keep the proportions, of not more than `most` patches
    /// (Gemma 4).
    PatchBlocks {
        patch: usize,
        block: usize,
        most: usize,
    },
    /// Multiples of `factor`, of not fewer than `least` pixels and not more than `most` (Qwen2-VL).
    Pixels {
        factor: usize,
        least: usize,
        most: usize,
    },
}

/// `Longest` never leads beyond this.
const LONGEST: usize = 4096;

impl Target {
    /// (width, height) for a picture; no edge becomes 0.
    pub fn of(self, width: usize, height: usize) -> (usize, usize) {
        let (w, h) = (width as f64, height as f64);
        let (wide, high) = match self {
            Self::Exact { width, height } => (width, height),
            Self::Shortest(edge) => shortest(edge as f64, w, h),
            Self::ShortestWithin(edge, most) => within(edge, most, (width, height)),
            Self::ShortestWithinPatches(edge, most) => {
                let (wide, high) = within(edge, most, (width, height));
                (wide / 16 * 16, high / 16 * 16)
            }
            Self::ShortestWithinMultiples {
                edge,
                longest,
                multiple,
            } => {
                let (wide, high) = within(edge, longest, (width, height));
                let whole = |edge: usize| edge.max(1).next_multiple_of(multiple);
                (whole(wide), whole(high))
            }
            Self::Within { width, height } => {
                let scale = (height as f64 / h).min(width as f64 / w);
                ((w * scale) as usize, (h * scale) as usize)
            }
            Self::Patches { patch, most } => patches(patch, most, w, h),
            Self::Longest(edge) => {
                let (wide, high) = longest(edge, w, h, |edge| edge + edge % 2);
                if wide.max(high) > LONGEST {
                    longest(LONGEST, wide as f64, high as f64, |edge| edge)
                } else {
                    (wide, high)
                }
            }
            Self::Multiples(edge) => {
                let whole = |size: f64| (size / edge as f64).ceil() as usize * edge;
                if width >= height {
                    (whole(w), whole((whole(w) as f64 / (w / h)).trunc()))
                } else {
                    (whole((whole(h) as f64 * (w / h)).trunc()), whole(h))
                }
            }
            Self::WholePatches { longest, patch } => {
                let ratio = (h / longest as f64).max(w / longest as f64);
                let within = |size: f64| {
                    if ratio > 1.0 {
                        (size / ratio).floor() as usize
                    } else {
                        size as usize
                    }
                };
                let whole = |size: usize| size.max(1).div_ceil(patch) * patch;
                (whole(within(w)), whole(within(h)))
            }
            Self::LongestFrom { longest, least } => {
                let scale = longest as f64 / w.max(h);
                let scaled = |size: f64| ((size * scale).round_ties_even() as usize).max(least);
                (scaled(w), scaled(h))
            }
            Self::Bounded { longest, least } => {
                let (wide, high) = if width >= height && width > longest {
                    (longest, (longest as f64 / (w / h)) as usize)
                } else if height > width && height > longest {
                    ((longest as f64 * (w / h)) as usize, longest)
                } else {
                    (width, height)
                };
                (wide.max(least), high.max(least))
            }
            Self::LongestNearest(edge) => {
                let scale = edge as f64 / w.max(h);
                ((w * scale + 0.5) as usize, (h * scale + 0.5) as usize)
            }
            Self::Nearest {
                width,
                height,
                multiple,
                keeps,
            } => {
                let (mut wider, mut higher) = (width as f64 / w, height as f64 / h);
                if keeps {
                    if (1.0 - wider).abs() < (1.0 - higher).abs() {
                        higher = wider;
                    } else {
                        wider = higher;
                    }
                }
                let edge = multiple as f64;
                let nearest = |size: f64| ((size / edge).round_ties_even() * edge) as usize;
                (nearest(wider * w), nearest(higher * h))
            }
            Self::VideoPixels {
                factor,
                frames,
                least,
                most,
            } => video_pixels(factor, frames, (least as f64, most as f64), (w, h)),
            Self::MostPatches { patch, most } => {
                let edge = patch as f64;
                let scale = (most as f64 * (edge / h) * (edge / w)).sqrt();
                let count = |size: f64| ((scale * size / edge) as usize).clamp(1, most.max(1));
                (count(w) * patch, count(h) * patch)
            }
            Self::PatchBlocks { patch, block, most } => patch_blocks(patch, block, most, (w, h)),
            Self::Pixels {
                factor,
                least,
                most,
            } => pixels(factor, (least as f64, most as f64), w, h),
            Self::FramePixels {
                factor,
                frames,
                least,
                most,
            } => {
                let scale = (factor as f64 / h).max(factor as f64 / w);
                let grown = |size: f64| {
                    if scale > 1.0 {
                        (size * scale).trunc()
                    } else {
                        size
                    }
                };
                let count = frames as f64;
                let bounds = (least as f64 / count, most as f64 / count);
                pixels(factor, bounds, grown(w), grown(h))
            }
            Self::GrownPixels {
                factor,
                least,
                most,
            } => {
                let (wide, high) = grown(factor as f64, w, h);
                pixels(factor, (least as f64, most as f64), wide, high)
            }
        };
        (wide.max(1), high.max(1))
    }
}

fn longest(edge: usize, width: f64, height: f64, other: impl Fn(usize) -> usize) -> (usize, usize) {
    let ratio = width / height;
    if width >= height {
        (edge, other((edge as f64 / ratio) as usize).max(1))
    } else {
        (other((edge as f64 * ratio) as usize).max(1), edge)
    }
}

fn pixels(factor: usize, (least, most): (f64, f64), width: f64, height: f64) -> (usize, usize) {
    let side = factor as f64;
    let nearest = |size: f64| (size / side).round_ties_even() * side;
    let count = nearest(width) * nearest(height);
    let scaled = |size: f64| -> f64 {
        if count > most {
            let shrunk = size / (width * height / most).sqrt();
            ((shrunk / side).floor() * side).max(side)
        } else if count < least {
            let grown = size * (least / (width * height)).sqrt();
            (grown / side).ceil() * side
        } else {
            nearest(size)
        }
    };
    (scaled(width) as usize, scaled(height) as usize)
}

fn video_pixels(
    factor: usize,
    frames: usize,
    (least, most): (f64, f64),
    (width, height): (f64, f64),
) -> (usize, usize) {
    let side = factor as f64;
    let scale = (side / height).max(side / width).max(1.0);
    let (w, h) = ((width * scale).trunc(), (height * scale).trunc());
    let count = frames as f64;
    let nearest = |size: f64| (size / side).round_ties_even() * side;
    let pairs = (count / 2.0).round_ties_even() * 2.0;
    let all = pairs * nearest(w) * nearest(h);
    let scaled = |size: f64| {
        if all > most {
            let shrunk = size / (count * w * h / most).sqrt();
            ((shrunk / side).floor() * side).max(side)
        } else if all < least {
            let grown = size * (least / (count * w * h)).sqrt();
            (grown / side).ceil() * side
        } else {
            nearest(size)
        }
    };
    (scaled(w) as usize, scaled(h) as usize)
}

fn patch_blocks(patch: usize, block: usize, most: usize, (w, h): (f64, f64)) -> (usize, usize) {
    let edge = patch * block;
    let factor = ((most * patch * patch) as f64 / (h * w)).sqrt();
    let whole = |size: f64| (factor * size / edge as f64).floor() as usize * edge;
    let longest = most / (block * block).max(1) * edge;
    let along = |ratio: f64| (ratio.floor() as usize).saturating_mul(edge).min(longest);
    match (whole(w), whole(h)) {
        (0, 0) => (edge, edge),
        (_, 0) => (along(w / h), edge),
        (0, _) => (edge, along(h / w)),
        size => size,
    }
}

/// (width, height) of the same proportions, of which neither is below an edge.
fn grown(edge: f64, mut width: f64, mut height: f64) -> (f64, f64) {
    if height < edge {
        width = (width * edge / height).round_ties_even();
        height = edge;
    }
    if width < edge {
        height = (height * edge / width).round_ties_even();
        width = edge;
    }
    (width, height)
}

fn within(edge: usize, most: usize, (width, height): (usize, usize)) -> (usize, usize) {
    let (w, h) = (width as f64, height as f64);
    let (short, long) = (w.min(h), w.max(h));
    if long / short * edge as f64 <= most as f64 {
        return shortest(edge as f64, w, h);
    }
    let exact = most as f64 * short / long;
    let edge = exact.round_ties_even() as usize;
    if edge == width.min(height) {
        return (width, height);
    }
    let other = (exact * long / short) as usize;
    if width < height {
        (edge, other)
    } else {
        (other, edge)
    }
}

fn shortest(edge: f64, width: f64, height: f64) -> (usize, usize) {
    if width <= height {
        (edge as usize, (edge * height / width) as usize)
    } else {
        ((edge * width / height) as usize, edge as usize)
    }
}

/// The largest scale at which there are not too many patches, by halving an interval.
fn patches(patch: usize, most: usize, width: f64, height: f64) -> (usize, usize) {
    const EPSILON: f64 = 1e-5;
    let side = patch as f64;
    let scaled = |size: f64, scale: f64| ((size * scale / side).ceil() * side).max(side);
    let (mut low, mut high) = (EPSILON / 10.0, 100.0);
    while high - low >= EPSILON {
        let scale = (low + high) / 2.0;
        let count = (scaled(height, scale) / side) * (scaled(width, scale) / side);
        if count <= most as f64 {
            low = scale
        } else {
            high = scale
        }
    }
    (scaled(width, low) as usize, scaled(height, low) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proportions_are_kept_and_cut() {
        assert_eq!(Target::Shortest(224).of(640, 427), (335, 224));
        assert_eq!(Target::Shortest(224).of(3, 1000), (224, 74666));
        assert_eq!(
            Target::Within {
                width: 100,
                height: 50
            }
            .of(300, 301),
            (49, 50)
        );
        assert_eq!(Target::ShortestWithin(800, 1333).of(640, 427), (1199, 800));
        assert_eq!(Target::ShortestWithin(800, 1000).of(427, 640), (667, 1000));
        assert_eq!(
            Target::Within {
                width: 1,
                height: 10
            }
            .of(10_000, 1),
            (1, 1)
        );
    }

    #[test]
    fn edges_of_tiles_are_whole() {
        assert_eq!(Target::Longest(1456).of(640, 427), (1456, 972));
        assert_eq!(Target::Longest(100).of(1, 1000), (1, 100));
        assert_eq!(Target::Longest(100).of(30, 1000), (4, 100));
        assert_eq!(Target::Longest(8192).of(640, 427), (4096, 2733));
        assert_eq!(Target::Multiples(364).of(1456, 972), (1456, 1092));
        assert_eq!(Target::Multiples(32).of(20, 88), (32, 96));
    }

    #[test]
    fn edges_stay_within_bounds() {
        let target = Target::Bounded {
            longest: 980,
            least: 378,
        };
        assert_eq!(target.of(1960, 1000), (980, 500));
        assert_eq!(target.of(100, 2000), (378, 980));
        assert_eq!(target.of(400, 500), (400, 500));
    }

    #[test]
    fn patches_are_whole_within_a_square() {
        let target = Target::WholePatches {
            longest: 1024,
            patch: 32,
        };
        assert_eq!(target.of(640, 427), (640, 448));
        assert_eq!(target.of(2048, 1000), (1024, 512));
        assert_eq!(target.of(1, 1), (32, 32));
        let target = Target::LongestFrom {
            longest: 384,
            least: 14,
        };
        assert_eq!(target.of(640, 427), (384, 256));
        assert_eq!(target.of(1000, 3), (384, 14));
    }

    #[test]
    fn pixels_stay_within_bounds() {
        let target = Target::Pixels {
            factor: 28,
            least: 3136,
            most: 12_845_056,
        };
        assert_eq!(target.of(640, 427), (644, 420));
        assert_eq!(target.of(5, 5), (56, 56));
        let small = Target::Pixels {
            factor: 28,
            least: 3136,
            most: 50_176,
        };
        assert_eq!(small.of(640, 427), (252, 168));
    }

    #[test]
    fn blocks_of_patches_are_whole() {
        let target = Target::PatchBlocks {
            patch: 16,
            block: 3,
            most: 2520,
        };
        assert_eq!(target.of(640, 427), (960, 624));
        assert_eq!(target.of(10_000, 1), (13_440, 48));
        assert_eq!(target.of(3, 1000), (48, 13_440));
    }

    #[test]
    fn patches_fill_what_they_may() {
        for (width, height) in [(640, 427), (31, 1000), (5, 5)] {
            let (wide, high) = Target::Patches {
                patch: 16,
                most: 256,
            }
            .of(width, height);
            assert!(wide.is_multiple_of(16) && high.is_multiple_of(16));
            assert!(wide / 16 * (high / 16) <= 256);
        }
    }
}
