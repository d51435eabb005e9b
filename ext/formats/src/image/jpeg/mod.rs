//! JPEG pictures: grey, colour, and the four inks of print.

mod frame;
mod huffman;
mod samples;
mod scan;

use frame::Frame;
use huffman::Codes;
use samples::{colours, Plane};
use scan::{CodeTables, Scan, ZIGZAG};

use super::decode::{damaged, Decoded, Limits};
use super::{exif, Image, CHANNELS};

/// Progressive pictures have ten or so; thousands are made to keep a decoder busy.
const MOST_SCANS: usize = 256;

pub fn decode(bytes: &[u8], limits: &Limits) -> Decoded<(Image, Option<u16>)> {
    let mut file = File::default();
    file.read(bytes, limits)?;
    let frame = file.frame.ok_or_else(|| damaged("it has no frame"))?;
    if !frame.components.iter().all(|component| component.scanned) {
        return Err(damaged("it ends before its last scan"));
    }
    let mixing = Mixing::of(&frame, file.is_jfif, file.adobe);
    let (width, height) = (frame.width, frame.height);
    let pixels = mixing.pixels(&frame);
    Ok((Image::new(width, height, pixels)?, file.orientation))
}

/// What was read so far.
#[derive(Default)]
struct File {
    frame: Option<Frame>,
    codes: CodeTables,
    tables: [Option<[u16; 64]>; 4],
    /// Groups of blocks between restarts.
    interval: usize,
    scans: usize,
    is_jfif: bool,
    /// What Adobe's marker says of colours.
    adobe: Option<u8>,
    orientation: Option<u16>,
}

impl File {
    fn read(&mut self, bytes: &[u8], limits: &Limits) -> Decoded<()> {
        let mut at = 2;
        loop {
            let (marker, start) = next_marker(bytes, at)?;
            let body = match marker {
                0xd9 => return Ok(()),
                0x01 | 0xd0..=0xd8 => {
                    at = start;
                    continue;
                }
                _ => segment(bytes, start)?,
            };
            at = start + 2 + body.len();
            match marker {
                0xc0..=0xc2 if self.frame.is_some() => {
                    return Err(damaged("it has more than one frame"))
                }
                0xc0..=0xc2 => self.frame = Some(Frame::read(body, marker == 0xc2, limits)?),
                0xc4 => self.read_codes(body)?,
                0xc3 | 0xc5..=0xcf => {
                    return Err(damaged("its way of compressing is not one that is read"))
                }
                0xda => at = self.read_scan(bytes, body, at)?,
                0xdb => self.read_tables(body)?,
                0xdd => {
                    if let [high, low] = body {
                        self.interval = usize::from(u16::from_be_bytes([*high, *low]));
                    }
                }
                0xe0 => self.is_jfif |= body.starts_with(b"JFIF\0"),
                0xe1 if body.starts_with(b"Exif\0\0") && self.orientation.is_none() => {
                    self.orientation = exif::orientation(body);
                }
                0xee if body.starts_with(b"Adobe") => self.adobe = body.get(11).copied(),
                _ => {}
            }
        }
    }

    fn read_scan(&mut self, bytes: &[u8], header: &[u8], at: usize) -> Decoded<usize> {
        self.scans += 1;
        if self.scans > MOST_SCANS {
            return Err(damaged(format!("it has more than {MOST_SCANS} scans")));
        }
        let Some(frame) = &mut self.frame else {
            return Err(damaged("it has a scan before its frame"));
        };
        let scan = Scan::read(header, frame)?;
        scan.decode(
            (bytes, at),
            frame,
            (&self.codes, &self.tables),
            self.interval,
        )
    }

    fn read_codes(&mut self, mut body: &[u8]) -> Decoded<()> {
        while let Some((&kind, rest)) = body.split_first() {
            let Some((counts, values)) = rest.split_first_chunk::<16>() else {
                return Err(damaged("it has a table of codes that is cut off"));
            };
            let count: usize = counts.iter().map(|&count| usize::from(count)).sum();
            let codes = Codes::new(counts, values)?;
            let number = usize::from(kind & 15);
            let place = match kind >> 4 {
                0 => self.codes.first.get_mut(number),
                1 => self.codes.others.get_mut(number),
                _ => None,
            };
            *place.ok_or_else(|| damaged("it has a table of codes for nothing"))? = Some(codes);
            body = &values[count..];
        }
        Ok(())
    }

