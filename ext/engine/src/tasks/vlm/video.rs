//! Videos as a language model sees them: lists of frames, with the times at which they were taken.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use candle_core::Tensor;
use sha2::{Digest, Sha256};

use super::{sliced, ImageEmbeddings, ImageEncoder, ImageTower, Key, NUMBERED_VIDEO};
use crate::models::decoder::image_embeddings::Grid;
use crate::models::vision::connector::Rows;
use crate::models::vision::vlm::{Token, VideoConfig};
use crate::tasks::generate::LanguageModel;
use crate::tasks::vision::Picture;
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::{FrameKind, Frames, Image, VideoProcessor};
use formats::text::tokenizer::Tokenizer;

/// What stands around each image of a video in Qwen3-VL's prompts.
const AROUND: (&str, &str) = ("<|vision_start|>", "<|vision_end|>");

/// What a model makes of videos.
pub struct Videos {
    processor: VideoProcessor,
    config: VideoConfig,
    /// What a template writes for a video.
    place: String,
}

impl Videos {
    /// `None` where the tokenizer has no token for videos.
    pub fn load(
        config: &VideoConfig,
        files: &ModelFiles,
        images: Option<&RawConfig>,
        tokenizer: &Tokenizer,
        cancel: &CancelToken,
    ) -> Result<Option<Self>> {
        let place = match config.place {
            Token::Name(name) => Some(name.to_owned()),
            Token::Id(id) => tokenizer.id_to_token(id),
        };
        let Some((place, raw)) = place.zip(settings(files, images, cancel)?) else {
            return Ok(None);
        };
        Ok(Some(Self {
            processor: VideoProcessor::read(&raw, config.frames)?,
            config: *config,
            place,
        }))
    }

    /// What stands for each marker: one for all frames, where they are told apart by their places alone.
    fn joined(&self, rows: Vec<Rows>, rate: f64) -> Result<Vec<Rows>> {
        if self.config.frames != FrameKind::Pixels || rows.is_empty() {
            return Ok(rows);
        }
        let interval = match self.config.per_second {
            Some(count) => count * (2.0 / rate) as f32,
            None => 1.0,
        };
        let grid = rows[0].grid.map(|grid| Grid { interval, ..grid });
        let all: Vec<&Tensor> = rows.iter().map(|rows| &rows.rows).collect();
        Ok(vec![Rows {
            rows: Tensor::cat(&all, 0)?,
            deep: Vec::new(),
            grid,
        }])
    }

    /// What a prompt says of a video of so many frames, whose parts stand for so many markers, and of which each has
    /// these slices.
    fn spelling(
        &self,
        encoder: &ImageEncoder,
        (frames, parts): (usize, usize),
        slices: &[(usize, usize)],
        rate: f64,
    ) -> String {
        let ImageEncoder {
            marker, start, end, ..
        } = encoder;
        let second = |frame: usize| frame as f64 / rate;
        match self.config.frames {
            FrameKind::Pixels | FrameKind::Exact => marker.clone(),
            FrameKind::Squares => {
                let frame = |number: usize| {
                    format!(
                        "\nFrame from {}:{}",
                        minutes(second(number)),
                        encoder.spelling((0, 0), 1)
                    )
                };
                let all: String = (0..parts).map(frame).collect();
                let last = second(frames.saturating_sub(1));
                format!(
                    "You are provided the following series of {} frames from a {} [H:MM:SS] video.\n{all}\n\n",
                    words(frames),
                    duration(last as u64)
                )
            }
            FrameKind::SharedPixels => {
                let pair = |number: usize| {
                    let behind = (2 * number + 1).min(frames.saturating_sub(1));
                    let time = (second(2 * number) + second(behind)) / 2.0;
                    format!("<{time:.1} seconds>{}{marker}{}", AROUND.0, AROUND.1)
                };
                (0..parts).map(pair).collect()
            }
            FrameKind::PatchBlocks => {
                let frame =
                    |number: usize| format!("{} {start}{marker}{end}", minutes(second(number)));
                let all: Vec<String> = (0..parts).map(frame).collect();
                all.join(" ")
            }
            FrameKind::Slices => {
                let counted = if encoder.counts() { NUMBERED_VIDEO } else { "" };
                let all: String = slices.iter().map(|&tiles| sliced(marker, tiles)).collect();
                format!("{counted}{all}")
            }
        }
    }
}

impl ImageEncoder {
    /// What a template writes for a video; `None` where the model reads none.
    pub fn video_place(&self) -> Option<&str> {
        self.videos.as_ref().map(|videos| videos.place.as_str())
    }

