//! In which order the things on a page are read.

use candle_core::Tensor;

use super::deformable::numbers;
use super::rt_detr::sigmoid;
use crate::models::modules::Modules;
use crate::nn::{Inventory, Linear};
use crate::{Error, Result};
use formats::files::raw_config::{RawConfig, WIDTH};

/// Every pair of things has a number; no model looks for more things.
const MOST_THINGS: usize = 4096;

#[derive(Clone, Debug, PartialEq)]
pub enum PageOrder {
    /// The place of each thing.
    Ranks(Vec<usize>),
    /// For each pair, whether the first is read before the second, and whether the second follows it at once: above 0
    /// where it does (PP-DocLayoutV4).
    Pairs {
        relative: Vec<f32>,
        successor: Vec<f32>,
        things: usize,
    },
}

/// An error where a page has too many things.
pub fn check_queries(raw: &RawConfig) -> Result<()> {
    match raw.opt_usize("num_queries")?.unwrap_or(300) {
        0..=MOST_THINGS => Ok(()),
        more => Err(Error::unsupported(
            raw.file(),
            format!("{more} \"num_queries\" are not supported on pages, {MOST_THINGS} are"),
        )),
    }
}

impl PageOrder {
    /// The places of some things, by their numbers, which grow.
    pub fn of(&self, chosen: &[usize]) -> Vec<usize> {
        match self {
            Self::Ranks(ranks) => {
                let rank = |thing: &usize| ranks.get(*thing).copied().unwrap_or(ranks.len());
                chosen.iter().map(rank).collect()
            }
            Self::Pairs {
                relative,
                successor,
                things,
            } => {
                let pick = |all: &[f32]| -> Vec<Vec<f32>> {
                    let row = |a: usize| chosen.iter().map(move |b| all[a * things + b]).collect();
                    chosen.iter().map(|&a| row(a)).collect()
                };
                Graph::new(&pick(relative), &pick(successor)).ranks()
            }
        }
    }
}

/// Which of two things is read first, by what a model makes of both (PP-DocLayoutV2 and V3).
#[derive(Debug)]
pub struct Pairs {
    linear: Linear,
    size: usize,
}

impl Pairs {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, width: usize) -> Result<Self> {
        let size = raw
            .opt_usize_in("global_pointer_head_size", WIDTH)?
            .unwrap_or(64);
        Ok(Self {
            linear: modules.sized_linear("dense", width, 2 * size)?,
            size,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.linear)
    }

    /// The place of each thing in the order; the row of a thing is that of its number, or else the last one.
    pub fn ranks(&self, x: &Tensor, things: usize) -> Result<Vec<usize>> {
        let both = numbers(&self.linear.forward(x)?)?;
        let rows: Vec<&[f32]> = both.chunks_exact(2 * self.size).collect();
        let Some(last) = rows.len().checked_sub(1) else {
            return Ok(Vec::new());
        };
        let scale = (self.size as f32).sqrt();
        let first = |a: usize, b: usize| {
            let (query, key) = (&rows[a][..self.size], &rows[b][self.size..]);
            let product: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
            sigmoid(product / scale)
        };
        let pairs = (0..rows.len()).map(|a| (0..rows.len()).map(|b| first(a, b)).collect());
        let pairs: Vec<Vec<f32>> = pairs.collect();
        let votes = (0..things).map(|thing| {
            let own = thing.min(last);
            let before = (0..thing).map(|other| pairs[other.min(last)][own]);
            let behind = (thing + 1..things).map(|other| 1.0 - pairs[own][other.min(last)]);
            before.chain(behind).sum::<f32>()
        });
        let mut order: Vec<(f32, usize)> = votes.zip(0..).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut ranks = vec![0; things];
        for (rank, (_, thing)) in order.into_iter().enumerate() {
            ranks[thing] = rank;
        }
        Ok(ranks)
    }
}

/// Things, and which of them follow each other.
struct Graph {
    /// Those that follow each, without ways that lead back.
    next: Vec<Vec<usize>>,
    /// How likely each is read before another.
    before: Vec<Vec<f32>>,
}

impl Graph {
    fn new(relative: &[Vec<f32>], successor: &[Vec<f32>]) -> Self {
        let count = relative.len();
        let before = relative.iter().enumerate().map(|(a, row)| {
            let each = row.iter().enumerate();
            each.map(|(b, &logit)| if a == b { 0.0 } else { sigmoid(logit) })
                .collect()
        });
        let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        let ways = pairs.filter(|&(a, b)| a != b && successor[a][b] > 0.0);
        let mut ways: Vec<(usize, usize)> = ways.collect();
        let mut links = Links::new(count, &ways);
        // The weakest way of a circle goes first; one that leads back no more never will again.
        let mut order = ways.clone();
        order.sort_by(|&(a, b), &(c, d)| successor[a][b].total_cmp(&successor[c][d]));
        for (a, b) in order {
            if links.reaches(b, a) {
                links.remove(a, b);
            }
        }
        ways.retain(|&(a, b)| links.has(a, b));
        let mut next = vec![Vec::new(); count];
        for (a, b) in ways {
            next[a].push(b);
        }
        Self {
            next,
            before: before.collect(),
        }
    }

    /// Things that ways connect stay together.
    fn ranks(&self) -> Vec<usize> {
        let count = self.next.len();
        let vote = |thing: usize| self.before.iter().map(|row| row[thing]).sum::<f32>();
        let mut parts: Vec<(f32, Vec<usize>)> = self
            .parts()
            .into_iter()
            .map(|part| {
                let votes = part.iter().map(|&thing| vote(thing)).sum::<f32>();
                (votes / part.len().max(1) as f32, self.sorted(&part))
            })
            .collect();
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut ranks = vec![0; count];
        let order = parts.into_iter().flat_map(|(_, part)| part);
        for (rank, thing) in order.enumerate() {
            ranks[thing] = rank;
        }
        ranks
    }

