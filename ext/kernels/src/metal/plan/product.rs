//! Products: formats of matrices, tiles by the GPU, and which kernel runs over what grid.

use candle_core::DType;

use super::{Gpu, SIMD_WIDTH};
use base::quant::BlockType;

/// Elements of a matrix that are expanded at once, as in `blocks.metal`.
pub const RUN: usize = base::quant::RUN;
pub const MOST_MATRICES: usize = 3;
/// Up to so many rows a product is one of few.
pub const MOST_FEW_ROWS: usize = 8;
/// Rows that a simdgroup of a product of few works on, where there is more than one.
const FEW_ROWS: usize = 4;
/// What a threadgroup of a product of many rows makes, as in `product.metal`, and the inputs of a step.
const TILE_ROWS: usize = 32;
const TILE_OUTPUTS: usize = 64;
const TILE_INPUTS: usize = 32;
const TILE_LANES: usize = 128;

/// What the numbers of a matrix are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// As the input.
    Dense,
    Blocks(BlockType),
}

/// Of the matrices of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Formats {
    One(Format),
    Several([Format; MOST_MATRICES]),
}

/// How a product of few rows is divided. Several outputs share what is loaded of the inputs, and leave a large GPU
/// with too few simdgroups; see docs/internals/metal.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Outputs of a simdgroup.
    pub outputs: usize,
    /// Simdgroups of a threadgroup.
    pub simdgroups: usize,
}

impl Tiles {
    /// What there is to choose from.
    #[cfg(any(test, feature = "selftest"))]
    pub const ALL: [Tiles; 6] = [
        Tiles::new(1, 2),
        Tiles::new(1, 4),
        Tiles::new(2, 2),
        Tiles::new(2, 4),
        Tiles::new(4, 2),
        Tiles::new(4, 4),
    ];

    const fn new(outputs: usize, simdgroups: usize) -> Self {
        Self {
            outputs,
            simdgroups,
        }
    }

    pub fn of(gpu: Gpu) -> Self {
        match gpu {
            Gpu::Phone | Gpu::Base => Self::new(4, 2),
            Gpu::Max => Self::new(2, 2),
            Gpu::Ultra => Self::new(1, 4),
        }
    }
}

/// A source of products: of formats, for inputs of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductSource {
    pub formats: Formats,
    pub dtype: DType,
    pub tiles: Tiles,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Blocks(kind) => kind.name(),
        }
    }

    /// The struct of the Metal source.
    fn type_name(self, dtype: DType) -> String {
        match self {
            Self::Dense => format!("Dense<{}>", element(dtype).1),
            Self::Blocks(kind) => format!("{kind:?}"),
        }
    }
}

impl Formats {
    pub fn of(formats: &[Format]) -> Option<Self> {
        let (&first, &last) = (formats.first()?, formats.last()?);
        if formats.iter().all(|&format| format == first) {
            Some(Self::One(first))
        } else {
            Some(Self::Several([first, *formats.get(1)?, last]))
        }
    }

    /// Part of the names of kernels.
    pub fn name(self) -> String {
        match self {
            Self::One(format) => format.name().to_owned(),
            Self::Several(formats) => formats.map(Format::name).join("_"),
        }
    }

    fn type_name(self, dtype: DType) -> String {
        match self {
            Self::One(format) => format!("One<{}>", format.type_name(dtype)),
            Self::Several(formats) => {
                let names = formats.map(|format| format.type_name(dtype));
                format!("Several<{}>", names.join(", "))
            }
        }
    }
}

/// As names of kernels end, and as Metal calls it.
fn element(dtype: DType) -> (&'static str, &'static str) {
    match dtype {
        DType::F16 => ("f16", "half"),
        DType::BF16 => ("bf16", "bfloat"),
        _ => ("f32", "float"),
    }
}

impl ProductSource {
    pub fn text(self) -> String {
        let constants = [
            ("FEW_OUTPUTS", self.tiles.outputs),
            ("FEW_SIMDGROUPS", self.tiles.simdgroups),
            ("FEW_ROWS", FEW_ROWS),
        ];
        let constants = constants
            .map(|(name, value)| format!("constant constexpr uint {name} = {value};\n"))
            .concat();
        let (name, dtype) = (self.formats.name(), self.dtype);
        let (type_name, (suffix, element)) = (self.formats.type_name(dtype), element(dtype));
        let instances =
            format!("typedef {type_name} Formats;\nPRODUCT_KERNELS({name}_{suffix}, {element})\n");
        let instances = match dtype {
            DType::BF16 => format!("#if defined(__HAVE_BFLOAT__)\n{instances}#endif\n"),
            _ => instances,
        };
        let parts = [
            include_str!("../common.metal"),
            include_str!("../functions.metal"),
            include_str!("../blocks.metal"),
            &constants,
            include_str!("../product.metal"),
            &instances,
        ];
        parts.concat()
    }
}

/// Which kernel makes a product, and over what grid.
#[derive(Debug, PartialEq)]
pub struct ProductLaunch {
    pub kernel: &'static str,
    pub groups: (usize, usize),
    pub lanes: usize,
}

