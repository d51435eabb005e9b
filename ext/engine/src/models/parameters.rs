//! Reads the parts of a model out of a checkpoint, whatever names and file format it has.

use candle_core::{DType, Device, Tensor};

use super::config::{NormConfig, NormKind};
use super::parts::{Names, Part, Place};
use crate::nn::{elementwise, Embedding, Linear, Norm};
use crate::{Error, Result};
use base::quant::{LinedTensor, QuantizedTensor};
use formats::weights::WeightSource;

/// Old checkpoints call the weight of a norm gamma; a lone parameter has the module's name.
const WEIGHT_ENDINGS: &[&str] = &[".weight", ".gamma", ""];
const BIAS_ENDINGS: &[&str] = &[".bias", ".beta"];

pub struct Parameters<'a> {
    source: &'a dyn WeightSource,
    names: &'a Names,
    /// What the checkpoint puts before the names of the bare model, such as `bert.`, and the beginnings
    /// of that down to nothing: heads stand outside the model.
    prefixes: Vec<String>,
    device: &'a Device,
    dtype: DType,
    /// Whether linear layers are rounded to bytes.
    int8: bool,
    /// Whether those of f32 are held in 16 bits where these are the same numbers.
    compact: bool,
    /// What stands for `<>` in names, such as a language.
    variant: &'a str,
}

impl<'a> Parameters<'a> {
    pub fn new(
        source: &'a dyn WeightSource,
        names: &'a Names,
        device: &'a Device,
        dtype: DType,
    ) -> Result<Self> {
        Ok(Self {
            source,
            names,
            prefixes: prefixes(&find_prefix(source, names)?),
            device,
            dtype,
            int8: false,
            compact: false,
            variant: "",
        })
    }

    /// The same, for names in which `<>` stands for this.
    pub fn of_variant<'b>(&'b self, variant: &'b str) -> Parameters<'b> {
        Parameters {
            prefixes: self.prefixes.clone(),
            variant,
            ..*self
        }
    }

    /// With `int8`, linear layers are rounded to bytes.
    pub fn with_int8(self, int8: bool) -> Self {
        Self { int8, ..self }
    }

    /// With `compact`, linear layers of f32 are held in 16 bits where these are the same numbers, for products of
    /// few rows.
    pub fn with_compact(self, compact: bool) -> Self {
        Self { compact, ..self }
    }

