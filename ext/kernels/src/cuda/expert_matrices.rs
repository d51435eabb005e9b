//! The matrices of experts, and their products with the rows that chose them.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{DType, Device, Result, Tensor};

use super::blocks::{definitions, has_tiles, TILE_CAPABILITY, TILE_OUTPUTS};
use super::compile::{capability, function, Source, BLOCKS, BLOCK_TILES, EXPERT_TILES, PRODUCT};
use super::device::{address, device_of, keep, result, ALIGNMENT};
use super::experts::{optional, LANES};
use super::launch::{argument, launch_early};
use super::parameters::small;
use super::product::{Parameters, MOST_MATRICES, WARPS, WARP_INPUTS};
use super::Activation;
use crate::experts::{ExpertMatrix, Routes};
use base::quant::BlockType;

/// Addresses of an expert in the table.
const ADDRESSES: usize = 2 * MOST_MATRICES;
/// Choices of an expert that read its matrices together, without tensor cores.
const ROWS_TOGETHER: usize = 4;
/// With fewer choices than this for each expert, they read them one by one.
const CHOICES_TO_SHARE: usize = 2;
/// Choices of a tile on tensor cores.
const LEAST_TILE_ROWS: usize = 8;
const MOST_TILE_ROWS: usize = 64;
const MOST_BLOCK_TILE_ROWS: usize = 32;
/// With fewer choices than this in all, blocks have too few thread blocks on tensor cores.
const CHOICES_FOR_BLOCK_TILES: usize = 32;
/// Warps of a thread block of `expert_tiles`, and the rows of weights that each multiplies.
const TILE_WARPS: usize = 4;
const WARP_OUTPUTS: usize = 32;
/// Fewer warps than this do not ask for enough at once: the warps of a thread block share their outputs then.
const ENOUGH_WARPS: usize = 2048;
/// With more choices than this, products by experts are faster: without tensor cores, and on them.
const MOST_CHOICES: usize = 1 << 10;
const MOST_TILED_CHOICES: usize = 1 << 16;

/// As `Choices` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct ChoiceParameters {
    table: u64,
    chosen: u64,
    order: u64,
    tiles: u64,
    per_row: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for ChoiceParameters {}

/// What matrices are made of.
#[derive(Clone, Copy, PartialEq)]
enum Made {
    Numbers(DType),
    Blocks(BlockType),
}

/// The matrices of all experts: their addresses, and what lies there.
pub struct Matrices {
    table: Tensor,
    made: Made,
    inputs: usize,
    /// Of each matrix of an expert.
    widths: Vec<usize>,
    /// Whether there are kernels on tensor cores for them.
    has_tiles: bool,
    held: Vec<Tensor>,
}

/// What lies at the addresses of an expert.
#[derive(Clone, PartialEq)]
struct Shape {
    made: Made,
    inputs: usize,
    widths: Vec<usize>,
}

struct Described {
    made: Made,
    inputs: usize,
    outputs: usize,
    weight: Tensor,
    bias: Option<Tensor>,
}

fn described(matrix: &ExpertMatrix<'_>) -> Result<Described> {
    Ok(match matrix {
        ExpertMatrix::Numbers(matrix) => {
            let (outputs, inputs) = matrix.weight.dims2()?;
            Described {
                made: Made::Numbers(matrix.weight.dtype()),
                inputs,
                outputs,
                weight: matrix.weight.clone(),
                bias: matrix.bias.cloned(),
            }
        }
        ExpertMatrix::Blocks(factor) => Described {
            made: Made::Blocks(factor.blocks.kind()),
            inputs: factor.blocks.inputs(),
            outputs: factor.blocks.outputs(),
            weight: factor.blocks.bytes().clone(),
            bias: factor.bias.cloned(),
        },
    })
}

impl Described {
    fn row_bytes(&self) -> usize {
        match self.made {
            Made::Numbers(dtype) => self.inputs * dtype.size_in_bytes(),
            Made::Blocks(kind) => self.inputs / kind.elements() * kind.bytes(),
        }
    }

    /// Where the rows of weights from this one on begin, and their biases.
    fn addresses(&self, row: usize) -> Result<(u64, u64)> {
        let weight = address(&self.weight)? + (row * self.row_bytes()) as u64;
        let bias = match &self.bias {
            Some(bias) => address(bias)? + (row * bias.dtype().size_in_bytes()) as u64,
            None => 0,
        };
        Ok((weight, bias))
    }

    fn is_contiguous(&self) -> bool {
        let bias = self.bias.as_ref();
        self.weight.is_contiguous() && bias.is_none_or(Tensor::is_contiguous)
    }
}

