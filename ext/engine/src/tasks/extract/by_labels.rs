//! Entities of any kind: spans of a text that fit labels which a call names (GLiNER).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use crate::nn::{Linear, Lstm, PackedSequences};
use crate::serving::batching::{self, Tokens};
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Tokenizer};
use formats::text::words::{words_and_signs, Word};
use formats::weights::Prefixed;

use super::decode::{self, Candidate, Overlaps};
use super::files::{ExtractConfig, SpanMode};
use super::head::{self, SpanHead, TokenHead};
use super::labels::LabelEncoder;
use super::relations::{Judged, Least, Pair, RelationHead};
use super::windows;
use super::{ExtractOptions, Extracted, Found, Related, RelationQuery};
use crate::tasks::loading::{Checkpoint, LoadOptions, LoadedModel, ModelInfo};

/// Where the tensors of the text's encoder are.
const ENCODER: &str = "token_rep_layer.bert_layer.model.";

pub struct LabelExtractor {
    loaded: LoadedModel,
    config: ExtractConfig,
    projection: Option<Linear>,
    lstm: Option<Lstm>,
    head: Head,
    /// Of labels, where they aren't read together with the text.
    labels: Option<LabelEncoder>,
    relations: Option<RelationHead>,
    around: Around,
}

enum Head {
    Spans(Box<SpanHead>),
    /// With another one that judges the spans which words make.
    Tokens(Box<TokenHead>, Option<Box<SpanHead>>),
}

/// The special tokens around a text.
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Around {
    fn of(tokenizer: &Tokenizer, cancel: &CancelToken) -> Result<Self> {
        let encoding = tokenizer.encode("a", true, Detail::Ids, cancel)?;
        let special = encoding.get_special_tokens_mask();
        let (ids, is_special) = (encoding.get_ids(), |mask: &&u32| **mask == 1);
        let before = special.iter().take_while(is_special).count();
        let after = special[before..]
            .iter()
            .rev()
            .take_while(is_special)
            .count();
        Ok(Self {
            before: ids[..before].to_vec(),
            after: ids[ids.len() - after..].to_vec(),
        })
    }

    fn count(&self) -> usize {
        self.before.len() + self.after.len()
    }
}

/// The words of a text, and the tokens of each.
struct Split {
    words: Vec<Word>,
    tokens: Vec<Vec<u32>>,
}

/// Words of a text that are read together.
struct Window {
    text: usize,
    number: usize,
    words: Range<usize>,
    /// Where its labels, relations and words stand among its tokens.
    places: Vec<usize>,
}

/// The tokens before a text, and where each label and then each relation stands among them.
struct Prompt {
    ids: Vec<u32>,
    places: Vec<usize>,
    labels: usize,
}

/// What a window says: spans above the threshold with its number, and what its relations are made of.
type Candidates = (Vec<(usize, Candidate)>, Option<Judged>);

