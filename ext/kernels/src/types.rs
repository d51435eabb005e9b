//! What callers and backends of the kernels say to each other.

use candle_core::{DType, Tensor};

/// The smallest norm that `l2_normalize` divides by.
pub const LEAST_L2_NORM: f32 = 1e-12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The exact GELU, by erf.
    Gelu,
    /// `gelu_new`, `gelu_pytorch_tanh`.
    GeluTanh,
    /// x · sigmoid(1.702 x), CLIP's.
    QuickGelu,
    Silu,
    Relu,
    Tanh,
    Sigmoid,
    /// max(x, 0)².
    ReluSquared,
    /// Within 0 and 6.
    Relu6,
    Identity,
}

impl Activation {
    /// As the sources for GPUs count them, in this order.
    pub fn number(self) -> u32 {
        self as u32
    }
}

/// A function of every element that has parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pointwise {
    /// Within these bounds.
    Clamp {
        least: f32,
        most: f32,
    },
    Xielu(Xielu),
}

/// For x above 0 `positive`·x² + `linear`·x, else (eˣ − 1 − x)·`negative` + `linear`·x (Apertus).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    pub positive: f32,
    pub negative: f32,
    pub linear: f32,
    /// Exponents are not above this.
    pub most: f32,
}

/// (up + 1) · gate · sigmoid(`alpha` · gate), of gates up to `limit` and ups within ±`limit` (gpt-oss).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClampedGlu {
    pub limit: f32,
    pub alpha: f32,
}

/// A function with parameters, as a GPU gets it.
#[cfg(any(feature = "cuda", feature = "metal"))]
#[derive(Clone, Copy)]
pub(crate) enum Function {
    Pointwise(Pointwise),
    ClampedGlu(ClampedGlu),
}

#[cfg(any(feature = "cuda", feature = "metal"))]
impl Function {
    #[cfg(feature = "cuda")]
    pub fn number(self) -> u32 {
        match self {
            Self::Pointwise(Pointwise::Clamp { .. }) => 0,
            Self::Pointwise(Pointwise::Xielu(_)) => 1,
            Self::ClampedGlu(_) => 2,
        }
    }

    #[cfg(feature = "metal")]
    pub fn kernel(self) -> &'static str {
        match self {
            Self::Pointwise(Pointwise::Clamp { .. }) => "clamp",
            Self::Pointwise(Pointwise::Xielu(_)) => "xielu",
            Self::ClampedGlu(_) => "clamped_glu",
        }
    }

    pub fn numbers(self) -> [f32; 4] {
        match self {
            Self::Pointwise(Pointwise::Clamp { least, most }) => [least, most, 0.0, 0.0],
            Self::Pointwise(Pointwise::Xielu(x)) => [x.positive, x.negative, x.linear, x.most],
            Self::ClampedGlu(glu) => [glu.limit, glu.alpha, 0.0, 0.0],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Element i rotates with element i + rotary / 2.
    Half,
    /// Element 2i rotates with element 2i + 1.
    Interleaved,
}

/// What a softmax leaves out or adds. A masked element is no part of any sum and comes out as 0,
/// whatever the input holds there; a row that keeps nothing is all 0.
#[derive(Clone, Copy, Default)]
pub struct SoftmaxOptions<'a> {
    /// Multiplies the input; 1 when not given.
    pub scale: Option<f32>,
    /// Added to the scaled input, broadcast to its shape. The lowest finite number of the input's
    /// type, or anything below, masks the element.
    pub additive: Option<&'a Tensor>,
    /// u8, broadcast to the input's shape: 0 masks the element.
    pub keep: Option<&'a Tensor>,
    /// u32, broadcast to the input's shape without its last dimension: how many leading elements of
    /// a row count.
    pub lengths: Option<&'a Tensor>,
}

/// What `rope` rotates by.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    /// f32 [positions, rotary / 2]
    pub cosines: &'a Tensor,
    pub sines: &'a Tensor,
    /// u32 [tokens]: the row of the tables for each.
    pub rows: &'a Tensor,
    pub kind: RopeKind,
    pub rotary: usize,
}

/// Places and numbers of a row.
pub type Largest = Vec<(u32, f32)>;

/// An additive mask hides an element by this number or anything below.
pub(crate) fn lowest_finite(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => half::f16::MIN.to_f32(),
        DType::BF16 => half::bf16::MIN.to_f32(),
        _ => f32::MIN,
    }
}