    /// The same for layers that multiply many rows at once.
    pub fn of_many_rows(&self) -> Parameters<'_> {
        Parameters {
            prefixes: self.prefixes.clone(),
            compact: false,
            ..*self
        }
    }

    /// Whether what a decoder reads of an encoder is held in 16 bits: where its layers are rounded to bytes and it
    /// writes few texts at a time, for which it waits for memory.
    pub fn holds_halves(&self) -> bool {
        let rounds_little = matches!(self.dtype, DType::F32 | DType::BF16);
        self.int8 && self.compact && rounds_little
    }

    pub fn device(&self) -> &Device {
        self.device
    }

    /// What tensors are read as.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where layers are, and the type that they compute in.
    fn place(&self) -> (&Device, DType) {
        (self.device, self.dtype)
    }

    pub fn names(&self) -> &Names {
        self.names
    }

    pub fn source(&self) -> &dyn WeightSource {
        self.source
    }

    /// A `CorruptModel` error unless the last of so many layers is in the file: asked before anything
    /// is reserved for them.
    pub fn check_layers(&self, count: usize) -> Result<()> {
        let names = self.source.names();
        let has = |layer: usize| {
            let starts = self.names.layers(layer);
            let starts = self.prefixed(&starts);
            names
                .iter()
                .any(|name| starts.iter().any(|start| name.starts_with(start)))
        };
        if count == 0 || has(count - 1) {
            return Ok(());
        }
        let found = (0..count).take_while(|&layer| has(layer)).count();
        Err(Error::corrupt(
            &self.source.file(""),
            format!("the configuration asks for {count} layers, and it holds tensors of {found}"),
        ))
    }

    /// What the tensors of each of so many layers take once they are read, and all others. Of quantized weights as if
    /// they stayed so.
    pub fn bytes_by_layer(&self, count: usize) -> (Vec<usize>, usize) {
        let starts = (0..count).map(|layer| self.prefixed(&self.names.layers(layer)));
        let starts: Vec<Vec<String>> = starts.collect();
        let (mut layers, mut beside) = (vec![0_usize; count], 0_usize);
        for name in self.source.names() {
            let Some(info) = self.source.info(&name) else {
                continue;
            };
            let elements = info.shape.iter().copied().fold(1, usize::saturating_mul);
            let plain = elements.saturating_mul(self.dtype.size_in_bytes());
            let layer = starts
                .iter()
                .position(|starts| starts.iter().any(|start| name.starts_with(start)));
            let sum = match layer {
                Some(layer) => &mut layers[layer],
                None => &mut beside,
            };
            *sum = sum.saturating_add(info.bytes.min(plain));
        }
        (layers, beside)
    }

    pub fn has(&self, place: impl Into<Place>) -> bool {
        self.find(place.into(), WEIGHT_ENDINGS).is_some()
    }

    /// The shape of a weight, as the file has it.
    pub fn shape(&self, place: impl Into<Place>) -> Result<Vec<usize>> {
        let place = place.into();
        let name = self.weight_name(place)?;
        match self.source.info(&name) {
            Some(info) => Ok(info.shape),
            None => Err(self.missing(place)),
        }
    }

    /// How many outputs a linear layer has.
    pub fn outputs(&self, place: impl Into<Place>) -> Result<usize> {
        let shape = self.shape(place)?;
        let outputs = if self.names.transposed {
            shape.last()
        } else {
            shape.first()
        };
        Ok(outputs.copied().unwrap_or(0))
    }

    /// The same of a linear layer that may consist of groups; see `grouped_matrix`.
    pub fn grouped_outputs(&self, place: impl Into<Place>) -> Result<usize> {
        let place = place.into();
        match self.shape(place)?[..] {
            [groups, _, outputs] if outputs > 1 => Ok(groups * outputs),
            _ => self.outputs(place),
        }
    }

    pub fn tensor(&self, place: impl Into<Place>) -> Result<Tensor> {
        self.read(&self.weight_name(place.into())?)
    }

    /// A tensor that must have this shape.
    pub fn shaped(&self, place: impl Into<Place>, shape: &[usize]) -> Result<Tensor> {
        let name = self.weight_name(place.into())?;
        let found = self.source.info(&name).map(|info| info.shape);
        match found {
            Some(found) if found != shape => Err(self.misshapen(&name, &found, shape)),
            _ => self.read(&name),
        }
    }

    pub fn optional_tensor(&self, place: impl Into<Place>) -> Result<Option<Tensor>> {
        let name = self.find(place.into(), WEIGHT_ENDINGS);
        name.map(|name| self.read(&name)).transpose()
    }

    /// The same in f32, whatever the model computes in.
    pub fn optional_exact(&self, place: impl Into<Place>) -> Result<Option<Tensor>> {
        let name = self.find(place.into(), WEIGHT_ENDINGS);
        let read = |name: String| self.source.tensor(&name, Some(DType::F32), self.device);
        name.map(read).transpose()
    }

    pub fn bias(&self, place: impl Into<Place>) -> Result<Option<Tensor>> {
        let name = self.find(place.into(), BIAS_ENDINGS);
        name.map(|name| self.read(&name)).transpose()
    }

    /// A linear layer; its weight stays quantized where the backend computes on blocks.
    pub fn linear(&self, place: impl Into<Place>, inputs: usize, outputs: usize) -> Result<Linear> {
        let place = place.into();
        if let Some(blocks) = self.blocks(place, &[outputs, inputs])? {
            return Linear::quantized(blocks, self.bias(place)?, self.place());
        }
        if let Some(codes) = self.lined(place, &[outputs, inputs])? {
            return Linear::lined(&codes, self.bias(place)?);
        }
        self.assemble(self.matrix(place, inputs, outputs)?, self.bias(place)?)
    }

    /// Whether a linear layer of this weight stays quantized.
    pub fn keeps(&self, place: impl Into<Place>, shape: &[usize]) -> Result<bool> {
        let place = place.into();
        Ok(self.blocks(place, shape)?.is_some() || self.lined(place, shape)?.is_some())
    }

    /// Codes whose scales belong to columns, where the backend computes on them.
    fn lined(&self, place: Place, shape: &[usize]) -> Result<Option<LinedTensor>> {
        if self.int8 || !Linear::keeps_lines(self.device, self.dtype) || !self.has(place) {
            return Ok(None);
        }
        let name = self.weight_name(place)?;
        let codes = self.source.lined(&name)?;
        match codes.filter(Linear::takes_lines) {
            Some(codes) if codes.shape != shape => Err(self.misshapen(&name, &codes.shape, shape)),
            codes => Ok(codes),
        }
    }

    /// A linear layer whose outputs are multiplied by a factor each, where the checkpoint has them.
    pub fn scaled_linear(
        &self,
        place: impl Into<Place>,
        scale: impl Into<Place>,
        inputs: usize,
        outputs: usize,
    ) -> Result<Linear> {
        let (place, scale) = (place.into(), scale.into());
        if !self.has(scale) {
            return self.linear(place, inputs, outputs);
        }
        let factors = self.shaped(scale, &[outputs])?;
        let weight = self.matrix(place, inputs, outputs)?;
        let weight = elementwise::multiply(&weight, &factors.reshape((outputs, 1))?)?;
        let bias = match self.bias(place)? {
            Some(bias) => Some(elementwise::multiply(&bias, &factors)?),
            None => None,
        };
        self.assemble(weight, bias)
    }

    /// A linear layer that is not rounded to bytes.
    pub fn exact_linear(
        &self,
        place: impl Into<Place>,
        inputs: usize,
        outputs: usize,
    ) -> Result<Linear> {
        Self {
            prefixes: self.prefixes.clone(),
            int8: false,
            ..*self
        }
        .linear(place, inputs, outputs)
    }

    /// The linear layers of one tensor `[count, outputs, inputs]`.
    pub fn stacked_linears(&self, place: impl Into<Place>, count: usize) -> Result<Vec<Linear>> {
        let place = place.into();
        let shape = self.shape(place)?;
        if shape.len() != 3 || shape[0] != count {
            return Err(self.misfit(place, &[count]));
        }
        let biases = self.bias(place)?;
        if matches!(&biases, Some(biases) if biases.dims() != [count, shape[1]]) {
            return Err(self.misfit(place, &[count, shape[1]]));
        }
        let bias = |index: usize| -> Result<Option<Tensor>> {
            let bias = biases.as_ref().map(|biases| biases.get(index));
            Ok(bias.transpose()?)
        };
        if let Some(blocks) = self.blocks(place, &shape)? {
            let parts = blocks.split_first_dimension().into_iter().enumerate();
            return parts
                .map(|(index, part)| Linear::quantized(part, bias(index)?, self.place()))
                .collect();
        }
        let stack = self.tensor(place)?;
        (0..count)
            .map(|index| self.assemble(stack.get(index)?, bias(index)?))
            .collect()
    }

    pub fn optional_linear(
        &self,
        place: impl Into<Place>,
        inputs: usize,
    ) -> Result<Option<Linear>> {
        let place = place.into();
        if self.has(place) {
            Ok(Some(self.linear(place, inputs, self.outputs(place)?)?))
        } else {
            Ok(None)
        }
    }

    /// A weight `[outputs, inputs]`, expanded.
    pub fn matrix(&self, place: impl Into<Place>, inputs: usize, outputs: usize) -> Result<Tensor> {
        let place = place.into();
        if self.shape(place)?.len() == 3 {
            return self.grouped_matrix(place, inputs, outputs);
        }
        if self.names.transposed {
            Ok(self.shaped(place, &[inputs, outputs])?.t()?.contiguous()?)
        } else {
            self.shaped(place, &[outputs, inputs])
        }
    }

    /// A weight `[outputs, inputs]` of groups that read some inputs each and make as many parts of the outputs:
    /// stored as `[outputs, inputs of a group, 1]` (SqueezeBERT), or as `[groups, inputs, outputs of a group]`
    /// (ConvBERT).
    fn grouped_matrix(&self, place: Place, inputs: usize, outputs: usize) -> Result<Tensor> {
        let shape = self.shape(place)?;
        let weight = match shape[..] {
            [rows, read, 1] if rows == outputs && read > 0 && inputs.is_multiple_of(read) => {
                let groups = inputs / read;
                if !outputs.is_multiple_of(groups) {
                    return Err(self.misfit(place, &[outputs, inputs]));
                }
                self.tensor(place)?
                    .reshape((groups, outputs / groups, read))?
            }
            [groups, read, made] if groups * read == inputs && groups * made == outputs => {
                self.tensor(place)?.transpose(1, 2)?
            }
            _ => return Err(self.misfit(place, &[outputs, inputs])),
        };
        let (groups, made, read) = weight.dims3()?;
        let rows = (0..groups).map(|group| {
            let before = Tensor::zeros((made, group * read), self.dtype, self.device)?;
            let after = (groups - group - 1) * read;
            let after = Tensor::zeros((made, after), self.dtype, self.device)?;
            Tensor::cat(&[before, weight.get(group)?.contiguous()?, after], 1)
        });
        Ok(Tensor::cat(
            &rows.collect::<candle_core::Result<Vec<_>>>()?,
            0,
        )?)
    }

    /// A linear layer of tensors that were read from the parts.
    pub fn assemble(&self, weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        if self.int8 {
            return Linear::bytes(weight, bias);
        }
        if self.compact {
            if let Some(layer) = Linear::compact(&weight, bias.as_ref())? {
                return Ok(layer);
            }
        }
        Linear::new(weight, bias)
    }

    /// A linear layer of blocks that were read from the parts.
    pub fn assemble_blocks(&self, blocks: QuantizedTensor, bias: Option<Tensor>) -> Result<Linear> {
        Linear::quantized(blocks, bias, self.place())
    }

    /// `widths` are those that the weight may have.
    pub fn norm(
        &self,
        place: impl Into<Place>,
        widths: &[usize],
        config: NormConfig,
    ) -> Result<Norm> {
        let place = place.into();
        if !config.weighted {
            let width = widths.first().copied().unwrap_or(0);
            let weight = Tensor::ones(width, self.dtype, self.device)?;
            return Ok(match config.kind {
                NormKind::Layer => Norm::layer(weight, None, config.epsilon),
                NormKind::Rms => Norm::rms(weight, 0.0, config.epsilon),
            });
        }
        let name = self.weight_name(place)?;
        let weight = self.read(&name)?;
        if !matches!(weight.dims(), [width] if widths.contains(width)) {
            return Err(self.misshapen(&name, weight.dims(), widths));
        }
        Ok(match config.kind {
            NormKind::Layer => {
                let weight = match config.offset {
                    0.0 => weight,
                    offset => (weight + f64::from(offset))?,
                };
                Norm::layer(weight, self.bias(place)?, config.epsilon)
            }
            NormKind::Rms => Norm::rms(weight, config.offset, config.epsilon),
        })
    }

    pub fn optional_norm(
        &self,
        place: impl Into<Place>,
        widths: &[usize],
        config: NormConfig,
    ) -> Result<Option<Norm>> {
        let place = place.into();
        self.has(place)
            .then(|| self.norm(place, widths, config))
            .transpose()
    }

    /// A row of `width` for every token of the vocabulary.
    pub fn table(&self, part: Part, width: usize) -> Result<Embedding> {
        let place = part.into();
        let name = self.weight_name(place)?;
        let shape = self.shape(place)?;
        match shape[..] {
            [_, found] if found == width => {}
            _ => return Err(self.misshapen(&name, &shape, &[width])),
        }
        match self.blocks(place, &shape)? {
            Some(blocks) if Embedding::keeps(&blocks, self.device) => {
                Embedding::quantized(blocks, self.device, self.dtype)
            }
            _ => self.read(&name).map(Embedding::Dense),
        }
    }

    /// A quantized tensor that can stay as it is.
    pub fn blocks(
        &self,
        place: impl Into<Place>,
        shape: &[usize],
    ) -> Result<Option<QuantizedTensor>> {
        let place = place.into();
        if self.int8 || !Linear::keeps_blocks(self.device, self.dtype) || !self.has(place) {
            return Ok(None);
        }
        let name = self.weight_name(place)?;
        match self.source.quantized(&name)? {
            Some(blocks) if blocks.shape != shape => {
                Err(self.misshapen(&name, &blocks.shape, shape))
            }
            blocks => Ok(blocks),
        }
    }

    /// Whether `blocks` have the last two dimensions the other way round than the tensor.
    pub fn turned(&self, place: impl Into<Place>) -> bool {
        let name = self.find(place.into(), WEIGHT_ENDINGS);
        name.is_some_and(|name| self.source.turned(&name))
    }

    pub fn missing(&self, place: impl Into<Place>) -> Error {
        let place = place.into();
        let mut names = self.names.modules(place);
        for name in &mut names {
            name.insert_str(0, &self.prefixes[0]);
        }
        Error::corrupt(
            &self.source.file(""),
            if names.is_empty() {
                format!("it has no part {:?}", place.part)
            } else {
                format!("it holds no tensor {}", names.join(" or "))
            },
        )
    }

    pub fn misfit(&self, place: impl Into<Place>, expected: &[usize]) -> Error {
        let place = place.into();
        let (name, shape) = match (self.weight_name(place), self.shape(place)) {
            (Ok(name), Ok(shape)) => (name, shape),
            (Err(error), _) | (_, Err(error)) => return error,
        };
        self.misshapen(&name, &shape, expected)
    }

    fn misshapen(&self, name: &str, shape: &[usize], expected: &[usize]) -> Error {
        Error::corrupt(
            &self.source.file(name),
            format!(
                "tensor {name} has the shape {shape:?} where the configuration asks for {expected:?}"
            ),
        )
    }

    fn weight_name(&self, place: Place) -> Result<String> {
        self.find(place, WEIGHT_ENDINGS)
            .ok_or_else(|| self.missing(place))
    }

    fn find(&self, place: Place, endings: &[&str]) -> Option<String> {
        let modules = self.names.modules(place);
        self.prefixed(&modules)
            .iter()
            .flat_map(|module| {
                endings
                    .iter()
                    .map(move |ending| format!("{module}{ending}"))
            })
            .map(|name| name.replace("<>", self.variant))
            .find(|name| self.source.has(name))
    }

    /// Every name after every prefix.
    fn prefixed(&self, names: &[String]) -> Vec<String> {
        names
            .iter()
            .flat_map(|name| {
                let prefixes = self.prefixes.iter();
                prefixes.map(move |prefix| format!("{prefix}{name}"))
            })
            .collect()
    }

    fn read(&self, name: &str) -> Result<Tensor> {
        self.source.tensor(name, Some(self.dtype), self.device)
    }
}

