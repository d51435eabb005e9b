//! The transforms of Winograd's method: of tiles before the products, and of sums behind them.
//!
//! F(2×2) evaluates at 0, 1, −1 and infinity, F(4×4) at 0, ±3/4, ±3/2 and infinity. With these all factors of the
//! transforms are exact in f32, and results are several times nearer than with the usual ±1 and ±2.

use crate::cpu::isa::dispatched;
use crate::cpu::simd::Simd;

/// Points of a tile's edge: at most those of F(4×4).
pub(super) const MOST_EDGE: usize = 6;
/// Places of an edge that a tile gives at most.
const MOST_GIVEN: usize = MOST_EDGE - 2;

const NEAR: f32 = 0.75;
const FAR: f32 = 1.5;

/// What kernels of three are multiplied with on either side.
pub(super) fn kernel_factors(edge: usize) -> Vec<[f64; 3]> {
    if edge == 4 {
        let half = |sign: f64| [0.5, 0.5 * sign, 0.5];
        return vec![[1.0, 0.0, 0.0], half(1.0), half(-1.0), [0.0, 0.0, 1.0]];
    }
    let (near, far) = (f64::from(NEAR).powi(2), f64::from(FAR).powi(2));
    let row = |point: f32, divisor: f64| {
        let point = f64::from(point);
        [1.0, point, point * point].map(|power| power / divisor)
    };
    let (of_near, of_far) = (2.0 * near * (near - far), 2.0 * far * (far - near));
    vec![
        row(0.0, near * far),
        row(NEAR, of_near),
        row(-NEAR, of_near),
        row(FAR, of_far),
        row(-FAR, of_far),
        [0.0, 0.0, 1.0],
    ]
}

/// The places that a tile sees, and where its points go.
pub(super) struct Reading {
    /// Channels of each place: of zeros beside the map.
    pub places: [[*const f32; MOST_EDGE]; MOST_EDGE],
    pub edge: usize,
    /// Whole vectors of every instruction set.
    pub channels: usize,
    pub to: *mut f32,
    /// From point to point.
    pub step: usize,
}

/// The sums of a tile, and the places that become of them.
pub(super) struct Writing {
    pub sums: *const f32,
    /// From point to point.
    pub step: usize,
    pub edge: usize,
    pub bias: *const f32,
    /// Results stay within these.
    pub bounds: (f32, f32),
    pub out: *mut f32,
    /// Outputs that the sums have: whole vectors of every instruction set.
    pub width: usize,
    /// Places that lie on the map, down and across.
    pub kept: (usize, usize),
    /// From place to place, and from line to line.
    pub place: usize,
    pub line: usize,
}

#[inline(always)]
unsafe fn to_points<S: Simd, const EDGE: usize>(seen: [S::V; EDGE]) -> [S::V; EDGE] {
    let mut points = seen;
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        if EDGE == 4 {
            points[0] = S::sub(seen[0], seen[2]);
            points[1] = S::add(seen[1], seen[2]);
            points[2] = S::sub(seen[2], seen[1]);
            points[3] = S::sub(seen[3], seen[1]);
        } else {
            let (near, far) = (S::splat(-NEAR * NEAR), S::splat(-FAR * FAR));
            let both = S::splat(-NEAR * NEAR - FAR * FAR);
            let product = S::splat(NEAR * NEAR * FAR * FAR);
            let even = S::fma(seen[2], both, seen[4]);
            points[0] = S::fma(seen[0], product, even);
            let even = S::fma(seen[2], far, seen[4]);
            let odd = S::fma(seen[1], far, seen[3]);
            points[1] = S::fma(odd, S::splat(NEAR), even);
            points[2] = S::fma(odd, S::splat(-NEAR), even);
            let even = S::fma(seen[2], near, seen[4]);
            let odd = S::fma(seen[1], near, seen[3]);
            points[3] = S::fma(odd, S::splat(FAR), even);
            points[4] = S::fma(odd, S::splat(-FAR), even);
            let odd = S::fma(seen[3], both, seen[5]);
            points[5] = S::fma(seen[1], product, odd);
        }
    }
    points
}

