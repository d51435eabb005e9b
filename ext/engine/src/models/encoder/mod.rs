//! One encoder for every family: token ids in, hidden states out, over packed sequences.

mod adapter;
mod attention;
pub mod config;
mod convolution;
pub(super) mod embeddings;
mod experts;
mod heads;
mod kernel_convolutions;
pub(super) mod layer;
mod mixing;
mod narrow;
pub(super) mod relative;
mod replay;
pub(super) mod spans;
mod verify;

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::models::families;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear, Norm, PackedSequences};
use crate::{CancelToken, Error, Result};
use base::runtime::device::ensure_activations;
use formats::weights::WeightSource;

pub use config::EncoderConfig;
use config::{Mixer, SeesAll};
pub use embeddings::Piece;

use convolution::ConvolutionLayer;
use embeddings::Embeddings;
use layer::Layer;
use relative::{RelativePositions, RelativeState};
use replay::Recordings;
use spans::Spans;

/// Weights and blueprint of an encoder; immutable, and free to be shared between threads.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    embeddings: Embeddings,
    /// One entry per layer that is run; shared where the family shares weights.
    layers: Vec<Arc<Layer>>,
    relative: RelativePositions,
    convolution: Option<ConvolutionLayer>,
    final_norm: Option<Norm>,
    device: Device,
    dtype: DType,
    /// Whether linear layers hold bytes.
    int8: bool,
    /// Which tokens see all others, by what the model was loaded for.
    sees_all: RowsThatSeeAll,
    padding_id: u32,
    recordings: Recordings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowsThatSeeAll {
    None,
    First,
    /// Those before the first token of this kind.
    Before(u32),
}

/// What a checkpoint of an encoder is.
pub type Blueprint = families::Blueprint<EncoderConfig>;

