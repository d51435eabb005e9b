//! What stands in a prompt beside tokens: the rows that a vision tower makes of an image.
//!
//! Rows get ids beyond the vocabulary, and no two rows ever the same one. A prompt with images is so
//! a list of ids like any other, and what was read of it is found again like any other prefix.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use candle_core::{Device, Tensor};

use super::batch::BidirectionalSpan;
use super::config::DecoderConfig;
use super::model::{Decoder, Reading};
use crate::models::rope::Place;
use crate::{Error, Result};
use kernels::paged::{PagedBatch, PagedPiece};

/// In which layers the tokens of an image see each other, whichever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageAttention {
    #[default]
    Causal,
    /// In all (Gemma 3).
    Bidirectional,
    /// In those with a window (Gemma 4).
    BidirectionalInWindows,
}

impl DecoderConfig {
    /// Whether the tokens of an image see each other in some layers.
    pub fn has_bidirectional_images(&self) -> bool {
        self.bidirectional_images != ImageAttention::Causal
    }
}

/// Where rows stand that positions count in several directions: line by line, grid after grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    pub columns: usize,
    pub rows: usize,
    /// How far the grids of a video lie apart in time.
    pub interval: f32,
}

impl Grid {
    /// Of an image.
    pub fn still((columns, rows): (usize, usize)) -> Self {
        Self {
            columns,
            rows,
            interval: 0.0,
        }
    }

    /// The coordinates of a row, from the first one's on.
    fn place(&self, at: usize) -> Place {
        let (columns, rows) = (self.columns.max(1), self.rows.max(1));
        let time = (at / (columns * rows)) as f32 * self.interval;
        let at = at % (columns * rows);
        [time as u32, (at / columns) as u32, (at % columns) as u32]
    }
}

/// Rows of the decoder's width, for as long as someone holds them.
#[derive(Debug)]
pub struct ImageEmbedding {
    first: u32,
    /// [count, hidden]
    rows: Tensor,
    /// What is added to the stream after each of the first layers, alike (Qwen3-VL).
    deep: Vec<Tensor>,
    count: usize,
    /// What positions follow; without it rows stand one after the other.
    grid: Option<Grid>,
}

/// A run of tokens, or of the rows of one image, in a list of ids.
struct Run {
    length: usize,
    /// The image, and which of its rows is the first.
    image: Option<(Arc<ImageEmbedding>, usize)>,
}

/// The image embeddings that a decoder knows.
#[derive(Debug, Default)]
pub struct ImageTable(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    images: Vec<Weak<ImageEmbedding>>,
    /// How many ids were given.
    given: u32,
}

impl ImageEmbedding {
    pub fn ids(&self) -> Range<u32> {
        self.first..self.first + self.count as u32
    }

    /// What its rows take.
    pub fn bytes(&self) -> usize {
        let rows = self.rows.elem_count() * self.rows.dtype().size_in_bytes();
        rows * (1 + self.deep.len())
    }
}

impl ImageTable {
    /// Gives `rows`, [count, hidden], ids from `vocabulary` on; `deep` are such rows for the first layers.
    pub fn admit(
        &self,
        (rows, deep): (Tensor, Vec<Tensor>),
        grid: Option<Grid>,
        vocabulary: usize,
    ) -> Result<Arc<ImageEmbedding>> {
        let count = rows.dim(0)?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = u32::try_from(vocabulary)
            .ok()
            .and_then(|start| start.checked_add(known.given));
        let end = u32::try_from(count)
            .ok()
            .and_then(|count| first?.checked_add(count));
        let (Some(first), Some(end)) = (first, end) else {
            return Err(Error::Generation(
                "this model has read the maximum number of images: load it again".into(),
            ));
        };
        known.given = end - vocabulary as u32;
        known.images.retain(|image| image.strong_count() > 0);
        let image = Arc::new(ImageEmbedding {
            first,
            rows,
            deep,
            count,
            grid,
        });
        known.images.push(Arc::downgrade(&image));
        Ok(image)
    }

