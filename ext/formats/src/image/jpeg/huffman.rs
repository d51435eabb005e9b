//! The bits of a scan, and the codes that they are made of.

use crate::image::decode::{damaged, Decoded};

/// Codes up to this length are found in a table.
const SHORT: u32 = 9;
const MOST_LENGTH: usize = 16;

/// A set of prefix codes.
pub struct Codes {
    /// For the next `SHORT` bits: the length of the code that they begin with and its value; no length
    /// where it is longer.
    short: Box<[(u8, u8); 1 << SHORT]>,
    /// By length: the first code beyond those of it, at the left of 16 bits, and what leads from a code
    /// to its value's place.
    ends: [u32; MOST_LENGTH + 1],
    offsets: [i32; MOST_LENGTH + 1],
    values: Vec<u8>,
}

impl Codes {
    /// `counts` is how many codes of each length there are.
    pub fn new(counts: &[u8; MOST_LENGTH], values: &[u8]) -> Decoded<Self> {
        let total: usize = counts.iter().map(|&count| usize::from(count)).sum();
        if total > values.len() || total > 256 {
            return Err(damaged("it has a table of codes without their values"));
        }
        let mut codes = Self {
            short: Box::new([(0, 0); 1 << SHORT]),
            ends: [0; MOST_LENGTH + 1],
            offsets: [0; MOST_LENGTH + 1],
            values: values[..total].to_vec(),
        };
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=MOST_LENGTH {
            let count = usize::from(counts[length - 1]);
            codes.offsets[length] = place as i32 - code as i32;
            for value in &values[place..place + count] {
                if code >> length != 0 {
                    return Err(damaged("it has more codes than bits can tell apart"));
                }
                if length as u32 <= SHORT {
                    let free = SHORT - length as u32;
                    let first = (code << free) as usize;
                    codes.short[first..first + (1 << free)].fill((length as u8, *value));
                }
                code += 1;
            }
            place += count;
            codes.ends[length] = code << (MOST_LENGTH - length);
            code <<= 1;
        }
        Ok(codes)
    }
}

/// Reads bits until a marker; beyond it there are zeros.
pub struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    held: u64,
    count: u32,
    /// How many zeros stand for bits beyond the end of the file.
    missing: u32,
}

impl<'a> Bits<'a> {
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Self {
            data,
            at,
            held: 0,
            count: 0,
            missing: 0,
        }
    }

    /// Whether bits were used that the file does not have.
    pub fn ran_out(&self) -> bool {
        self.missing > self.count
    }

    /// Where the marker after what was read is.
    pub fn position(&self) -> usize {
        self.at
    }

    fn fill(&mut self) {
        if let Some(next) = self.data.get(self.at..).and_then(|rest| rest.first_chunk()) {
            let next = u64::from_be_bytes(*next);
            // Whether a byte of it is 255, which needs a closer look.
            let holes = !next;
            let special =
                holes.wrapping_sub(0x0101_0101_0101_0101) & !holes & 0x8080_8080_8080_8080;
            let free = (64 - self.count) & !7;
            if special == 0 && (8..64).contains(&free) {
                self.held = self.held << free | next >> (64 - free);
                self.at += free as usize / 8;
                self.count += free;
                return;
            }
        }
        while self.count <= 48 {
            let byte = match (self.data.get(self.at), self.data.get(self.at + 1)) {
                (Some(0xff), Some(0)) => {
                    self.at += 2;
                    0xff
                }
                (Some(0xff), Some(_)) => 0,
                (Some(&byte), _) if byte != 0xff => {
                    self.at += 1;
                    byte
                }
                _ => {
                    self.missing += 8;
                    0
                }
            };
            self.held = self.held << 8 | u64::from(byte);
            self.count += 8;
        }
    }

    fn peek(&mut self, count: u32) -> u32 {
        if self.count < count {
            self.fill();
        }
        (self.held >> (self.count - count)) as u32 & ((1 << count) - 1)
    }

    pub fn bits(&mut self, count: u32) -> i32 {
        if count == 0 {
            return 0;
        }
        let found = self.peek(count);
        self.count -= count;
        found as i32
    }

    /// A number of so many bits, the lower half of which are negative ones.
    pub fn signed(&mut self, count: u32) -> i32 {
        let count = count.min(MOST_LENGTH as u32);
        let found = self.bits(count);
        if count > 0 && found < 1 << (count - 1) {
            found - (1 << count) + 1
        } else {
            found
        }
    }

    pub fn code(&mut self, codes: &Codes) -> Decoded<u8> {
        let next = self.peek(MOST_LENGTH as u32);
        let place = (next >> (MOST_LENGTH as u32 - SHORT)) as usize & ((1 << SHORT) - 1);
        let (length, value) = codes.short[place];
        if length > 0 {
            self.count -= u32::from(length);
            return Ok(value);
        }
        for length in SHORT as usize + 1..=MOST_LENGTH {
            if next < codes.ends[length] {
                self.count -= length as u32;
                let code = (next >> (MOST_LENGTH - length)) as i32;
                let place = usize::try_from(code + codes.offsets[length]);
                let value = place.ok().and_then(|place| codes.values.get(place));
                return value
                    .copied()
                    .ok_or_else(|| damaged("it has a code without a value"));
            }
        }
        Err(damaged("it has bits that are no code"))
    }

    /// Goes on after a restart marker, if there is one.
    pub fn restart(&mut self) {
        (self.held, self.count, self.missing) = (0, 0, 0);
        while let (Some(0xff), Some(&next)) = (self.data.get(self.at), self.data.get(self.at + 1)) {
            match next {
                0xd0..=0xd7 => {
                    self.at += 2;
                    return;
                }
                0xff => self.at += 1,
                _ => return,
            }
        }
    }
}
