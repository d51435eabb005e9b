//! New tensors.

use base::runtime::memory;
use candle_core::DType;
use engine::{Device, Error as EngineError};
use kernels::tensor::create::{self, Distribution};
use kernels::tensor::{from_bytes, from_numbers, Numbers};
use magnus::{function, prelude::*, Error, Float, Integer, RArray, RClass, RString, Ruby, Value};

use super::{compute, RbTensor, INTERVAL};
use crate::{convert, error, gvl};

/// Deeper nesting can only come from an array that contains itself.
const DEEPEST: usize = 32;

fn from_array(ruby: &Ruby, value: Value, dtype: Value, device: Value) -> Result<RbTensor, Error> {
    let (dtype, device) = (convert::dtype(ruby, dtype)?, convert::device(ruby, device)?);
    let parsed = gvl::hold(ruby, || {
        let mut parser = Parser::new(ruby, dtype);
        parser.read(value, 0)?;
        Ok((parser.numbers, parser.shape))
    });
    let (numbers, shape) = parsed?;
    let tensor = compute(ruby, device == Device::Cpu, count(&shape), |_| {
        from_numbers(&numbers, &shape, dtype, &device.open()?)
    })?;
    Ok(RbTensor::new(ruby, tensor))
}

/// What there may be too little memory for.
const NUMBERS: &str = "the numbers of a tensor";

/// Reads nested arrays depth first; the first branch fixes the shape for all others.
struct Parser<'a> {
    ruby: &'a Ruby,
    dtype: DType,
    numbers: Numbers,
    shape: Vec<usize>,
    /// Set once the first number is met.
    rank: Option<usize>,
    path: Vec<usize>,
    count: usize,
}

impl<'a> Parser<'a> {
    fn new(ruby: &'a Ruby, dtype: DType) -> Self {
        let numbers = if dtype.is_int() {
            Numbers::Integer(Vec::new())
        } else {
            Numbers::Float(Vec::new())
        };
        Self {
            ruby,
            dtype,
            numbers,
            shape: Vec::new(),
            rank: None,
            path: Vec::new(),
            count: 0,
        }
    }

    fn invalid(&self, message: String) -> Error {
        error::to_ruby(self.ruby, EngineError::InvalidInput(message))
    }

    /// Where in the arrays the reader is, as one would write it in Ruby.
    fn place(&self) -> String {
        let steps: String = self.path.iter().map(|step| format!("[{step}]")).collect();
        format!("array{steps}")
    }

    fn read(&mut self, value: Value, depth: usize) -> Result<(), Error> {
        let Some(array) = RArray::from_value(value) else {
            return self.read_number(value, depth);
        };
        if depth >= DEEPEST {
            return Err(self.invalid(format!("arrays are nested more than {DEEPEST} deep")));
        }
        self.expect_size(array.len(), depth)?;
        // The array may shrink while `to_f` of an element runs, so each step asks again.
        for index in 0..array.len() {
            self.path.push(index);
            self.read(array.entry(index as isize)?, depth + 1)?;
            self.path.pop();
        }
        if array.is_empty() && self.rank.is_none() && self.shape.len() == depth + 1 {
            self.rank = Some(depth + 1);
        }
        Ok(())
    }

    fn expect_size(&mut self, size: usize, depth: usize) -> Result<(), Error> {
        match self.shape.get(depth) {
            Some(&wanted) if wanted == size => Ok(()),
            Some(&wanted) => Err(self.invalid(format!(
                "{} has {size} elements, but the arrays before it have {wanted}",
                self.place()
            ))),
            None if self.rank.is_some() => Err(self.invalid(format!(
                "{} is an array of {size} elements, but numbers stand at this depth before it",
                self.place()
            ))),
            None => {
                self.shape.push(size);
                Ok(())
            }
        }
    }

    fn read_number(&mut self, value: Value, depth: usize) -> Result<(), Error> {
        let rank = *self.rank.get_or_insert(depth);
        if rank != depth {
            let wanted = self.shape.get(depth).copied().unwrap_or_default();
            return Err(self.invalid(format!(
                "{} is a single value, but the arrays before it have {wanted} elements there",
                self.place()
            )));
        }
        self.count += 1;
        if self.count % INTERVAL == INTERVAL - 1 {
            gvl::check_interrupts()?;
        }
        match &self.numbers {
            Numbers::Integer(_) => {
                let number = self.integer(value)?;
                if let Numbers::Integer(numbers) = &mut self.numbers {
                    memory::push(numbers, number, NUMBERS).map_err(error::raised(self.ruby))?;
                }
            }
            Numbers::Float(_) => {
                let number = self.float(value)?;
                if let Numbers::Float(numbers) = &mut self.numbers {
                    memory::push(numbers, number, NUMBERS).map_err(error::raised(self.ruby))?;
                }
            }
        }
        Ok(())
    }

