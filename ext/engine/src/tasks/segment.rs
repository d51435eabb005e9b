//! What is where in pictures: a label for every pixel.

use rayon::prelude::*;

use crate::models::segmentation::Segmenter;
use crate::nn::feature_map::{between, FeatureMap};
use crate::{CancelToken, Error, Result};
use base::runtime::{memory, threads};
use candle_core::DType;
use formats::files::model_files::ModelFiles;
use formats::image::{Image, Processor, CHANNELS};

use super::loading::{numbered_labels, Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::vision::{self, Picture};

pub struct SegmentModel {
    segmenter: Segmenter,
    processor: Processor,
    labels: Vec<String>,
    info: ModelInfo,
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
        let segmenter = Segmenter::load(config, source, place, checkpoint.int8, cancel)?;
        let classes = segmenter.classes();
        if classes == 0 || classes > usize::from(u16::MAX) {
            let reason = format!("a segmenter of {classes} labels is not supported");
            return Err(Error::unsupported(config.file(), reason));
        }
        let labels = config.id2label()?.filter(|labels| labels.len() >= classes);
        let labels = labels.unwrap_or_else(|| numbered_labels(classes));
        let shape = ModelShape {
            family: "segformer",
            hidden_size: segmenter.hidden_size(),
            layers: segmenter.layer_count(),
            attention_heads: 0,
            vocabulary: 0,
        };
        let (inventory, verified) = (segmenter.inventory()?, options.verifies());
        let info = ModelInfo::of(&checkpoint, &shape, inventory, verified)?;
        Ok(Self {
            processor: vision::processor(files, None, cancel)?,
            segmenter,
            labels,
            info,
        })
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
        let single = pictures.len() == 1 && first == 0;
        let each = pictures.iter().enumerate().map(|(index, picture)| {
            cancel.check()?;
            let found = self.one(picture, cancel);
            found.map_err(|error| vision::named(error, first + index, single))
        });
        each.collect()
    }

    fn one(&self, picture: &Picture, cancel: &CancelToken) -> Result<Segmentation> {
        let image = picture.decode()?;
        let view = self.processor.process(&image, cancel)?;
        threads::install(|| {
            let scores = self.segmenter.forward(&view, cancel)?;
            self.likeliest(&scores, image.width(), image.height())
        })?
    }

    /// Scores between places are means of those around.
    fn likeliest(&self, map: &FeatureMap, width: usize, height: usize) -> Result<Segmentation> {
        let scores: Vec<f32> = map.rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        self.info.check_numbers(&scores)?;
        memory::ensure_elements(&[width, height], 2, "the labels of an image")?;
        let classes = map.channels()?;
        let (across, down) = (between(map.width, width), between(map.height, height));
        let mut labels = vec![0u16; width * height];
        labels
            .par_chunks_mut(width.max(1))
            .zip(&down)
            .for_each(|(row, &(top, below, lower))| {
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
            });
        Ok(Segmentation {
            width,
            height,
            labels,
        })
    }
}
