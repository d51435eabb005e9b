//! Queries and keys rotated, and keys and values into the rows of their pages, in one launch.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{DType, Result, Tensor};

use super::compile::{function, ROWS};
use super::device::{address, device_of, result};
use super::launch::{argument, launch_early};
use super::recording::is_older;
use super::small;
use crate::{RopeKind, Rotation};

/// Warps of a block, one head each.
const WARPS: usize = 8;

/// As `Store` in the CUDA source, with its `Turn`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Parameters {
    /// Queries, keys and values.
    from: [u64; 3],
    to: [u64; 3],
    positions: u64,
    slots: u64,
    /// Of a token and of a head.
    strides: [[u64; 2]; 3],
    cosines: u64,
    sines: u64,
    known: u32,
    pairs: u32,
    interleaved: u32,
    /// The numbers above end where an address could begin.
    unused: u32,
    tokens: u32,
    heads: u32,
    key_heads: u32,
    width: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

/// As `kernels::rotate_and_store`; `None` where the layouts ask for another way.
pub fn rotate_and_store(
    (query, key, value): (&Tensor, &Tensor, &Tensor),
    rotation: Option<&Rotation<'_>>,
    pages: (&Tensor, &Tensor),
    slots: &Tensor,
) -> Result<Option<Tensor>> {
    let ((tokens, heads, width), (_, key_heads, _)) = (query.dims3()?, key.dims3()?);
    let dtype = query.dtype();
    let dense = |rows: &Tensor| rows.stride().last() == Some(&1) && rows.dtype() == dtype;
    let whole = |pages: &Tensor| {
        pages.is_contiguous()
            && pages.dtype() == dtype
            && pages.dims().get(1..) == Some(&[key_heads, width][..])
    };
    let fits = tokens * width > 0
        && [query, key, value].into_iter().all(dense)
        && [key, value]
            .into_iter()
            .all(|rows| rows.dims() == [tokens, key_heads, width])
        && whole(pages.0)
        && whole(pages.1)
        && rotation.is_none_or(|rotation| is_sound(rotation, tokens, width));
    if !fits {
        return Ok(None);
    }
    let device = device_of(query)?;
    let (out, to) = result(&device, (tokens, heads, width), dtype)?;
    let mut parameters = Parameters {
        to: [to, address(pages.0)?, address(pages.1)?],
        slots: address(slots)?,
        tokens: small(tokens)?,
        heads: small(heads)?,
        key_heads: small(key_heads)?,
        width: small(width)?,
        ..Parameters::default()
    };
    for (at, rows) in [query, key, value].into_iter().enumerate() {
        let &[token, head, _] = rows.stride() else {
            return Ok(None);
        };
        parameters.from[at] = address(rows)?;
        parameters.strides[at] = [token as u64, head as u64];
    }
    if let Some(rotation) = rotation {
        let (known, pairs) = rotation.cosines.dims2()?;
        parameters.cosines = address(rotation.cosines)?;
        parameters.sines = address(rotation.sines)?;
        parameters.positions = address(rotation.rows)?;
        parameters.known = small(known)?;
        parameters.pairs = small(pairs)?;
        parameters.interleaved = u32::from(rotation.kind == RopeKind::Interleaved);
    }
    let function = function(&device, ROWS, "rotate_and_store", dtype, &[], 0)?;
    let blocks = (tokens * (heads + 2 * key_heads)).div_ceil(WARPS);
    let grid = LaunchConfig {
        grid_dim: (small(blocks)?, 1, 1),
        block_dim: ((WARPS * 32) as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    let is_there = is_older(slots) && rotation.is_none_or(|rotation| is_older(rotation.rows));
    // SAFETY: the argument is the kernel's, its addresses are of tensors of the shapes it says, and the
    // caller's slots are within the pages; slots and positions are all that it reads ahead.
    unsafe { launch_early(&device, &function, grid, &[argument(&parameters)], is_there) }?;
    Ok(Some(out))
}

fn is_sound(rotation: &Rotation<'_>, tokens: usize, width: usize) -> bool {
    let table = |table: &Tensor| {
        table.is_contiguous()
            && table.dtype() == DType::F32
            && table.rank() == 2
            && table.dims()[1] * 2 == rotation.rotary
    };
    table(rotation.cosines)
        && table(rotation.sines)
        && rotation.cosines.dims() == rotation.sines.dims()
        && rotation.rotary <= width
        && rotation.rows.is_contiguous()
        && rotation.rows.dtype() == DType::U32
        && rotation.rows.dims() == [tokens]
}