/// Everything before the name of the token or patch embedding: the checkpoint of a model with a head names its
/// body, and models around it add names of their own.
fn find_prefix(source: &dyn WeightSource, names: &Names) -> Result<String> {
    let inputs = [Part::TokenEmbedding, Part::PatchEmbedding];
    let tables: Vec<String> = inputs
        .into_iter()
        .flat_map(|part| names.modules(part))
        .map(|name| format!("{name}.weight"))
        .collect();
    source
        .names()
        .iter()
        .flat_map(|name| {
            let tables = tables.iter();
            tables.filter_map(|table| name.strip_suffix(table.as_str()))
        })
        .filter(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        .min_by_key(|prefix| prefix.len())
        .map(str::to_owned)
        .ok_or_else(|| {
            Error::corrupt(
                &source.file(""),
                format!(
                    "it holds no embedding of its inputs ({})",
                    tables.join(" or ")
                ),
            )
        })
}

/// `a.b.` gives `a.b.`, `a.` and the empty prefix.
fn prefixes(whole: &str) -> Vec<String> {
    let mut prefixes = vec![whole.to_owned()];
    let mut rest = whole;
    while !rest.is_empty() {
        let end = rest
            .trim_end_matches('.')
            .rfind('.')
            .map_or(0, |dot| dot + 1);
        rest = &rest[..end];
        prefixes.push(rest.to_owned());
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_shorten_to_nothing() {
        assert_eq!(prefixes("model.text."), ["model.text.", "model.", ""]);
        assert_eq!(prefixes(""), [""]);
    }
}