/// The addresses of an expert and their shape, the outputs cut into these widths; `None` where no kernel takes them.
fn located(matrices: &[Described], widths: &[usize]) -> Result<Option<(Shape, [u64; ADDRESSES])>> {
    let Some(first) = matrices.first() else {
        return Ok(None);
    };
    let alike = |one: &Described| {
        one.made == first.made && one.inputs == first.inputs && one.is_contiguous()
    };
    let outputs: Vec<usize> = matrices.iter().map(|one| one.outputs).collect();
    let is_cut = matches!(outputs[..], [all] if all == widths.iter().sum::<usize>());
    let fits = matrices.iter().all(alike) && widths.len() <= MOST_MATRICES;
    if !fits || !(is_cut || outputs == widths) {
        return Ok(None);
    }
    let mut addresses = [0; ADDRESSES];
    let mut row = 0;
    for (at, width) in widths.iter().enumerate() {
        let (matrix, from) = if is_cut {
            (first, row)
        } else {
            (&matrices[at], 0)
        };
        (addresses[at], addresses[MOST_MATRICES + at]) = matrix.addresses(from)?;
        row += width;
    }
    let shape = Shape {
        made: first.made,
        inputs: first.inputs,
        widths: widths.to_vec(),
    };
    Ok(Some((shape, addresses)))
}

