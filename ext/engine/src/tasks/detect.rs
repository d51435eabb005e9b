//! Things in pictures: what they are, and the boxes around them.

use std::sync::Arc;

use crate::models::detection::{Detector, Predictions, Scoring, GROUNDED_TYPES, OPEN_TYPES};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::image::{Image, Processor};

use super::grounded_detection::{self, GroundedDetector, Phrases};
use super::loading::{numbered_labels, Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::open_detection::OpenDetector;
use super::vision::{self, Picture};

pub struct DetectModel {
    finder: Finder,
    processor: Processor,
    labels: Vec<String>,
    info: ModelInfo,
}

#[allow(clippy::large_enum_variant, reason = "one per model")]
enum Finder {
    /// Things of classes that it was trained with.
    Closed(Detector),
    /// Things that a call names; boxes may be parts of a square around the picture.
    Open(OpenDetector, bool),
    /// The same as one text.
    Grounded(GroundedDetector),
}

/// What a call names, as a model compares it.
enum Named {
    Nothing,
    /// One row for each label.
    Rows(Vec<Vec<f32>>),
    Phrases(Phrases),
}

/// A thing in a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// Its place among the labels.
    pub label: usize,
    pub score: f32,
    /// Left, top, right and bottom in pixels.
    pub corners: [f32; 4],
}

impl DetectModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let config = checkpoint.required_config("images")?;
        let found = config.model_type()?.unwrap_or_default().to_owned();
        let (finder, labels, shape, inventory) = if OPEN_TYPES.contains(&&found[..]) {
            let detector = OpenDetector::load(config, &checkpoint, files, options, cancel)?;
            let (hidden_size, layers, attention_heads, vocabulary) = detector.sizes();
            let shape = ModelShape {
                family: &found,
                hidden_size,
                layers,
                attention_heads,
                vocabulary,
            };
            let inventory = detector.inventory()?;
            let finder = Finder::Open(detector, found == "owlv2");
            (finder, Vec::new(), shape, inventory)
        } else if GROUNDED_TYPES.contains(&&found[..]) {
            let detector = GroundedDetector::load(config, &checkpoint, files, options, cancel)?;
            let (hidden_size, layers, attention_heads, vocabulary) = detector.model.sizes();
            let shape = ModelShape {
                family: &found,
                hidden_size,
                layers,
                attention_heads,
                vocabulary,
            };
            let inventory = detector.model.inventory()?;
            (Finder::Grounded(detector), Vec::new(), shape, inventory)
        } else {
            let place = (&checkpoint.opened, checkpoint.dtype);
            let source = checkpoint.source.as_ref();
            let detector = Detector::load(config, source, place, checkpoint.int8, cancel)?;
            let classes = detector.classes();
            let labels = config.id2label()?.filter(|labels| labels.len() >= classes);
            let heads = config.opt_usize(["decoder_attention_heads", "num_attention_heads"])?;
            let shape = ModelShape {
                family: &found,
                hidden_size: detector.hidden_size(),
                layers: detector.layer_count(),
                attention_heads: heads.unwrap_or(0),
                vocabulary: 0,
            };
            let inventory = detector.inventory()?;
            let labels = labels.unwrap_or_else(|| numbered_labels(classes));
            (Finder::Closed(detector), labels, shape, inventory)
        };
        let info = ModelInfo::of(&checkpoint, &shape, inventory, options.verifies())?;
        Ok(Self {
            processor: vision::processor(files, None, cancel)?,
            finder,
            labels,
            info,
        })
    }

    /// Whether calls name what is to be found.
    pub fn takes_labels(&self) -> bool {
        matches!(self.finder, Finder::Open(..) | Finder::Grounded(_))
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The things of each picture whose score is above the threshold, best first, or those of a page in the order
    /// in which it is read. `first` is what errors call the first picture.
    pub fn detect(
        &self,
        pictures: &[Picture],
        threshold: f32,
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<Detection>>> {
        self.find(pictures, &[], threshold, first, cancel)
    }

    /// The same of things that have one of these labels, by their place among them; of detectors that take labels.
    pub fn find(
        &self,
        pictures: &[Picture],
        labels: &[String],
        threshold: f32,
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<Detection>>> {
        if self.takes_labels() && labels.is_empty() {
            let reason = "this detector needs at least one label";
            return Err(Error::InvalidInput(reason.into()));
        }
        let named = self.named(labels, cancel)?;
        vision::each(pictures, first, cancel, |picture| {
            let (image, predictions) = self.predict_of(picture, &named, cancel)?;
            Ok(self.things(&predictions, &named, &image, threshold))
        })
    }

    /// What the model says of a picture, before anything is chosen.
    pub fn predict(
        &self,
        picture: &Picture,
        cancel: &CancelToken,
    ) -> Result<(Arc<Image>, Predictions)> {
        self.predict_of(picture, &Named::Nothing, cancel)
    }

    /// The same for labels.
    pub fn predict_labels(
        &self,
        picture: &Picture,
        labels: &[String],
        cancel: &CancelToken,
    ) -> Result<(Arc<Image>, Predictions)> {
        self.predict_of(picture, &self.named(labels, cancel)?, cancel)
    }

    fn named(&self, labels: &[String], cancel: &CancelToken) -> Result<Named> {
        Ok(match &self.finder {
            Finder::Closed(_) => Named::Nothing,
            Finder::Open(detector, _) => Named::Rows(detector.queries(labels, cancel)?),
            Finder::Grounded(detector) => Named::Phrases(detector.phrases(labels, cancel)?),
        })
    }

    fn predict_of(
        &self,
        picture: &Picture,
        named: &Named,
        cancel: &CancelToken,
    ) -> Result<(Arc<Image>, Predictions)> {
        let image = picture.decode()?;
        let view = self.processor.process(&image, cancel)?;
        let predictions = self.info.device.compute(|| match (&self.finder, named) {
            (Finder::Closed(detector), _) => detector.forward(&view, cancel),
            (Finder::Open(detector, _), Named::Rows(rows)) => detector.forward(&view, rows, cancel),
            (Finder::Grounded(detector), Named::Phrases(phrases)) => {
                detector.forward(&view, phrases, cancel)
            }
            _ => {
                let reason = "this detector needs at least one label";
                Err(Error::InvalidInput(reason.into()))
            }
        })??;
        self.info.check_numbers(&predictions.logits)?;
        self.info.check_numbers(&predictions.boxes.concat())?;
        Ok((image, predictions))
    }

    fn things(
        &self,
        predictions: &Predictions,
        named: &Named,
        image: &Image,
        threshold: f32,
    ) -> Vec<Detection> {
        let scored = match (&self.finder, named) {
            (Finder::Closed(detector), _) => match detector.scoring() {
                Scoring::Exclusive => exclusive(predictions),
                Scoring::Independent => independent(predictions),
            },
            (_, Named::Phrases(phrases)) => grounded_detection::best(predictions, &phrases.owners),
            _ => best(predictions),
        };
        let (mut width, mut height) = (image.width() as f32, image.height() as f32);
        if matches!(self.finder, Finder::Open(_, true)) {
            (width, height) = (width.max(height), width.max(height));
        }
        let above = scored.into_iter().filter(|&(score, ..)| score > threshold);
        let above: Vec<_> = above.collect();
        let mut chosen: Vec<usize> = above.iter().map(|&(_, query, _)| query).collect();
        chosen.sort_unstable();
        chosen.dedup();
        let places = predictions.order.as_ref().map(|order| order.of(&chosen));
        let things = above.into_iter().filter_map(|(score, query, label)| {
            let [x, y, wide, high] = *predictions.boxes.get(query)?;
            let place = places.as_ref().zip(chosen.binary_search(&query).ok());
            let place = place.map(|(places, at)| places[at]);
            let thing = Detection {
                label,
                score,
                corners: [
                    (x - 0.5 * wide) * width,
                    (y - 0.5 * high) * height,
                    (x + 0.5 * wide) * width,
                    (y + 0.5 * high) * height,
                ],
            };
            Some((place, thing))
        });
        let mut things: Vec<_> = things.collect();
        things.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.score.total_cmp(&a.1.score)));
        things.into_iter().map(|(_, thing)| thing).collect()
    }
}

