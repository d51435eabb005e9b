//! What a language model sees: images as rows of its own width, which stand in a prompt like tokens.

mod video;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::models::decoder::image_embeddings::ImageEmbedding;
use crate::models::decoder::Decoder;
use crate::models::families::Blueprint;
use crate::models::parameters::Parameters;
use crate::models::parts::Names;
use crate::models::vision::connector::{Connector, Layout, Rows};
use crate::models::vision::own::Own;
use crate::models::vision::vlm::{Pattern, Spelling, Token, VlmConfig};
use crate::nn::Inventory;
use crate::{CancelToken, Error, Result};
use base::runtime::device::Device;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::{Image, Processor};
use formats::text::tokenizer::Tokenizer;
use formats::weights::WeightSource;

use video::Videos;

use super::generate::LanguageModel;
use super::loading::{Checkpoint, LoadOptions};
use super::vision::{self, Picture, VisionTower};

/// Stands where the number of an image will (MiniCPM-V).
const NUMBERED: &str = "<image_id></image_id>";
/// Stands where the number of a video will.
const NUMBERED_VIDEO: &str = "<image_id>video</image_id>";
/// Images that were looked at last are kept up to this many bytes of rows.
const KEPT_BYTES: usize = 256 << 20;

/// The image encoder of a language model: a vision tower and the connector into the decoder.
pub struct ImageEncoder {
    tower: ImageTower,
    device: Device,
    videos: Option<Videos>,
    config: VlmConfig,
    /// The text of the marker, and of what a template writes for an image.
    marker: String,
    /// `None` where the tokenizer has no such token.
    marker_id: Option<u32>,
    place: String,
    /// What stands around a marker, where the spelling says so.
    start: String,
    end: String,
    recent: Mutex<Vec<(Key, Arc<ImageEmbeddings>)>>,
    encodings: AtomicUsize,
    inventory: Inventory,
}

/// The vision tower: one of the shared kind with a connector, or one with a forward pass of its own.
#[allow(clippy::large_enum_variant, reason = "one per model")]
enum ImageTower {
    Connected(VisionTower, Connector),
    Own(Processor, Own),
}

type Key = [u8; 32];

/// What was seen of one image: what a prompt says of it, and what stands there for each marker.
pub struct ImageEmbeddings {
    pub spelling: String,
    pub parts: Vec<Arc<ImageEmbedding>>,
}

impl ImageEmbeddings {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes()).sum()
    }
}

impl ImageEncoder {
    /// Whether a checkpoint has a vision tower.
    pub fn is_in(raw: &RawConfig) -> bool {
        raw.has("vision_config")
    }

    /// The image encoder of a model that was loaded from `files`.
    pub fn load(
        language: &LanguageModel,
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let (checkpoint, blueprint) = if language.is_gguf() {
            let checkpoint = Checkpoint::open_mmproj(files, options, cancel)?;
            let blueprint = Blueprint::from_gguf(checkpoint.source.as_ref())?;
            (checkpoint, blueprint)
        } else {
            let checkpoint = Checkpoint::open(files, options, cancel)?;
            let raw = checkpoint.config.as_ref().filter(|raw| Self::is_in(raw));
            let raw = raw.ok_or_else(|| {
                Error::UnsupportedModel(format!(
                    "{} has no vision tower: it reads texts only",
                    files.id()
                ))
            })?;
            let blueprint = Blueprint::<VlmConfig>::from_config(raw)?;
            (checkpoint, blueprint)
        };
        let width = language.decoder().config().hidden_size;
        let host = (width, language.tokenizer());
        Self::of(blueprint, &checkpoint, files, host, cancel)
    }

