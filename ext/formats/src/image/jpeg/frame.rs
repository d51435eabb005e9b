//! What a frame's header says, and the coefficients of its components.

use crate::image::decode::{check_size, damaged, Decoded, Limits};

pub struct Frame {
    pub width: usize,
    pub height: usize,
    pub progressive: bool,
    pub components: Vec<Component>,
    /// The largest sampling factors, across and down.
    pub across: usize,
    pub down: usize,
    /// How many groups of blocks there are, across and down.
    pub groups: (usize, usize),
}

pub struct Component {
    pub id: u8,
    /// Sampling factors: the blocks of a group, across and down.
    pub across: usize,
    pub down: usize,
    /// Which of the file's tables its coefficients are multiplied with, and that table from its first
    /// scan on.
    pub table_number: usize,
    pub table: [u16; 64],
    pub scanned: bool,
    /// In samples.
    pub width: usize,
    pub height: usize,
    /// In blocks, of whole groups.
    pub columns: usize,
    pub rows: usize,
    /// 64 for each block, row by row.
    pub coefficients: Vec<i16>,
}

impl Frame {
    pub fn read(header: &[u8], progressive: bool, limits: &Limits) -> Decoded<Self> {
        let [precision, h1, h0, w1, w0, count, entries @ ..] = header else {
            return Err(damaged("its frame has no header"));
        };
        if *precision != 8 {
            return Err(damaged(format!(
                "it has samples of {precision} bits, not 8"
            )));
        }
        let height = usize::from(u16::from_be_bytes([*h1, *h0]));
        let width = usize::from(u16::from_be_bytes([*w1, *w0]));
        let count = usize::from(*count);
        if ![1, 3, 4].contains(&count) || entries.len() != 3 * count {
            return Err(damaged(format!("its frame has {count} components")));
        }
        // Coefficients and samples of every component, and what becomes of them.
        check_size(width, height, 4 * count, limits)?;
        let mut components: Vec<Component> = Vec::with_capacity(count);
        for entry in entries.chunks_exact(3) {
            components.push(Component::read(entry)?);
        }
        if let [alone] = &mut components[..] {
            // A component alone has no others to be sampled with.
            (alone.across, alone.down) = (1, 1);
        }
        let across = components.iter().map(|it| it.across).max().unwrap_or(1);
        let down = components.iter().map(|it| it.down).max().unwrap_or(1);
        let groups = (width.div_ceil(8 * across), height.div_ceil(8 * down));
        for component in &mut components {
            if !across.is_multiple_of(component.across) || !down.is_multiple_of(component.down) {
                return Err(damaged(
                    "its components are sampled in fractions of each other",
                ));
            }
            component.width = (width * component.across).div_ceil(across);
            component.height = (height * component.down).div_ceil(down);
            component.columns = groups.0 * component.across;
            component.rows = groups.1 * component.down;
            component.coefficients = vec![0; component.columns * component.rows * 64];
        }
        Ok(Self {
            width,
            height,
            progressive,
            components,
            across,
            down,
            groups,
        })
    }
}

impl Component {
    fn read(entry: &[u8]) -> Decoded<Self> {
        let (across, down) = (usize::from(entry[1] >> 4), usize::from(entry[1] & 15));
        if !(1..=4).contains(&across) || !(1..=4).contains(&down) || entry[2] > 3 {
            return Err(damaged("a component of its frame can't be"));
        }
        Ok(Self {
            id: entry[0],
            across,
            down,
            table_number: usize::from(entry[2]),
            table: [0; 64],
            scanned: false,
            width: 0,
            height: 0,
            columns: 0,
            rows: 0,
            coefficients: Vec::new(),
        })
    }
}
