//! Attention on CUDA by our own kernels: one launch for all sequences and heads, over tensors as they
//! lie.

use std::iter::once;

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{CudaDevice, DType, Tensor};

use super::attention_runs::runs;
use super::compile::{capability, function, ATTENTION, ATTENTION_WARPGROUPS, HOPPER};
use super::device::{address, constant, device_of, result, Constant, ALIGNMENT};
use super::launch::{argument, launch_early};
use super::recording::is_older;
use super::small;
use super::tensor_map::TensorMap;
use crate::attention::{
    bias, Alignment, AttentionBias, AttentionKind, AttentionOptions, AttentionShape, Inputs,
};
use crate::Result;

/// Queries of a warp, and keys of a step, of the kernel on tensor cores.
const WARP_QUERIES: usize = 16;
const TILE_KEYS: usize = 64;
/// Warps of its blocks. Each has twice as many queries where sequences are longer than this and heads are narrow, so
/// that its registers have room.
const TILE_WARPS: usize = 4;
const SHORT: usize = 128;
const NARROW: usize = 64;
/// Rows and columns of the tiles of queries, keys or values that warpgroups take, how many of keys and of values a block
/// has room for where there may be more, and its queries.
const GROUP_TILE: usize = 64;
const GROUP_STAGES: usize = 4;
const BLOCK_QUERIES: usize = 128;
/// Tensor cores as the kernel uses them, and asynchronous copies.
const LEAST_CAPABILITY: i32 = 80;
/// Heads of up to this width go by tiles.
const MOST_TILE_WIDTH: usize = 128;
const MOST_WIDTH: usize = 256;

/// Up to this many queries of a sequence, each gets blocks of its own.
const FEW_QUERIES: usize = 4;
/// Keys that one block of the row kernel reads without sharing; elements of a head's keys that it reads at least when
/// it shares, which its threads do at once; and how many share at most.
const UNSHARED_KEYS: usize = 256;
const SHARED_ELEMENTS: usize = 8192;
const MOST_SPLITS: usize = 64;
/// Query heads that a block of it takes together at most, where they have the same keys and share them.
const MOST_TOGETHER: usize = 4;
/// About two blocks for each multiprocessor of a large GPU.
const ENOUGH_BLOCKS: usize = 264;

/// The grid's second and third dimensions end here.
const MOST_BLOCKS: usize = 65_535;

/// Farther than any sequence is long.
const UNLIMITED: usize = 1 << 29;

/// As `Attention` in the CUDA source.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Parameters {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    parts: u64,
    query_boundaries: u64,
    key_boundaries: u64,
    places: u64,
    table: u64,
    from_query: u64,
    from_key: u64,
    query_buckets: u64,
    key_buckets: u64,
    q_strides: [u64; 2],
    k_strides: [u64; 2],
    v_strides: [u64; 2],
    sequences: u32,
    queries: u32,
    keys: u32,
    heads: u32,
    group: u32,
    left: i32,
    right: i32,
    scale: f32,
    soft_cap: f32,
    zero: i32,
    query_distances: i32,
    key_distances: i32,
    query_width: u32,
    key_width: u32,
    splits: u32,
    split_keys: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

/// What a launch reads besides q, k and v, kept alive until it is queued.
#[derive(Default)]
struct Kept {
    constants: Vec<Constant>,
    tensors: Vec<Tensor>,
}

impl Kept {
    fn constant(&mut self, device: &CudaDevice, values: &[u32]) -> Result<u64> {
        let constant = constant(device, values)?;
        let address = constant.address();
        self.constants.push(constant);
        Ok(address)
    }

    fn tensor(&mut self, tensor: Tensor) -> Result<u64> {
        let address = address(&tensor)?;
        self.tensors.push(tensor);
        Ok(address)
    }
}

