//! HTSAT: a spectrogram, folded into a square, through a Swin transformer (CLAP's audio tower).

mod image;
mod patches;

use candle_core::{DType, Device, Tensor};

use crate::models::config;
use crate::models::modules::Modules;
use crate::models::swin::{Block, Merging, Sizes, Version, EPSILON};
use crate::nn::{FeatureMap, Inventory, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, WIDTH};

use image::Folding;
use patches::Patches;

/// What a checkpoint says of the tower.
#[derive(Clone, Debug)]
pub struct HtsatConfig {
    pub bands: usize,
    /// The edge of the square.
    pub edge: usize,
    /// Height and width of a patch, and from one to the next.
    pub patch: (usize, usize),
    pub stride: (usize, usize),
    pub width: usize,
    pub depths: Vec<usize>,
    pub heads: Vec<usize>,
    pub window: usize,
    /// Whether a long audio's parts are read beside the whole.
    pub fuses: bool,
    pub norm_epsilon: f32,
    pub activation: kernels::Activation,
}

#[derive(Debug)]
pub struct Htsat {
    config: HtsatConfig,
    folding: Folding,
    patches: Patches,
    stages: Vec<Stage>,
    norm: Norm,
    device: Device,
    dtype: DType,
}

impl HtsatConfig {
    pub fn read(raw: &RawConfig) -> Result<Self> {
        let size = |key: &str, usual: usize| -> Result<usize> {
            Ok(raw.opt_usize_in(key, WIDTH)?.unwrap_or(usual))
        };
        let list = |key: &str, usual: &[usize]| -> Result<Vec<usize>> {
            let Some(numbers) = raw.opt_integers(key)? else {
                return Ok(usual.to_vec());
            };
            let sizes = numbers.into_iter();
            let sizes = sizes.map(|number| usize::try_from(number).unwrap_or(0));
            Ok(sizes.collect())
        };
        let pair = |key: &str| -> Result<(usize, usize)> {
            match list(key, &[4])?[..] {
                [both] => Ok((both, both)),
                [high, wide] => Ok((high, wide)),
                _ => Err(Error::corrupt(
                    raw.file(),
                    format!("{key} should be one or two numbers"),
                )),
            }
        };
        refuse(raw)?;
        let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
        let config = Self {
            bands: size("num_mel_bins", 64)?,
            edge: size("spec_size", 256)?,
            patch: pair("patch_size")?,
            stride: pair("patch_stride")?,
            width: size("patch_embeds_hidden_size", 96)?,
            depths: list("depths", &[2, 2, 6, 2])?,
            heads: list("num_attention_heads", &[4, 8, 16, 32])?,
            window: size("window_size", 8)?,
            fuses: raw.opt_bool("enable_fusion")?.unwrap_or(false),
            norm_epsilon: raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32,
            activation: config::activation(name, raw.file())?,
        };
        config
            .check()
            .map_err(|reason| Error::corrupt(raw.file(), reason))?;
        Ok(config)
    }

    fn check(&self) -> config::Checked {
        use config::check_size;
        check_size("edge of the spectrogram", self.edge, 1..=1 << 14)?;
        check_size("number of bands", self.bands, 1..=self.edge)?;
        if !self.edge.is_multiple_of(self.bands) {
            return Err(format!(
                "num_mel_bins {} does not divide spec_size {}",
                self.bands, self.edge
            ));
        }
        for length in [self.patch.0, self.patch.1, self.stride.0, self.stride.1] {
            check_size("size of a patch", length, 1..=1 << 8)?;
        }
        if self.patch.0 < self.stride.0 || self.patch.1 < self.stride.1 {
            return Err("patches are smaller than their distance".into());
        }
        check_size("number of stages", self.depths.len(), 1..=8)?;
        if self.heads.len() != self.depths.len() {
            return Err(format!(
                "num_attention_heads has {} entries for {} stages",
                self.heads.len(),
                self.depths.len()
            ));
        }
        for (&depth, &heads) in self.depths.iter().zip(&self.heads) {
            check_size("number of layers", depth, LAYERS)?;
            check_size("number of attention heads", heads, HEADS)?;
        }
        let halvings = 1usize << (self.depths.len() - 1);
        let (high, wide) = self.grid();
        if high != wide || !high.is_multiple_of(halvings) || high / halvings < self.window {
            return Err(format!(
                "a grid of {high} by {wide} patches can't be halved {} times into windows of {}",
                self.depths.len() - 1,
                self.window
            ));
        }
        Ok(())
    }