impl LabelExtractor {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let config = ExtractConfig::read(files, cancel)?;
        let mut checkpoint = Checkpoint::open_bare(files, options, cancel)?;
        let source = checkpoint.source.clone();
        checkpoint.source = Arc::new(Prefixed::new(source.clone(), ENCODER));
        checkpoint.config = Some(config.encoder.clone());
        let mut loaded = LoadedModel::load(&checkpoint, files, options, None, cancel)?;
        let target = (source.as_ref(), (&checkpoint.opened, checkpoint.dtype));
        let lstm = match config.lstm_layers {
            0 => None,
            layers => Some(Lstm::read(source.as_ref(), "rnn.lstm.", layers, target.1)?),
        };
        let head = match config.mode {
            SpanMode::Tokens if config.represents_spans || config.relations.is_some() => {
                Head::Tokens(
                    Box::new(TokenHead::read(target, config.relations.is_some())?),
                    Some(Box::new(SpanHead::read(target, SpanMode::MarkerV0, false)?)),
                )
            }
            SpanMode::Tokens => Head::Tokens(Box::new(TokenHead::read(target, false)?), None),
            mode => Head::Spans(Box::new(SpanHead::read(target, mode, true)?)),
        };
        let labels = match &config.labels {
            Some(of_labels) => Some(LabelEncoder::load(
                files,
                &checkpoint,
                source.clone(),
                of_labels,
                cancel,
            )?),
            None => None,
        };
        let relations = match &config.relations {
            Some(relations) => Some(RelationHead::read(target, relations, config.mode)?),
            None => None,
        };
        let inventory = &mut loaded.info.inventory;
        relations.iter().try_for_each(|head| head.list(inventory))?;
        match &head {
            Head::Spans(head) => head.list(inventory)?,
            Head::Tokens(head, spans) => {
                head.list(inventory)?;
                spans.iter().try_for_each(|spans| spans.list(inventory))?;
            }
        }
        lstm.iter().try_for_each(|lstm| lstm.list(inventory))?;
        let projection = head::projection(target, "token_rep_layer.projection")?;
        projection
            .iter()
            .try_for_each(|linear| inventory.add_linear(linear))?;
        if let Some(labels) = &labels {
            inventory.add(labels.inventory());
        }
        loaded.info.architecture = "GLiNER".to_owned();
        loaded.info.parameters = parameters(source.as_ref());
        let around = Around::of(&loaded.tokenizer, cancel)?;
        Ok(Self {
            loaded,
            config,
            projection,
            lstm,
            head,
            labels,
            relations,
            around,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.loaded.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.loaded.tokenizer
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.loaded.batcher.stats.read()
    }

    pub fn relates(&self) -> bool {
        self.relations.is_some()
    }

    /// Words that are read at once, and words of a span.
    pub fn limits(&self) -> (usize, usize) {
        (self.config.words, self.config.longest)
    }

    /// The entities of each text, in its order. Long texts are read in windows that share words, and a span is judged
    /// in the one where it stands farthest from a cut.
    pub fn extract<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        labels: &[String],
        relations: Option<&RelationQuery>,
        options: &ExtractOptions,
        cancel: &CancelToken,
    ) -> Result<Vec<Found>> {
        if relations.is_some() && self.relations.is_none() {
            return Err(Error::UnsupportedModel(
                "the checkpoint has no head for relations: load a GLiNER relex checkpoint, or call relations".to_owned(),
            ));
        }
        let prompt = self.prompt(labels, relations, cancel)?;
        let of_labels = match &self.labels {
            Some(encoder) => Some(encoder.embed(labels, cancel)?),
            None => None,
        };
        let splits = threads::map(texts, |_, text| self.split(text.as_ref(), cancel))?;
        let (windows, tokens) = self.windows(&splits, &prompt)?;
        let rows = self.rows(&windows, &tokens, cancel)?;
        // Spans are judged in parallel, which must not reach rayon's own pool where there is one window.
        let candidates = threads::install(|| {
            threads::map(&windows, |at, window| {
                cancel.check()?;
                let of_labels = match &of_labels {
                    Some(of_labels) => of_labels.clone(),
                    None => rows[at].narrow(0, 0, prompt.labels)?,
                };
                self.candidates(window, &rows[at], &of_labels, options.threshold)
            })
        })??;
        let overlaps = Overlaps {
            nested: !options.flat,
            multi_label: options.multi_label,
        };
        let mut at = 0;
        let each = texts.iter().zip(&splits).enumerate();
        each.map(|(text, (characters, split))| {
            let own = windows[at..].iter();
            let own = at..at + own.take_while(|window| window.text == text).count();
            at = own.end;
            let (windows, candidates) = (&windows[own.clone()], &candidates[own]);
            let chosen = overlaps.choose(judged(windows, candidates, split.words.len()));
            let related = match relations {
                Some(query) => {
                    threads::install(|| self.related(windows, candidates, &chosen, query, cancel))??
                }
                None => Vec::new(),
            };
            let entities = chosen.iter();
            Ok(Found {
                entities: entities
                    .map(|one| entity(characters.as_ref(), split, one))
                    .collect(),
                related,
            })
        })
        .collect()
    }

    /// The relations of those entities that were chosen. One that several windows find has its highest score.
    fn related(
        &self,
        windows: &[Window],
        candidates: &[Candidates],
        chosen: &[Candidate],
        query: &RelationQuery,
        cancel: &CancelToken,
    ) -> Result<Vec<Related>> {
        let least = Least {
            nearness: query.adjacency_threshold,
            relation: query.threshold,
        };
        let mut found: Vec<Related> = Vec::new();
        for (window, (_, judged)) in windows.iter().zip(candidates) {
            let (Some(head), Some(judged)) = (&self.relations, judged) else {
                continue;
            };
            let entity = |&(first, last): &(usize, usize)| {
                let place = (first + window.words.start, last + window.words.start);
                chosen.iter().position(|one| (one.first, one.last) == place)
            };
            let entities: Vec<Option<usize>> = judged.spans.iter().map(entity).collect();
            let kept: Vec<usize> = (0..entities.len())
                .filter(|&at| entities[at].is_some())
                .collect();
            let before = found.len();
            for pair in head.related(judged, &kept, least, cancel)? {
                self.loaded.info.check_numbers(&[pair.score])?;
                let (Some(head), Some(tail)) = (entities[pair.head], entities[pair.tail]) else {
                    continue;
                };
                let Pair {
                    relation, score, ..
                } = pair;
                let known = found[..before]
                    .iter_mut()
                    .find(|one| (one.head, one.tail, one.relation) == (head, tail, relation));
                match known {
                    Some(one) => one.score = one.score.max(score),
                    None => found.push(Related {
                        head,
                        tail,
                        relation,
                        score,
                    }),
                }
            }
        }
        Ok(found)
    }