    fn float(&self, value: Value) -> Result<f64, Error> {
        if let Some(float) = Float::from_value(value) {
            return Ok(float.to_f64());
        }
        if let Some(integer) = Integer::from_value(value) {
            return integer.to_i64().map_or_else(
                |_| integer.funcall::<_, _, f64>("to_f", ()),
                |small| Ok(small as f64),
            );
        }
        if let Some(truth) = truth(self.ruby, value) {
            return Ok(f64::from(truth));
        }
        if value.is_kind_of(self.ruby.class_numeric()) {
            return convert::real(self.ruby, value)?.ok_or_else(|| self.not_real(value));
        }
        Err(self.not_a_number(value))
    }

    fn integer(&self, value: Value) -> Result<i64, Error> {
        if let Some(integer) = Integer::from_value(value) {
            return integer.to_i64().map_err(|_| self.does_not_fit(value));
        }
        if let Some(truth) = truth(self.ruby, value) {
            return Ok(i64::from(truth));
        }
        let float = self.float(value)?;
        if !(-9.3e18..9.2e18).contains(&float) {
            return Err(self.does_not_fit(value));
        }
        Ok(float as i64)
    }

    fn does_not_fit(&self, value: Value) -> Error {
        let dtype = self.dtype.as_str();
        self.invalid(format!(
            "{} is {}, which does not fit {dtype}",
            self.place(),
            value.inspect()
        ))
    }

    fn not_real(&self, value: Value) -> Error {
        self.invalid(format!(
            "{} is {}, but tensors hold real numbers",
            self.place(),
            value.inspect()
        ))
    }

    fn not_a_number(&self, value: Value) -> Error {
        // SAFETY: the name is turned into a String before Ruby runs again.
        let class = unsafe { value.classname() }.into_owned();
        self.invalid(format!(
            "{} is of the class {class}, but tensors hold numbers, true and false",
            self.place()
        ))
    }
}

fn truth(ruby: &Ruby, value: Value) -> Option<u8> {
    if value.is_kind_of(ruby.class_true_class()) {
        Some(1)
    } else if value.is_kind_of(ruby.class_false_class()) {
        Some(0)
    } else {
        None
    }
}

fn count(shape: &[usize]) -> usize {
    shape
        .iter()
        .fold(1, |count, &size| count.saturating_mul(size))
}

fn from_packed(
    ruby: &Ruby,
    string: RString,
    shape: Vec<usize>,
    dtype: Value,
    device: Value,
) -> Result<RbTensor, Error> {
    let (dtype, device) = (convert::dtype(ruby, dtype)?, convert::device(ruby, device)?);
    let tensor = gvl::hold(ruby, || {
        let device = device.open().map_err(error::raised(ruby))?;
        // SAFETY: the bytes are copied with the GVL held and no Ruby code in between.
        let bytes = unsafe { string.as_slice() };
        from_bytes(bytes, &shape, dtype, &device).map_err(error::raised(ruby))
    })?;
    Ok(RbTensor::new(ruby, tensor))
}

fn filled(
    ruby: &Ruby,
    one: bool,
    shape: Vec<usize>,
    dtype: Value,
    device: Value,
) -> Result<RbTensor, Error> {
    let (dtype, device) = (convert::dtype(ruby, dtype)?, convert::device(ruby, device)?);
    let tensor = compute(ruby, device == Device::Cpu, count(&shape), |cancel| {
        create::filled(one, &shape, dtype, &device.open()?, cancel)
    })?;
    Ok(RbTensor::new(ruby, tensor))
}

fn random(
    ruby: &Ruby,
    normal: bool,
    seed: u64,
    shape: Vec<usize>,
    dtype: Value,
    device: Value,
) -> Result<RbTensor, Error> {
    let (dtype, device) = (convert::dtype(ruby, dtype)?, convert::device(ruby, device)?);
    let distribution = if normal {
        Distribution::Normal
    } else {
        Distribution::Uniform
    };
    let tensor = compute(ruby, device == Device::Cpu, count(&shape), |cancel| {
        create::random(distribution, seed, &shape, dtype, &device.open()?, cancel)
    })?;
    Ok(RbTensor::new(ruby, tensor))
}

pub fn init(class: RClass) -> Result<(), Error> {
    class
        .singleton_class()?
        .define_private_method("_from_array", function!(from_array, 3))?;
    class
        .singleton_class()?
        .define_private_method("_from_packed", function!(from_packed, 4))?;
    class
        .singleton_class()?
        .define_private_method("_filled", function!(filled, 4))?;
    class
        .singleton_class()?
        .define_private_method("_random", function!(random, 5))
}