    /// What the model sees of the frames of a video, of which so many were taken in a second.
    pub fn encode_video(
        &self,
        language: &LanguageModel,
        frames: &[Picture],
        rate: f64,
        cancel: &CancelToken,
    ) -> Result<Arc<ImageEmbeddings>> {
        let videos = self.videos.as_ref().ok_or_else(|| {
            Error::InvalidInput("this model does not read videos: pass frames as images".into())
        })?;
        if !rate.is_finite() || rate <= 0.0 {
            return Err(Error::InvalidInput(format!(
                "fps must be finite and greater than 0, not {rate}"
            )));
        }
        let images = frames.iter().enumerate().map(|(index, frame)| {
            cancel.check()?;
            frame.decode().map_err(|error| match error {
                Error::InvalidInput(reason) => {
                    Error::InvalidInput(format!("the frame at index {index}: {reason}"))
                }
                other => other,
            })
        });
        let images = images.collect::<Result<Vec<Arc<Image>>>>()?;
        let key = key(&images, rate);
        if let Some(known) = self.recall(&key) {
            return Ok(known);
        }
        let images: Vec<&Image> = images.iter().map(AsRef::as_ref).collect();
        let prepared = videos.processor.frames(&images, rate, cancel)?;
        let rows = videos.joined(self.rows(videos, &prepared, cancel)?, rate)?;
        let counts = (frames.len(), rows.len());
        let spelling = videos.spelling(self, counts, &prepared.slices, rate);
        let decoder = language.decoder();
        let admit = |Rows { rows, deep, grid }: Rows| decoder.admit(rows, deep, grid);
        let seen = Arc::new(ImageEmbeddings {
            spelling,
            parts: rows.into_iter().map(admit).collect::<Result<_>>()?,
        });
        self.keep(key, seen.clone());
        Ok(seen)
    }

    /// Of each frame, or of each pair of frames.
    fn rows(&self, videos: &Videos, frames: &Frames, cancel: &CancelToken) -> Result<Vec<Rows>> {
        self.encodings.fetch_add(1, Ordering::Relaxed);
        match &self.tower {
            ImageTower::Connected(vision, connector) => {
                let read = (&self.config.layers[..], self.config.whole);
                let frames = (&frames.views[..], &frames.behind[..]);
                vision.see_frames(frames, read, cancel, |states, grids| {
                    match videos.config.frames {
                        FrameKind::Exact => Ok(vec![connector.halved(states, grids)?]),
                        _ => connector.frames(states, grids),
                    }
                })
            }
            ImageTower::Own(_, own) => self.device.compute(|| -> Result<Vec<Rows>> {
                let mut rows = Vec::new();
                for view in &frames.views {
                    rows.extend(own.forward(std::slice::from_ref(view), cancel)?);
                }
                Ok(rows)
            })?,
        }
    }
}

/// What says how frames are prepared, or else images.
fn settings(
    files: &ModelFiles,
    images: Option<&RawConfig>,
    cancel: &CancelToken,
) -> Result<Option<RawConfig>> {
    if let Some(path) = files.file("video_preprocessor_config.json", cancel)? {
        return RawConfig::read(&path).map(Some);
    }
    if let Some(path) = files.file("processor_config.json", cancel)? {
        let whole = RawConfig::read(&path)?;
        if let Some(own) = whole.opt_nested(["video_processor", "image_processor"])? {
            return Ok(Some(own));
        }
    }
    match files.file("preprocessor_config.json", cancel)? {
        Some(path) => RawConfig::read(&path).map(Some),
        None => Ok(images.cloned()),
    }
}

/// The same for the same frames at the same rate.
fn key(images: &[Arc<Image>], rate: f64) -> Key {
    let mut hash = Sha256::new();
    hash.update("video");
    hash.update(rate.to_bits().to_le_bytes());
    for image in images {
        hash.update(image.width().to_le_bytes());
        hash.update(image.height().to_le_bytes());
        hash.update(image.pixels());
    }
    hash.finalize().into()
}

/// MM:SS
fn minutes(seconds: f64) -> String {
    let whole = seconds as u64;
    format!("{:02}:{:02}", whole / 60, whole % 60)
}

/// H:MM:SS, behind days.
fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    match days {
        0 => clock,
        1 => format!("1 day, {clock}"),
        days => format!("{days} days, {clock}"),
    }
}

/// A number in English.
fn words(number: usize) -> String {
    const SMALL: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 8] = [
        "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    ];
    match number {
        0..20 => SMALL[number].to_owned(),
        20..100 if number.is_multiple_of(10) => TENS[number / 10 - 2].to_owned(),
        20..100 => format!("{}-{}", TENS[number / 10 - 2], SMALL[number % 10]),
        100..1000 => {
            let hundreds = format!("{} hundred", SMALL[number / 100]);
            match number % 100 {
                0 => hundreds,
                rest => format!("{hundreds} and {}", words(rest)),
            }
        }
        1000..1_000_000 => {
            let thousands = format!("{} thousand", words(number / 1000));
            match number % 1000 {
                0 => thousands,
                rest @ 1..100 => format!("{thousands} and {}", words(rest)),
                rest => format!("{thousands}, {}", words(rest)),
            }
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_written_as_in_python() {
        let numbers = [0, 13, 40, 64, 100, 128, 1000, 1001, 1234, 12_100];
        let written = [
            "zero",
            "thirteen",
            "forty",
            "sixty-four",
            "one hundred",
            "one hundred and twenty-eight",
            "one thousand",
            "one thousand and one",
            "one thousand, two hundred and thirty-four",
            "twelve thousand, one hundred",
        ];
        assert_eq!(numbers.map(words), written);
        assert_eq!([minutes(0.99), minutes(61.0)], ["00:00", "01:01"]);
        assert_eq!(duration(3_725), "1:02:05");
        assert_eq!(duration(2 * 86_400 + 59), "2 days, 0:00:59");
    }
}
