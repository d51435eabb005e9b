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
}

impl Target {
    /// (width, height) for a picture; no edge becomes 0.
    pub fn of(self, width: usize, height: usize) -> (usize, usize) {
        let (w, h) = (width as f64, height as f64);
        let (wide, high) = match self {
            Self::Exact { width, height } => (width, height),
            Self::Shortest(edge) => shortest(edge as f64, w, h),
            Self::ShortestWithin(edge, most) => {
                let (short, long) = (w.min(h), w.max(h));
                match long / short * edge as f64 > most as f64 {
                    false => shortest(edge as f64, w, h),
                    true => {
                        let exact = most as f64 * short / long;
                        let edge = exact.round_ties_even();
                        let other = (exact * long / short) as usize;
                        match width < height {
                            true => (edge as usize, other),
                            false => (other, edge as usize),
                        }
                    }
                }
            }
            Self::Within { width, height } => {
                let scale = (height as f64 / h).min(width as f64 / w);
                ((w * scale) as usize, (h * scale) as usize)
            }
            Self::Patches { patch, most } => patches(patch, most, w, h),
        };
        (wide.max(1), high.max(1))
    }
}

fn shortest(edge: f64, width: f64, height: f64) -> (usize, usize) {
    match width <= height {
        true => (edge as usize, (edge * height / width) as usize),
        false => ((edge * width / height) as usize, edge as usize),
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
        match count <= most as f64 {
            true => low = scale,
            false => high = scale,
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
