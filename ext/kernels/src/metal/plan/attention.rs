//! Which kernel of attention runs over what grid.

use super::{Gpu, SIMD_WIDTH};
use crate::attention::AttentionShape;

/// More bits, as in the source.
pub const HAS_PLACES: u32 = 512;
pub const HAS_QUERY_SCORES: u32 = 1024;
pub const HAS_KEY_SCORES: u32 = 2048;
pub const IS_CAPPED: u32 = 4096;
pub const FIRST_ALIGNED: u32 = 8192;

/// What is added to scores, as in the source; 0 is nothing.
pub const ALIBI: u32 = 1;
pub const RELATIVE: u32 = 2;
pub const DISENTANGLED: u32 = 3;

/// Widths of heads are counted in blocks of so many elements by the kernels.
const BLOCK: usize = 8;
const MOST_WIDTH: usize = 256;
/// Up to so many queries of a sequence, each is a threadgroup's; beyond, a simdgroup takes eight.
const FEW_QUERIES: usize = 4;
/// As in the source.
const MOST_TILE_SIMDGROUPS: usize = 8;
const MOST_ROW_SIMDGROUPS: usize = 8;
const ROW_HEADS: usize = 4;
/// Keys that a simdgroup reads for a query at least, where there are several.
const ROW_KEYS: usize = 32;
/// Keys that a threadgroup reads without sharing them, and at least when it does.
const UNSHARED_KEYS: usize = 256;
const SHARED_KEYS: usize = 128;
/// Threadgroups that keep a core of a GPU busy: one computes while another waits for memory.
const GROUPS_OF_CORE: usize = 2;

/// Whether there are kernels for heads of these widths.
pub fn attends(width: usize, value_width: usize) -> bool {
    (1..=MOST_WIDTH).contains(&width) && (1..=MOST_WIDTH).contains(&value_width)
}

/// Widths of heads in blocks, of keys and of values: what kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadWidths {
    blocks: usize,
    value_blocks: usize,
}

impl HeadWidths {
    pub fn of(width: usize, value_width: usize) -> Self {
        Self {
            blocks: width.div_ceil(BLOCK),
            value_blocks: value_width.div_ceil(BLOCK),
        }
    }

    /// What the source ends with.
    pub fn instances(self) -> String {
        let (blocks, value_blocks) = (self.blocks, self.value_blocks);
        let wider = blocks.max(value_blocks);
        format!("ATTENTION_KERNELS({blocks}, {value_blocks}, {wider})\n")
    }

    pub fn kernel(self, name: &str) -> String {
        format!("{name}_{}_{}", self.blocks, self.value_blocks)
    }
}

/// Which kernel runs, over what grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionLaunch {
    sequences: usize,
    most_queries: usize,
    most_keys: usize,
    /// Threadgroups that keep the GPU busy.
    enough: usize,
}

impl AttentionLaunch {
    /// Of boundaries of queries and keys, of which a query sees `window` at most.
    pub fn new((queries, keys): (&[u32], &[u32]), window: usize, gpu: Gpu) -> Self {
        let longest = |boundaries: &[u32]| {
            let lengths = boundaries.windows(2).map(|pair| pair[1] - pair[0]);
            lengths.max().unwrap_or(0) as usize
        };
        Self {
            sequences: queries.len() - 1,
            most_queries: longest(queries),
            most_keys: longest(keys).min(window),
            enough: GROUPS_OF_CORE * gpu.cores(),
        }
    }

    fn is_few(&self) -> bool {
        self.most_queries <= FEW_QUERIES
    }

    pub fn kernel(&self) -> &'static str {
        if self.is_few() {
            "attention_rows"
        } else {
            "attention_tiles"
        }
    }

    /// Threadgroups that share the keys of a query, and the keys of each.
    pub fn splits(&self, shape: &AttentionShape) -> (usize, usize) {
        let splits = if self.is_few() && self.most_keys > UNSHARED_KEYS {
            self.enough
                .div_ceil(shape.tokens * row_groups(shape))
                .min(self.most_keys / SHARED_KEYS)
        } else {
            1
        };
        (splits, self.most_keys.div_ceil(splits))
    }

    /// Threadgroups, and the lanes of each, of which a pipeline takes no more than `most_lanes`.
    pub fn grid(&self, shape: &AttentionShape, most_lanes: usize) -> ((usize, usize), usize) {
        let most = (most_lanes / SIMD_WIDTH).max(1);
        // As a power of two, so that lengths that differ a little give the same threadgroups.
        let simdgroups = |wanted: usize, limit: usize| {
            let wanted = wanted.next_power_of_two().min(limit);
            std::iter::successors(Some(wanted), |n| Some(n / 2))
                .find(|&n| n <= most)
                .unwrap_or(1)
        };
        if self.is_few() {
            let (splits, keys) = self.splits(shape);
            let simdgroups = simdgroups(keys.div_ceil(ROW_KEYS), MOST_ROW_SIMDGROUPS);
            let groups = (row_groups(shape), shape.tokens * splits);
            return (groups, SIMD_WIDTH * simdgroups);
        }
        let wanted = self.most_queries.div_ceil(BLOCK);
        let simdgroups = simdgroups(wanted, MOST_TILE_SIMDGROUPS);
        let tiles = self.most_queries.div_ceil(BLOCK * simdgroups);
        let groups = (shape.heads * tiles, self.sequences);
        (groups, SIMD_WIDTH * simdgroups)
    }
}

