//! Products with matrices of quantized blocks, in integers: the rows of x become pairs of bytes with a
//! scale for every 32, and the blocks are laid out once so that a vector instruction serves 16 outputs.

#[cfg(target_arch = "aarch64")]
mod arm;
mod format;
mod halves;
mod integers;
mod level;
mod pack;
mod place;
mod product;
mod quantize;
mod rows;
#[cfg(test)]
pub(super) mod tests;
#[cfg(target_arch = "x86_64")]
mod tile_rows;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::cpu::isa::Isa;
use crate::cpu::product::driver::{Context, TaskRows, Tile, WeightMatrix};
use crate::cpu::product::store::Panels;
use crate::cpu::{for_each_range, Output};
use crate::{Error, Result};
use base::quant::{BlockType, QuantizedTensor};
use base::runtime::prefetch::Span;
use format::{for_format, Format, PANEL};
use level::Level;
use product::multiply_panels;
use quantize::ByteRows;
#[cfg(target_arch = "x86_64")]
use tile_rows::TileRows;

/// Bytes of the file that are packed before their pages are released.
const RELEASED: usize = 4 << 20;

/// Rows of x in a tile.
const TILE_ROWS: usize = 16;

/// Rows of x as the products read them.
pub enum QuantizedRows {
    Bytes(ByteRows),
    #[cfg(target_arch = "x86_64")]
    Tiles(TileRows),
}

impl QuantizedRows {
    /// `x` is [rows, inputs], its rows whole groups.
    fn new((isa, level): (Isa, Level), x: &[f32], rows: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        if level.has_tiles() && rows >= tile_rows::LEAST {
            // SAFETY: a CPU with tiles has the features.
            return Self::Tiles(unsafe { TileRows::new(x, rows) });
        }
        Self::Bytes(ByteRows::new((isa, level), x, rows))
    }
}

/// A matrix [outputs, inputs].
#[derive(Clone)]
pub struct BlockMatrix {
    kind: BlockType,
    /// Bytes from panel to panel.
    stride: usize,
    panels: Panels<u8>,
    /// Whether codes are zipped, as small matrices need them.
    zipped: bool,
    pub inputs: usize,
    pub outputs: usize,
}

impl std::fmt::Debug for BlockMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind.name();
        write!(
            f,
            "BlockMatrix[{}, {}] of {kind}",
            self.outputs, self.inputs
        )
    }
}

impl BlockMatrix {
    pub fn kind(&self) -> BlockType {
        self.kind
    }

    /// Whether there are products with blocks of this type.
    pub fn takes(kind: BlockType) -> bool {
        for_format!(kind, F => { let _: Option<F> = None; true }, false)
    }

    /// Packs the blocks, and releases the file's pages on the way.
    pub fn new(isa: Isa, blocks: &QuantizedTensor) -> Result<Self> {
        Self::packed(isa, blocks, Level::zips())
    }

    fn packed(isa: Isa, blocks: &QuantizedTensor, zipped: bool) -> Result<Self> {
        let [outputs, inputs] = blocks.shape[..] else {
            return Err(Error::InvalidInput(format!(
                "a linear layer needs a matrix, not a tensor of shape {:?}",
                blocks.shape
            )));
        };
        let stride = for_format!(blocks.kind, F => Some(F::stride(inputs)), None);
        let row = inputs / blocks.kind.elements() * blocks.kind.bytes();
        let whole = inputs % blocks.kind.elements() == 0
            && outputs
                .checked_mul(row)
                .is_some_and(|needed| needed <= blocks.bytes.len());
        let Some(stride) = stride.filter(|_| whole) else {
            return Err(Error::InvalidInput(format!(
                "{} bytes of {} do not hold a matrix of shape {:?}",
                blocks.bytes.len(),
                blocks.kind.name(),
                blocks.shape
            )));
        };
        let panels = outputs.div_ceil(PANEL);
        let batch = (RELEASED / (PANEL * row).max(1)).max(1);
        // SAFETY: every panel is written in full, by one task.
        let packed = unsafe {
            Panels::build(panels * stride, |out: Output<u8>| {
                for first in (0..panels).step_by(batch) {
                    let count = batch.min(panels - first);
                    for_each_range(count, PANEL * inputs, |range| {
                        for panel in first + range.start..first + range.end {
                            let to = out.at(panel * stride);
                            to.write_bytes(0, stride);
                            let bytes = std::slice::from_raw_parts_mut(to, stride);
                            pack::pack_panel(isa, blocks, panel * PANEL, zipped, bytes);
                        }
                    });
                    blocks.release_rows(first * PANEL..(first + count) * PANEL);
                }
            })?
        };
        Ok(Self {
            kind: blocks.kind,
            stride,
            panels: packed,
            zipped,
            inputs,
            outputs,
        })
    }

    /// Some panels from `first` on.
    fn panels(&self, first: usize, count: usize) -> product::Panels<'_> {
        product::Panels {
            kind: self.kind,
            inputs: self.inputs,
            bytes: &self.panels[first * self.stride..][..count * self.stride],
            stride: self.stride,
            count,
            zipped: self.zipped,
        }
    }
}

impl WeightMatrix<f32> for BlockMatrix {
    const PANEL: usize = PANEL;
    const PANELS: usize = usize::MAX;
    type Rows<'a> = QuantizedRows;
    #[cfg(target_arch = "x86_64")]
    type Workspace = tiles::Workspace;
    #[cfg(not(target_arch = "x86_64"))]
    type Workspace = ();

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn task_rows(&self, isa: Isa) -> TaskRows {
        let (most, unit) = if Level::of(isa).has_tiles() {
            (128, TILE_ROWS)
        } else {
            (96, 24)
        };
        TaskRows {
            most,
            unit,
            together: most,
            padded: false,
        }
    }

    fn span(&self) -> Option<Span> {
        Some(Span::new(&self.panels))
    }

    fn prepare(&self, isa: Isa, x: &[f32], rows: usize) -> QuantizedRows {
        QuantizedRows::new((isa, Level::of(isa)), x, rows)
    }

    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    unsafe fn multiply_tile(
        &self,
        _: &Context,
        workspace: &mut Self::Workspace,
        x: &QuantizedRows,
        tile: Tile,
    ) {
        let panels = self.panels(tile.panel, tile.panels);
        // SAFETY: the rows of x have as many groups as the panels, and a task's begin with a tile; the
        // caller vouches for the sums.
        unsafe {
            match x {
                QuantizedRows::Bytes(x) => multiply_panels(x.level, &panels, x, tile),
                #[cfg(target_arch = "x86_64")]
                QuantizedRows::Tiles(x) => tiles::multiply_panels(workspace, &panels, x, tile),
            }
        }
    }
}
