//! What is where in pictures: a label for every pixel.

use rayon::prelude::*;

use crate::models::detection::numbers;
use crate::models::masked::{self, Found, Mask2Former};
use crate::models::prompted::{self, Prompt, Sam};
use crate::models::segmentation::Segmenter;
use crate::nn::feature_map::{between, FeatureMap};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;
use candle_core::DType;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::{Image, Processor, View, CHANNELS};

use super::loading::{numbered_labels, Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::masked_parts::{self, Kind, Part};
use super::vision::{self, Picture};

pub struct SegmentModel {
    finder: Finder,
    processor: Processor,
    labels: Vec<String>,
    info: ModelInfo,
}

#[allow(clippy::large_enum_variant, reason = "one per model")]
enum Finder {
    /// A label for every place.
    Labels(Segmenter),
    /// Things with a mask each.
    Masks(Mask2Former),
    /// Masks of what points and boxes show.
    Prompts(Sam),
}

/// A mask of a thing that a prompt shows, white where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptMask {
    /// How good the model thinks that it is.
    pub score: f32,
    pub mask: Image,
}

/// The label of every pixel of a picture, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segmentation {
    pub width: usize,
    pub height: usize,
    pub labels: Vec<u16>,
}

impl Segmentation {
    /// The labels that it has, in rising order.
    pub fn present(&self) -> Vec<u16> {
        let mut found = self.labels.clone();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// White where a label is, black elsewhere.
    pub fn mask(&self, label: u16) -> Result<Image> {
        let shade = |&found: &u16| [if found == label { 255 } else { 0 }; CHANNELS];
        let pixels = self.labels.iter().flat_map(shade).collect();
        Image::new(self.width, self.height, pixels)
    }
}

impl SegmentModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let config = checkpoint.required_config("images")?;
        let place = (&checkpoint.opened, checkpoint.dtype);
        let source = checkpoint.source.as_ref();
        let found = config.model_type()?.unwrap_or_default().to_owned();
        let (finder, labels, sizes, inventory) = if prompted::TYPES.contains(&&found[..]) {
            let sam = Sam::load(config, source, place, checkpoint.int8, cancel)?;
            let (sizes, inventory) = ((sam.hidden_size(), sam.layer_count()), sam.inventory()?);
            (Finder::Prompts(sam), Vec::new(), sizes, inventory)
        } else if masked::TYPES.contains(&&found[..]) {
            let model = Mask2Former::load(config, source, place, checkpoint.int8, cancel)?;
            let labels = labels_of(config, model.classes())?;
            let sizes = (model.hidden_size(), model.layer_count());
            let inventory = model.inventory()?;
            (Finder::Masks(model), labels, sizes, inventory)
        } else {
            let segmenter = Segmenter::load(config, source, place, checkpoint.int8, cancel)?;
            let labels = labels_of(config, segmenter.classes())?;
            let sizes = (segmenter.hidden_size(), segmenter.layer_count());
            let inventory = segmenter.inventory()?;
            (Finder::Labels(segmenter), labels, sizes, inventory)
        };
        let shape = ModelShape {
            family: &found,
            hidden_size: sizes.0,
            layers: sizes.1,
            attention_heads: 0,
            vocabulary: 0,
        };
        let info = ModelInfo::of(&checkpoint, &shape, inventory, options.verifies())?;
        Ok(Self {
            processor: vision::processor(files, None, cancel)?,
            finder,
            labels,
            info,
        })
    }

    /// Whether it tells things of one label apart.
    pub fn finds_things(&self) -> bool {
        matches!(self.finder, Finder::Masks(_))
    }

    /// Things in each picture whose score is above the threshold, or all parts of it, best first. `first` is what
    /// errors call the first picture.
    pub fn parts(
        &self,
        pictures: &[Picture],
        kind: &Kind,
        threshold: f32,
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<Part>>> {
        let Finder::Masks(model) = &self.finder else {
            let reason = "this segmenter does not tell things of one label apart";
            return Err(Error::InvalidInput(reason.into()));
        };
        vision::each(pictures, first, cancel, |picture| {
            let image = picture.decode()?;
            let view = self.processor.process(&image, cancel)?;
            self.info.device.compute(|| {
                let found = self.found(model, &view, cancel)?;
                let size = (image.width(), image.height());
                masked_parts::parts(&found, kind, threshold, size, cancel)
            })?
        })
    }

    fn found(&self, model: &Mask2Former, view: &View, cancel: &CancelToken) -> Result<Found> {
        let found = model.forward(view, cancel)?;
        self.info.check_numbers(&found.logits)?;
        self.info.check_numbers(&numbers(&found.masks.rows)?)?;
        Ok(found)
    }

    /// Whether calls show what is to be found.
    pub fn takes_prompts(&self) -> bool {
        matches!(self.finder, Finder::Prompts(_))
    }

    /// The masks of what each prompt shows in a picture, in pixels of it: several for each, or one.
    pub fn segment_prompts(
        &self,
        picture: &Picture,
        prompts: &[Prompt],
        several: bool,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<PromptMask>>> {
        let Finder::Prompts(sam) = &self.finder else {
            let reason = "this segmenter takes no points and boxes";
            return Err(Error::InvalidInput(reason.into()));
        };
        let image = picture.decode()?;
        let view = self.processor.process(&image, cancel)?;
        let (width, height) = (image.width(), image.height());
        let (resized, whole) = self.processor.sizes(width, height);
        let wider = (resized.0 as f64 / width as f64) as f32;
        let higher = (resized.1 as f64 / height as f64) as f32;
        self.info.device.compute(|| {
            let encoded = sam.encode(&view, cancel)?;
            let mut all = Vec::with_capacity(prompts.len());
            for prompt in prompts {
                cancel.check()?;
                let points = prompt.points.iter();
                let points = points.map(|&(x, y, inside)| (x * wider, y * higher, inside));
                let prompt = Prompt {
                    points: points.collect(),
                    corners: prompt.corners.map(|[left, top, right, bottom]| {
                        [left * wider, top * higher, right * wider, bottom * higher]
                    }),
                };
                let found = sam.masks(&encoded, &prompt, several)?;
                self.info.check_numbers(&found.scores)?;
                let map = if sam.is_second() {
                    found.map
                } else {
                    let map = found.map.stretched((whole.1, whole.0))?;
                    map.cut((resized.1, resized.0))?
                };
                all.push(self.masks_of(&map, (width, height), &found.scores, cancel)?);
            }
            Ok(all)
        })?
    }

    /// Masks as large as the picture, line by line: what lies between places is kept for no more than a line.
    fn masks_of(
        &self,
        map: &FeatureMap,
        (width, height): (usize, usize),
        scores: &[f32],
        cancel: &CancelToken,
    ) -> Result<Vec<PromptMask>> {
        let values: Vec<f32> = map.rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        self.info.check_numbers(&values)?;
        let channels = map.channels()?;
        let all = [scores.len(), width, height, CHANNELS];
        memory::ensure_elements(&all, 1, "the masks of an image")?;
        let (across, down) = (between(map.width, width), between(map.height, height));
        let one = |(number, &score): (usize, &f32)| {
            let at = |y: usize, x: usize| values[(y * map.width + x) * channels + number];
            let mut pixels = vec![0u8; width * height * CHANNELS];
            let lines = pixels.par_chunks_mut((width * CHANNELS).max(1)).zip(&down);
            lines.try_for_each(|(line, &(top, below, lower))| {
                cancel.check()?;
                let upper = 1.0 - lower;
                for (pixel, &(left, right, later)) in line.chunks_exact_mut(CHANNELS).zip(&across) {
                    let earlier = 1.0 - later;
                    let value = at(top, left) * (upper * earlier)
                        + at(top, right) * (upper * later)
                        + at(below, left) * (lower * earlier)
                        + at(below, right) * (lower * later);
                    pixel.fill(if value > 0.0 { 255 } else { 0 });
                }
                Result::Ok(())
            })?;
            let mask = Image::new(width, height, pixels)?;
            Ok(PromptMask { score, mask })
        };
        scores.iter().enumerate().take(channels).map(one).collect()
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The likeliest label of every pixel of each picture. `first` is what errors call the first picture.
    pub fn segment(
        &self,
        pictures: &[Picture],
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Segmentation>> {
        vision::each(pictures, first, cancel, |picture| self.one(picture, cancel))
    }

    fn one(&self, picture: &Picture, cancel: &CancelToken) -> Result<Segmentation> {
        if self.takes_prompts() {
            let reason = "this segmenter needs points or boxes";
            return Err(Error::InvalidInput(reason.into()));
        }
        let image = picture.decode()?;
        let view = self.processor.process(&image, cancel)?;
        self.info.device.compute(|| {
            let scores = match &self.finder {
                Finder::Labels(segmenter) => segmenter.forward(&view, cancel)?,
                Finder::Masks(model) => masked_parts::labels(&self.found(model, &view, cancel)?)?,
                Finder::Prompts(_) => {
                    return Err(Error::Internal("a segmenter without labels".into()));
                }
            };
            self.likeliest(&scores, (image.width(), image.height()), cancel)
        })?
    }

    /// Scores between places are means of those around.
    fn likeliest(
        &self,
        map: &FeatureMap,
        (width, height): (usize, usize),
        cancel: &CancelToken,
    ) -> Result<Segmentation> {
        let scores: Vec<f32> = map.rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        self.info.check_numbers(&scores)?;
        memory::ensure_elements(&[width, height], 2, "the labels of an image")?;
        let classes = map.channels()?;
        let (across, down) = (between(map.width, width), between(map.height, height));
        let mut labels = vec![0u16; width * height];
        labels
            .par_chunks_mut(width.max(1))
            .zip(&down)
            .try_for_each(|(row, &(top, below, lower))| -> Result<()> {
                cancel.check()?;
                for (label, &(left, right, later)) in row.iter_mut().zip(&across) {
                    let at =
                        |y: usize, x: usize| &scores[(y * map.width + x) * classes..][..classes];
                    let corners = [
                        at(top, left),
                        at(top, right),
                        at(below, left),
                        at(below, right),
                    ];
                    let mut best = f32::NEG_INFINITY;
                    for class in 0..classes {
                        let [a, b, c, d] = corners.map(|scores| scores[class]);
                        let upper = a * (1.0 - later) + b * later;
                        let under = c * (1.0 - later) + d * later;
                        let score = upper * (1.0 - lower) + under * lower;
                        if score > best {
                            (best, *label) = (score, class as u16);
                        }
                    }
                }
                Ok(())
            })?;
        Ok(Segmentation {
            width,
            height,
            labels,
        })
    }
}

/// The names of so many classes.
fn labels_of(config: &RawConfig, classes: usize) -> Result<Vec<String>> {
    if classes == 0 || classes > usize::from(u16::MAX) {
        let reason = format!("a segmenter of {classes} labels is not supported");
        return Err(Error::unsupported(config.file(), reason));
    }
    let labels = config.id2label()?.filter(|labels| labels.len() >= classes);
    Ok(labels.unwrap_or_else(|| numbered_labels(classes)))
}