#[inline(always)]
unsafe fn to_places<S: Simd, const EDGE: usize>(sums: [S::V; EDGE]) -> [S::V; MOST_GIVEN] {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let mut places = [S::splat(0.0); MOST_GIVEN];
        let (sum, difference) = (S::add(sums[1], sums[2]), S::sub(sums[1], sums[2]));
        if EDGE == 4 {
            places[0] = S::add(sums[0], sum);
            places[1] = S::add(difference, sums[3]);
        } else {
            let (far, apart) = (S::add(sums[3], sums[4]), S::sub(sums[3], sums[4]));
            places[0] = S::add(S::add(sums[0], sum), far);
            places[1] = S::fma(apart, S::splat(FAR), S::mul(difference, S::splat(NEAR)));
            places[2] = S::fma(far, S::splat(FAR * FAR), S::mul(sum, S::splat(NEAR * NEAR)));
            let last = S::fma(difference, S::splat(NEAR * NEAR * NEAR), sums[5]);
            places[3] = S::fma(apart, S::splat(FAR * FAR * FAR), last);
        }
        places
    }
}

#[inline(always)]
unsafe fn read<S: Simd, const EDGE: usize>(tile: &Reading) {
    let mut at = 0;
    while at < tile.channels {
        // SAFETY: every place and every point has `channels` numbers, whole vectors, as the caller vouches, who has the
        // instruction set.
        unsafe {
            let mut half = [[S::splat(0.0); EDGE]; EDGE];
            let mut x = 0;
            while x < EDGE {
                let mut seen = [S::splat(0.0); EDGE];
                let mut y = 0;
                while y < EDGE {
                    seen[y] = S::load(tile.places[y][x].add(at));
                    y += 1;
                }
                let points = to_points::<S, EDGE>(seen);
                let mut y = 0;
                while y < EDGE {
                    half[y][x] = points[y];
                    y += 1;
                }
                x += 1;
            }
            let mut y = 0;
            while y < EDGE {
                let points = to_points::<S, EDGE>(half[y]);
                let mut x = 0;
                while x < EDGE {
                    S::store(tile.to.add((y * EDGE + x) * tile.step + at), points[x]);
                    x += 1;
                }
                y += 1;
            }
        }
        at += S::LANES;
    }
}

#[inline(always)]
unsafe fn write<S: Simd, const EDGE: usize>(tile: &Writing) {
    let mut at = 0;
    while at < tile.width {
        // SAFETY: every point, the bias and every place that is kept have `width` numbers, whole vectors, as the caller
        // vouches, who has the instruction set.
        unsafe {
            let mut half = [[S::splat(0.0); EDGE]; MOST_GIVEN];
            let mut x = 0;
            while x < EDGE {
                let mut sums = [S::splat(0.0); EDGE];
                let mut y = 0;
                while y < EDGE {
                    sums[y] = S::load(tile.sums.add((y * EDGE + x) * tile.step + at));
                    y += 1;
                }
                let places = to_places::<S, EDGE>(sums);
                let mut y = 0;
                while y < EDGE - 2 {
                    half[y][x] = places[y];
                    y += 1;
                }
                x += 1;
            }
            let bias = S::load(tile.bias.add(at));
            let (least, most) = (S::splat(tile.bounds.0), S::splat(tile.bounds.1));
            for (y, half) in half.iter().enumerate().take(tile.kept.0) {
                let places = to_places::<S, EDGE>(*half);
                for (x, &place) in places.iter().enumerate().take(tile.kept.1) {
                    let sum = S::add(place, bias);
                    // NaN stays NaN.
                    let sum = S::select_less(sum, least, least, sum);
                    let sum = S::select_less(most, sum, most, sum);
                    S::store(tile.out.add(y * tile.line + x * tile.place + at), sum);
                }
            }
        }
        at += S::LANES;
    }
}

#[inline(always)]
unsafe fn read_with<S: Simd>(tile: *const Reading) {
    // SAFETY: the caller vouches for the tile, whose edge is 4 or 6, and has the instruction set.
    unsafe {
        let tile = &*tile;
        match tile.edge {
            4 => read::<S, 4>(tile),
            _ => read::<S, MOST_EDGE>(tile),
        }
    }
}

#[inline(always)]
unsafe fn write_with<S: Simd>(tile: *const Writing) {
    // SAFETY: the caller vouches for the tile, whose edge is 4 or 6, and has the instruction set.
    unsafe {
        let tile = &*tile;
        match tile.edge {
            4 => write::<S, 4>(tile),
            _ => write::<S, MOST_EDGE>(tile),
        }
    }
}

dispatched! {
    /// # Safety
    /// All places of the edge and all points have the channels.
    pub(super) unsafe fn read_tile(tile: *const Reading) = read_with
}
dispatched! {
    /// # Safety
    /// All points, the bias and the places that are kept, at most the edge less two, have the width.
    pub(super) unsafe fn write_tile(tile: *const Writing) = write_with
}