    /// Who has an id, if they are still here.
    pub fn find(&self, id: u32) -> Option<Arc<ImageEmbedding>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut images = known.images.iter().filter_map(Weak::upgrade);
        images.find(|image| image.ids().contains(&id))
    }

    /// `embedded` with the rows of images where their ids stand; ids below `vocabulary` are tokens.
    pub fn splice(&self, ids: &[u32], vocabulary: usize, embedded: Tensor) -> Result<Tensor> {
        if !has_images(ids, vocabulary) {
            return Ok(embedded);
        }
        let mut pieces = Vec::new();
        let mut start = 0;
        for run in self.runs(ids, vocabulary)? {
            pieces.push(match run.image {
                None => embedded.narrow(0, start, run.length)?,
                Some((image, first)) => image.rows.narrow(0, first, run.length)?,
            });
            start += run.length;
        }
        Ok(Tensor::cat(&pieces, 0)?)
    }

    /// What images add to the stream after each of the first layers; `embedded` has the shape. Tokens add nothing.
    pub fn deep(&self, ids: &[u32], vocabulary: usize, embedded: &Tensor) -> Result<Vec<Tensor>> {
        if !has_images(ids, vocabulary) {
            return Ok(Vec::new());
        }
        let runs = self.runs(ids, vocabulary)?;
        let images = runs.iter().filter_map(|run| run.image.as_ref());
        let layers = images.map(|(image, _)| image.deep.len()).max();
        let of_layer = |layer: usize| -> Result<Tensor> {
            let rows = runs.iter().map(|run| {
                let image = run.image.as_ref();
                let own = image.and_then(|(image, first)| Some((image.deep.get(layer)?, *first)));
                Ok(match own {
                    Some((rows, first)) => rows.narrow(0, first, run.length)?,
                    None => {
                        let shape = (run.length, embedded.dim(1)?);
                        Tensor::zeros(shape, embedded.dtype(), embedded.device())?
                    }
                })
            });
            Ok(Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)?)
        };
        (0..layers.unwrap_or(0)).map(of_layer).collect()
    }

    /// Which rows of `ids` are those of one image each, one after the other.
    pub fn ranges(&self, ids: &[u32], vocabulary: usize) -> Result<Vec<Range<usize>>> {
        let mut ranges = Vec::new();
        if has_images(ids, vocabulary) {
            let mut start = 0;
            for run in self.runs(ids, vocabulary)? {
                if run.image.is_some() {
                    ranges.push(start..start + run.length);
                }
                start += run.length;
            }
        }
        Ok(ranges)
    }

    /// Where the tokens after the first `read` of `ids` stand: the position of the first one, and the
    /// places of all where those are not positions one after the other.
    pub fn places(
        &self,
        ids: &[u32],
        read: usize,
        vocabulary: usize,
    ) -> Result<(usize, Option<Vec<Place>>)> {
        if !has_images(ids, vocabulary) {
            return Ok((read, None));
        }
        let mut places = Vec::with_capacity(ids.len());
        let mut next = 0;
        for run in self.runs(ids, vocabulary)? {
            let grid = run
                .image
                .and_then(|(image, first)| Some((image.grid?, first)));
            match grid {
                None => {
                    places.extend((next..next + run.length as u32).map(|at| [at; 3]));
                    next += run.length as u32;
                }
                Some((grid, first)) => {
                    let rows = first..first + run.length;
                    places
                        .extend(rows.map(|at| grid.place(at).map(|own| next.saturating_add(own))));
                    next += grid.columns.max(grid.rows) as u32;
                }
            }
        }
        let after = places.split_off(read.min(places.len()));
        let first = after.first().map_or(0, |place| place[0]);
        let follows = |(offset, place): (usize, &Place)| *place == [first + offset as u32; 3];
        Ok(if after.iter().enumerate().all(follows) {
            (first as usize, None)
        } else {
            (first as usize, Some(after))
        })
    }

    fn runs(&self, ids: &[u32], vocabulary: usize) -> Result<Vec<Run>> {
        let is_image = |id: &u32| *id as usize >= vocabulary;
        let mut runs = Vec::new();
        let mut rest = ids;
        while let Some(&id) = rest.first() {
            let run = if is_image(&id) {
                let image = self.find(id).ok_or_else(|| unknown(id, vocabulary))?;
                let own = image.ids();
                let run = rest.iter().zip(id..own.end);
                let length = run.take_while(|(&id, expected)| id == *expected).count();
                Run {
                    length,
                    image: Some((image, (id - own.start) as usize)),
                }
            } else {
                Run {
                    length: rest.iter().take_while(|id| !is_image(id)).count(),
                    image: None,
                }
            };
            rest = &rest[run.length..];
            runs.push(run);
        }
        Ok(runs)
    }
}

