//! What tasks on images share: a tower with its processor, and pictures on their way to it.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Tensor;
use serde_json::json;

use crate::models::families;
use crate::models::vision::{Blueprint, Seen, Tower};
use crate::{CancelToken, Device, Error, Result};
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::{self, Image, Processor, View, Views};

use super::loading::Checkpoint;

/// A picture, decoded or not.
#[derive(Clone, Debug)]
pub enum Picture {
    Decoded(Arc<Image>),
    Encoded(Vec<u8>),
    File(PathBuf),
}

impl Picture {
    pub fn decode(&self) -> Result<Arc<Image>> {
        let limits = image::limits();
        match self {
            Self::Decoded(image) => Ok(image.clone()),
            Self::Encoded(bytes) => image::decode(bytes, &limits).map(Arc::new),
            Self::File(path) => image::read_file(path, &limits).map(Arc::new),
        }
    }
}

/// A vision tower and what its checkpoint makes of pictures before.
pub(super) struct VisionTower {
    pub tower: Tower,
    processor: Processor,
    device: Device,
}

impl VisionTower {
    pub fn load(
        raw: &RawConfig,
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let blueprint = Blueprint::from_config(raw)?;
        let processor = processor(files, None, cancel)?;
        Self::of(&blueprint, checkpoint, processor, cancel)
    }

    pub fn of(
        blueprint: &Blueprint,
        checkpoint: &Checkpoint,
        processor: Processor,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let source = checkpoint.source.as_ref();
        let place = (&checkpoint.opened, checkpoint.dtype);
        Ok(Self {
            tower: Tower::load(blueprint, source, place, checkpoint.int8, cancel)?,
            processor,
            device: checkpoint.device,
        })
    }

    /// `rows_after` all layers and the last norm.
    pub fn rows(
        &self,
        pictures: &[Picture],
        first: usize,
        cancel: &CancelToken,
        forward: impl Fn(&Seen) -> Result<Tensor> + Sync,
    ) -> Result<Vec<f32>> {
        self.rows_after(pictures, first, &[], cancel, forward)
    }

    /// Runs `forward` on the pictures, a batch at a time, and returns its rows: one per picture, in their
    /// order. `first` is what errors call the first picture.
    pub fn rows_after(
        &self,
        pictures: &[Picture],
        first: usize,
        layers: &[usize],
        cancel: &CancelToken,
        forward: impl Fn(&Seen) -> Result<Tensor> + Sync,
    ) -> Result<Vec<f32>> {
        let mut rows = Vec::new();
        let single = pictures.len() == 1 && first == 0;
        let views = threads::map(pictures, |index, picture| {
            cancel.check()?;
            let view = picture
                .decode()
                .and_then(|image| self.processor.process(&image, cancel));
            view.map_err(|error| named(error, first + index, single))
        })?;
        for batch in self.batches(&views) {
            cancel.check()?;
            let batch = &views[batch];
            let found = self.device.compute(|| -> Result<Vec<f32>> {
                let seen = self.tower.forward(batch, layers, cancel)?;
                let found = forward(&seen)?.to_dtype(candle_core::DType::F32)?;
                Ok(found.flatten_all()?.to_vec1()?)
            })??;
            rows.extend(found);
        }
        Ok(rows)
    }

    /// Whether a picture is shown otherwise where others stand beside it.
    pub fn tells_alone(&self) -> bool {
        self.processor.tells_alone()
    }

    /// What `read` makes of the views of one of so many pictures: of the states of each and of their (columns, rows),
    /// after some layers of the tower, or after all and its norm; of its patches, or of the whole of it.
    pub fn see<T: Send>(
        &self,
        (picture, count): (&Image, usize),
        (layers, whole): (&[usize], bool),
        cancel: &CancelToken,
        read: impl FnOnce(&[Tensor], &[(usize, usize)], &Views) -> Result<T> + Send,
    ) -> Result<T> {
        let views = self.processor.views_among(picture, count, cancel)?;
        self.see_frames(
            (&views.views, &[]),
            (layers, whole),
            cancel,
            |states, grids| read(states, grids, &views),
        )
    }

