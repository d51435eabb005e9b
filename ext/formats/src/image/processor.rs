//! What a checkpoint's `preprocessor_config.json` makes of a picture.

use super::canvas;
use super::flexible;
use super::page::{self, Page};
use super::resample::{resize_as, Filter, Rounding};
use super::size::Target;
use super::slices;
use super::smooth::Planes;
use super::target_config::{
    bounded, channels, convnext, detr, edge_of, edges, frame_pixels, in_multiples, longest,
    nearest, patch_blocks, pixels, target, target_of, target_of_crop, whole_patches,
};
use super::tiles::{self, Tiling, Views};
use super::usual::Usual;
use super::{Image, CHANNELS};
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Error, Result};
use base::runtime::memory;

/// The steps between a picture and the numbers that a model reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// Pad to a square in the mean colour before anything else (LLaVA).
    squares: bool,
    /// The same after resizing (Janus).
    squares_after: bool,
    tiling: Tiling,
    target: Option<Target>,
    pub(super) filter: Filter,
    /// What pages are brought to (Donut).
    page: Option<Page>,
    /// (width, height)
    crop: Option<(usize, usize)>,
    /// What is done to a byte: (value − shift) · scale.
    shift: [f32; CHANNELS],
    scale: [f32; CHANNELS],
    mean: [f64; CHANNELS],
    resizing: Resizing,
    pub(super) rounding: Rounding,
    /// Numbers are rounded to 16 bits after each step (Llama 4).
    halves: Option<[[f32; 3]; CHANNELS]>,
    /// Edges become multiples of this by zeros around the picture (DPT).
    multiple: Option<usize>,
    /// Questions are drawn above pictures (Pix2Struct).
    header: bool,
    /// (width, height) that pictures are filled up to with zeros, to the right and below (SAM).
    filled: Option<(usize, usize)>,
}

/// What becomes of the numbers between the pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resizing {
    /// Rounded, as Pillow does.
    Bytes,
    /// Kept (DINOv3).
    Numbers,
    /// Kept, as far as bytes go (PP-DocLayoutV4).
    Clamped,
    /// Kept, less the mean of the picture and divided by its deviation (Pix2Struct).
    Standardized,
    /// Kept, of a picture that is black to the right and below until it is a square (OWLv2).
    Smoothed { squares: bool },
}

/// A picture as a model reads it: [channels, height, width].
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub width: usize,
    pub height: usize,
    pub values: Vec<f32>,
}

/// How the numbers of a patch follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// All of red, then green, then blue: the weights of a convolution.
    ByChannel,
    /// Pixel by pixel (SigLIP 2).
    ByPixel,
}

/// No model has longer edges.
pub(super) const EDGES: std::ops::RangeInclusive<usize> = 1..=16_384;

/// Of a resized picture.
pub(super) const MOST_PIXELS: usize = 100_000_000;

/// `CLIPImageProcessorFast` and `CLIPFeatureExtractor` are CLIP's.
fn kind(raw: &RawConfig) -> Result<&str> {
    let name = raw.opt_string(["image_processor_type", "feature_extractor_type"])?;
    let name = name.unwrap_or("CLIPImageProcessor");
    let endings = ["Fast", "Pil", "ImageProcessor", "FeatureExtractor"];
    Ok(endings.iter().fold(name, |name, ending| {
        name.strip_suffix(ending).unwrap_or(name)
    }))
}

