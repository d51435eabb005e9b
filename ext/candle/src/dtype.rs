//! `Candle::DType`

use candle_core::DType;
use engine::Error as EngineError;
use magnus::{function, method, prelude::*, Error, RModule, Ruby, Symbol, Value};

use crate::{convert, gvl};

#[magnus::wrap(class = "Candle::DType", free_immediately, size, frozen_shareable)]
pub struct RbDType(pub ElementType);

/// What a tensor's elements may be, or what a model may compute in.
#[derive(Clone, Copy)]
pub enum ElementType {
    Tensor(DType),
    /// Bytes with scales, which encoders compute in on the CPU and no tensor holds.
    Int8,
}

impl ElementType {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor(dtype) => dtype.as_str(),
            Self::Int8 => INT8,
        }
    }
}

pub const INT8: &str = "int8";

/// The element types that tensors of every backend can hold.
const ALL: [DType; 9] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
];

/// What models compute in.
const COMPUTED: &str = "f32, f16, bf16 or, on the CPU, int8";

/// That a model can compute in it.
pub fn ensure_computed(dtype: DType) -> engine::Result<()> {
    if matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Ok(());
    }
    Err(EngineError::InvalidInput(format!(
        "a model can't compute in {}, which only tensors hold: use {COMPUTED}",
        dtype.as_str()
    )))
}

pub fn parse(name: &str) -> engine::Result<DType> {
    let wanted = match name.to_ascii_lowercase().as_str() {
        "float16" | "half" => "f16".to_owned(),
        "bfloat16" => "bf16".to_owned(),
        "float32" | "float" => "f32".to_owned(),
        "float64" | "double" => "f64".to_owned(),
        "uint8" => "u8".to_owned(),
        "uint32" => "u32".to_owned(),
        "int16" => "i16".to_owned(),
        "int32" => "i32".to_owned(),
        "int64" => "i64".to_owned(),
        other => other.to_owned(),
    };
    ALL.into_iter()
        .find(|dtype| dtype.as_str() == wanted)
        .ok_or_else(|| {
            let known: Vec<_> = ALL.iter().map(DType::as_str).collect();
            EngineError::InvalidInput(format!(
                "unknown dtype {name:?}: models compute in {}, and tensors hold {}",
                COMPUTED,
                known.join(", ")
            ))
        })
}

fn find(ruby: &Ruby, value: Value) -> Result<RbDType, Error> {
    gvl::hold(ruby, || convert::element_type(ruby, value).map(RbDType))
}

fn name(dtype: &RbDType) -> &'static str {
    dtype.0.name()
}

fn symbol(ruby: &Ruby, dtype: &RbDType) -> Symbol {
    ruby.to_symbol(dtype.0.name())
}

fn size(dtype: &RbDType) -> usize {
    match dtype.0 {
        ElementType::Tensor(dtype) => dtype.size_in_bytes(),
        ElementType::Int8 => 1,
    }
}

fn is_float(dtype: &RbDType) -> bool {
    matches!(dtype.0, ElementType::Tensor(dtype) if dtype.is_float())
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("DType", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_parse", function!(find, 1))?;
    class.singleton_class()?.define_private_method(
        "_names",
        function!(|| ALL.iter().map(DType::as_str).collect::<Vec<_>>(), 0),
    )?;
    class.define_method("to_s", method!(name, 0))?;
    class.define_method("to_sym", method!(symbol, 0))?;
    class.define_method("size_in_bytes", method!(size, 0))?;
    class.define_method("float?", method!(is_float, 0))
}