    /// The image encoder of a model of some width with its tokenizer.
    pub(super) fn of(
        blueprint: Blueprint<VlmConfig>,
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        (outputs, tokenizer): (usize, &Tokenizer),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let Blueprint { config, names, .. } = blueprint;
        let processor = vision::processor(files, config.images.as_ref(), cancel)?;
        let processor = match config.multiple {
            Some(edge) => processor.in_multiples(edge),
            None => processor,
        };
        let videos = match &config.video {
            Some(video) => Videos::load(video, files, config.images.as_ref(), tokenizer, cancel)?,
            None => None,
        };
        let source = checkpoint.source.as_ref();
        let (tower, inventory) = match &config.own {
            Some(own) => {
                let (place, sizes) = (
                    (&checkpoint.opened, checkpoint.dtype),
                    (outputs, checkpoint.int8),
                );
                let own = Own::load(own, source, place, sizes, cancel)?;
                let inventory = own.inventory()?;
                (ImageTower::Own(processor, own), inventory)
            }
            None => {
                let vision = VisionTower::of(&config.tower, checkpoint, processor, cancel)?;
                let (mut connector, inventory) =
                    connector(&config, &names, (&vision, outputs), checkpoint)?;
                if config.connector.layout == Layout::Indicated {
                    let parameters =
                        Parameters::new(source, &names, &checkpoint.opened, checkpoint.dtype)?;
                    let numbers = indicators(&config.indicators, tokenizer)
                        .map_err(|reason| Error::unsupported(&source.file(""), reason))?;
                    connector = connector.indicated(&parameters, numbers)?;
                }
                (ImageTower::Connected(vision, connector), inventory)
            }
        };
        let token = |token: Token| match token {
            Token::Name(name) => Ok((name.to_owned(), tokenizer.token_to_id(name))),
            Token::Id(id) => match tokenizer.id_to_token(id) {
                Some(name) => Ok((name, Some(id))),
                None => Err(Error::corrupt(
                    &source.file(""),
                    format!("its token {id}, which stands for images, is not in the tokenizer"),
                )),
            },
        };
        let (marker, marker_id) = token(config.marker)?;
        let (start, end) = match config.spelling {
            Spelling::Framed { start, end } | Spelling::Enclosed { start, end } => {
                (token(start)?.0, token(end)?.0)
            }
            Spelling::Open { start } => (token(start)?.0, String::new()),
            Spelling::Prefix => (String::new(), begin(tokenizer, source)?),
            _ => (String::new(), String::new()),
        };
        let place = match config.spelling {
            Spelling::Framed { .. } => start.clone(),
            Spelling::Pattern(Pattern {
                place: Some(place), ..
            }) => place.to_owned(),
            Spelling::Separated => "<|image|>".to_owned(),
            Spelling::Marker
            | Spelling::Prefix
            | Spelling::Tiles
            | Spelling::Places
            | Spelling::Slices
            | Spelling::Enclosed { .. }
            | Spelling::Open { .. }
            | Spelling::Pattern(_)
            | Spelling::Between(_) => marker.clone(),
        };
        Ok(Self {
            tower,
            device: checkpoint.device,
            videos,
            config,
            marker,
            marker_id,
            place,
            start,
            end,
            recent: Mutex::new(Vec::new()),
            encodings: AtomicUsize::new(0),
            inventory,
        })
    }

    /// What stands in a prompt for what was seen.
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// The token of that; a tokenizer may have none.
    pub fn marker_id(&self) -> Option<u32> {
        self.marker_id
    }