impl Processor {
    /// From `preprocessor_config.json`.
    pub fn read(raw: &RawConfig) -> Result<Self> {
        let kind = kind(raw)?;
        let usual = Usual::of(kind).ok_or_else(|| {
            Error::unsupported(
                raw.file(),
                format!("the image processor {kind:?} is unsupported"),
            )
        })?;
        let flag = |key: &str, otherwise: bool| -> Result<bool> {
            Ok(raw.opt_bool(key)?.unwrap_or(otherwise))
        };
        let target = match kind {
            "Siglip2" => Target::Patches {
                patch: raw.opt_usize_in("patch_size", EDGES)?.unwrap_or(16),
                most: raw.opt_usize_in("max_num_patches", EDGES)?.unwrap_or(256),
            },
            "Qwen2VL" | "Qwen2_5_VL" => pixels(raw, (56 * 56, 28 * 28 * 1280))?,
            "Gemma4" => patch_blocks(raw)?,
            "Pix2Struct" => Target::MostPatches {
                patch: edge_of(raw, "patch_size", "height")?.unwrap_or(16),
                most: raw.opt_usize_in("max_patches", EDGES)?.unwrap_or(2048),
            },
            "Glm4v" | "Glm46V" => frame_pixels(raw)?,
            "PaddleOCRVL" => match pixels(raw, (384 * 384, 1536 * 1536))? {
                Target::Pixels {
                    factor,
                    least,
                    most,
                } => Target::GrownPixels {
                    factor,
                    least,
                    most,
                },
                other => other,
            },
            "Idefics3" | "SmolVLM" => longest(raw)?.unwrap_or(usual.target),
            "Idefics2" => bounded(raw)?,
            "Pixtral" => whole_patches(raw)?,
            "Janus" | "DeepseekVL" => Target::LongestFrom {
                longest: edge_of(raw, "size", "height")?.unwrap_or(384),
                least: raw.opt_usize_in("min_size", EDGES)?.unwrap_or(14),
            },
            "DPT" => nearest(raw)?,
            "Sam" => Target::LongestNearest(edge_of(raw, "size", "longest_edge")?.unwrap_or(1024)),
            "Detr" | "ConditionalDetr" | "DeformableDetr" | "GroundingDino" | "Yolos" => {
                detr(raw, kind == "Yolos")?
            }
            "MaskFormer" | "Mask2Former" => in_multiples(raw)?,
            _ => target(raw, "size", usual.square)?.unwrap_or(usual.target),
        };
        let (target, within) = match (kind, target) {
            ("ConvNext", Target::Shortest(edge)) => convnext(raw, edge)?,
            _ => (target, None),
        };
        let crop = match target_of_crop(raw)? {
            Some(size) => Some(size),
            None => match kind {
                "Beit" => Some((224, 224)),
                "EfficientNet" => Some((289, 289)),
                _ => usual.crop.map(|edge| (edge, edge)),
            },
        };
        let number = raw.opt_usize("resample")?;
        let filter = match number {
            None => usual.filter,
            Some(number) => Filter::from_number(number).ok_or_else(|| {
                Error::unsupported(
                    raw.file(),
                    format!("there is no resampling filter {number}"),
                )
            })?,
        };
        // These have no processor of Pillow's.
        let page = kind.starts_with("PPDocLayout");
        let torch = page || matches!(kind, "Cohere2Vision" | "Lfm2Vl" | "Llama4" | "Sam2");
        if torch && !matches!(filter, Filter::Bilinear | Filter::Bicubic) {
            let reason = format!(
                "the image processor {kind:?} resamples bilinearly or bicubically, not by {filter:?}"
            );
            return Err(Error::unsupported(raw.file(), reason));
        }
        let filter = match filter {
            Filter::Bicubic if page => Filter::FourPlaces,
            Filter::Bilinear if page => {
                let reason = format!("the image processor {kind:?} resamples bicubically");
                return Err(Error::unsupported(raw.file(), reason));
            }
            other => other,
        };
        let mean = channels(raw, "image_mean")?.unwrap_or(usual.mean);
        let deviation = channels(raw, "image_std")?.unwrap_or(usual.deviation);
        if deviation.contains(&0.0) {
            return Err(Error::corrupt(raw.file(), "\"image_std\" is 0"));
        }
        let factor = if kind != "Pix2Struct" && flag("do_rescale", true)? {
            raw.opt_f64("rescale_factor")?.unwrap_or(1.0 / 255.0)
        } else {
            1.0
        };
        let normalizes = flag("do_normalize", usual.normalizes)?;
        let by_channel = |number: fn(f64, f64, f64) -> f64| -> [f32; CHANNELS] {
            std::array::from_fn(|at| {
                if normalizes {
                    number(mean[at], deviation[at], factor) as f32
                } else {
                    number(0.0, 1.0, factor) as f32
                }
            })
        };
        let mut shift = by_channel(|mean, _, factor| mean / factor);
        let mut scale = by_channel(|_, deviation, factor| factor / deviation);
        if kind == "EfficientNet" {
            let offset = flag("rescale_offset", false)? && flag("do_rescale", true)?;
            let again = flag("include_top", true)?;
            for at in 0..CHANNELS {
                shift[at] += if offset { (1.0 / factor) as f32 } else { 0.0 };
                scale[at] /= if again { deviation[at] as f32 } else { 1.0 };
            }
        }
        let divisor = raw.opt_usize_in("size_divisor", EDGES)?;
        Ok(Self {
            filled: match target_of(raw, "pad_size")? {
                _ if kind != "Sam" || !flag("do_pad", true)? => None,
                Some(size) => Some(size),
                None => Some((1024, 1024)),
            },
            resizing: match kind {
                "DINOv3ViT" => Resizing::Numbers,
                "PPDocLayoutV4" => Resizing::Clamped,
                "Pix2Struct" if normalizes => Resizing::Standardized,
                "Pix2Struct" => Resizing::Numbers,
                "Owlv2" => Resizing::Smoothed {
                    squares: flag("do_pad", true)?,
                },
                _ => Resizing::Bytes,
            },
            halves: (kind == "Llama4" && normalizes && flag("do_rescale", true)?).then(|| {
                let steps = |at: usize| [factor as f32, mean[at] as f32, deviation[at] as f32];
                std::array::from_fn(steps)
            }),
            rounding: if torch {
                Rounding::Torch
            } else {
                Rounding::Pillow
            },
            multiple: divisor.filter(|_| kind == "DPT" && flag("do_pad", false).unwrap_or(false)),
            squares: flag("do_pad", usual.squares)? && kind == "Llava",
            squares_after: flag("do_pad", true)? && matches!(kind, "Janus" | "DeepseekVL"),
            tiling: match kind {
                "Idefics3" | "SmolVLM" => tiles::squares(raw)?,
                "LlavaNext" => tiles::pinpoints(raw, crop, false)?,
                "LlavaOnevision" => tiles::pinpoints(raw, crop.or(edges(target)), true)?,
                "Gemma3" => tiles::pieces(raw)?,
                "GotOcr2" => tiles::grid(raw, false)?,
                "Cohere2Vision" => tiles::grid(raw, true)?,
                "Llama4" => canvas::read(raw, target)?,
                "Idefics2" if flag("do_image_splitting", false)? => Tiling::Quarters,
                "Ovis2" => tiles::keeping(raw)?,
                "Lfm2Vl" => Tiling::Flexible(flexible::read(raw)?),
                "MiniCPMV4_6" => Tiling::Slices(slices::read(raw)?),
                _ => Tiling::Whole,
            },
            header: kind == "Pix2Struct" && flag("is_vqa", false)?,
            page: match kind {
                "Donut" | "Nougat" => Some(page::read(raw, kind == "Nougat", target)?),
                _ => None,
            },
            target: flag("do_resize", true)?.then_some(target),
            filter,
            crop: crop
                .filter(|_| flag("do_center_crop", usual.crop.is_some()).unwrap_or(false))
                .or(within),
            shift,
            scale,
            mean,
        })
    }

