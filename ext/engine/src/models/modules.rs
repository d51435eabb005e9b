//! The modules of a checkpoint by the paths of their names, for models whose structure their files tell.

use candle_core::{DType, Device, Tensor};

use crate::nn::feature_map::Window;
use crate::nn::{elementwise, Conv2d, FixedNorm, Linear, Norm};
use crate::{Error, Result};
use formats::weights::WeightSource;
use kernels::Activation;

/// Of batch norms, unless files say otherwise.
pub const BATCH_NORM_EPSILON: f64 = 1e-5;

#[derive(Clone)]
pub struct Modules<'a> {
    source: &'a dyn WeightSource,
    /// All names, sorted.
    names: &'a [String],
    /// Empty, or with a dot at its end.
    path: String,
    device: &'a Device,
    dtype: DType,
    int8: bool,
}

/// A convolution and the norm behind it.
#[derive(Clone, Copy)]
pub struct Convolution<'a> {
    /// `|` separates the names that files may have.
    pub name: &'a str,
    /// Empty where there is none.
    pub norm: &'a str,
    pub epsilon: f64,
    pub stride: usize,
    /// `None`: half of the kernel.
    pub padding: Option<usize>,
    pub dilation: usize,
    pub groups: usize,
    pub activation: Option<Activation>,
}

impl<'a> Convolution<'a> {
    pub fn new(name: &'a str, norm: &'a str, activation: Option<Activation>) -> Self {
        Self {
            name,
            norm,
            epsilon: BATCH_NORM_EPSILON,
            stride: 1,
            padding: None,
            dilation: 1,
            groups: 1,
            activation,
        }
    }
}

impl<'a> Modules<'a> {
    /// `names` are all of the source's.
    pub fn new(
        source: &'a dyn WeightSource,
        names: &'a [String],
        (device, dtype): (&'a Device, DType),
        int8: bool,
    ) -> Self {
        Self {
            source,
            names,
            path: String::new(),
            device,
            dtype,
            int8,
        }
    }

    pub fn device(&self) -> &'a Device {
        self.device
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn int8(&self) -> bool {
        self.int8
    }

    /// Where the whole name of a tensor begins.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is inside a module; of several names, `|` between them, the first that there is.
    pub fn at(&self, names: impl AsRef<str>) -> Self {
        let names = names.as_ref();
        let found = names.split('|').find(|name| self.has(name));
        let name = found.or(names.split('|').next()).unwrap_or_default();
        Self {
            path: if name.is_empty() {
                self.path.clone()
            } else {
                format!("{}{name}.", self.path)
            },
            ..self.clone()
        }
    }

    /// Whether there is a tensor of this name, or one inside a module of it.
    pub fn has(&self, name: &str) -> bool {
        let whole = format!("{}{name}", self.path);
        let inside = format!("{whole}.");
        let from = |start: &String| self.names.partition_point(|name| name < start);
        self.names.get(from(&whole)) == Some(&whole)
            || self
                .names
                .get(from(&inside))
                .is_some_and(|name| name.starts_with(&inside))
    }

    fn whole(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    pub fn shape(&self, name: &str) -> Result<Vec<usize>> {
        let whole = self.whole(name);
        match self.source.info(&whole) {
            Some(info) => Ok(info.shape),
            None => Err(self.corrupt(format!("it holds no tensor {whole}"))),
        }
    }

    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let whole = self.whole(name);
        self.source.tensor(&whole, Some(self.dtype), self.device)
    }

    pub fn optional(&self, name: &str) -> Result<Option<Tensor>> {
        let found = self.source.has(&self.whole(name));
        found.then(|| self.tensor(name)).transpose()
    }

    /// A tensor that must have this shape.
    pub fn shaped(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let found = self.shape(name)?;
        if found == shape {
            return self.tensor(name);
        }
        Err(self.corrupt(format!(
            "tensor {} has the shape {found:?} instead of {shape:?}",
            self.whole(name)
        )))
    }

    /// The numbers of a tensor in f32.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let tensor = self
            .source
            .tensor(&self.whole(name), Some(DType::F32), &Device::Cpu)?;
        Ok(tensor.flatten_all()?.to_vec1()?)
    }