    /// What a template writes for an image.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// How often the tower ran.
    pub fn encodings(&self) -> usize {
        self.encodings.load(Ordering::Relaxed)
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// What the model sees of each picture. One that was looked at lately is not looked at again.
    pub fn encode(
        &self,
        language: &LanguageModel,
        pictures: &[Picture],
        cancel: &CancelToken,
    ) -> Result<Vec<Arc<ImageEmbeddings>>> {
        self.encode_for(language.decoder(), pictures, cancel)
    }

    /// The same of a decoder.
    pub(super) fn encode_for(
        &self,
        decoder: &Decoder,
        pictures: &[Picture],
        cancel: &CancelToken,
    ) -> Result<Vec<Arc<ImageEmbeddings>>> {
        let mut seen = Vec::with_capacity(pictures.len());
        for picture in pictures {
            cancel.check()?;
            let image = picture.decode()?;
            let alone = match &self.tower {
                ImageTower::Connected(vision, _) => vision.tells_alone(),
                ImageTower::Own(..) => false,
            };
            let count = if alone { pictures.len().min(2) } else { 1 };
            let key = key(&image, count);
            let known = self.recall(&key);
            seen.push(match known {
                Some(embeddings) => embeddings,
                None => {
                    let embeddings = Arc::new(self.embeddings(decoder, (&image, count), cancel)?);
                    self.keep(key, embeddings.clone());
                    embeddings
                }
            });
        }
        Ok(seen)
    }

    fn embeddings(
        &self,
        decoder: &Decoder,
        image: (&Image, usize),
        cancel: &CancelToken,
    ) -> Result<ImageEmbeddings> {
        let (spelling, rows) = self.look(image, cancel)?;
        let admit = |Rows { rows, deep, grid }: Rows| decoder.admit(rows, deep, grid);
        Ok(ImageEmbeddings {
            spelling,
            parts: rows.into_iter().map(admit).collect::<Result<_>>()?,
        })
    }

    /// What a prompt says of one of so many images, and what stands there for each marker.
    pub(super) fn look(
        &self,
        image: (&Image, usize),
        cancel: &CancelToken,
    ) -> Result<(String, Vec<Rows>)> {
        self.encodings.fetch_add(1, Ordering::Relaxed);
        let config = &self.config;
        let (rows, tiles) = match &self.tower {
            ImageTower::Connected(vision, connector) => vision.see(
                image,
                (&config.layers[..], config.whole),
                cancel,
                |states, grids, views| {
                    let rows = connector.forward(states, grids, views)?;
                    Ok((rows, views.tiles))
                },
            )?,
            ImageTower::Own(processor, own) => {
                let views = processor.views(image.0, cancel)?;
                let rows = self
                    .device
                    .compute(|| own.forward(&views.views, cancel))??;
                (rows, views.tiles)
            }
        };
        Ok((self.spelling(tiles, rows.len()), rows))
    }

    /// What a prompt says of an image of so many (columns, rows) of tiles and so many markers.
    fn spelling(&self, (columns, rows): (usize, usize), markers: usize) -> String {
        const AROUND: &str = "<fake_token_around_image>";
        let Self {
            marker,
            place,
            start,
            end,
            ..
        } = self;
        match self.config.spelling {
            Spelling::Marker | Spelling::Prefix => marker.clone(),
            Spelling::Between(around) => {
                let one = format!("{around}{marker}{around}");
                vec![one; markers].concat()
            }
            Spelling::Enclosed { .. } => format!("{start}{marker}{end}"),
            Spelling::Open { .. } => format!("\n\n{start}{marker}\n\n"),
            Spelling::Slices => {
                let counted = if self.counts() { NUMBERED } else { "" };
                format!("{counted}{}", sliced(marker, (columns, rows)))
            }
            Spelling::Pattern(pattern) => pattern.spelling(marker, markers),
            Spelling::Places => {
                let tile = |number: usize| match (number / columns.max(1), number % columns.max(1))
                {
                    _ if columns * rows < 2 => marker.clone(),
                    (row, _) if row >= rows => format!("<|img_thumbnail|>{marker}"),
                    (row, column) => {
                        format!("<|img_row_{}_col_{}|>{marker}", row + 1, column + 1)
                    }
                };
                let all: String = (0..markers).map(tile).collect();
                format!("<|image_start|>{all}<|image_end|>")
            }
            Spelling::Framed { .. } => {
                let whole = format!("\n\n{place}{marker}{end}\n\n");
                if columns * rows == 0 {
                    return whole;
                }
                let pieces = vec![whole.as_str(); columns * rows].join(" ");
                format!(
                    "Here is the original image {whole} and here are some crops to help you see better {pieces}"
                )
            }
            Spelling::Separated => {
                let line = vec![marker.as_str(); columns].join("<|tile_x_separator|>");
                let lines = format!("{line}<|tile_y_separator|>").repeat(rows);
                format!("<|image_start|>{lines}{place}{marker}<|image_end|>")
            }
            Spelling::Tiles => {
                let tile = |row: usize, column: usize| {
                    format!("{AROUND}<row_{}_col_{}>{marker}", row + 1, column + 1)
                };
                let line = |row: usize| -> String {
                    let tiles = (0..columns).map(|column| tile(row, column));
                    tiles.chain(["\n".to_owned()]).collect()
                };
                let lines: String = (0..rows).map(line).collect();
                let gap = if rows > 0 { "\n" } else { "" };
                format!("{lines}{gap}{AROUND}<global-img>{marker}{AROUND}")
            }
        }
    }

    /// Whether prompts count images and videos.
    fn counts(&self) -> bool {
        matches!(&self.tower, ImageTower::Own(processor, _) if processor.counts_images())
    }

    /// Whether prompts have no other special tokens than those that images bring (PaliGemma).
    pub fn is_prefix(&self) -> bool {
        self.config.spelling == Spelling::Prefix
    }

    /// A prompt in which all images are spelled, as the processor gives it to the tokenizer.
    pub fn finish(&self, prompt: &str) -> String {
        let Self { marker, end, .. } = self;
        match self.config.spelling {
            Spelling::Prefix => match prompt.rfind(marker.as_str()) {
                Some(last) => {
                    let (before, behind) = prompt.split_at(last + marker.len());
                    format!("{before}{end}{behind}\n")
                }
                None => prompt.to_owned(),
            },
            Spelling::Between(around) => apart(&prompt.replace(&around.repeat(2), around), around),
            Spelling::Slices => numbered(&numbered(prompt, NUMBERED), NUMBERED_VIDEO),
            _ => prompt.to_owned(),
        }
    }

    fn recall(&self, key: &Key) -> Option<Arc<ImageEmbeddings>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let found = recent.iter().position(|(known, _)| known == key)?;
        let entry = recent.remove(found);
        let embeddings = entry.1.clone();
        recent.push(entry);
        Some(embeddings)
    }