impl Decoder {
    /// Lets rows `[count, hidden]` stand in prompts, under ids of their own, and `deep` ones be added after the
    /// first layers. `grid` is that of those which have positions in several directions.
    pub fn admit(
        &self,
        rows: Tensor,
        deep: Vec<Tensor>,
        grid: Option<Grid>,
    ) -> Result<Arc<ImageEmbedding>> {
        let shape = [rows.dim(0)?, self.config().hidden_size];
        if [&rows]
            .into_iter()
            .chain(&deep)
            .any(|rows| rows.dims() != shape)
        {
            return Err(Error::Internal(
                "image embeddings are not of the decoder's width".into(),
            ));
        }
        let window = self.config().windows.iter().flatten().min();
        let beyond = window
            .filter(|&&window| self.config().has_bidirectional_images() && rows.dims()[0] > window);
        if let Some(window) = beyond {
            return Err(Error::UnsupportedModel(format!(
                "an image of {} tokens does not fit the model's windows of {window}",
                rows.dims()[0]
            )));
        }
        let deep = deep.iter().map(|rows| rows.to_dtype(self.dtype()));
        let deep = deep.collect::<std::result::Result<_, _>>()?;
        let rows = (rows.to_dtype(self.dtype())?, deep);
        self.images.admit(rows, grid, self.config().vocab_size)
    }

    /// Whether the tokens of a prompt see each other.
    pub fn is_bidirectional_prompt(&self, tokens: &[u32]) -> bool {
        self.config().bidirectional_prompts && has_images(tokens, self.config().vocab_size)
    }

    /// How many of `tokens` a pass reads that has room for `most`: images and prompts whose tokens see each other
    /// are not divided.
    pub fn piece_length(&self, tokens: &[u32], most: usize) -> usize {
        if self.is_bidirectional_prompt(tokens) {
            return tokens.len();
        }
        let length = tokens.len().min(most);
        let last = length.checked_sub(1).and_then(|last| tokens.get(last));
        let image = match last {
            Some(&id) if self.config().has_bidirectional_images() => self.images.find(id),
            _ => None,
        };
        match (image, last) {
            (Some(image), Some(&id)) => {
                let rest = (image.ids().end - id) as usize - 1;
                (length + rest).min(tokens.len())
            }
            _ => length,
        }
    }