/// Threadgroups for one query.
fn row_groups(shape: &AttentionShape) -> usize {
    shape.key_heads * (shape.heads / shape.key_heads).div_ceil(ROW_HEADS)
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::*;

    #[test]
    fn constants_are_those_of_the_metal_source() {
        let constants = [
            ("HAS_PLACES", HAS_PLACES as usize),
            ("HAS_QUERY_SCORES", HAS_QUERY_SCORES as usize),
            ("HAS_KEY_SCORES", HAS_KEY_SCORES as usize),
            ("IS_CAPPED", IS_CAPPED as usize),
            ("FIRST_ALIGNED", FIRST_ALIGNED as usize),
            ("ALIBI", ALIBI as usize),
            ("RELATIVE", RELATIVE as usize),
            ("DISENTANGLED", DISENTANGLED as usize),
            ("MOST_TILE_SIMDGROUPS", MOST_TILE_SIMDGROUPS),
            ("MOST_ROW_SIMDGROUPS", MOST_ROW_SIMDGROUPS),
            ("ROW_HEADS", ROW_HEADS),
        ];
        let text = Source::Attention(HeadWidths::of(64, 64)).text();
        for (name, value) in constants {
            let line = format!("constant constexpr uint {name} = {value};");
            assert!(text.contains(&line), "{line}");
        }
    }

    #[test]
    fn attention_takes_threadgroups_by_the_longest_sequence() {
        let shape = |heads, key_heads, tokens| AttentionShape {
            tokens,
            heads,
            key_heads,
            key_tokens: tokens,
            width: 20,
            value_width: 64,
        };
        let launch =
            |queries: &[u32], keys: &[u32]| AttentionLaunch::new((queries, keys), 2000, Gpu::Max);
        let many = launch(&[0, 3, 103], &[0, 3, 103]);
        assert_eq!(many.kernel(), "attention_tiles");
        assert_eq!(many.splits(&shape(12, 12, 103)).0, 1);
        assert_eq!(many.grid(&shape(12, 12, 103), 1024), ((12 * 2, 2), 256));
        // A pipeline that needs many registers has fewer lanes.
        assert_eq!(many.grid(&shape(12, 12, 103), 160), ((12 * 4, 2), 128));
        let short = launch(&[0, 5, 17], &[0, 5, 17]);
        assert_eq!(short.grid(&shape(12, 12, 17), 1024), ((12, 2), 64));
        let few = launch(&[0, 1, 5], &[0, 200, 204]);
        assert_eq!(few.kernel(), "attention_rows");
        assert_eq!(few.splits(&shape(14, 2, 5)), (1, 200));
        assert_eq!(few.grid(&shape(14, 2, 5), 1024), ((2 * 2, 5), 256));
        // Many keys of few queries are shared, as long as each threadgroup has enough of them.
        let long = launch(&[0, 1], &[0, 3000]);
        assert_eq!(long.splits(&shape(32, 8, 1)), (10, 200));
        assert_eq!(long.grid(&shape(32, 8, 1), 1024), ((8, 10), 256));
        assert_eq!(long.splits(&shape(32, 8, 9)), (2, 1000));
        assert_eq!(
            AttentionLaunch::new((&[0, 1], &[0, 3000]), 300, Gpu::Max).splits(&shape(2, 1, 1)),
            (2, 150)
        );
        // Fewer cores need fewer threadgroups.
        let splits = Gpu::ALL.map(|gpu| {
            let launch = AttentionLaunch::new((&[0, 1], &[0, 3000]), 4000, gpu);
            launch.splits(&shape(32, 8, 1)).0
        });
        assert_eq!(splits, [2, 5, 10, 20]);
        assert!(attends(1, 256) && !attends(0, 8) && !attends(64, 257));
        let widths = HeadWidths::of(20, 64);
        assert_eq!(widths.kernel("rows"), "rows_3_8");
        let text = Source::Attention(widths).text();
        assert!(text.ends_with("ATTENTION_KERNELS(3, 8, 8)\n"));
    }
}