impl Encoder {
    /// Its tensors are of `dtype`; with `int8` the linear layers hold bytes, on the CPU and beside f32 or
    /// bf16.
    pub fn load(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        device: &Device,
        dtype: DType,
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let config = blueprint.config.clone();
        let parameters = Parameters::new(source, &blueprint.names, device, dtype)?.with_int8(int8);
        parameters.check_layers(config.stored_layers())?;
        let embeddings = Embeddings::load(&config, &parameters)?;
        let relative = RelativePositions::load(&config, &parameters)?;
        let mut loaded: HashMap<usize, Arc<Layer>> = HashMap::new();
        let mut layers = Vec::with_capacity(config.layers.len());
        for layer in &config.layers {
            cancel.check()?;
            let shared = match loaded.get(&layer.weights) {
                Some(shared) => shared.clone(),
                None => {
                    let fresh =
                        Arc::new(Layer::load(&config, &parameters, layer.weights, &relative)?);
                    loaded.insert(layer.weights, fresh.clone());
                    fresh
                }
            };
            layers.push(shared);
        }
        Ok(Self {
            convolution: ConvolutionLayer::load(&config, &parameters)?,
            final_norm: parameters.optional_norm(
                Part::FinalNorm,
                &[config.hidden_size],
                config.norm,
            )?,
            config,
            embeddings,
            layers,
            relative,
            device: device.clone(),
            dtype,
            int8,
            sees_all: RowsThatSeeAll::None,
            padding_id: blueprint.padding_id.unwrap_or(0),
            recordings: Recordings::default(),
        })
    }

    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// What it is made of.
    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        self.embeddings.list(&mut inventory)?;
        let mut seen: Vec<*const Layer> = Vec::new();
        for layer in &self.layers {
            if !seen.contains(&Arc::as_ptr(layer)) {
                seen.push(Arc::as_ptr(layer));
                layer.list(&mut inventory)?;
            }
        }
        if let Some(convolution) = &self.convolution {
            convolution.list(&mut inventory)?;
        }
        if let Some(norm) = &self.final_norm {
            inventory.add_norm(norm)?;
        }
        if matches!(self.relative, RelativePositions::Rope(_)) {
            inventory.add_rows("rope", &self.device)?;
        }
        inventory.add_rows("activation", &self.device)?;
        inventory.add_attention(&self.device, self.dtype, self.config.head_size)?;
        Ok(inventory)
    }

    /// How many tokens there are embeddings for.
    pub fn vocabulary(&self) -> usize {
        self.embeddings.tokens().count()
    }

    /// The longest sequence there are positions for.
    pub fn max_positions(&self) -> Option<usize> {
        let table = self.embeddings.max_positions();
        // A configuration may promise more rows than the table has, or count RoBERTa's unused ones.
        table.or(self.config.max_positions)
    }

    /// Rows of the table of absolute positions, where it has one.
    pub fn position_rows(&self) -> Option<usize> {
        self.embeddings.max_positions()
    }

    /// Whether a sequence may go on after the tokens that are attended to. DeBERTa masks such tokens
    /// as queries and inputs too, which this forward does not.
    pub fn takes_unattended(&self) -> bool {
        let disentangled = matches!(self.relative, RelativePositions::Disentangled(_));
        let mechanisms = &self.config.mechanisms;
        let plain = mechanisms.mixer == Mixer::Attention && mechanisms.padded_to.is_none();
        let plain = plain && mechanisms.sees_all == SeesAll::None;
        plain && !disentangled && self.convolution.is_none()
    }

    /// The hidden states after the last layer, [tokens, hidden].
    pub fn forward(&self, sequences: &PackedSequences, cancel: &CancelToken) -> Result<Tensor> {
        cancel.check()?;
        if sequences.tokens() == 0 {
            return Ok(Tensor::zeros(
                (0, self.config.hidden_size),
                self.dtype,
                &self.device,
            )?);
        }
        if let Some(length) = self.config.mechanisms.padded_to {
            let (padded, rows) = self.padded(sequences, length)?;
            let states = self.forward_whole(&padded, cancel)?;
            let count = rows.len();
            let rows = Tensor::from_vec(rows, count, &self.device)?;
            return Ok(states.index_select(&rows, 0)?);
        }
        self.forward_whole(sequences, cancel)
    }

    /// Sequences continued to this length by padding, and the rows of their own tokens.
    fn padded(
        &self,
        sequences: &PackedSequences,
        length: usize,
    ) -> Result<(PackedSequences, Vec<u32>)> {
        let (mut padded, mut rows) = (PackedSequences::new(), Vec::new());
        for range in sequences.ranges() {
            let mut ids = sequences.ids()[range.clone()].to_vec();
            let mut types = sequences.type_ids()[range.clone()].to_vec();
            let first = padded.tokens() as u32;
            rows.extend(first..first + range.len() as u32);
            ids.resize(length.max(range.len()), self.padding_id);
            types.resize(ids.len(), 0);
            padded.push_attended(&ids, Some(&types), range.len())?;
        }
        Ok((padded, rows))
    }

    /// The rows of tokens that see all others.
    fn rows_that_see_all(&self, sequences: &PackedSequences) -> Vec<u32> {
        let of_sequence = |range: std::ops::Range<usize>| {
            let count = match self.sees_all {
                RowsThatSeeAll::None => 0,
                RowsThatSeeAll::First => range.len().min(1),
                RowsThatSeeAll::Before(separator) => {
                    let ids = &sequences.ids()[range.clone()];
                    ids.iter().position(|&id| id == separator).unwrap_or(0)
                }
            };
            range.start as u32..(range.start + count) as u32
        };
        sequences.ranges().flat_map(of_sequence).collect()
    }

    /// The hidden states of one text, some of whose tokens are given as rows, [tokens, hidden].
    pub fn forward_mixed(&self, pieces: &[Piece<'_>], cancel: &CancelToken) -> Result<Tensor> {
        let mut all: Vec<u32> = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Tokens(ids) => all.extend_from_slice(ids),
                Piece::Rows(rows) => all.extend(std::iter::repeat_n(0, rows.dim(0)?)),
            }
        }
        let most = self.max_positions().unwrap_or(usize::MAX);
        if all.is_empty() || all.len() > most {
            return Err(Error::InvalidInput(format!(
                "the image and its prompt are {} tokens, and the model reads {most}",
                all.len()
            )));
        }
        let mut sequences = PackedSequences::new();
        sequences.push(&all, None)?;
        let embedded = self.embeddings.mixed(pieces, self.dtype)?;
        self.forward_embedded(&embedded, &sequences, cancel)
    }

    fn forward_whole(&self, sequences: &PackedSequences, cancel: &CancelToken) -> Result<Tensor> {
        let width = self.config.hidden_size;
        let between = Linear::dtype_between(&self.device, self.dtype)?;
        ensure_activations(sequences.tokens(), width, between, &self.device)?;
        let embedded = self.embeddings.forward(sequences)?;
        self.forward_embedded(&embedded, sequences, cancel)
    }

    fn forward_embedded(
        &self,
        embedded: &Tensor,
        sequences: &PackedSequences,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        if let Some(states) = self.replayed(embedded, sequences, cancel)? {
            return Ok(states);
        }
        let relative = self.relative.state(sequences, &self.device)?;
        self.run_layers(embedded, sequences, &relative, cancel)
    }

    fn run_layers(
        &self,
        embedded: &Tensor,
        sequences: &PackedSequences,
        relative: &RelativeState<'_>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let spans = Spans::of(sequences, &self.device)?
            .with_rows_that_see_all(self.rows_that_see_all(sequences));
        let mut x = embedded.to_dtype(Linear::dtype_between(&self.device, self.dtype)?)?;
        for (number, (layer, config)) in self.layers.iter().zip(&self.config.layers).enumerate() {
            cancel.check()?;
            x = layer.forward(&x, &spans, (config, relative), cancel)?;
            if let (0, Some(convolution)) = (number, &self.convolution) {
                x = convolution.forward(embedded, &x, sequences)?;
            }
        }
        if let Some(norm) = &self.final_norm {
            x = norm.forward(&x)?;
        }
        Ok(x.to_dtype(self.dtype)?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::models::verification::Expanded;
    use crate::nn::Embedding;
    use base::quant::{dequantize, BlockType, QuantizedTensor};
    use base::runtime::bytes::Bytes;
    use formats::files::model_files::WeightFiles;
    use formats::weights::{self, Metadata, TensorInfo};

    /// Products of blocks are exact to 1/64516 of the largest input, which two layers add up.
    const MOST_DIFFERENCE: f32 = 5e-4;

    fn load(source: &dyn WeightSource) -> Encoder {
        let blueprint = Blueprint::from_gguf(source).unwrap();
        let (device, cancel) = (Device::Cpu, CancelToken::new());
        Encoder::load(&blueprint, source, &device, DType::F32, false, &cancel).unwrap()
    }

    /// A source whose token embedding, which the tiny file keeps in f32, is quantized too.
    struct WithBlocks<'a>(&'a dyn WeightSource, QuantizedTensor);

    const TOKENS: &str = "token_embd.weight";

    impl<'a> WithBlocks<'a> {
        fn new(source: &'a dyn WeightSource) -> Self {
            let dense = source
                .tensor(TOKENS, Some(DType::F32), &Device::Cpu)
                .unwrap();
            let values: Vec<f32> = dense.flatten_all().unwrap().to_vec1().unwrap();
            let mut bytes = Vec::new();
            for block in values.chunks(BlockType::Q8_0.elements()) {
                let scale = block.iter().fold(0f32, |most, value| most.max(value.abs())) / 127.0;
                bytes.extend(half::f16::from_f32(scale).to_le_bytes());
                bytes.extend(
                    block
                        .iter()
                        .map(|value| (value / scale).round() as i8 as u8),
                );
            }
            let table = QuantizedTensor {
                kind: BlockType::Q8_0,
                order: None,
                fp8_rows: false,
                shape: dense.dims().to_vec(),
                bytes: Bytes::unpacked(bytes),
            };
            Self(source, table)
        }
    }

    impl WeightSource for WithBlocks<'_> {
        fn names(&self) -> Vec<String> {
            self.0.names()
        }

        fn info(&self, name: &str) -> Option<TensorInfo> {
            self.0.info(name)
        }

        fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
            if name != TOKENS {
                return self.0.tensor(name, dtype, device);
            }
            let values = dequantize(self.1.kind, &self.1.bytes)?;
            Ok(Tensor::from_vec(values, self.1.shape.as_slice(), device)?)
        }

        fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>> {
            match name {
                TOKENS => Ok(Some(self.1.clone())),
                _ => self.0.quantized(name),
            }
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.file(name)
        }

        fn files(&self) -> Vec<PathBuf> {
            self.0.files()
        }

        fn metadata(&self) -> &Metadata {
            self.0.metadata()
        }
    }

    #[test]
    fn a_quantized_file_stays_quantized() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../spec/fixtures/tiny/gguf-bert-q8_0/model.gguf");
        let source = weights::open(&WeightFiles::Gguf(file)).unwrap();
        let source: &dyn WeightSource = &WithBlocks::new(source.as_ref());
        let (held, expanded) = (load(source), load(&Expanded(source)));
        let tokens =
            |encoder: &Encoder| matches!(encoder.embeddings.tokens(), Embedding::Blocks(_));
        assert!(tokens(&held) && !tokens(&expanded));
        // The file keeps its second MLP matrix in f32: rows of 48 are not whole blocks.
        let quantized = |encoder: &Encoder| -> Vec<usize> {
            let count = |layer: &Arc<Layer>| {
                let linears = layer.linears();
                linears
                    .iter()
                    .filter(|linear| linear.is_quantized())
                    .count()
            };
            encoder.layers.iter().map(count).collect()
        };
        assert_eq!(quantized(&held), [5; 2]);
        assert_eq!(quantized(&expanded), [0; 2]);
        let mut sequences = PackedSequences::new();
        sequences.push(&[2, 7, 11, 5, 3], None).unwrap();
        sequences.push(&[2, 9, 3], None).unwrap();
        let run = |encoder: &Encoder| -> Vec<f32> {
            let states = encoder.forward(&sequences, &CancelToken::new()).unwrap();
            states.flatten_all().unwrap().to_vec1().unwrap()
        };
        let (found, wanted) = (run(&held), run(&expanded));
        let differences = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
        let most = differences.fold(0f32, f32::max);
        assert!(most > 0.0 && most <= MOST_DIFFERENCE, "{most}");
    }
}