/// The best label of each query, and its score by itself.
fn best(predictions: &Predictions) -> Vec<(f32, usize, usize)> {
    let rows = predictions.logits.chunks_exact(predictions.classes.max(1));
    let each = rows.enumerate().filter_map(|(query, row)| {
        let all = row.iter().copied().enumerate();
        let (label, logit) = all.reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        Some((1.0 / (1.0 + (-logit).exp()), query, label))
    });
    each.collect()
}

/// Score, query and label of each query.
fn exclusive(predictions: &Predictions) -> Vec<(f32, usize, usize)> {
    let rows = predictions.logits.chunks_exact(predictions.classes.max(1));
    let best = rows.enumerate().filter_map(|(query, row)| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|logit| (logit - most).exp()).sum();
        // The last one stands for nothing.
        let things = row.iter().take(row.len() - 1).enumerate();
        let (label, logit) = things.reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        Some(((logit - most).exp() / sum, query, label))
    });
    best.collect()
}

/// The best of all queries and labels, as many as there are queries.
fn independent(predictions: &Predictions) -> Vec<(f32, usize, usize)> {
    let classes = predictions.classes.max(1);
    let mut order: Vec<(f32, usize)> = predictions.logits.iter().copied().zip(0..).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let best = order.into_iter().take(predictions.boxes.len());
    best.map(|(logit, at)| (1.0 / (1.0 + (-logit).exp()), at / classes, at % classes))
        .collect()
}
