//! Codebooks the other way round: the entry of a point, or the entries near it.

use std::sync::OnceLock;

use crate::weights::coded::codebook;
use crate::weights::grids;

/// A codebook whose entries are `N` small codes.
pub struct Book<const N: usize> {
    pub entries: Vec<[i8; N]>,
    bits: usize,
    /// By point: one more than its entry, or 0.
    places: Vec<u16>,
    /// By point: the entries near it, the nearest first, found when they are first asked for.
    near: Vec<OnceLock<Box<[u16]>>>,
    /// How many different distances count as near.
    distances: usize,
}

impl<const N: usize> Book<N> {
    fn new(digits: &str, distances: usize) -> Self {
        let bits = 16 / N - usize::from(N == 4);
        let entries = codebook::<N>(digits, bits, &[0, 1, 2, 3, 4, 5, 6, 7]);
        let points = 1 << (bits * N);
        let mut places = vec![0u16; points];
        for (number, entry) in entries.iter().enumerate() {
            places[point(entry, bits)] = number as u16 + 1;
        }
        Self {
            entries,
            bits,
            places,
            near: (0..points).map(|_| OnceLock::new()).collect(),
            distances,
        }
    }

    /// The entry with these codes.
    pub fn place(&self, codes: &[i8; N]) -> Option<u16> {
        self.places[point(codes, self.bits)].checked_sub(1)
    }

    /// The entry with these codes; or that of those near it which leaves the least error to `values`, where a code
    /// stands for `scale * numbers[code]`.
    pub fn nearest(
        &self,
        codes: &[i8; N],
        (values, weights): (&[f32], &[f32]),
        scale: f32,
        numbers: &[f32],
    ) -> u16 {
        if let Some(place) = self.place(codes) {
            return place;
        }
        let near = self.near[point(codes, self.bits)].get_or_init(|| self.near(codes));
        let (mut least, mut found) = (f32::MAX, near.first().copied().unwrap_or(0));
        for &number in near {
            let entry = &self.entries[usize::from(number)];
            let mut error = 0.0;
            for ((&code, value), weight) in entry.iter().zip(values).zip(weights) {
                let off = scale * numbers[code as usize] - value;
                error += weight * off * off;
            }
            if error < least {
                (least, found) = (error, number);
            }
        }
        found
    }

    fn near(&self, codes: &[i8; N]) -> Box<[u16]> {
        let entries = self.entries.iter().enumerate();
        let mut sorted: Vec<(i32, u16)> = entries
            .map(|(number, entry)| {
                let pairs = entry.iter().zip(codes);
                let distance = pairs.map(|(a, b)| i32::from(a - b).pow(2)).sum();
                (distance, number as u16)
            })
            .collect();
        sorted.sort_unstable();
        let groups = sorted.chunk_by(|a, b| a.0 == b.0).take(self.distances);
        groups.flatten().map(|&(_, number)| number).collect()
    }
}

fn point<const N: usize>(codes: &[i8; N], bits: usize) -> usize {
    let codes = codes.iter().enumerate();
    codes.fold(0, |point, (at, &code)| {
        point | (code as usize) << (bits * at)
    })
}

/// A book that is made when it is first asked for.
macro_rules! book {
    ($name:ident, $size:literal, $digits:expr, $distances:literal) => {
        pub fn $name() -> &'static Book<$size> {
            static BOOK: OnceLock<Book<$size>> = OnceLock::new();
            BOOK.get_or_init(|| Book::new($digits, $distances))
        }
    };
}

book!(iq2_xxs, 8, grids::IQ2_XXS, 2);
book!(iq2_xs, 8, grids::IQ2_XS, 2);
book!(iq2_s, 8, grids::IQ2_S, 1);
book!(iq3_xxs, 4, grids::IQ3_XXS, 2);
book!(iq3_s, 4, grids::IQ3_S, 3);
book!(iq1, 8, grids::IQ1, 3);