    /// The same of frames, each with the one behind it where there are those too.
    pub fn see_frames<T: Send>(
        &self,
        (views, behind): (&[View], &[View]),
        (layers, whole): (&[usize], bool),
        cancel: &CancelToken,
        read: impl FnOnce(&[Tensor], &[(usize, usize)]) -> Result<T> + Send,
    ) -> Result<T> {
        let grids: Vec<_> = views.iter().map(|view| self.tower.grid(view)).collect();
        self.device.compute(|| {
            let mut states = Vec::with_capacity(grids.len());
            for batch in self.batches(views) {
                cancel.check()?;
                let behind = behind.get(batch.clone()).unwrap_or_default();
                let frames = (&views[batch], behind);
                let seen = self.tower.forward_frames(frames, layers, cancel)?;
                states.extend(if whole {
                    seen.images()?
                } else {
                    seen.patches()?
                });
            }
            read(&states, &grids)
        })?
    }

    /// Runs of views within the token budget of the device; one view alone may be beyond it.
    fn batches(&self, views: &[View]) -> Vec<Range<usize>> {
        let budget = self.device.batch_tokens();
        let mut batches = Vec::new();
        let (mut start, mut filled) = (0, 0);
        for (index, view) in views.iter().enumerate() {
            let tokens = self.tower.tokens(view);
            if index > start && filled + tokens > budget {
                batches.push(start..index);
                (start, filled) = (index, 0);
            }
            filled += tokens;
        }
        if start < views.len() {
            batches.push(start..views.len());
        }
        batches
    }
}

/// The configuration of the images of a model of texts and images, whose type it takes over.
pub(super) fn of_pair(raw: &RawConfig) -> Result<Option<RawConfig>> {
    let own = raw.model_type()?.unwrap_or_default();
    if !families::PAIRS.contains(&own) {
        return Ok(None);
    }
    let nested = raw.opt_nested("vision_config")?;
    let nested = nested.map_or_else(|| RawConfig::parse(raw.file(), "{}"), Ok)?;
    let kind = json!({"model_type": format!("{own}_vision_model")});
    Ok(Some(nested.with_defaults(kind)))
}

/// What `one` makes of each picture, in their order. `first` is what errors call the first one.
pub(super) fn each<T>(
    pictures: &[Picture],
    first: usize,
    cancel: &CancelToken,
    one: impl Fn(&Picture) -> Result<T>,
) -> Result<Vec<T>> {
    let single = pictures.len() == 1 && first == 0;
    let found = pictures.iter().enumerate().map(|(index, picture)| {
        cancel.check()?;
        one(picture).map_err(|error| named(error, first + index, single))
    });
    found.collect()
}

/// An error that says which of several pictures is to blame.
pub(super) fn named(error: Error, index: usize, single: bool) -> Error {
    match error {
        Error::InvalidInput(reason) if !single => {
            Error::InvalidInput(format!("the image at index {index}: {reason}"))
        }
        other => other,
    }
}

/// From `preprocessor_config.json`, or from what newer versions write in its place, or from what the file of the
/// weights says.
pub(super) fn processor(
    files: &ModelFiles,
    otherwise: Option<&RawConfig>,
    cancel: &CancelToken,
) -> Result<Processor> {
    if let Some(path) = files.file("preprocessor_config.json", cancel)? {
        return Processor::read(&RawConfig::read(&path)?);
    }
    let whole = files.file("processor_config.json", cancel)?;
    let whole = whole.map(|path| RawConfig::read(&path)).transpose()?;
    let raw = match whole
        .map(|raw| raw.opt_nested("image_processor"))
        .transpose()?
    {
        Some(Some(raw)) => return Processor::read(&raw),
        _ => otherwise,
    };
    let raw = raw.ok_or_else(|| {
        Error::ModelNotFound(format!(
            "{} has no preprocessor_config.json, which says how images are prepared",
            files.id()
        ))
    })?;
    Processor::read(raw)
}
