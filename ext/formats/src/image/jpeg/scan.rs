//! One scan: some coefficients of some components, or some bits of them.

use super::frame::{Component, Frame};
use super::huffman::{Bits, Codes};
use crate::image::decode::{damaged, Decoded};

/// The place of each coefficient in the order of the file.
pub const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Codes by number: of the first coefficient of a block, and of the others.
#[derive(Default)]
pub struct CodeTables {
    pub first: [Option<Codes>; 4],
    pub others: [Option<Codes>; 4],
}

pub struct Scan {
    parts: Vec<Part>,
    /// Of the coefficients that it has.
    start: usize,
    end: usize,
    /// The lowest bit that came before, 0 in the first scan of a coefficient, and the lowest one that comes.
    high: u32,
    low: u32,
}

struct Part {
    component: usize,
    first: usize,
    others: usize,
}

/// What blocks tell those after them.
#[derive(Default)]
struct State {
    /// Of each component.
    previous: [i32; 4],
    /// How many blocks that follow have no more coefficients.
    empty: u32,
}

impl Scan {
    pub fn read(header: &[u8], frame: &Frame) -> Decoded<Self> {
        let wrong = || damaged("a scan's header can't be");
        let (&count, rest) = header.split_first().ok_or_else(wrong)?;
        let count = usize::from(count);
        if !(1..=4).contains(&count) || rest.len() != 2 * count + 3 {
            return Err(wrong());
        }
        let mut parts: Vec<Part> = Vec::with_capacity(count);
        for entry in rest[..2 * count].chunks_exact(2) {
            let known = frame.components.iter().position(|it| it.id == entry[0]);
            let component = known.ok_or_else(wrong)?;
            let (first, others) = (usize::from(entry[1] >> 4), usize::from(entry[1] & 15));
            let twice = parts.iter().any(|part| part.component == component);
            if twice || first > 3 || others > 3 {
                return Err(wrong());
            }
            parts.push(Part {
                component,
                first,
                others,
            });
        }
        let [start, end, bits] = rest[2 * count..] else {
            return Err(wrong());
        };
        let scan = if frame.progressive {
            Self {
                parts,
                start: usize::from(start),
                end: usize::from(end),
                high: u32::from(bits >> 4),
                low: u32::from(bits & 15),
            }
        } else {
            Self {
                parts,
                start: 0,
                end: 63,
                high: 0,
                low: 0,
            }
        };
        let sound = !frame.progressive
            || match scan.start {
                0 => scan.end == 0,
                _ => scan.start <= scan.end && scan.end <= 63 && scan.parts.len() == 1,
            } && scan.low <= 13
                && (scan.high == 0 || scan.high == scan.low + 1);
        if sound {
            Ok(scan)
        } else {
            Err(wrong())
        }
    }

    /// Reads the scan from `at` on, and says where the marker after it is.
    pub fn decode(
        &self,
        (data, at): (&[u8], usize),
        frame: &mut Frame,
        (codes, tables): (&CodeTables, &[Option<[u16; 64]>; 4]),
        interval: usize,
    ) -> Decoded<usize> {
        for part in &self.parts {
            let component = &mut frame.components[part.component];
            if !component.scanned {
                component.table = tables[component.table_number]
                    .ok_or_else(|| damaged("it has no table for its coefficients"))?;
                component.scanned = true;
            }
        }
        let mut bits = Bits::new(data, at);
        let mut state = State::default();
        let (columns, rows) = match &self.parts[..] {
            [part] => {
                let component = &frame.components[part.component];
                (component.width.div_ceil(8), component.height.div_ceil(8))
            }
            _ => frame.groups,
        };
        for group in 0..columns * rows {
            if interval > 0 && group > 0 && group % interval == 0 {
                bits.restart();
                state = State::default();
            }
            let (column, row) = (group % columns, group / columns);
            for part in &self.parts {
                let component = &mut frame.components[part.component];
                let (across, down) = match self.parts.len() {
                    1 => (1, 1),
                    _ => (component.across, component.down),
                };
                for block in 0..across * down {
                    let x = column * across + block % across;
                    let y = row * down + block / across;
                    self.block(&mut bits, component, (x, y), part, codes, &mut state)?;
                }
            }
            if bits.ran_out() {
                return Err(damaged("it ends before its last pixel"));
            }
        }
        Ok(bits.position())
    }