    /// The images among what is read, or the prompts.
    pub(super) fn bidirectional_spans(
        &self,
        readings: &[Reading<'_>],
        pieces: &[PagedPiece],
        device: &Device,
    ) -> Result<Vec<BidirectionalSpan>> {
        let mut bidirectional_spans = Vec::new();
        if !(self.config().has_bidirectional_images() || self.config().bidirectional_prompts) {
            return Ok(bidirectional_spans);
        }
        for (reading, piece) in readings.iter().zip(pieces) {
            let whole = self.config().bidirectional_prompts;
            let prompt = reading.sequence.bidirectional_prompt();
            let prompt = prompt.saturating_sub(reading.sequence.length());
            let prompt = 0..prompt.min(reading.tokens.len());
            let ranges = if whole {
                Some(prompt)
                    .filter(|prompt| !prompt.is_empty())
                    .into_iter()
                    .collect()
            } else {
                self.images
                    .ranges(reading.tokens, self.config().vocab_size)?
            };
            for range in ranges {
                let piece_of = PagedPiece {
                    rows: 0..range.len(),
                    pages: piece.pages.clone(),
                    keys: reading.sequence.length() + range.end,
                };
                let start = piece.rows.start;
                bidirectional_spans.push(BidirectionalSpan {
                    rows: start + range.start..start + range.end,
                    batch: PagedBatch::new(vec![piece_of], device)?,
                    whole,
                    in_windows: !whole
                        && self.config().bidirectional_images
                            == ImageAttention::BidirectionalInWindows,
                });
            }
        }
        Ok(bidirectional_spans)
    }
}

pub(super) fn has_images(ids: &[u32], vocabulary: usize) -> bool {
    ids.iter().any(|&id| id as usize >= vocabulary)
}

/// The complaint about an id that is neither a token nor of an image.
pub fn unknown(id: u32, vocabulary: usize) -> Error {
    Error::InvalidInput(format!(
        "token {id} is beyond the model's vocabulary of {vocabulary}; the tokenizer belongs to another model"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, (values.len(), 1), &Device::Cpu).unwrap()
    }

    #[test]
    fn images_stand_where_their_ids_do() {
        let images = ImageTable::default();
        let first = images
            .admit((rows(&[10.0, 11.0]), vec![rows(&[0.5, 0.25])]), None, 5)
            .unwrap();
        let second = images.admit((rows(&[20.0]), Vec::new()), None, 5).unwrap();
        assert_eq!((first.ids(), second.ids()), (5..7, 7..8));
        let ids = [1, 5, 6, 7, 2, 6, 3];
        let embedded = rows(&[1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 3.0]);
        let deep = images.deep(&ids, 5, &embedded).unwrap();
        assert_eq!(deep.len(), 1);
        let added: Vec<f32> = deep[0].flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(added, [0.0, 0.5, 0.25, 0.0, 0.0, 0.25, 0.0]);
        assert!(images.deep(&[1, 2], 5, &embedded).unwrap().is_empty());
        let spliced = images.splice(&ids, 5, embedded).unwrap();
        let spliced: Vec<f32> = spliced.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(spliced, [1.0, 10.0, 11.0, 20.0, 2.0, 11.0, 3.0]);
    }

    #[test]
    fn the_rows_of_an_image_stand_in_a_grid() {
        let images = ImageTable::default();
        let image = rows(&[0.0; 6]);
        let grid = Some(Grid::still((3, 2)));
        let image = images.admit((image, Vec::new()), grid, 5).unwrap();
        let mut ids = vec![1, 2];
        ids.extend(image.ids());
        ids.extend([3, 4]);
        let (first, places) = images.places(&ids, 1, 5).unwrap();
        assert_eq!(first, 1);
        let places = places.unwrap();
        assert_eq!(places[0], [1; 3]);
        assert_eq!(places[1..4], [[2, 2, 2], [2, 2, 3], [2, 2, 4]]);
        assert_eq!(places[4..7], [[2, 3, 2], [2, 3, 3], [2, 3, 4]]);
        assert_eq!(places[7..], [[5; 3], [6; 3]]);
        assert_eq!(images.places(&ids, 8, 5).unwrap(), (5, None));
        assert_eq!(images.places(&ids[..2], 1, 5).unwrap(), (1, None));
        let ranges = images.ranges(&ids, 5).unwrap();
        assert_eq!((ranges.len(), ranges[0].clone()), (1, 2..8));
    }

    #[test]
    fn the_grids_of_a_video_follow_each_other() {
        let grid = Grid {
            columns: 2,
            rows: 1,
            interval: 1.5,
        };
        let places: Vec<Place> = (0..6).map(|at| grid.place(at)).collect();
        assert_eq!(places[..3], [[0, 0, 0], [0, 0, 1], [1, 0, 0]]);
        assert_eq!(places[3..], [[1, 0, 1], [3, 0, 0], [3, 0, 1]]);
    }

    #[test]
    fn ids_are_not_given_twice() {
        let images = ImageTable::default();
        let first = images.admit((rows(&[1.0]), Vec::new()), None, 5).unwrap();
        drop(first);
        assert!(images.find(5).is_none());
        assert_eq!(
            images
                .admit((rows(&[1.0]), Vec::new()), None, 5)
                .unwrap()
                .ids(),
            6..7
        );
        let gone = images.splice(&[5], 5, rows(&[0.0])).unwrap_err();
        assert!(gone.to_string().contains("token 5 is beyond"));
    }
}
