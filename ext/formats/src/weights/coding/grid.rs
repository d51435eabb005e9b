//! IQ2 and IQ3: magnitudes from a codebook, with signs beside them.

use super::books::{self, Book};
use super::{odd_code, weights};
use base::quant::{mean_square, nearest, positive_scale, put_half};

/// What codes stand for.
const ODD: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
/// The largest multiple of a block's unit that a scale is.
const LARGEST_SCALE: f32 = 31.0;

/// Which entries are looked for again with the best scale.
#[derive(Clone, Copy, PartialEq)]
enum Again {
    /// Those whose point has no entry.
    Off,
    /// All, if a point has no entry.
    AllIfOff,
    All,
}

#[derive(Clone, Copy)]
struct Rules {
    /// Elements that share a scale.
    width: usize,
    /// Codes.
    count: i32,
    tries: i32,
    step: f32,
    /// Magnitudes below count as zero.
    tiny: f32,
    /// How many times the mean square weighs beside a number of known importance.
    stretch: f32,
    /// Signs of eight numbers are an even number of minuses.
    even: bool,
    again: Again,
    /// What the unit of a block is multiplied by.
    factor: f32,
}

const IQ2_XXS: Rules = Rules {
    width: 32,
    count: 3,
    tries: 6,
    step: 0.1,
    tiny: 1e-15,
    stretch: 1.0,
    even: true,
    again: Again::All,
    factor: 1.0,
};
const IQ2_XS: Rules = Rules {
    width: 16,
    tries: 9,
    again: Again::Off,
    ..IQ2_XXS
};
const IQ2_S: Rules = Rules {
    tiny: 1e-8,
    stretch: 2.0,
    even: false,
    factor: 0.9875,
    ..IQ2_XS
};
const IQ3_XXS: Rules = Rules {
    width: 32,
    count: 8,
    tries: 15,
    step: 0.2,
    tiny: 1e-8,
    stretch: 2.0,
    even: true,
    again: Again::Off,
    factor: 1.0125,
};
const IQ3_S: Rules = Rules {
    tries: 9,
    // Anything above zero.
    tiny: f32::from_bits(1),
    even: false,
    again: Again::AllIfOff,
    factor: 1.033,
    ..IQ3_XXS
};

/// Numbers that share a scale, without their signs.
struct Group<'a, const N: usize> {
    book: &'static Book<N>,
    rules: Rules,
    values: &'a [f32],
    weights: &'a [f32],
    roots: Vec<f32>,
}

/// What stands for a group.
#[derive(Clone)]
struct Found {
    scale: f32,
    entries: Vec<u16>,
    /// Whether the point of an entry is the entry.
    on: Vec<bool>,
}