impl ProductLaunch {
    /// `None` where there is no kernel: rows of the matrices are whole runs, and a gated product is one of few rows.
    pub fn new(
        (rows, inputs, outputs): (usize, usize, usize),
        gated: bool,
        tiles: Tiles,
    ) -> Option<Self> {
        let few = rows <= MOST_FEW_ROWS;
        let step = if few { RUN } else { TILE_INPUTS };
        if rows * inputs * outputs == 0 || !inputs.is_multiple_of(step) || gated && !few {
            return None;
        }
        if !few {
            return Some(Self {
                kernel: "product_of_many",
                groups: (outputs.div_ceil(TILE_OUTPUTS), rows.div_ceil(TILE_ROWS)),
                lanes: TILE_LANES,
            });
        }
        let (kernel, height) = match (gated, rows) {
            (false, 1) => ("product_of_one", 1),
            (false, _) => ("product_of_few", FEW_ROWS),
            (true, 1) => ("gated_of_one", 1),
            (true, _) => ("gated_of_few", FEW_ROWS),
        };
        let width = tiles.outputs * tiles.simdgroups;
        Some(Self {
            kernel,
            groups: (outputs.div_ceil(width), rows.div_ceil(height)),
            lanes: tiles.simdgroups * SIMD_WIDTH,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;

    fn source(formats: Formats, dtype: DType) -> String {
        let tiles = Tiles::of(Gpu::Max);
        let source = ProductSource {
            formats,
            dtype,
            tiles,
        };
        source.text()
    }

    #[test]
    fn sources_name_their_formats_and_tiles() {
        let q4 = Format::Blocks(BlockType::Q4K);
        let q6 = Format::Blocks(BlockType::Q6K);
        let one = Formats::of(&[Format::Dense]).expect("formats");
        let text = source(one, DType::F16);
        assert!(
            text.ends_with("typedef One<Dense<half>> Formats;\nPRODUCT_KERNELS(dense_f16, half)\n")
        );
        assert!(text.contains("constant constexpr uint FEW_OUTPUTS = 2;"));
        let several = Formats::of(&[q4, q4, q6]).expect("formats");
        assert_eq!(several, Formats::Several([q4, q4, q6]));
        assert!(source(several, DType::F32).contains("typedef Several<Q4K, Q4K, Q6K> Formats;"));
        assert_eq!(Formats::of(&[q4, q6]), Some(Formats::Several([q4, q6, q6])));
        assert_eq!(Formats::of(&[q4, q4]), Some(Formats::One(q4)));
        assert!(source(one, DType::BF16).ends_with("#endif\n"));
        assert_eq!(Formats::of(&[]), None);
    }

    #[test]
    fn constants_are_those_of_the_metal_source() {
        let constants = [
            ("TILE_ROWS", TILE_ROWS),
            ("TILE_OUTPUTS", TILE_OUTPUTS),
            ("TILE_INPUTS", TILE_INPUTS),
            ("TILE_LANES", TILE_LANES),
            ("RUN", RUN),
        ];
        let text = source(Formats::One(Format::Dense), DType::F32);
        for (name, value) in constants {
            let line = format!("constant constexpr uint {name} = {value};");
            assert!(text.contains(&line), "{line}");
        }
    }

    #[test]
    fn activations_are_counted_as_in_the_metal_source() {
        let names = [
            (Activation::Gelu, "GeluErf"),
            (Activation::GeluTanh, "GeluTanh"),
            (Activation::QuickGelu, "QuickGelu"),
            (Activation::Silu, "Silu"),
            (Activation::Relu, "Relu"),
            (Activation::Tanh, "Tanh"),
            (Activation::Sigmoid, "Sigmoid"),
            (Activation::ReluSquared, "ReluSquared"),
            (Activation::Relu6, "Relu6"),
        ];
        for (activation, name) in names {
            let number = activation.number();
            let line = format!("case {number}: return {name}::apply(x);");
            assert!(include_str!("../functions.metal").contains(&line), "{line}");
        }
        assert_eq!(Activation::Identity.number() as usize, names.len());
    }

    #[test]
    fn grids_cover_every_row_and_output() {
        for tiles in Tiles::ALL {
            for (rows, outputs) in [(1, 1), (1, 4097), (3, 70), (8, 9)] {
                let launch = ProductLaunch::new((rows, 64, outputs), rows > 2, tiles);
                let launch = launch.expect("a kernel");
                let height = if rows == 1 { 1 } else { FEW_ROWS };
                let width = tiles.outputs * launch.lanes / SIMD_WIDTH;
                assert!(launch.groups.0 * width >= outputs && launch.groups.1 * height >= rows);
                assert!((launch.groups.0 - 1) * width < outputs);
            }
        }
        let tiles = Tiles::of(Gpu::Base);
        let many = ProductLaunch::new((33, 64, 65), false, tiles).expect("a kernel");
        assert_eq!((many.kernel, many.groups), ("product_of_many", (2, 2)));
        for (shape, gated) in [
            ((9, 64, 8), true),
            ((1, 24, 8), false),
            ((9, 48, 8), false),
            ((0, 64, 8), false),
        ] {
            assert_eq!(ProductLaunch::new(shape, gated, tiles), None, "{shape:?}");
        }
    }

    #[test]
    fn every_gpu_has_tiles_that_are_measured() {
        for gpu in Gpu::ALL {
            assert!(Tiles::ALL.contains(&Tiles::of(gpu)), "{gpu:?}");
        }
    }
}