    /// The labels before a text, and the relations behind them where the model knows any.
    fn prompt(
        &self,
        labels: &[String],
        relations: Option<&RelationQuery>,
        cancel: &CancelToken,
    ) -> Result<Prompt> {
        let mut prompt = Prompt {
            ids: Vec::new(),
            places: Vec::new(),
            labels: labels.len(),
        };
        if self.labels.is_some() {
            prompt.labels = 0;
            return Ok(prompt);
        }
        let marker = (self.config.marker.as_str(), self.config.embeds_marker);
        self.add_names(&mut prompt, labels, marker, cancel)?;
        if let Some(config) = &self.config.relations {
            let names = relations.map_or(&[][..], |query| &query.names);
            let marker = (config.marker.as_str(), config.embeds_marker);
            self.add_names(&mut prompt, names, marker, cancel)?;
        }
        Ok(prompt)
    }

    /// Names behind their marker each, and a separator behind all.
    fn add_names(
        &self,
        prompt: &mut Prompt,
        names: &[String],
        (marker, embeds_marker): (&str, bool),
        cancel: &CancelToken,
    ) -> Result<()> {
        let marker = self.ids(marker, cancel)?;
        for name in names {
            let own = self.ids(name, cancel)?;
            if own.is_empty() {
                return Err(Error::InvalidInput(format!(
                    "the label {name:?} has no token: name it in words that the model reads"
                )));
            }
            let before = usize::from(!embeds_marker) * marker.len();
            prompt.places.push(prompt.ids.len() + before);
            prompt.ids.extend_from_slice(&marker);
            prompt.ids.extend(own);
        }
        prompt.ids.extend(self.ids(&self.config.separator, cancel)?);
        Ok(())
    }