/// `None` where the shapes ask for another way.
pub fn attend(inputs: &Inputs<'_>, options: &AttentionOptions<'_>) -> Result<Option<Tensor>> {
    if options.alignment != Alignment::Last && options.knows_positions() {
        return Ok(None);
    }
    if matches!(options.kind, AttentionKind::Chunk { .. }) {
        return Ok(None);
    }
    let Some(launch) = Launch::plan(inputs, options)? else {
        return Ok(None);
    };
    let runs = match options.bias {
        AttentionBias::None if launch.kernel != Kernel::Rows => runs(inputs, FEW_QUERIES)?,
        _ => Vec::new(),
    };
    let shape = &inputs.shape;
    let device = device_of(inputs.q)?;
    let dims = (shape.tokens, shape.heads, shape.value_width);
    let (out, to) = result(&device, dims, inputs.q.dtype())?;
    if runs.is_empty() {
        launch_on(&device, inputs, options, &launch, to)?;
    }
    for run in &runs {
        let own = run.inputs(inputs);
        let before = run.first * shape.heads * shape.value_width * inputs.q.dtype().size_in_bytes();
        match Launch::plan(&own, options)? {
            Some(launch) => launch_on(&device, &own, options, &launch, to + before as u64)?,
            None => return Err(refused("a part of what has a kernel has none")),
        }
    }
    Ok(Some(out))
}

fn refused(why: &str) -> crate::Error {
    crate::Error::Internal(why.into())
}

/// Computes what lies at `to` from then on.
fn launch_on(
    device: &CudaDevice,
    inputs: &Inputs<'_>,
    options: &AttentionOptions<'_>,
    launch: &Launch,
    to: u64,
) -> Result<()> {
    let Inputs { q, k, v, shape, .. } = inputs;
    let boundaries = (inputs.query_boundaries, inputs.key_boundaries);
    let mut kept = Kept::default();
    let (left, right) = match options.kind {
        AttentionKind::Bidirectional => (UNLIMITED, UNLIMITED),
        AttentionKind::Causal => (UNLIMITED, 0),
        AttentionKind::Window { left, right } => (left.min(UNLIMITED), right.min(UNLIMITED)),
        AttentionKind::Chunk { .. } => return Err(refused("chunks have no kernel")),
    };
    let mut parameters = Parameters {
        out: to,
        sequences: launch.sequences as u32,
        queries: small(shape.tokens)?,
        keys: small(shape.key_tokens)?,
        heads: small(shape.heads)?,
        group: (shape.heads / shape.key_heads) as u32,
        left: left as i32,
        right: right as i32,
        scale: options.scale,
        soft_cap: options.soft_cap.unwrap_or(0.0),
        ..Parameters::default()
    };
    (parameters.q, parameters.q_strides) = rows(q, &mut kept)?;
    (parameters.k, parameters.k_strides) = rows(k, &mut kept)?;
    (parameters.v, parameters.v_strides) = rows(v, &mut kept)?;
    if let Some((queries, keys)) = inputs.current_boundaries {
        parameters.query_boundaries = address(queries)?;
        parameters.key_boundaries = address(keys)?;
    } else if launch.sequences > 1 {
        parameters.query_boundaries = kept.constant(device, boundaries.0)?;
        parameters.key_boundaries = kept.constant(device, boundaries.1)?;
    }
    if let Some(places) = inputs.places {
        parameters.places = address(places)?;
    }
    // Boundaries, places and the keys and values of earlier tokens are read ahead, and nothing that was copied.
    let current = inputs
        .current_boundaries
        .map(|(queries, keys)| [queries, keys]);
    let ahead = current.into_iter().flatten().chain(inputs.places);
    let is_there = kept.tensors.is_empty() && ahead.chain([*k, *v]).all(is_older);
    let bias_kind = add_bias(
        &mut parameters,
        &mut kept,
        device,
        q.dtype(),
        shape,
        options,
    )?;
    launch.run(
        device,
        q.dtype(),
        shape,
        &mut parameters,
        &mut kept,
        bias_kind,
        options,
        is_there,
    )
}

/// Shared memory of a block of warpgroups: tiles of keys and values, those of its queries, and barriers.
fn group_shared(stages: usize, dtype: DType) -> u32 {
    let tiles = 2 * stages + BLOCK_QUERIES / GROUP_TILE;
    let bytes = tiles * GROUP_TILE * GROUP_TILE * dtype.size_in_bytes() + 8 * (stages + 1);
    bytes as u32
}

/// Whether there is a kernel for heads of these widths.
pub fn takes(width: usize, value_width: usize) -> bool {
    width == value_width && width.is_multiple_of(8) && width <= MOST_WIDTH
}

