//! What a schema asks for: entities, labels, relations and structures in one forward pass (GLiNER2).

mod config;
mod counting;
mod prompt;

use std::sync::Arc;

use candle_core::{DType, Tensor};
use serde_json::json;

use super::by_labels::parameters;
use super::decode::sigmoid;
use super::files::SpanMode;
use super::head::{self, linear, misfit, plain, relu, values, SpanHead, Target};
use crate::nn::{Inventory, Linear, PackedSequences};
use crate::serving::batching::{self, Tokens};
use crate::tasks::loading::{effective_length, Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;
use formats::weights::{Prefixed, WeightSource};

use config::{SchemaConfig, WordPooling};
use counting::Counter;
use prompt::{Prompt, Read};

/// What `config.json` calls such models.
pub const MODEL_TYPE: &str = "extractor";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Fields whose values belong together, in as many instances as the model counts.
    Structure,
    Entities,
    Relation,
    /// Of the whole text.
    Labels,
}

#[derive(Clone, Debug)]
pub struct SchemaField {
    pub name: String,
    /// Spans with at least this score count.
    pub threshold: f32,
    /// Words of the query's prefix that are chosen among, instead of spans of the text.
    pub choices: Option<Vec<usize>>,
    /// Whether it tells something of the task's other spans and has none itself.
    pub attribute: bool,
}

#[derive(Clone, Debug)]
pub struct SchemaTask {
    pub kind: TaskKind,
    pub prompt: String,
    pub fields: Vec<SchemaField>,
}