impl Matrices {
    pub fn new(
        experts: &[Vec<ExpertMatrix<'_>>],
        widths: &[usize],
        device: &Device,
    ) -> Result<Option<Self>> {
        let (mut addresses, mut held) = (Vec::<u64>::new(), Vec::new());
        let mut shape: Option<Shape> = None;
        for expert in experts {
            let matrices = expert.iter().map(described);
            let matrices = matrices.collect::<Result<Vec<_>>>()?;
            let Some((own, of_expert)) = located(&matrices, widths)? else {
                return Ok(None);
            };
            if shape.get_or_insert_with(|| own.clone()) != &own {
                return Ok(None);
            }
            addresses.extend(of_expert);
            for matrix in matrices {
                held.push(matrix.weight);
                held.extend(matrix.bias);
            }
        }
        let Some(shape) = shape else {
            return Ok(None);
        };
        let Shape {
            made,
            inputs,
            widths,
        } = shape;
        let weights = addresses
            .chunks(ADDRESSES)
            .flat_map(|of| &of[..MOST_MATRICES]);
        let is_aligned = weights.clone().all(|at| at % ALIGNMENT == 0);
        if matches!(made, Made::Numbers(_)) && !(is_aligned && inputs.is_multiple_of(8)) {
            return Ok(None);
        }
        let has_tiles = match made {
            Made::Numbers(dtype) => dtype != DType::F32,
            Made::Blocks(kind) => has_tiles(kind),
        };
        let on_tiles = capability(device.as_cuda_device()?)? >= TILE_CAPABILITY;
        let words: Vec<u32> = addresses
            .iter()
            .flat_map(|at| [*at as u32, (*at >> 32) as u32])
            .collect();
        let count = words.len();
        Ok(Some(Self {
            table: Tensor::from_vec(words, count, device)?,
            made,
            inputs,
            widths,
            has_tiles: has_tiles && on_tiles,
            held,
        }))
    }

    fn experts(&self) -> usize {
        self.table.elem_count() / (2 * ADDRESSES)
    }

    fn is_tiled(&self, dtype: DType) -> bool {
        self.has_tiles && dtype != DType::F32
    }

    /// As [`crate::experts::ExpertMatrices::most_choices`].
    pub fn most_choices(&self, dtype: DType) -> usize {
        if self.is_tiled(dtype) {
            MOST_TILED_CHOICES
        } else {
            MOST_CHOICES
        }
    }

    /// As [`crate::experts::ExpertMatrices::together`].
    pub fn together(&self, choices: usize, dtype: DType) -> usize {
        let each = choices.div_ceil(self.experts().max(1));
        let most = match self.made {
            _ if !self.is_tiled(dtype) => {
                return if each < CHOICES_TO_SHARE {
                    1
                } else {
                    ROWS_TOGETHER
                }
            }
            Made::Numbers(_) => MOST_TILE_ROWS,
            Made::Blocks(_) if choices < CHOICES_FOR_BLOCK_TILES => return 1,
            Made::Blocks(_) => MOST_BLOCK_TILE_ROWS,
        };
        // Some experts are chosen more often than others.
        let rows = (each + each / 2).next_power_of_two();
        rows.clamp(LEAST_TILE_ROWS, most)
    }

    /// What the matrices give side by side, or activation(first) · second.
    pub fn multiply(
        &self,
        x: &Tensor,
        routes: &Routes,
        gate: Option<Activation>,
    ) -> Result<Tensor> {
        let x = x.contiguous()?;
        let (rows, inputs) = x.dims2()?;
        let pairs = routes.chosen.elem_count();
        let width = match (&self.widths[..], gate) {
            (&[gate, up], Some(_)) if gate == up => gate,
            (widths, None) => widths.iter().sum(),
            (widths, _) => candle_core::bail!("gates of {widths:?} outputs"),
        };
        if inputs != self.inputs
            || rows == 0
            || !pairs.is_multiple_of(rows)
            || pairs / rows > routes.used
        {
            candle_core::bail!("{rows} rows of {inputs} for {pairs} choices of experts");
        }
        let device = device_of(&x)?;
        // Recordings launch on addresses alone.
        self.held.iter().for_each(keep);
        let (out, to) = result(&device, (pairs, width), x.dtype())?;
        let mut parameters = Parameters {
            x: address(&x)?,
            out: to,
            inputs: small(inputs)?,
            outputs: small(width)?,
            width: small(width)?,
            rows: 1,
            activation: gate.unwrap_or(Activation::Identity).number(),
            ..Parameters::default()
        };
        if !parameters.x.is_multiple_of(ALIGNMENT) {
            candle_core::bail!("rows for experts are not aligned");
        }
        let mut end = 0;
        for (at, width) in self.widths.iter().enumerate() {
            end += width;
            parameters.ends[at] = small(end)?;
        }
        parameters.ends[self.widths.len()..].fill(u32::MAX);
        let choices = ChoiceParameters {
            table: address(&self.table)?,
            chosen: address(&routes.chosen)?,
            order: optional(routes.order.as_ref())?,
            tiles: optional(routes.tiles.as_ref())?,
            per_row: small(pairs / rows)?,
        };
        let tiles = match &routes.tiles {
            Some(tiles) => tiles.dim(0)?,
            None => pairs,
        };
        let kernel = self.kernel(x.dtype(), routes, tiles * width, gate.is_some())?;
        let Kernel {
            source,
            name,
            definitions,
            outputs,
            warps,
        } = kernel;
        let function = function(&device, source, name, x.dtype(), &definitions, 0)?;
        let grid = LaunchConfig {
            grid_dim: (small(width.div_ceil(outputs))?, small(tiles)?, 1),
            block_dim: (warps as u32 * LANES, 1, 1),
            shared_mem_bytes: 0,
        };
        let arguments = [argument(&parameters), argument(&choices)];
        // SAFETY: the arguments are the kernel's; the table's addresses are of matrices of these shapes, which `held`
        // keeps, and every choice is one of its experts; nothing is read ahead.
        unsafe { launch_early(&device, &function, grid, &arguments, true) }?;
        Ok(out)
    }

    /// For so many outputs of all tiles.
    fn kernel(&self, dtype: DType, routes: &Routes, work: usize, gated: bool) -> Result<Kernel> {
        let is_tiled = self.is_tiled(dtype);
        let rows = match &routes.tiles {
            Some(_) => routes.together,
            None => 1,
        };
        let tile_rows = rows.max(LEAST_TILE_ROWS);
        let gate = ("GATED", usize::from(gated));
        Ok(match self.made {
            Made::Numbers(own) if own != dtype => {
                candle_core::bail!("experts of {own:?} got rows of {dtype:?}")
            }
            Made::Numbers(_) if is_tiled => {
                let outputs = WARP_OUTPUTS / (1 + usize::from(gated));
                let sharers = if work / outputs < ENOUGH_WARPS {
                    TILE_WARPS
                } else {
                    1
                };
                Kernel {
                    source: EXPERT_TILES,
                    name: "expert_tiles",
                    definitions: vec![("ROWS", tile_rows), gate, ("SHARERS", sharers)],
                    outputs: TILE_WARPS / sharers * outputs,
                    warps: TILE_WARPS,
                }
            }
            Made::Numbers(_) => {
                let sharers = 1 << (self.inputs / WARP_INPUTS).clamp(1, WARPS).ilog2();
                Kernel {
                    source: PRODUCT,
                    name: "product_of_experts",
                    definitions: vec![("ROWS", rows), gate, ("SHARERS", sharers)],
                    outputs: WARPS / sharers,
                    warps: WARPS,
                }
            }
            Made::Blocks(kind) => {
                let (source, name, outputs, rows) = if is_tiled && routes.tiles.is_some() {
                    let name = "expert_tiles_of_blocks";
                    (BLOCK_TILES, name, TILE_OUTPUTS, tile_rows)
                } else {
                    (BLOCKS, "experts_of_blocks", WARPS, rows)
                };
                Kernel {
                    source,
                    name,
                    definitions: definitions((kind, self.inputs), rows, gated).to_vec(),
                    outputs,
                    warps: WARPS,
                }
            }
        })
    }
}

/// How a product is launched.
struct Kernel {
    source: Source,
    name: &'static str,
    definitions: Vec<(&'static str, usize)>,
    /// Of a thread block.
    outputs: usize,
    warps: usize,
}