/// Which kernel, and over what grid.
struct Launch {
    sequences: usize,
    most_queries: usize,
    most_keys: usize,
    kernel: Kernel,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// A block, or several, for each query.
    Rows,
    /// Blocks on tensor cores whose warps have so many tiles of queries.
    TensorTiles(usize),
    /// Blocks of warpgroups, on Hopper.
    Warpgroups,
    /// One warpgroup for all of a sequence, there.
    Short,
    /// Blocks that compute in full precision.
    PlainTiles,
}

impl Launch {
    fn plan(inputs: &Inputs<'_>, options: &AttentionOptions<'_>) -> Result<Option<Self>> {
        let Inputs { q, shape, .. } = inputs;
        let (queries, keys) = (inputs.query_boundaries, inputs.key_boundaries);
        let longest = |boundaries: &[u32]| {
            let lengths = boundaries.windows(2).map(|pair| pair[1] - pair[0]);
            lengths.max().unwrap_or(0) as usize
        };
        let sequences = queries.len() - 1;
        let (most_queries, most_keys) = (longest(queries), longest(keys));
        let fits = takes(shape.width, shape.value_width)
            && shape.tokens > 0
            && shape.key_tokens > 0
            && shape.heads <= MOST_BLOCKS;
        if !fits {
            return Ok(None);
        }
        let capability = capability(&device_of(q)?)?;
        let tensor_cores = q.dtype() != DType::F32
            && options.scale > 0.0
            && shape.width.is_multiple_of(16)
            && shape.width <= MOST_TILE_WIDTH
            && capability >= LEAST_CAPABILITY;
        let plain = matches!(options.bias, AttentionBias::None) && options.soft_cap.is_none();
        let warpgroups = tensor_cores
            && plain
            && capability == HOPPER
            && most_queries > GROUP_TILE
            && has_tiles(inputs)?;
        let kernel = if most_queries <= FEW_QUERIES && shape.tokens <= MOST_BLOCKS {
            Kernel::Rows
        } else if sequences > MOST_BLOCKS {
            return Ok(None);
        } else if warpgroups && most_queries.max(most_keys) <= BLOCK_QUERIES {
            Kernel::Short
        } else if warpgroups {
            Kernel::Warpgroups
        } else if tensor_cores {
            let doubled = shape.width <= NARROW && most_queries > SHORT;
            Kernel::TensorTiles(1 + usize::from(doubled))
        } else if shape.width <= MOST_TILE_WIDTH {
            Kernel::PlainTiles
        } else {
            return Ok(None);
        };
        Ok(Some(Self {
            sequences,
            most_queries,
            most_keys,
            kernel,
        }))
    }

    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        device: &CudaDevice,
        dtype: DType,
        shape: &AttentionShape,
        parameters: &mut Parameters,
        kept: &mut Kept,
        bias: usize,
        options: &AttentionOptions<'_>,
        is_there: bool,
    ) -> Result<()> {
        let width = shape.width;
        let (splits, split_keys, together) = self.shares(shape, parameters);
        parameters.splits = splits as u32;
        parameters.split_keys = small(split_keys)?;
        let row_tiles = match self.kernel {
            Kernel::TensorTiles(tiles) => tiles,
            _ => 0,
        };
        let definitions = [
            ("WIDTH", width),
            ("BIAS", bias),
            ("CAPPED", usize::from(options.soft_cap.is_some())),
            ("LANES", (width / 8).next_power_of_two()),
            ("HEADS", together),
            ("TILE_WARPS", if row_tiles > 0 { TILE_WARPS } else { 0 }),
            ("ROW_TILES", row_tiles),
            (
                "PLAIN_TILES",
                usize::from(self.kernel == Kernel::PlainTiles),
            ),
        ];
        let (source, maps) = match self.kernel {
            Kernel::Warpgroups | Kernel::Short => {
                (ATTENTION_WARPGROUPS, tile_maps(dtype, shape, parameters)?)
            }
            _ => (ATTENTION, Vec::new()),
        };
        let start = |kernel: &str, grid, threads: u32, shared: u32, parameters: &Parameters| {
            let function = function(device, source, kernel, dtype, &definitions, shared)?;
            let config = LaunchConfig {
                grid_dim: grid,
                block_dim: (threads, 1, 1),
                shared_mem_bytes: shared,
            };
            let arguments: Vec<_> = once(argument(parameters))
                .chain(maps.iter().map(argument))
                .collect();
            // SAFETY: the argument is the kernel's; its addresses are of tensors that live until after
            // the launch, of the shapes it says, and boundaries were checked; `is_there` says whether what it
            // reads ahead may be.
            unsafe { launch_early(device, &function, config, &arguments, is_there) }?;
            Ok::<(), crate::Error>(())
        };
        let heads = shape.heads as u32;
        let tiles = |rows: usize| -> Result<_> {
            let tiles = small(self.most_queries.div_ceil(rows))?;
            Ok((tiles, heads, self.sequences as u32))
        };
        match self.kernel {
            Kernel::Rows => self.run_rows(device, shape, parameters, kept, together, start),
            Kernel::TensorTiles(_) => {
                // Two stages of keys and values, whose rows are padded to lie in different banks, and queries where
                // they are not held in registers.
                let queries = TILE_WARPS * row_tiles * WARP_QUERIES;
                let own = if width > NARROW { 0 } else { queries };
                let shared = (4 * TILE_KEYS + own) * (width + 8) * dtype.size_in_bytes();
                let grid = tiles(queries)?;
                let threads = 32 * TILE_WARPS as u32;
                start("attention_tiles", grid, threads, shared as u32, parameters)
            }
            Kernel::Warpgroups => {
                let grid = tiles(BLOCK_QUERIES)?;
                let shared = group_shared(GROUP_STAGES, dtype);
                start("attention_warpgroups", grid, 256, shared, parameters)
            }
            Kernel::Short => {
                let grid = tiles(BLOCK_QUERIES)?;
                let shared = group_shared(BLOCK_QUERIES / GROUP_TILE, dtype);
                start("attention_short", grid, 128, shared, parameters)
            }
            Kernel::PlainTiles => {
                // Queries, keys and probabilities by column, padded likewise, and values.
                let shared = 4 * ((2 * width + TILE_KEYS) * (TILE_KEYS + 4) + TILE_KEYS * width);
                let grid = tiles(TILE_KEYS)?;
                start(
                    "attention_plain_tiles",
                    grid,
                    256,
                    shared as u32,
                    parameters,
                )
            }
        }
    }

    fn run_rows(
        &self,
        device: &CudaDevice,
        shape: &AttentionShape,
        parameters: &mut Parameters,
        kept: &mut Kept,
        together: usize,
        start: impl Fn(&str, (u32, u32, u32), u32, u32, &Parameters) -> Result<()>,
    ) -> Result<()> {
        let (width, heads, tokens) = (shape.width, shape.heads as u32, shape.tokens as u32);
        let splits = parameters.splits;
        if splits > 1 {
            let dims = (shape.tokens * shape.heads * splits as usize, width + 2);
            let (parts, to) = result(device, dims, DType::F32)?;
            kept.tensors.push(parts);
            parameters.parts = to;
        }
        let grid = (splits, heads / together as u32, tokens);
        start("attention_rows", grid, 256, 0, parameters)?;
        if splits > 1 {
            let threads = width.next_multiple_of(32) as u32;
            start("attention_join", (heads, tokens, 1), threads, 0, parameters)?;
        }
        Ok(())
    }

    /// How many blocks of the row kernel share a query's keys, how many keys each of them has, and how many heads.
    fn shares(&self, shape: &AttentionShape, parameters: &Parameters) -> (usize, usize, usize) {
        let seen = parameters.left as usize + parameters.right as usize + 1;
        // Keys are shared in the same way while they grow, so that a recorded launch stays right.
        let keys = self.most_keys.max(UNSHARED_KEYS).next_power_of_two();
        let keys = keys.min(seen);
        let group = shape.heads / shape.key_heads;
        let fits = |&together: &usize| group.is_multiple_of(together);
        let together = (1..=MOST_TOGETHER).rev().find(fits).unwrap_or(1);
        let blocks = shape.tokens * shape.heads / together;
        // Few blocks with few keys each are better off as many blocks that read the same keys.
        let small = keys <= UNSHARED_KEYS && blocks < ENOUGH_BLOCKS;
        if self.kernel != Kernel::Rows || small {
            return (1, keys, 1);
        }
        let splits = (ENOUGH_BLOCKS / blocks)
            .min(keys * shape.width / SHARED_ELEMENTS)
            .clamp(1, MOST_SPLITS);
        (splits, keys.div_ceil(splits), together)
    }
}