    /// The same, of pictures whose edges are multiples of so many pixels; of those processors that have patches.
    pub fn in_multiples(mut self, edge: usize) -> Self {
        if let Some(Target::WholePatches { patch, .. }) = &mut self.target {
            *patch = edge.max(1);
        }
        self
    }

    /// The same, as one of the libraries rounds.
    pub(super) fn rounded_by(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    /// The same, of pictures that are brought to another size.
    pub(super) fn resized_by(self, target: Target) -> Self {
        Self {
            target: Some(target),
            ..self
        }
    }

    /// Whether pages are prepared as Nougat does it.
    pub fn is_nougat(&self) -> bool {
        self.page.is_some_and(|page| page.nougat)
    }

    /// Whether prompts have the numbers of pictures.
    pub fn counts_images(&self) -> bool {
        matches!(&self.tiling, Tiling::Slices(slices) if slices.counted)
    }

    /// Whether questions are drawn above pictures.
    pub fn has_header(&self) -> bool {
        self.header
    }

    /// (width, height) of every view, where pictures are all brought to one.
    pub fn fixed_size(&self) -> Option<(usize, usize)> {
        match (self.crop, self.target) {
            (Some(crop), _) => Some(crop),
            (None, Some(Target::Exact { width, height })) => Some((width, height)),
            (None, Some(Target::LongestFrom { longest, .. })) if self.squares_after => {
                Some((longest, longest))
            }
            _ => None,
        }
    }

    /// The picture alone.
    pub fn process(&self, image: &Image, cancel: &CancelToken) -> Result<View> {
        if let Some(page) = &self.page {
            let image = page.process(image, self.filter, cancel)?;
            return match self.crop {
                Some((width, height)) => self.view(&centred(&image, width, height)?),
                None => self.view(&image),
            };
        }
        let squared = if self.squares && image.width() != image.height() {
            Some(self.square(image)?)
        } else {
            None
        };
        let image = squared.as_ref().unwrap_or(image);
        if self.resizing != Resizing::Bytes {
            return self.unrounded(image, cancel);
        }
        let mut image = self.resized(image, cancel)?;
        if self.squares_after {
            image = self.square(&image)?;
        }
        let view = match self.crop {
            Some((width, height)) => self.view(&centred(&image, width, height)?)?,
            None => self.view(&image)?,
        };
        match (self.multiple, self.filled) {
            (Some(edge), _) => view.in_multiples(edge),
            (None, Some(size)) if size.0 >= view.width && size.1 >= view.height => {
                view.within(size, (0, 0))
            }
            (None, _) => Ok(view),
        }
    }

    /// (width, height) of a picture behind resizing, and of all that a model reads of it.
    pub fn sizes(&self, width: usize, height: usize) -> ((usize, usize), (usize, usize)) {
        let resized = match self.target {
            Some(target) => target.of(width, height),
            None => (width, height),
        };
        (resized, self.filled.unwrap_or(resized))
    }

    fn unrounded(&self, image: &Image, cancel: &CancelToken) -> Result<View> {
        let (width, height) = (image.width(), image.height());
        let size = match self.target {
            Some(target) => target.of(width, height),
            None => (width, height),
        };
        check_resized(image, size.0, size.1)?;
        let planes = match self.resizing {
            Resizing::Smoothed { squares: true } => {
                let edge = width.max(height);
                let mut square = Image::filled(edge, edge, [0; CHANNELS])?;
                square.paste(image, 0, 0);
                Planes::smoothed(&square, size, cancel)?
            }
            Resizing::Smoothed { squares: false } => Planes::smoothed(image, size, cancel)?,
            Resizing::Clamped => {
                Planes::resized(image, size, self.filter, cancel)?.clamped(0.0, 255.0)
            }
            Resizing::Bytes | Resizing::Numbers | Resizing::Standardized => {
                Planes::resized(image, size, self.filter, cancel)?
            }
        };
        let planes = match self.crop {
            Some((width, height)) => planes.centred(width, height),
            None => planes,
        };
        Ok(match self.resizing {
            Resizing::Standardized => {
                let (mean, deviation) = moments(image);
                planes.view([mean; CHANNELS], [1.0 / deviation; CHANNELS])
            }
            _ => planes.view(self.shift, self.scale),
        })
    }

    /// The picture and its tiles, as the checkpoint cuts it.
    pub fn views(&self, image: &Image, cancel: &CancelToken) -> Result<Views> {
        match &self.tiling {
            Tiling::Whole => Ok(Views {
                views: vec![self.process(image, cancel)?],
                tiles: (0, 0),
                size: (image.width(), image.height()),
            }),
            Tiling::Squares { edge, splits } => {
                tiles::cut_squares(self, image, (*edge, *splits), cancel)
            }
            Tiling::Pinpoints { sizes, edge, alone } => {
                let whole = self.fixed_size().filter(|_| *alone);
                let whole = whole.unwrap_or((*edge, *edge));
                tiles::cut_pinpoints(self, image, (sizes, *edge, whole), cancel)
            }
            Tiling::Flexible(flexible) => flexible.cut(self, image, cancel),
            Tiling::Slices(slices) => slices.cut(self, image, cancel),
            Tiling::Grid {
                choice,
                whole_first,
            } => tiles::cut_grid(self, image, (*choice, *whole_first), cancel),
            Tiling::Canvas {
                edge,
                most,
                largest,
            } => canvas::cut(self, image, (*edge, *most, *largest), cancel),
            Tiling::Quarters => tiles::cut_quarters(self, image, cancel),
            Tiling::Pieces { least, most, ratio } => {
                tiles::cut_pieces(self, image, (*least, *most, *ratio), cancel)
            }
        }
    }

    /// Whether a picture is shown otherwise where others stand beside it.
    pub fn tells_alone(&self) -> bool {
        matches!(self.tiling, Tiling::Pinpoints { alone: true, .. })
    }

    /// `views` of one of so many pictures of a prompt.
    pub fn views_among(&self, image: &Image, count: usize, cancel: &CancelToken) -> Result<Views> {
        if count < 2 || !self.tells_alone() {
            return self.views(image, cancel);
        }
        let square = if image.width() == image.height() {
            image.clone()
        } else {
            self.square(image)?
        };
        Ok(Views {
            views: vec![self.process(&square, cancel)?],
            tiles: (0, 0),
            size: (image.width(), image.height()),
        })
    }

    /// Of the size that the model wants.
    pub(super) fn resized(&self, image: &Image, cancel: &CancelToken) -> Result<Image> {
        match self.target {
            Some(target) => self.resized_to(target, image, cancel),
            None => Ok(image.clone()),
        }
    }

    pub(super) fn resized_to(
        &self,
        target: Target,
        image: &Image,
        cancel: &CancelToken,
    ) -> Result<Image> {
        let (width, height) = target.of(image.width(), image.height());
        check_resized(image, width, height)?;
        resize_as(self.rounding, image, (width, height), self.filter, cancel)
    }

    fn square(&self, image: &Image) -> Result<Image> {
        let edge = image.width().max(image.height());
        let colour = self.mean.map(|mean| (mean * 255.0) as u8);
        let mut square = Image::filled(edge, edge, colour)?;
        let (left, top) = ((edge - image.width()) / 2, (edge - image.height()) / 2);
        square.paste(image, left, top);
        Ok(square)
    }

    pub(super) fn view(&self, image: &Image) -> Result<View> {
        let (width, height) = (image.width(), image.height());
        memory::ensure_elements(&[width, height, CHANNELS], 4, "the pixels of an image")?;
        let mut values = Vec::with_capacity(width * height * CHANNELS);
        for channel in 0..CHANNELS {
            let (shift, scale) = (self.shift[channel], self.scale[channel]);
            let number = |byte: usize| {
                if let Some(steps) = self.halves {
                    canvas::rounded(byte as f32, steps[channel])
                } else {
                    (byte as f32 - shift) * scale
                }
            };
            let table: [f32; 256] = std::array::from_fn(number);
            let bytes = image.pixels().iter().skip(channel).step_by(CHANNELS);
            values.extend(bytes.map(|&byte| table[usize::from(byte)]));
        }
        Ok(View {
            width,
            height,
            values,
        })
    }
}

impl View {
    /// Whole patches, row by row, each as `order` says.
    pub fn patches(&self, patch: usize, order: PatchOrder, into: &mut Vec<f32>) {
        let plane = self.width * self.height;
        let (columns, rows) = (self.width / patch, self.height / patch);
        let at = |channel: usize, y: usize, x: usize| channel * plane + y * self.width + x;
        for row in 0..rows {
            for column in 0..columns {
                let (left, top) = (column * patch, row * patch);
                match order {
                    PatchOrder::ByChannel => {
                        for channel in 0..CHANNELS {
                            for y in top..top + patch {
                                into.extend(&self.values[at(channel, y, left)..][..patch]);
                            }
                        }
                    }
                    PatchOrder::ByPixel => {
                        for y in top..top + patch {
                            for x in left..left + patch {
                                into.extend((0..CHANNELS).map(|c| self.values[at(c, y, x)]));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A picture one pixel wide can be as long as it likes, until it is scaled up.
pub(super) fn check_resized(image: &Image, width: usize, height: usize) -> Result<()> {
    match width.checked_mul(height) {
        Some(pixels) if pixels <= MOST_PIXELS => Ok(()),
        _ => Err(Error::InvalidInput(format!(
            "an image of {}x{} pixels is too long and narrow: the model resizes it to {width}x{height}",
            image.width(),
            image.height()
        ))),
    }
}

/// The mean and the deviation of all bytes of a picture.
fn moments(image: &Image) -> (f32, f32) {
    let count = image.pixels().len().max(1) as f64;
    let bytes = image.pixels().iter().map(|&byte| f64::from(byte));
    let mean = bytes.clone().sum::<f64>() / count;
    let variance = bytes.map(|byte| (byte - mean).powi(2)).sum::<f64>() / count;
    (mean as f32, variance.sqrt().max(1.0 / count.sqrt()) as f32)
}

/// The middle of a picture; where that is larger than the picture, the rest is black.
fn centred(image: &Image, width: usize, height: usize) -> Result<Image> {
    let (wide, high) = (image.width().max(width), image.height().max(height));
    let padded = if (wide, high) == (image.width(), image.height()) {
        None
    } else {
        let mut padded = Image::filled(wide, high, [0; CHANNELS])?;
        padded.paste(
            image,
            (wide - image.width()) / 2,
            (high - image.height()) / 2,
        );
        Some(padded)
    };
    let image = padded.as_ref().unwrap_or(image);
    Ok(image.crop((wide - width) / 2, (high - height) / 2, width, height))
}