impl<const N: usize> Group<'_, N> {
    /// The scale and the entries that leave the least error; `None` for zeros.
    fn search(&self) -> Option<Found> {
        let most =
            self.values[1..].iter().fold(
                self.values[0],
                |most, &value| if most > value { most } else { value },
            );
        if most < self.rules.tiny {
            return None;
        }
        let reach = (2 * self.rules.count - 1) as f32;
        let (farthest, mut found) = if self.rules.again == Again::All {
            let scale = positive_scale(self.values, self.weights, self.rules.count + 1);
            (scale * self.rules.count as f32, self.start(scale))
        } else {
            (most, self.start(most / reach))
        };
        if farthest <= 0.0 {
            return None;
        }
        let mut best = 0.0;
        for number in -self.rules.tries..=self.rules.tries {
            let inverse = (reach + number as f32 * self.rules.step) / farthest;
            let (entries, on) = self.entries(inverse, 1.0 / inverse);
            let (products, squares) = self.sums(&entries);
            if squares > 0.0 && products * products > best * squares {
                let scale = products / squares;
                best = scale * products;
                found = Found { scale, entries, on };
            }
        }
        self.again(&mut found);
        Some(found)
    }

    fn start(&self, scale: f32) -> Found {
        let count = self.values.len() / N;
        Found {
            scale,
            entries: vec![0; count],
            on: vec![self.rules.again == Again::Off; count],
        }
    }

    /// By N numbers: the entry at or near them, and whether it is at them.
    fn entries(&self, inverse: f32, scale: f32) -> (Vec<u16>, Vec<bool>) {
        let parts = self.values.chunks_exact(N).zip(self.roots.chunks_exact(N));
        let entry = |(values, roots): (&[f32], &[f32])| {
            let code = |value: f32| nearest(0.5 * (inverse * value - 1.0));
            let codes =
                std::array::from_fn(|at| code(values[at]).clamp(0, self.rules.count - 1) as i8);
            let on = self.book.place(&codes).is_some();
            (self.book.nearest(&codes, (values, roots), scale, &ODD), on)
        };
        parts.map(entry).unzip()
    }

    fn again(&self, found: &mut Found) {
        let off = found.on.iter().any(|on| !on);
        if found.scale <= 0.0 || !(off || self.rules.again == Again::All) {
            return;
        }
        let (entries, _) = self.entries(1.0 / found.scale, found.scale);
        for (at, entry) in entries.into_iter().enumerate() {
            if self.rules.again != Again::Off || !found.on[at] {
                found.entries[at] = entry;
            }
        }
        let (products, squares) = self.sums(&found.entries);
        if squares > 0.0 {
            found.scale = products / squares;
        }
    }

    fn sums(&self, entries: &[u16]) -> (f32, f32) {
        let codes = entries
            .iter()
            .flat_map(|&entry| self.book.entries[usize::from(entry)]);
        let pairs = self.values.iter().zip(self.weights).zip(codes);
        pairs.fold(
            (0.0, 0.0),
            |(products, squares), ((value, weight), code)| {
                let number = ODD[code as usize];
                (
                    products + weight * value * number,
                    squares + weight * number * number,
                )
            },
        )
    }
}

/// Magnitudes, and by eight numbers the bits of their signs. Where minuses must be even in number, the number that
/// matters least becomes negative.
fn split(values: &[f32], weights: &[f32], even: bool) -> (Vec<f32>, Vec<u8>) {
    let (mut sizes, mut signs) = (Vec::with_capacity(values.len()), Vec::new());
    for (values, weights) in values.chunks_exact(8).zip(weights.chunks_exact(8)) {
        let mut bits = 0u8;
        for (at, &value) in values.iter().enumerate() {
            bits |= u8::from(value < 0.0) << at;
            sizes.push(if value < 0.0 { -value } else { value });
        }
        if even && bits.count_ones() % 2 == 1 {
            let size = |at: usize| weights[at] * values[at] * values[at];
            let least = (1..8).fold(
                0,
                |least, at| if size(at) < size(least) { at } else { least },
            );
            let start = sizes.len() - 8;
            sizes[start + least] = -sizes[start + least];
            bits ^= 1 << least;
        }
        signs.push(if even { bits & 0x7f } else { bits });
    }
    (sizes, signs)
}