    /// Things that ways connect, whichever way they lead.
    fn parts(&self) -> Vec<Vec<usize>> {
        let count = self.next.len();
        let mut beside = self.next.clone();
        for (a, others) in self.next.iter().enumerate() {
            others.iter().for_each(|&b| beside[b].push(a));
        }
        let mut part_of = vec![None; count];
        let mut parts = 0;
        for first in 0..count {
            if part_of[first].is_some() {
                continue;
            }
            let mut open = vec![first];
            while let Some(thing) = open.pop() {
                if part_of[thing].replace(parts).is_none() {
                    open.extend(
                        beside[thing]
                            .iter()
                            .filter(|&&other| part_of[other].is_none()),
                    );
                }
            }
            parts += 1;
        }
        let mut found = vec![Vec::new(); parts];
        for (thing, part) in part_of.into_iter().enumerate() {
            if let Some(part) = part {
                found[part].push(thing);
            }
        }
        found
    }

    /// The things of a part, each behind those that it follows; of several, the one that is likeliest before the others.
    fn sorted(&self, part: &[usize]) -> Vec<usize> {
        let mut waits = vec![0; self.next.len()];
        for &thing in part {
            self.next[thing].iter().for_each(|&next| waits[next] += 1);
        }
        let mut ready: Vec<usize> = part
            .iter()
            .copied()
            .filter(|&thing| waits[thing] == 0)
            .collect();
        let mut order = Vec::with_capacity(part.len());
        while !ready.is_empty() {
            let score = |thing: usize| {
                let others = ready.iter().filter(|&&other| other != thing);
                others.map(|&other| self.before[thing][other]).sum::<f32>()
            };
            let scored = ready.iter().map(|&thing| (score(thing), thing));
            let best = scored.reduce(|a, b| match b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)) {
                std::cmp::Ordering::Greater => b,
                _ => a,
            });
            let Some((_, best)) = best else { break };
            ready.retain(|&thing| thing != best);
            order.push(best);
            for &next in &self.next[best] {
                waits[next] -= 1;
                if waits[next] == 0 {
                    ready.push(next);
                }
            }
        }
        order
    }
}

/// Ways from thing to thing, a bit for each.
struct Links {
    rows: Vec<Vec<u64>>,
}

impl Links {
    fn new(count: usize, ways: &[(usize, usize)]) -> Self {
        let mut rows = vec![vec![0; count.div_ceil(64)]; count];
        for &(a, b) in ways {
            rows[a][b / 64] |= 1 << (b % 64);
        }
        Self { rows }
    }

    fn has(&self, a: usize, b: usize) -> bool {
        self.rows[a][b / 64] >> (b % 64) & 1 == 1
    }

    fn remove(&mut self, a: usize, b: usize) {
        self.rows[a][b / 64] &= !(1 << (b % 64));
    }

    /// Whether ways lead from one to another.
    fn reaches(&self, from: usize, to: usize) -> bool {
        let mut seen = vec![0u64; self.rows.len().div_ceil(64)];
        let mut open = vec![from];
        seen[from / 64] |= 1 << (from % 64);
        while let Some(thing) = open.pop() {
            if thing == to {
                return true;
            }
            for (word, (links, seen)) in self.rows[thing].iter().zip(&mut seen).enumerate() {
                let mut new = links & !*seen;
                *seen |= new;
                while new != 0 {
                    open.push(64 * word + new.trailing_zeros() as usize);
                    new &= new - 1;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(relative: [[f32; 4]; 4], successor: [[f32; 4]; 4]) -> PageOrder {
        PageOrder::Pairs {
            relative: relative.concat(),
            successor: successor.concat(),
            things: 4,
        }
    }

    /// 0 before 1 before 2 before 3.
    const DOWN: [[f32; 4]; 4] = [
        [0.0, 1.0, 2.0, 3.0],
        [-1.0, 0.0, 1.0, 2.0],
        [-2.0, -1.0, 0.0, 1.0],
        [-3.0, -2.0, -1.0, 0.0],
    ];

    #[test]
    fn things_follow_each_other_as_pairs_say() {
        let none = [[-1.0; 4]; 4];
        assert_eq!(pairs(DOWN, none).of(&[0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(pairs(DOWN, none).of(&[1, 3]), [0, 1]);
        // 3 is read behind 0, and 0 behind 1.
        let mut successor = none;
        successor[1][0] = 2.0;
        successor[0][3] = 1.0;
        assert_eq!(pairs(DOWN, successor).of(&[0, 1, 2, 3]), [1, 0, 3, 2]);
    }

    #[test]
    fn the_weakest_way_of_a_circle_is_left_out() {
        let mut successor = [[-1.0; 4]; 4];
        for (a, b, strength) in [(0, 1, 3.0), (1, 2, 1.0), (2, 0, 2.0), (2, 3, 0.5)] {
            successor[a][b] = strength;
        }
        assert_eq!(pairs(DOWN, successor).of(&[0, 1, 2, 3]), [1, 2, 0, 3]);
    }

    #[test]
    fn ranks_are_those_of_the_model() {
        let order = PageOrder::Ranks(vec![2, 0, 1]);
        assert_eq!(order.of(&[0, 2]), [2, 1]);
    }
}