    fn keep(&self, key: Key, embeddings: Arc<ImageEmbeddings>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push((key, embeddings));
        let mut bytes: usize = recent.iter().map(|(_, seen)| seen.bytes()).sum();
        while bytes > KEPT_BYTES && recent.len() > 1 {
            bytes -= recent.remove(0).1.bytes();
        }
    }
}

/// The first token of texts.
fn begin(tokenizer: &Tokenizer, source: &dyn WeightSource) -> Result<String> {
    let id = tokenizer.special_tokens().id("bos_token");
    id.and_then(|id| tokenizer.id_to_token(id)).ok_or_else(|| {
        let reason = "its tokenizer has no bos_token, which stands behind the images of a prompt";
        Error::unsupported(&source.file(""), reason)
    })
}

/// The whole of a picture, and its slices line by line (MiniCPM-V).
fn sliced(marker: &str, (columns, rows): (usize, usize)) -> String {
    let slices = format!("<slice>{marker}</slice>").repeat(columns);
    let lines = vec![slices; rows].join("\n");
    format!("<image>{marker}</image>{lines}")
}

/// `prompt` with a number for each place of one.
fn numbered(prompt: &str, place: &str) -> String {
    let mut pieces = prompt.split(place);
    let mut numbered = pieces.next().unwrap_or_default().to_owned();
    for (number, piece) in pieces.enumerate() {
        numbered.push_str(&format!("<image_id>{number}</image_id>{piece}"));
    }
    numbered
}

/// `prompt` with a space behind each of some tokens that a word follows.
fn apart(prompt: &str, token: &str) -> String {
    let mut pieces = prompt.split(token);
    let mut apart = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        apart.push_str(token);
        let first = piece.chars().next();
        if first.is_some_and(|first| !first.is_whitespace() && first != '<') {
            apart.push(' ');
        }
        apart.push_str(piece);
    }
    apart
}

/// Which of the indicators stand at the start, behind the whole, between columns, between rows and at the end.
fn indicators(ids: &[i64], tokenizer: &Tokenizer) -> std::result::Result<[usize; 5], String> {
    let names = [
        "<IMG_START>",
        "<IMG_GRID>",
        "<IMG_COL>",
        "<IMG_ROW>",
        "<IMG_END>",
    ];
    let mut numbers = [0; 5];
    for (number, name) in numbers.iter_mut().zip(names) {
        let id = tokenizer.token_to_id(name).map(i64::from);
        let found = ids.iter().position(|other| Some(*other) == id);
        *number = found.ok_or_else(|| {
            format!("its token {name} is not among \"visual_indicator_token_ids\"")
        })?;
    }
    Ok(numbers)
}

/// What leads from a tower to rows of so many numbers, and what both are made of.
fn connector(
    config: &VlmConfig,
    names: &Names,
    (vision, outputs): (&VisionTower, usize),
    checkpoint: &Checkpoint,
) -> Result<(Connector, Inventory)> {
    let source = checkpoint.source.as_ref();
    let in_lines = config.connector.layout == Layout::Joined;
    if config.whole && in_lines && vision.tower.leading_count() > 0 {
        return Err(Error::unsupported(
            &source.file(""),
            "vision_feature_select_strategy: full keeps the token before the patches, for which lines of tiles have no \
             place",
        ));
    }
    let parameters = Parameters::new(source, names, &checkpoint.opened, checkpoint.dtype)?;
    let inputs = vision.tower.config().encoder.hidden_size * config.layers.len().max(1);
    let connector = Connector::load(config.connector, &config.deep, &parameters, inputs, outputs)?;
    let mut inventory = vision.tower.inventory()?;
    connector.list(&mut inventory)?;
    Ok((connector, inventory))
}

/// The same for the same pixels, alone or beside others.
fn key(image: &Image, count: usize) -> Key {
    let mut hash = Sha256::new();
    hash.update(image.width().to_le_bytes());
    hash.update(image.height().to_le_bytes());
    hash.update(count.to_le_bytes());
    hash.update(image.pixels());
    hash.finalize().into()
}