    fn block(
        &self,
        bits: &mut Bits<'_>,
        component: &mut Component,
        (column, row): (usize, usize),
        part: &Part,
        codes: &CodeTables,
        state: &mut State,
    ) -> Decoded<()> {
        let missing = || damaged("it has no codes for a scan");
        let start = (row * component.columns + column) * 64;
        let block = &mut component.coefficients[start..start + 64];
        if self.start == 0 {
            match self.high {
                0 => {
                    let first = codes.first[part.first].as_ref().ok_or_else(missing)?;
                    let length = u32::from(bits.code(first)?);
                    let previous = &mut state.previous[part.component];
                    *previous = previous.wrapping_add(bits.signed(length));
                    block[0] = previous.wrapping_shl(self.low) as i16;
                }
                _ => block[0] |= (bits.bits(1) << self.low) as i16,
            }
        }
        if self.end == 0 {
            return Ok(());
        }
        let others = codes.others[part.others].as_ref().ok_or_else(missing)?;
        match self.high {
            0 => self.coefficients(bits, block, others, state),
            _ => self.refine(bits, block, others, state),
        }
    }

    /// The first bits of coefficients.
    fn coefficients(
        &self,
        bits: &mut Bits<'_>,
        block: &mut [i16],
        codes: &Codes,
        state: &mut State,
    ) -> Decoded<()> {
        if state.empty > 0 {
            state.empty -= 1;
            return Ok(());
        }
        let mut at = self.start.max(1);
        while at <= self.end {
            let code = bits.code(codes)?;
            let (run, length) = (usize::from(code >> 4), u32::from(code & 15));
            match (run, length) {
                (15, 0) => at += 16,
                (run, 0) => {
                    state.empty = empty_blocks(bits, run) - 1;
                    return Ok(());
                }
                (run, length) => {
                    at += run;
                    let value = bits.signed(length) << self.low;
                    let place = ZIGZAG.get(at).ok_or_else(beyond)?;
                    block[usize::from(*place)] = value as i16;
                    at += 1;
                }
            }
        }
        Ok(())
    }

    /// One more bit of the coefficients that are there, and new ones between them.
    fn refine(
        &self,
        bits: &mut Bits<'_>,
        block: &mut [i16],
        codes: &Codes,
        state: &mut State,
    ) -> Decoded<()> {
        let bit = 1i16 << self.low;
        let mut at = self.start;
        while at <= self.end && state.empty == 0 {
            let code = bits.code(codes)?;
            let (mut run, length) = (usize::from(code >> 4), code & 15);
            let value = match length {
                0 if run < 15 => {
                    state.empty = empty_blocks(bits, run);
                    break;
                }
                0 => 0,
                _ => match bits.bits(1) {
                    1 => bit,
                    _ => -bit,
                },
            };
            while at <= self.end {
                let coefficient = &mut block[usize::from(ZIGZAG[at])];
                at += 1;
                match (*coefficient, run) {
                    (0, 0) => {
                        *coefficient = value;
                        break;
                    }
                    (0, _) => run -= 1,
                    _ => correct(bits, coefficient, bit),
                }
            }
        }
        if state.empty > 0 {
            for &place in &ZIGZAG[at..=self.end] {
                let coefficient = &mut block[usize::from(place)];
                if *coefficient != 0 {
                    correct(bits, coefficient, bit);
                }
            }
            state.empty -= 1;
        }
        Ok(())
    }
}

fn beyond() -> crate::image::decode::Failure {
    damaged("a block has more than 64 coefficients")
}

/// How many blocks from this one on have no more coefficients.
fn empty_blocks(bits: &mut Bits<'_>, length: usize) -> u32 {
    (1 << length) + bits.bits(length as u32) as u32
}

fn correct(bits: &mut Bits<'_>, coefficient: &mut i16, bit: i16) {
    if bits.bits(1) == 1 && *coefficient & bit == 0 {
        *coefficient = if *coefficient > 0 {
            coefficient.wrapping_add(bit)
        } else {
            coefficient.wrapping_sub(bit)
        };
    }
}