/// Finds the groups of a block, gives each to `put` with its number, entries and signs, and returns the codes of their
/// scales; `None` for a block of zeros. The unit of scales is written first.
fn groups<const N: usize>(
    values: &[f32],
    columns: Option<&[f32]>,
    block: &mut [u8],
    (book, rules): (&'static Book<N>, Rules),
    mut put: impl FnMut(&mut [u8], usize, &[u16], &[u8]),
) -> Option<Vec<u32>> {
    let spread = rules.stretch * mean_square(values);
    let mut scales = Vec::new();
    for (number, group) in values.chunks_exact(rules.width).enumerate() {
        let weights = weights(columns, group, number * rules.width, spread);
        let (sizes, mut signs) = split(group, &weights, rules.even);
        let group = Group {
            book,
            rules,
            values: &sizes,
            weights: &weights,
            roots: weights.iter().map(|weight| weight.sqrt()).collect(),
        };
        let Some(found) = group.search() else {
            scales.push(0.0);
            continue;
        };
        if found.scale < 0.0 {
            let mask = if rules.even { 0x7f } else { 0xff };
            signs.iter_mut().for_each(|bits| *bits = !*bits & mask);
        }
        scales.push(found.scale.abs());
        put(block, number, &found.entries, &signs);
    }
    let largest = scales.iter().copied().fold(0.0, f32::max);
    if largest == 0.0 {
        block.fill(0);
        return None;
    }
    let unit = largest / LARGEST_SCALE;
    put_half(block, 0, unit * rules.factor);
    let code = |&scale: &f32| odd_code(1.0 / unit, scale, 15);
    Some(scales.iter().map(code).collect())
}

fn or_word(block: &mut [u8], at: usize, bits: u32) {
    for (byte, more) in block[at..].iter_mut().zip(bits.to_le_bytes()) {
        *byte |= more;
    }
}

/// Four times seven bits of signs.
fn sign_word(signs: &[u8]) -> u32 {
    let signs = signs.iter().enumerate();
    signs.fold(0, |word, (at, &bits)| word | u32::from(bits) << (7 * at))
}

fn put_nibbles(block: &mut [u8], at: usize, codes: &[u32]) {
    for (number, &code) in codes.iter().enumerate() {
        block[at + number / 2] |= (code as u8) << (4 * (number % 2));
    }
}

pub fn iq2_xxs(values: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let how = (books::iq2_xxs(), IQ2_XXS);
    let scales = groups(
        values,
        columns,
        block,
        how,
        |block, group, entries, signs| {
            for (part, &entry) in entries.iter().enumerate() {
                block[2 + 8 * group + part] = entry as u8;
            }
            or_word(block, 6 + 8 * group, sign_word(signs));
        },
    );
    for (group, code) in scales.into_iter().flatten().enumerate() {
        or_word(block, 6 + 8 * group, code << 28);
    }
}

pub fn iq2_xs(values: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let how = (books::iq2_xs(), IQ2_XS);
    let scales = groups(
        values,
        columns,
        block,
        how,
        |block, group, entries, signs| {
            for (part, (&entry, &signs)) in entries.iter().zip(signs).enumerate() {
                let code = entry | u16::from(signs) << 9;
                block[2 + 4 * group + 2 * part..][..2].copy_from_slice(&code.to_le_bytes());
            }
        },
    );
    put_nibbles(block, 66, &scales.unwrap_or_default());
}

pub fn iq2_s(values: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let how = (books::iq2_s(), IQ2_S);
    let scales = groups(
        values,
        columns,
        block,
        how,
        |block, group, entries, signs| {
            for (part, (&entry, &signs)) in entries.iter().zip(signs).enumerate() {
                let at = 2 * group + part;
                block[2 + at] = entry as u8;
                block[34 + at] = signs;
                block[66 + at / 4] |= ((entry >> 8) as u8) << (2 * (at % 4));
            }
        },
    );
    put_nibbles(block, 74, &scales.unwrap_or_default());
}

pub fn iq3_xxs(values: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let how = (books::iq3_xxs(), IQ3_XXS);
    let scales = groups(
        values,
        columns,
        block,
        how,
        |block, group, entries, signs| {
            for (part, &entry) in entries.iter().enumerate() {
                block[2 + 8 * group + part] = entry as u8;
            }
            or_word(block, 66 + 4 * group, sign_word(signs));
        },
    );
    for (group, code) in scales.into_iter().flatten().enumerate() {
        or_word(block, 66 + 4 * group, code << 28);
    }
}

pub fn iq3_s(values: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let how = (books::iq3_s(), IQ3_S);
    let scales = groups(
        values,
        columns,
        block,
        how,
        |block, group, entries, signs| {
            for (part, &entry) in entries.iter().enumerate() {
                let at = 8 * group + part;
                block[2 + at] = entry as u8;
                block[66 + at / 8] |= ((entry >> 8) as u8) << (at % 8);
            }
            block[74 + 4 * group..][..4].copy_from_slice(signs);
        },
    );
    put_nibbles(block, 106, &scales.unwrap_or_default());
}