/// Whether queries, keys and values lie as tiles are copied: heads side by side, and every 16 bytes at a multiple of that.
fn has_tiles(inputs: &Inputs<'_>) -> Result<bool> {
    for tensor in [inputs.q, inputs.k, inputs.v] {
        let lies = match tensor.stride() {
            &[token, GROUP_TILE, 1] => token.is_multiple_of(8),
            _ => false,
        };
        if !lies || address(tensor)? % ALIGNMENT != 0 {
            return Ok(false);
        }
    }
    Ok(inputs.places.is_none() && inputs.shape.width == GROUP_TILE)
}

/// What copies tiles of queries, keys and values.
fn tile_maps(dtype: DType, shape: &AttentionShape, given: &Parameters) -> Result<Vec<TensorMap>> {
    let keys = (shape.key_tokens, shape.key_heads);
    let all = [
        (given.q, given.q_strides, (shape.tokens, shape.heads)),
        (given.k, given.k_strides, keys),
        (given.v, given.v_strides, keys),
    ];
    all.into_iter()
        .map(|(address, [stride, _], (tokens, heads))| {
            let dims = (tokens, heads * shape.width);
            Ok(TensorMap::new(
                address,
                dtype,
                dims,
                stride as usize,
                GROUP_TILE,
            )?)
        })
        .collect()
}

