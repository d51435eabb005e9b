//! One vector of fixed size for the vectors of many tokens, whose dot product with that of a query comes near to MaxSim
//! (MUVERA): what finds the texts that MaxSim compares.
//!
//! Random hyperplanes cut the space into parts, several times over. A query's vectors are added up in each part, a
//! text's are averaged, and where a part of a text is empty, its vector nearest to that part stands in. Each sum is
//! projected to fewer numbers by random signs.

use crate::{Error, Result};

/// How the space is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedConfig {
    /// Of the vectors of tokens.
    pub dimension: usize,
    /// How often the space is cut again.
    pub repetitions: usize,
    /// Hyperplanes of each; there are 2 to the power of it parts.
    pub bits: usize,
    /// The numbers that are kept of each part.
    pub projected: usize,
    pub seed: u64,
}

/// More than anyone needs.
const MOST_BITS: usize = 12;
const MOST_NUMBERS: usize = 1 << 16;

pub struct FixedEncoding {
    config: FixedConfig,
    /// `[repetitions, bits, dimension]`
    planes: Vec<f32>,
    /// `[repetitions, projected, dimension]`; empty where vectors are kept whole.
    signs: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Query,
    Document,
}

impl FixedEncoding {
    pub fn new(config: FixedConfig) -> Result<Self> {
        let FixedConfig {
            dimension,
            repetitions,
            bits,
            projected,
            seed,
        } = config;
        let parts = 1usize.checked_shl(bits as u32).unwrap_or(0);
        let numbers = repetitions
            .checked_mul(parts)
            .and_then(|parts| parts.checked_mul(projected))
            .filter(|&numbers| (1..MOST_NUMBERS).contains(&numbers));
        if bits > MOST_BITS || projected > dimension || numbers.is_none() {
            return Err(Error::InvalidInput(format!(
                "fixed vectors of {repetitions} repetitions, {bits} bits and {projected} of {dimension} numbers are not \
                 possible: repetitions · 2^bits · projection must be below {MOST_NUMBERS}, bits at most {MOST_BITS}, and \
                 projection at most the size of a token's vector"
            )));
        }
        let mut random = Random(seed);
        let planes = (0..repetitions * bits * dimension).map(|_| random.normal());
        let planes = planes.collect();
        let scale = (projected as f32).sqrt().recip();
        let signs = if projected == dimension {
            Vec::new()
        } else {
            (0..repetitions * projected * dimension)
                .map(|_| {
                    if random.next() & 1 == 0 {
                        scale
                    } else {
                        -scale
                    }
                })
                .collect()
        };
        Ok(Self {
            config,
            planes,
            signs,
        })
    }

    /// The size of a vector, of which the last number makes all texts' equally long.
    pub fn size(&self) -> usize {
        self.config.repetitions * self.parts() * self.config.projected + 1
    }

    fn parts(&self) -> usize {
        1 << self.config.bits
    }

    /// The vector of a text's or a query's tokens, one after the other.
    pub fn encode(&self, tokens: &[f32], side: Side) -> Result<Vec<f32>> {
        let dimension = self.config.dimension;
        if tokens.is_empty() || !tokens.len().is_multiple_of(dimension) {
            return Err(Error::InvalidInput(format!(
                "the vectors of tokens have {dimension} numbers each, and there are {} of them",
                tokens.len()
            )));
        }
        let mut encoded = Vec::with_capacity(self.size());
        for repetition in 0..self.config.repetitions {
            self.encode_once(tokens, side, repetition, &mut encoded);
        }
        let squares: f64 = encoded
            .iter()
            .map(|&number| f64::from(number).powi(2))
            .sum();
        let last = match side {
            Side::Query => 0.0,
            Side::Document => (self.limit() - squares).max(0.0).sqrt() as f32,
        };
        encoded.push(last);
        Ok(encoded)
    }

    /// What the squares of a text's numbers add up to at most: means of vectors of length 1 in each part, projected.
    fn limit(&self) -> f64 {
        let FixedConfig {
            dimension,
            repetitions,
            projected,
            ..
        } = self.config;
        let stretched = if self.signs.is_empty() {
            1.0
        } else {
            dimension as f64 / projected as f64
        };
        (repetitions * self.parts()) as f64 * stretched.max(1.0)
    }