    /// A linear layer of tensors that were read.
    pub fn assemble(&self, weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        if self.int8 {
            Linear::bytes(weight, bias)
        } else {
            Linear::new(weight, bias)
        }
    }

    /// A linear layer that reads so many inputs.
    pub fn linear(&self, names: &str, inputs: usize) -> Result<Linear> {
        let module = self.at(names);
        let outputs = module.shape("weight")?.first().copied().unwrap_or(0);
        let weight = module.shaped("weight", &[outputs, inputs])?;
        let bias = module.optional("bias")?;
        if bias.as_ref().is_some_and(|bias| bias.dims() != [outputs]) {
            module.shaped("bias", &[outputs])?;
        }
        self.assemble(weight, bias)
    }

    /// The same, which must have so many outputs.
    pub fn sized_linear(&self, names: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        let linear = self.linear(names, inputs)?;
        if linear.outputs() != outputs {
            self.at(names).shaped("weight", &[outputs, inputs])?;
        }
        Ok(linear)
    }

    /// A linear layer whose outputs are multiplied by a factor each, where the file has them.
    pub fn scaled_linear(
        &self,
        names: &str,
        factors: &str,
        (inputs, outputs): (usize, usize),
    ) -> Result<Linear> {
        if !self.has(factors) {
            return self.sized_linear(names, inputs, outputs);
        }
        let factors = self.shaped(factors, &[outputs])?;
        let module = self.at(names);
        let weight = module.shaped("weight", &[outputs, inputs])?;
        let weight = elementwise::multiply(&weight, &factors.reshape((outputs, 1))?)?;
        let bias = match module.optional("bias")? {
            Some(bias) => Some(elementwise::multiply(&bias, &factors)?),
            None => None,
        };
        self.assemble(weight, bias)
    }

    pub fn layer_norm(&self, names: &str, width: usize, epsilon: f32) -> Result<Norm> {
        let module = self.at(names);
        let weight = module.shaped("weight", &[width])?;
        let bias = module.shaped("bias", &[width])?;
        Ok(Norm::layer(weight, Some(bias), epsilon))
    }

    /// A norm by the root of the mean of squares.
    pub fn rms_norm(&self, names: &str, width: usize, epsilon: f32) -> Result<Norm> {
        let weight = self.at(names).shaped("weight", &[width])?;
        Ok(Norm::rms(weight, 0.0, epsilon))
    }

    /// The first of several names that there is.
    pub fn known<'n>(&self, names: &'n str) -> Option<&'n str> {
        names.split('|').find(|name| self.has(name))
    }

    pub fn batch_norm(&self, names: &str, epsilon: f64) -> Result<FixedNorm> {
        let module = self.at(names);
        let width = module.shape("weight")?;
        let read = |name: &str| module.shaped(name, &width);
        let parts = [
            read("weight")?,
            read("bias")?,
            read("running_mean")?,
            read("running_var")?,
        ];
        Ok(FixedNorm::new(parts.each_ref(), epsilon)?)
    }

    /// A convolution that reads so many channels.
    pub fn convolution(&self, inputs: usize, of: Convolution<'_>) -> Result<Conv2d> {
        let module = self.at(of.name);
        let shape = module.shape("weight")?;
        let [outputs, _, kernel, _] = shape[..] else {
            return Err(self.corrupt(format!(
                "tensor {}weight has the shape {shape:?}, which is not that of a convolution",
                module.path
            )));
        };
        let read = inputs / of.groups.max(1);
        let weight = module.shaped("weight", &[outputs, read, kernel, kernel])?;
        let norm = match of.norm {
            "" => None,
            name => Some(self.batch_norm(name, of.epsilon)?),
        };
        let window = Window {
            dilation: of.dilation,
            ..Window::new(kernel, of.stride, of.padding.unwrap_or(kernel / 2))
        };
        let bias = module.optional("bias")?;
        Conv2d::new(
            &weight,
            bias.as_ref(),
            norm.as_ref(),
            window,
            of.groups,
            of.activation,
        )
    }

    pub fn corrupt(&self, reason: String) -> Error {
        Error::corrupt(&self.source.file(""), reason)
    }
}