    /// Patches above and beside each other.
    pub fn grid(&self) -> (usize, usize) {
        (self.edge / self.stride.0, self.edge / self.stride.1)
    }

    /// Times that the spectrogram is folded.
    pub fn folds(&self) -> usize {
        self.edge / self.bands
    }

    /// The width of what comes out.
    pub fn outputs(&self) -> usize {
        self.width << (self.depths.len() - 1)
    }
}

fn refuse(raw: &RawConfig) -> Result<()> {
    let differs = [
        (
            raw.opt_bool("flatten_patch_embeds")? == Some(false),
            "flatten_patch_embeds",
        ),
        (
            raw.opt_usize("patch_embed_input_channels")?
                .is_some_and(|count| count != 1),
            "patch_embed_input_channels",
        ),
        (
            raw.opt_bool("enable_fusion")? == Some(true)
                && raw.opt_string("fusion_type")? == Some("channel_map"),
            "fusion_type \"channel_map\"",
        ),
    ];
    match differs.iter().find(|(found, _)| *found) {
        Some((_, what)) => Err(Error::unsupported(
            raw.file(),
            format!("this {what} is not supported"),
        )),
        None => Ok(()),
    }
}

#[derive(Debug)]
struct Stage {
    blocks: Vec<Block>,
    merging: Option<Merging>,
}

impl Stage {
    fn load(config: &HtsatConfig, number: usize, modules: &Modules<'_>) -> Result<Self> {
        let sizes = Sizes {
            width: config.width << number,
            heads: config.heads[number],
            window: config.window,
            learned: 0,
            version: Version::First,
            activation: config.activation,
            epsilon: config.norm_epsilon,
            shrinks: true,
        };
        let blocks = (0..config.depths[number]).map(|block| {
            let shift = if block % 2 == 1 { config.window / 2 } else { 0 };
            Block::load(&modules.at(format!("blocks.{block}")), sizes, shift)
        });
        let merges = number + 1 < config.depths.len();
        let merging = merges.then(|| {
            let modules = modules.at("downsample");
            Merging::load(&modules, sizes.width, sizes.version)
        });
        Ok(Self {
            blocks: blocks.collect::<Result<_>>()?,
            merging: merging.transpose()?,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mut blocks = self.blocks.iter();
        blocks.try_for_each(|block| block.list(inventory))?;
        let mut merging = self.merging.iter();
        merging.try_for_each(|merging| merging.list(inventory))
    }

    fn forward(&self, mut map: FeatureMap, cancel: &CancelToken) -> Result<FeatureMap> {
        for block in &self.blocks {
            cancel.check()?;
            map = block.forward(&map)?;
        }
        match &self.merging {
            Some(merging) => merging.forward(&map),
            None => Ok(map),
        }
    }
}

impl Htsat {
    pub fn load(config: HtsatConfig, modules: &Modules<'_>) -> Result<Self> {
        let stages = 0..config.depths.len();
        let stages = stages.map(|number| {
            let modules = modules.at(format!("layers.{number}"));
            Stage::load(&config, number, &modules)
        });
        Ok(Self {
            folding: Folding::load(&config, modules)?,
            patches: Patches::load(&config, &modules.at("patch_embed"))?,
            stages: stages.collect::<Result<_>>()?,
            norm: modules.layer_norm("norm", config.outputs(), EPSILON)?,
            device: modules.device().clone(),
            dtype: modules.dtype(),
            config,
        })
    }

    pub fn config(&self) -> &HtsatConfig {
        &self.config
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.patches.list(inventory)?;
        let mut stages = self.stages.iter();
        stages.try_for_each(|stage| stage.list(inventory))?;
        inventory.add_norm(&self.norm)
    }

    /// [1, width] of an audio's spectrograms, [frames, bands] each: the whole, and with it three parts where
    /// these are fused.
    pub fn forward(&self, spectrograms: &[Vec<f32>], cancel: &CancelToken) -> Result<Tensor> {
        let images = spectrograms.iter().map(|values| {
            let image = self.folding.fold(values)?;
            let image = Tensor::from_vec(image, self.config.edge.pow(2), &self.device)?;
            Ok(image.to_dtype(self.dtype)?)
        });
        let images: Vec<Tensor> = images.collect::<Result<_>>()?;
        let mut map = FeatureMap::new(self.patches.forward(&images)?, self.config.grid())?;
        for stage in &self.stages {
            map = stage.forward(map, cancel)?;
        }
        let states = self.norm.forward(&map.rows)?.to_dtype(DType::F32)?;
        Ok(states.mean_keepdim(0)?)
    }
}
