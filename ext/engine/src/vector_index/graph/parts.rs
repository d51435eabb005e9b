//! A graph as part of a file.

use std::borrow::Cow;

use super::{Graph, Layer, Words, LINKS, MOST_LAYERS};
use base::runtime::bytes::Bytes;

impl Graph {
    /// As a file holds it: its parts, one after another.
    pub fn parts(&self) -> Vec<Cow<'_, [u8]>> {
        let mut start = Vec::new();
        for number in [self.links, self.layers.len()] {
            start.extend_from_slice(&(number as u64).to_le_bytes());
        }
        for layer in &self.layers {
            start.extend_from_slice(&(layer.len() as u64).to_le_bytes());
        }
        let mut parts = vec![start.into()];
        for layer in &self.layers {
            parts.extend(layer.rows.as_ref().map(|rows| rows.as_bytes().into()));
            parts.push(layer.links.as_bytes().into());
        }
        parts
    }

    /// What `parts` made of a graph over some of `count` rows. Every number in it is looked at.
    pub fn parse(bytes: &Bytes, count: usize) -> std::result::Result<Self, &'static str> {
        let wrong = "its graph can't be read";
        let number = |at: usize| -> std::result::Result<usize, &'static str> {
            let word = bytes
                .get(8 * at..8 * at + 8)
                .and_then(|word| word.try_into().ok());
            let number = word.map(u64::from_le_bytes).ok_or(wrong)?;
            usize::try_from(number).map_err(|_| wrong)
        };
        let (links, height) = (number(0)?, number(1)?);
        if !LINKS.contains(&links) || !(1..=MOST_LAYERS).contains(&height) {
            return Err(wrong);
        }
        let mut at = 8 * (2 + height);
        let mut take = |words: Option<usize>| -> std::result::Result<Words, &'static str> {
            let length = words.and_then(|words| words.checked_mul(4)).ok_or(wrong)?;
            let part = bytes.slice(at, length).ok_or(wrong)?;
            at += length;
            Ok(Words::mapped(part))
        };
        let mut graph = Self {
            links,
            layers: Vec::new(),
        };
        let mut below = count;
        for layer in 0..height {
            let len = number(2 + layer)?;
            if len > below || (len == 0 && layer > 0) {
                return Err(wrong);
            }
            let rows = (layer > 0).then(|| take(Some(len))).transpose()?;
            let mut known = Layer::new(rows, if layer == 0 { 2 * links } else { links });
            known.links = take(len.checked_mul(known.width))?;
            let all = graph.layers.first().map_or(len, Layer::len);
            if !known.is_sound(all) {
                return Err("its graph names what is not there");
            }
            graph.layers.push(known);
            below = len;
        }
        if at == bytes.len() {
            Ok(graph)
        } else {
            Err(wrong)
        }
    }
}

impl Layer {
    /// Whether all it names is among `count` rows, and its own rows ascend.
    fn is_sound(&self, count: usize) -> bool {
        let ascends = self.rows.as_ref().is_none_or(|rows| {
            let in_order = (1..rows.len()).all(|at| rows.get(at - 1) < rows.get(at));
            in_order
                && rows
                    .get(rows.len().wrapping_sub(1))
                    .is_none_or(|last| (last as usize) < count)
        });
        ascends
            && self
                .links
                .all(|link| link == Words::NONE || (link as usize) < count)
    }
}