    fn encode_once(&self, tokens: &[f32], side: Side, repetition: usize, encoded: &mut Vec<f32>) {
        let FixedConfig {
            dimension,
            bits,
            projected,
            ..
        } = self.config;
        let planes = &self.planes[repetition * bits * dimension..][..bits * dimension];
        let tokens: Vec<&[f32]> = tokens.chunks_exact(dimension).collect();
        let part_of = |token: &[f32]| {
            let sides = planes
                .chunks_exact(dimension)
                .map(|plane| dot(plane, token) > 0.0);
            sides.fold(0usize, |part, side| (part << 1) | usize::from(side))
        };
        let parts: Vec<usize> = tokens.iter().map(|token| part_of(token)).collect();
        let mut sums = vec![0f32; self.parts() * dimension];
        let mut counts = vec![0usize; self.parts()];
        for (&part, token) in parts.iter().zip(&tokens) {
            counts[part] += 1;
            add(&mut sums[part * dimension..][..dimension], token);
        }
        for (part, &count) in counts.iter().enumerate() {
            let sum = &mut sums[part * dimension..][..dimension];
            match (side, count) {
                (Side::Query, _) => {}
                (Side::Document, 0) => {
                    let far = |&at: &usize| (parts[at] ^ part).count_ones();
                    let nearest = (0..tokens.len()).min_by_key(far).unwrap_or(0);
                    sum.copy_from_slice(tokens[nearest]);
                }
                (Side::Document, count) => {
                    sum.iter_mut().for_each(|number| *number /= count as f32);
                }
            }
            if self.signs.is_empty() {
                encoded.extend_from_slice(sum);
                continue;
            }
            let size = projected * dimension;
            let signs = &self.signs[repetition * size..][..size];
            encoded.extend(signs.chunks_exact(dimension).map(|signs| dot(signs, sum)));
        }
    }
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f32], numbers: &[f32]) {
    for (sum, number) in sum.iter_mut().zip(numbers) {
        *sum += number;
    }
}

/// The same numbers on every machine (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, up to 1.
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(projected: usize) -> FixedConfig {
        FixedConfig {
            dimension: 8,
            repetitions: 40,
            bits: 3,
            projected,
            seed: 1,
        }
    }

    fn tokens(random: &mut Random, count: usize) -> Vec<f32> {
        let mut all = Vec::new();
        for _ in 0..count {
            let token: Vec<f32> = (0..8).map(|_| random.normal()).collect();
            let length = dot(&token, &token).sqrt();
            all.extend(token.iter().map(|number| number / length));
        }
        all
    }

    fn max_sim(query: &[f32], document: &[f32]) -> f32 {
        let best = |token: &[f32]| {
            let scores = document.chunks_exact(8).map(|other| dot(token, other));
            scores.fold(f32::NEG_INFINITY, f32::max)
        };
        query.chunks_exact(8).map(best).sum()
    }

    #[test]
    fn dot_products_come_near_to_max_sim() {
        for projected in [8, 4] {
            let encoding = FixedEncoding::new(config(projected)).unwrap();
            let mut random = Random(7);
            let query = tokens(&mut random, 4);
            let encoded = encoding.encode(&query, Side::Query).unwrap();
            let mut documents: Vec<(f32, f32)> = (0..60)
                .map(|_| {
                    let document = tokens(&mut random, 12);
                    let fixed = encoding.encode(&document, Side::Document).unwrap();
                    assert_eq!(fixed.len(), encoding.size());
                    let length = dot(&fixed, &fixed);
                    assert!((f64::from(length) - encoding.limit()).abs() < 1e-2 * encoding.limit());
                    (max_sim(&query, &document), dot(&encoded, &fixed))
                })
                .collect();
            documents.sort_by(|a, b| b.1.total_cmp(&a.1));
            let best = documents.iter().map(|pair| pair.0).fold(0.0, f32::max);
            let place = documents.iter().position(|pair| pair.0 == best).unwrap();
            assert!(place < 12, "{place}");
        }
    }

    #[test]
    fn sizes_are_checked() {
        for wrong in [
            FixedConfig {
                projected: 9,
                ..config(8)
            },
            FixedConfig {
                bits: 40,
                ..config(8)
            },
            FixedConfig {
                repetitions: 0,
                ..config(8)
            },
            FixedConfig {
                repetitions: usize::MAX,
                ..config(8)
            },
        ] {
            assert!(FixedEncoding::new(wrong).is_err(), "{wrong:?}");
        }
        let encoding = FixedEncoding::new(config(8)).unwrap();
        assert!(encoding.encode(&[1.0; 7], Side::Query).is_err());
        assert!(encoding.encode(&[], Side::Document).is_err());
    }
}