/// The address and the strides of tokens and heads, of a copy where the tensor cannot be read 16 bytes
/// at a time.
fn rows(tensor: &Tensor, kept: &mut Kept) -> Result<(u64, [u64; 2])> {
    let strides = |tensor: &Tensor| match tensor.stride() {
        &[token, head, last] => [token as u64, head as u64, last as u64],
        _ => [0; 3],
    };
    let size = tensor.dtype().size_in_bytes() as u64;
    let [token, head, last] = strides(tensor);
    let aligned = [address(tensor)?, token * size, head * size]
        .iter()
        .all(|offset| offset % ALIGNMENT == 0);
    if last == 1 && aligned {
        return Ok((address(tensor)?, [token, head]));
    }
    // `contiguous` would keep a tensor that is dense but begins at an odd address.
    let copy = tensor.copy()?.contiguous()?;
    let [token, head, _] = strides(&copy);
    Ok((kept.tensor(copy)?, [token, head]))
}

/// Fills in the bias and returns its number in the CUDA source.
fn add_bias(
    parameters: &mut Parameters,
    kept: &mut Kept,
    device: &CudaDevice,
    dtype: DType,
    shape: &AttentionShape,
    options: &AttentionOptions<'_>,
) -> Result<usize> {
    bias::check_heads(&options.bias, shape.heads)?;
    match options.bias {
        AttentionBias::None => Ok(0),
        AttentionBias::Alibi(slopes) => {
            let bits: Vec<u32> = slopes.iter().map(|slope| slope.to_bits()).collect();
            parameters.table = kept.constant(device, &bits)?;
            Ok(1)
        }
        AttentionBias::Relative { table, zero } => {
            let table = table.to_dtype(DType::F32)?.contiguous()?;
            parameters.query_distances = small(table.dim(1)?)? as i32;
            parameters.zero = small(zero)? as i32;
            parameters.table = kept.tensor(table)?;
            Ok(2)
        }
        AttentionBias::Disentangled(sides) => {
            parameters.zero = small(sides.zero)? as i32;
            let mut side = |given: Option<(&Tensor, &[u32])>, tokens: usize| -> Result<_> {
                let Some((scores, buckets)) = given else {
                    return Ok((0, 0, 0, 0));
                };
                let width = bias::bucket_width(scores, buckets, tokens, shape.heads)?;
                let scores = kept.tensor(scores.to_dtype(dtype)?.contiguous()?)?;
                let at = kept.constant(device, buckets)?;
                Ok((scores, at, buckets.len() as i32, small(width)?))
            };
            (
                parameters.from_query,
                parameters.query_buckets,
                parameters.query_distances,
                parameters.query_width,
            ) = side(sides.from_query, shape.tokens)?;
            (
                parameters.from_key,
                parameters.key_buckets,
                parameters.key_distances,
                parameters.key_width,
            ) = side(sides.from_key, shape.key_tokens)?;
            Ok(3)
        }
    }
}