    fn ids(&self, word: &str, cancel: &CancelToken) -> Result<Vec<u32>> {
        let encoding = self
            .loaded
            .tokenizer
            .encode(word, false, Detail::Ids, cancel)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Every word is tokenized by itself. Words without tokens are left out.
    fn split(&self, text: &str, cancel: &CancelToken) -> Result<Split> {
        let mut known: HashMap<&str, Vec<u32>> = HashMap::new();
        let (mut words, mut tokens) = (Vec::new(), Vec::new());
        for word in words_and_signs(text) {
            let part = &text[word.bytes.clone()];
            let ids = match known.get(part) {
                Some(ids) => ids.clone(),
                None => {
                    let ids = self.ids(part, cancel)?;
                    known.insert(part, ids.clone());
                    ids
                }
            };
            if !ids.is_empty() {
                words.push(word);
                tokens.push(ids);
            }
        }
        Ok(Split { words, tokens })
    }

    fn windows(&self, splits: &[Split], prompt: &Prompt) -> Result<(Vec<Window>, Vec<Tokens>)> {
        let taken = self.around.count() + prompt.ids.len();
        let room = self.loaded.max_length.saturating_sub(taken);
        if room == 0 {
            return Err(Error::InvalidInput(format!(
                "the labels take {taken} of the {} tokens that the model reads at once, which leaves none for the \
                 text: pass fewer labels at once",
                self.loaded.max_length
            )));
        }
        let (mut windows, mut tokens) = (Vec::new(), Vec::new());
        for (text, split) in splits
            .iter()
            .enumerate()
            .filter(|(_, split)| !split.words.is_empty())
        {
            let lengths: Vec<usize> = split.tokens.iter().map(Vec::len).collect();
            let cut = windows::cut(&lengths, self.config.words, room, self.config.longest);
            for (number, words) in cut.into_iter().enumerate() {
                let mut ids = self.around.before.clone();
                let first = ids.len();
                let given = prompt.places.iter();
                let mut places: Vec<usize> = given.map(|&place| first + place).collect();
                ids.extend_from_slice(&prompt.ids);
                for own in &split.tokens[words.clone()] {
                    places.push(ids.len());
                    ids.extend_from_slice(&own[..own.len().min(room)]);
                }
                ids.extend_from_slice(&self.around.after);
                tokens.push(Tokens {
                    type_ids: vec![0; ids.len()],
                    ids,
                });
                windows.push(Window {
                    text,
                    number,
                    words,
                    places,
                });
            }
        }
        Ok((windows, tokens))
    }

    /// The states of each window's labels and words, f32 [places, hidden].
    fn rows(
        &self,
        windows: &[Window],
        tokens: &[Tokens],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>> {
        let forward = |batch: &[usize]| -> Result<Vec<Tensor>> {
            let sequences: PackedSequences = batching::pack(tokens, batch)?;
            self.loaded.forward(&sequences, None, cancel, |hidden| {
                let each = sequences.ranges().zip(batch);
                each.map(|(range, &index)| {
                    let places = windows[index].places.iter();
                    let places: Vec<usize> = places.map(|place| range.start + place).collect();
                    head::rows(hidden, &places, self.projection.as_ref())
                })
                .collect()
            })
        };
        batching::collect(tokens, None, self.loaded.info.device, cancel, forward)
    }

    /// Spans above the threshold, by the words of the text, with the window's number.
    fn candidates(
        &self,
        window: &Window,
        rows: &Tensor,
        of_labels: &Tensor,
        threshold: f32,
    ) -> Result<Candidates> {
        let own = window.places.len() - window.words.len();
        let words = rows.narrow(0, own, window.words.len())?;
        let words = match &self.lstm {
            Some(lstm) => lstm.forward(&words)?,
            None => words,
        };
        let labels = of_labels.dims2()?.0;
        let (found, scores) = match &self.head {
            Head::Spans(head) => {
                let scores = head.scores(&words, of_labels)?;
                let logits = scores.all(self.config.longest);
                for row in &logits {
                    self.loaded.info.check_numbers(row)?;
                }
                (decode::of_spans(&logits, labels, threshold), Some(scores))
            }
            Head::Tokens(head, spans) => {
                let logits = head.scores(&words, of_labels)?;
                self.loaded.info.check_numbers(logits.as_flattened())?;
                let found = decode::of_words(&logits, labels, threshold);
                match spans {
                    Some(spans) if self.relations.is_some() => {
                        (found, Some(spans.scores(&words, of_labels)?))
                    }
                    Some(spans) => {
                        let found = judged_again(spans, &words, of_labels, &found, threshold)?;
                        (found, None)
                    }
                    None => (found, None),
                }
            }
        };
        let judged = match scores {
            Some(scores) if self.relations.is_some() => {
                let given = rows.narrow(0, 0, own)?;
                let mut spans: Vec<_> = found.iter().map(|one| (one.first, one.last)).collect();
                if let Head::Spans(_) = &self.head {
                    spans.dedup();
                }
                Some(Judged {
                    scores,
                    relations: given.narrow(0, labels, own - labels)?,
                    spans,
                })
            }
            _ => None,
        };
        let in_text = |one: Candidate| Candidate {
            first: one.first + window.words.start,
            last: one.last + window.words.start,
            ..one
        };
        let found = found
            .into_iter()
            .map(|one| (window.number, in_text(one)))
            .collect();
        Ok((found, judged))
    }
}

/// Of the candidates of a text's windows those that are judged where they were found.
fn judged(windows: &[Window], candidates: &[Candidates], words: usize) -> Vec<Candidate> {
    let ranges: Vec<Range<usize>> = windows.iter().map(|window| window.words.clone()).collect();
    let found = candidates.iter().flat_map(|(found, _)| found);
    found
        .filter(|(number, one)| windows::is_judged_in(&ranges, *number, one.first, one.last, words))
        .map(|(_, one)| *one)
        .collect()
}

/// The spans that words made, with the labels that they fit as a whole.
fn judged_again(
    head: &SpanHead,
    words: &Tensor,
    labels: &Tensor,
    found: &[Candidate],
    threshold: f32,
) -> Result<Vec<Candidate>> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let scores = head.scores(words, labels)?;
    let mut spans: Vec<(usize, usize)> = found.iter().map(|one| (one.first, one.last)).collect();
    spans.sort_unstable();
    spans.dedup();
    let each = spans.into_iter().flat_map(|(first, last)| {
        let logits = scores.of(first, last).into_iter().enumerate();
        logits.map(move |(label, logit)| Candidate {
            first,
            last,
            label,
            score: decode::sigmoid(logit),
        })
    });
    Ok(each.filter(|one| one.score > threshold).collect())
}

fn entity(text: &str, split: &Split, found: &Candidate) -> Extracted {
    let (first, last) = (&split.words[found.first], &split.words[found.last]);
    Extracted {
        text: text[first.bytes.start..last.bytes.end].to_owned(),
        label: found.label,
        score: found.score,
        start: first.characters.start,
        end: last.characters.end,
    }
}

pub(super) fn parameters(source: &dyn formats::weights::WeightSource) -> usize {
    let names = source.names();
    let counts = names.iter().filter_map(|name| source.info(name));
    counts
        .map(|info| info.shape.iter().product::<usize>())
        .sum()
}