    fn read_tables(&mut self, mut body: &[u8]) -> Decoded<()> {
        while let Some((&kind, rest)) = body.split_first() {
            let size = 1 + usize::from(kind >> 4 != 0);
            let (Some(values), Some(place)) = (
                rest.get(..64 * size),
                self.tables.get_mut(usize::from(kind & 15)),
            ) else {
                return Err(damaged("it has a table that is cut off"));
            };
            let mut table = [0u16; 64];
            for (value, &at) in values.chunks_exact(size).zip(&ZIGZAG) {
                table[usize::from(at)] = value
                    .iter()
                    .fold(0, |value, &byte| value << 8 | u16::from(byte));
            }
            *place = Some(table);
            body = &rest[64 * size..];
        }
        Ok(())
    }
}

/// The next marker's code, and where what follows it begins.
fn next_marker(bytes: &[u8], mut at: usize) -> Decoded<(u8, usize)> {
    while let (Some(&byte), Some(&code)) = (bytes.get(at), bytes.get(at + 1)) {
        if byte == 0xff && code != 0 && code != 0xff {
            return Ok((code, at + 2));
        }
        at += 1;
    }
    Err(damaged("it is cut off"))
}

fn segment(bytes: &[u8], start: usize) -> Decoded<&[u8]> {
    let length = match bytes.get(start..start + 2) {
        Some([high, low]) => usize::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    };
    bytes
        .get(start + 2..start + length)
        .ok_or_else(|| damaged("it is cut off"))
}

/// What components mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mixing {
    Grey,
    Rgb,
    /// Brightness, and two differences of colour.
    Differences,
    Inks,
    /// Three inks as `Differences`, and black.
    DifferencesOfInks,
}

impl Mixing {
    fn of(frame: &Frame, is_jfif: bool, adobe: Option<u8>) -> Self {
        let ids: Vec<u8> = frame.components.iter().map(|it| it.id).collect();
        match (ids.as_slice(), adobe) {
            ([_], _) => Self::Grey,
            ([_, _, _], _) if is_jfif => Self::Differences,
            ([_, _, _], Some(0)) | (b"RGB", None) => Self::Rgb,
            ([_, _, _], _) => Self::Differences,
            (_, Some(0) | None) => Self::Inks,
            _ => Self::DifferencesOfInks,
        }
    }

    fn pixels(self, frame: &Frame) -> Vec<u8> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: `wide_pixels` needs AVX2, which was just detected, and takes no pointers.
            return unsafe { self.wide_pixels(frame) };
        }
        self.plain_pixels(frame)
    }

    /// The same, compiled for registers of 256 bits.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn wide_pixels(self, frame: &Frame) -> Vec<u8> {
        self.plain_pixels(frame)
    }

    #[inline(always)]
    fn plain_pixels(self, frame: &Frame) -> Vec<u8> {
        let mut planes = Vec::with_capacity(frame.components.len());
        for it in &frame.components {
            planes.push(Plane::new(
                it,
                (frame.across / it.across, frame.down / it.down),
            ));
        }
        let mut lines = vec![vec![0u8; frame.width]; planes.len()];
        let mut sums = Vec::new();
        let mut pixels = vec![0; frame.width * frame.height * CHANNELS];
        for (y, row) in pixels.chunks_exact_mut(frame.width * CHANNELS).enumerate() {
            for (plane, line) in planes.iter().zip(&mut lines) {
                plane.upsample(y, &mut sums, line);
            }
            self.mix(&mut lines, row);
        }
        pixels
    }

    /// The pixels of a line of each component.
    #[inline(always)]
    fn mix(self, lines: &mut [Vec<u8>], row: &mut [u8]) {
        if let (Self::Differences | Self::DifferencesOfInks, [a, b, c, ..]) = (self, &mut *lines) {
            colours([a, b, c]);
        }
        let pixels = row.chunks_exact_mut(CHANNELS);
        match lines {
            [grey] => {
                for (pixel, &value) in pixels.zip(&*grey) {
                    pixel.fill(value);
                }
            }
            [a, b, c] => {
                for (((pixel, &a), &b), &c) in pixels.zip(&*a).zip(&*b).zip(&*c) {
                    pixel.copy_from_slice(&[a, b, c]);
                }
            }
            [a, b, c, black] => {
                let inverted = self == Self::DifferencesOfInks;
                let inks = pixels.zip(&*a).zip(&*b).zip(&*c).zip(&*black);
                for ((((pixel, &a), &b), &c), &black) in inks {
                    let inks = [a, b, c].map(|ink| if inverted { 255 - ink } else { ink });
                    pixel.copy_from_slice(&inks.map(|ink| mixed(ink, black)));
                }
            }
            _ => {}
        }
    }
}

/// Photoshop's inverted inks, as every program writes them: 255 means without ink.
fn mixed(ink: u8, black: u8) -> u8 {
    // Pillow's rounding of a product of two bytes.
    let product = (255 - u32::from(ink)) * u32::from(black) + 128;
    black.saturating_sub((((product >> 8) + product) >> 8) as u8)
}