/// All that is asked at once.
#[derive(Clone, Debug)]
pub struct SchemaQuery {
    pub tasks: Vec<SchemaTask>,
    /// Words that are read before the text: the choices of fields.
    pub prefix: Vec<String>,
    /// Words of a text beyond these are left out.
    pub most_words: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FoundSpan {
    pub text: String,
    /// Characters of the text, end excluded. A full stop that closes the text may be one more.
    pub start: usize,
    pub end: usize,
    pub score: f32,
    /// Logits of the attributes, in the order of the task's fields.
    pub attributes: Vec<f32>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FieldFound {
    Spans(Vec<FoundSpan>),
    /// The score of each choice.
    Choices(Vec<f32>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum TaskFound {
    /// Of each label.
    Logits(Vec<f32>),
    /// Of each instance the fields.
    Instances(Vec<Vec<FieldFound>>),
}

/// Two matrices with a ReLU between them.
#[derive(Debug)]
struct Pair(Linear, Linear);

impl Pair {
    fn read(target: Target<'_>, name: &str) -> Result<Self> {
        let pair = Self(
            linear(target, &format!("{name}.0"))?,
            linear(target, &format!("{name}.2"))?,
        );
        if pair.1.inputs() == pair.0.outputs() {
            Ok(pair)
        } else {
            Err(misfit(name))
        }
    }

    fn forward(&self, x: &Tensor) -> Result<Vec<f32>> {
        values(&plain(&self.1, &relu(&self.0, x)?)?)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.0)?;
        inventory.add_linear(&self.1)
    }
}

pub struct SchemaExtractor {
    loaded: LoadedModel,
    config: SchemaConfig,
    spans: SpanHead,
    labels: Pair,
    counts: Pair,
    counter: Counter,
}

impl SchemaExtractor {
    pub fn load(
        files: &ModelFiles,
        raw: &RawConfig,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let config = SchemaConfig::parse(raw)?;
        let encoder = RawConfig::read(&files.require("encoder_config/config.json", cancel)?)?;
        let mut checkpoint = Checkpoint::open_bare(files, options, cancel)?;
        let source = checkpoint.source.clone();
        let own = Prefixed::new(source.clone(), "encoder.");
        checkpoint.config = Some(sized(encoder, &own));
        checkpoint.source = Arc::new(own);
        let mut loaded = LoadedModel::load(&checkpoint, files, options, None, cancel)?;
        // The library reads as far as the encoder has positions, whatever the tokenizer says.
        loaded.max_length = effective_length(&[options.max_length, loaded.body.position_rows()])?;
        loaded.info.max_length = loaded.max_length;
        let target = (source.as_ref(), (&checkpoint.opened, checkpoint.dtype));
        let spans = SpanHead::below(target, "span_rep.span_rep_layer", SpanMode::MarkerV0, false)?;
        let labels = Pair::read(target, "classifier")?;
        let counts = Pair::read(target, "count_pred")?;
        let counter = Counter::read(target, config.counting)?;
        if labels.1.outputs() != 1
            || [&labels, &counts]
                .iter()
                .any(|pair| pair.0.inputs() != loaded.info.hidden_size)
        {
            return Err(misfit("heads"));
        }
        let inventory = &mut loaded.info.inventory;
        spans.list(inventory)?;
        labels.list(inventory)?;
        counts.list(inventory)?;
        counter.list(inventory)?;
        loaded.info.architecture = "GLiNER2".to_owned();
        loaded.info.parameters = parameters(source.as_ref());
        prompt::check(&loaded.tokenizer, cancel)?;
        Ok(Self {
            loaded,
            config,
            spans,
            labels,
            counts,
            counter,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.loaded.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.loaded.tokenizer
    }

    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.loaded.batcher.stats.read()
    }

    /// Words of a span.
    pub fn longest(&self) -> usize {
        self.config.longest
    }

    pub fn extract<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        query: &SchemaQuery,
        cancel: &CancelToken,
    ) -> Result<Vec<Option<Vec<TaskFound>>>> {
        let tokenizer = &self.loaded.tokenizer;
        let prompt = Prompt::of(query, tokenizer, cancel)?;
        if prompt.ids.len() >= self.loaded.max_length {
            return Err(Error::InvalidInput(format!(
                "the schema takes {} of the {} tokens that the model reads at once, which leaves none for the text: \
                 ask for less at once",
                prompt.ids.len(),
                self.loaded.max_length
            )));
        }
        let most = query.most_words.unwrap_or(usize::MAX);
        let reads = threads::map(texts, |_, text| {
            Read::of(text.as_ref(), most, &prompt, tokenizer, cancel)
        })?;
        let fits = |read: &Read| read.ids.len() <= self.loaded.max_length;
        let (kept, tokens): (Vec<&Read>, Vec<Tokens>) = reads
            .iter()
            .filter(|read| fits(read))
            .map(|read| {
                let tokens = Tokens {
                    type_ids: vec![0; read.ids.len()],
                    ids: read.ids.clone(),
                };
                (read, tokens)
            })
            .unzip();
        let rows = self.rows(&kept, &prompt, &tokens, cancel)?;
        // Spans are judged in parallel, which must not reach rayon's own pool where there is one text.
        let mut found = threads::install(|| {
            threads::map(&kept, |at, read| {
                cancel.check()?;
                self.found(read, &rows[at], &prompt, query)
            })
        })??
        .into_iter();
        Ok(reads
            .iter()
            .map(|read| if fits(read) { found.next() } else { None })
            .collect())
    }

    /// The states of the schema's markers and of each text's words, f32 [markers + words, hidden].
    fn rows(
        &self,
        reads: &[&Read],
        prompt: &Prompt,
        tokens: &[Tokens],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>> {
        let forward = |batch: &[usize]| -> Result<Vec<Tensor>> {
            let sequences: PackedSequences = batching::pack(tokens, batch)?;
            self.loaded.forward(&sequences, None, cancel, |hidden| {
                let each = sequences.ranges().zip(batch);
                each.map(|(range, &index)| self.picked(hidden, range.start, reads[index], prompt))
                    .collect()
            })
        };
        batching::collect(tokens, None, self.loaded.info.device, cancel, forward)
    }

    fn picked(
        &self,
        hidden: &Tensor,
        start: usize,
        read: &Read,
        prompt: &Prompt,
    ) -> Result<Tensor> {
        let mut places: Vec<usize> = prompt.markers.iter().map(|place| start + place).collect();
        if self.config.pooling == WordPooling::First {
            places.extend(read.words.iter().map(|word| start + word.start));
            return head::rows(hidden, &places, None);
        }
        let markers = places.len();
        places.extend(read.words.iter().flat_map(|word| {
            let last = word.end.max(word.start + 1);
            start + word.start..start + last
        }));
        let all = head::rows(hidden, &places, None)?;
        let width = all.dims2()?.1;
        let all_values = values(&all)?;
        let (own, mut rest) = all_values.split_at(markers * width);
        let mut rows = own.to_vec();
        for word in &read.words {
            let count = word.len().max(1);
            let (tokens, after) = rest.split_at(count * width);
            rows.extend(pooled(tokens, width, self.config.pooling));
            rest = after;
        }
        Ok(Tensor::from_vec(
            rows,
            (markers + read.words.len(), width),
            hidden.device(),
        )?)
    }

    fn found(
        &self,
        read: &Read,
        rows: &Tensor,
        prompt: &Prompt,
        query: &SchemaQuery,
    ) -> Result<Vec<TaskFound>> {
        let words = rows.narrow(0, prompt.markers.len(), read.words.len())?;
        let mut found = Vec::with_capacity(query.tasks.len());
        // The queries of each task that finds spans, and how many instances it has.
        let (mut queries, mut counts) = (Vec::new(), Vec::new());
        let mut at = 0;
        for task in &query.tasks {
            let fields = rows.narrow(0, at + 1, task.fields.len())?;
            let own = rows.narrow(0, at, 1)?;
            at += 1 + task.fields.len();
            if task.kind == TaskKind::Labels {
                let logits = self.labels.forward(&fields)?;
                self.loaded.info.check_numbers(&logits)?;
                found.push(TaskFound::Logits(logits));
                continue;
            }
            let logits = self.counts.forward(&own)?;
            self.loaded.info.check_numbers(&logits)?;
            let mut count = highest(&logits).min(self.counter.most());
            if task.kind == TaskKind::Entities {
                count = count.min(1);
            }
            if count > 0 {
                queries.push(self.counter.queries(&fields, count)?);
            }
            counts.push(count);
            found.push(TaskFound::Instances(Vec::new()));
        }
        if queries.is_empty() {
            return Ok(found);
        }
        let queries = Tensor::cat(&queries, 0)?.to_dtype(DType::F32)?;
        let total = queries.dims2()?.0;
        let logits = self
            .spans
            .scores(&words, &queries)?
            .all(self.config.longest);
        for row in &logits {
            self.loaded.info.check_numbers(row)?;
        }
        let scores = Scores {
            logits: &logits,
            queries: total,
            prefix: query.prefix.len(),
        };
        let (mut first, mut counts) = (0, counts.into_iter());
        for (task, found) in query.tasks.iter().zip(&mut found) {
            let TaskFound::Instances(instances) = found else {
                continue;
            };
            for _ in 0..counts.next().unwrap_or(0) {
                instances.push(scores.fields(task, first, read));
                first += task.fields.len();
            }
        }
        Ok(found)
    }
}

/// The logits of all spans, as [`head::SpanScores::all`] gives them.
struct Scores<'a> {
    logits: &'a [Vec<f32>],
    queries: usize,
    /// Words before the text.
    prefix: usize,
}

impl Scores<'_> {
    /// What the fields of an instance find, whose queries begin with `first`.
    fn fields(&self, task: &SchemaTask, first: usize, read: &Read) -> Vec<FieldFound> {
        let attributes: Vec<usize> = (0..task.fields.len())
            .filter(|&at| task.fields[at].attribute)
            .map(|at| first + at)
            .collect();
        let each = task.fields.iter().enumerate();
        each.map(|(at, field)| match &field.choices {
            Some(choices) => FieldFound::Choices(
                choices
                    .iter()
                    .map(|&word| sigmoid(self.logits[word][first + at]))
                    .collect(),
            ),
            None if field.attribute => FieldFound::Spans(Vec::new()),
            None => FieldFound::Spans(self.spans(first + at, field.threshold, &attributes, read)),
        })
        .collect()
    }

    fn spans(
        &self,
        query: usize,
        threshold: f32,
        attributes: &[usize],
        read: &Read,
    ) -> Vec<FoundSpan> {
        let mut found = Vec::new();
        for (first, row) in self.logits.iter().skip(self.prefix).enumerate() {
            for (more, logits) in row.chunks_exact(self.queries).enumerate() {
                let score = sigmoid(logits[query]);
                if score >= threshold {
                    let (text, start, end) = read.span(first, first + more);
                    found.push(FoundSpan {
                        text: text.to_owned(),
                        start,
                        end,
                        score,
                        attributes: attributes.iter().map(|&at| logits[at]).collect(),
                    });
                }
            }
        }
        found
    }
}

/// The first of the highest.
fn highest(logits: &[f32]) -> usize {
    let mut best = 0;
    for (at, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = at;
        }
    }
    best
}

fn pooled(tokens: &[f32], width: usize, pooling: WordPooling) -> Vec<f32> {
    let mut rows = tokens.chunks_exact(width);
    let count = rows.len() as f32;
    let Some(first) = rows.next() else {
        return vec![0.0; width];
    };
    let mut sum = first.to_vec();
    for row in rows {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum = match pooling {
                WordPooling::Max => sum.max(*value),
                _ => *sum + value,
            };
        }
    }
    if pooling == WordPooling::Mean {
        sum.iter_mut().for_each(|sum| *sum /= count);
    }
    sum
}

/// The encoder's configuration, with as many tokens as it has embeddings: special ones were added to them.
fn sized(encoder: RawConfig, source: &dyn WeightSource) -> RawConfig {
    let names = source.names();
    let mut tables = names
        .iter()
        .filter(|name| name.ends_with("word_embeddings.weight"));
    let (Some(table), None) = (tables.next(), tables.next()) else {
        return encoder;
    };
    let rows = source
        .info(table)
        .and_then(|info| info.shape.first().copied());
    match rows {
        Some(rows) => encoder.with(json!({"vocab_size": rows})),
        None => encoder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_word_are_pooled() {
        let tokens = [1.0, 4.0, 3.0, 2.0];
        assert_eq!(pooled(&tokens, 2, WordPooling::Mean), [2.0, 3.0]);
        assert_eq!(pooled(&tokens, 2, WordPooling::Max), [3.0, 4.0]);
    }

    #[test]
    fn the_first_of_equal_counts_is_taken() {
        assert_eq!(highest(&[0.0, 2.0, 2.0]), 1);
    }
}
