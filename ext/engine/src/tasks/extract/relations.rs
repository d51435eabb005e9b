//! Relations between the entities of a text (the "relex" checkpoints of GLiNER).

use candle_core::Tensor;
use rayon::prelude::*;

use super::decode::sigmoid;
use super::files::{Nearness, RelationConfig, SpanMode, Triples};
use super::head::{dot, linear, misfit, plain, tensor, values, PairHead, SpanScores, Target};
use crate::nn::{Inventory, Linear};
use crate::{CancelToken, Result};

const BODY: &str = "relations_rep_layer.relation_rep_layer";
/// The library never sets another count.
const HEADS: usize = 8;
/// Distances end here.
const FARTHEST: f32 = 10.0;

pub struct RelationHead {
    /// The last matrix of a span's state, where there is one.
    last: Option<Linear>,
    nearness: Near,
    pairs: Pairs,
}

enum Pairs {
    Head(Box<PairHead>),
    Triples(Triples),
}

/// The matrices that choose pairs.
enum Near {
    All,
    Dot,
    Mlp(Box<PairMlp>),
    Attention(Box<Attention>),
    Bilinear(Box<Linear>),
    Graph(Box<(Linear, Linear)>),
    GraphAttention(Box<(Attention, Linear)>),
}

/// One number for two spans: `output` · relu(head + tail) + `bias`.
struct PairMlp {
    heads: Linear,
    tails: Linear,
    output: Vec<f32>,
    bias: f32,
}

struct Attention {
    /// Queries, keys and values in one.
    inputs: Linear,
    output: Linear,
}

/// Spans of a window that may be entities, in the order of the library: a span with several labels is there several
/// times where words make spans.
pub struct Judged {
    pub scores: SpanScores,
    /// Of the relations, [count, hidden].
    pub relations: Tensor,
    pub spans: Vec<(usize, usize)>,
}

/// Two spans by their numbers, and a relation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    pub head: usize,
    pub tail: usize,
    pub relation: usize,
    pub score: f32,
}

/// Scores above them count: that two entities have to do with each other, and that they stand in a relation.
#[derive(Clone, Copy, Debug)]
pub struct Least {
    pub nearness: f32,
    pub relation: f32,
}

impl Attention {
    fn read(target: Target<'_>, name: &str) -> Result<Self> {
        let weight = tensor(target, &format!("{name}.in_proj_weight"))?;
        let bias = tensor(target, &format!("{name}.in_proj_bias"))?;
        let (rows, width) = weight.dims2()?;
        let output = linear(target, &format!("{name}.out_proj"))?;
        let fits = rows == 3 * width && bias.dims() == [rows] && output.inputs() == width;
        if !fits || width == 0 || width % HEADS != 0 {
            return Err(misfit("attention of relations"));
        }
        Ok(Self {
            inputs: Linear::new(weight, Some(bias))?,
            output,
        })
    }
}

impl RelationHead {
    pub fn read(target: Target<'_>, config: &RelationConfig, mode: SpanMode) -> Result<Self> {
        let last = match mode {
            SpanMode::Marker => None,
            _ => Some(linear(
                target,
                "span_rep_layer.span_rep_layer.out_project.3",
            )?),
        };
        let named = |name: &str| linear(target, &format!("{BODY}.{name}"));
        let attention = || Attention::read(target, &format!("{BODY}.attn"));
        let nearness = match config.nearness {
            None => Near::All,
            Some(Nearness::Dot) => Near::Dot,
            Some(Nearness::Mlp) => Near::Mlp(Box::new(read_mlp(target)?)),
            Some(Nearness::Attention) => Near::Attention(Box::new(attention()?)),
            Some(Nearness::Bilinear) => Near::Bilinear(Box::new(named("proj")?)),
            Some(Nearness::Graph) => Near::Graph(Box::new((named("gcn.linear")?, named("proj")?))),
            Some(Nearness::GraphAttention) => {
                Near::GraphAttention(Box::new((attention()?, named("linear")?)))
            }
        };
        let pairs = match config.triples {
            Some(triples) => Pairs::Triples(triples),
            None => Pairs::Head(Box::new(PairHead::read(target, "pair_rep_layer")?)),
        };
        Ok(Self {
            last,
            nearness,
            pairs,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mut linears: Vec<&Linear> = self.last.iter().collect();
        match &self.nearness {
            Near::All | Near::Dot => {}
            Near::Mlp(both) => linears.extend([&both.heads, &both.tails]),
            Near::Attention(attention) => linears.extend([&attention.inputs, &attention.output]),
            Near::Bilinear(linear) => linears.push(linear),
            Near::Graph(both) => linears.extend([&both.0, &both.1]),
            Near::GraphAttention(both) => linears.extend([&both.0.inputs, &both.0.output, &both.1]),
        }
        if let Pairs::Head(head) = &self.pairs {
            linears.extend(head.linears());
        }
        linears
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// The relations between those spans that are kept, by head, tail and relation in order.
    pub fn related(
        &self,
        judged: &Judged,
        kept: &[usize],
        least: Least,
        cancel: &CancelToken,
    ) -> Result<Vec<Pair>> {
        if kept.is_empty() || judged.relations.dims2()?.0 == 0 {
            return Ok(Vec::new());
        }
        let states = self.states(judged, cancel)?;
        let (_, width) = states.dims2()?;
        if judged.relations.dims2()?.1 != width {
            return Err(misfit("relations"));
        }
        let near = Nearby::of(&self.nearness, &states, cancel)?;
        let scorer = self.scorer(&states, &judged.relations)?;
        let each = kept.par_iter().map(|&head| -> Result<Vec<Pair>> {
            cancel.check()?;
            let row = near.row(head);
            let tails = kept.iter().filter(|&&tail| tail != head);
            let mut found = Vec::new();
            for &tail in tails {
                let near = row.as_ref().map_or(f32::INFINITY, |row| row[tail]);
                if near <= least.nearness {
                    continue;
                }
                let scores = scorer.of(head, tail).into_iter().map(sigmoid);
                // What is not a number is kept, for the caller to refuse.
                let scores = scores.map(|score| if near.is_nan() { near } else { score });
                let above = scores
                    .enumerate()
                    .filter(|&(_, score)| score > least.relation || score.is_nan());
                found.extend(above.map(|(relation, score)| Pair {
                    head,
                    tail,
                    relation,
                    score,
                }));
            }
            Ok(found)
        });
        let lists: Vec<Vec<Pair>> = each.collect::<Result<_>>()?;
        Ok(lists.into_iter().flatten().collect())
    }

    /// The states of all spans, [spans, hidden].
    fn states(&self, judged: &Judged, cancel: &CancelToken) -> Result<Tensor> {
        let width = judged.scores.width();
        let state = |at: usize| {
            let (first, last) = judged.spans[at];
            judged.scores.state(first, last)
        };
        let rows = each_row(judged.spans.len(), cancel, state)?;
        let rows = Tensor::from_vec(rows, (judged.spans.len(), width), judged.relations.device())?;
        match &self.last {
            Some(linear) => plain(linear, &rows),
            None => Ok(rows),
        }
    }

    fn scorer(&self, states: &Tensor, relations: &Tensor) -> Result<Scorer> {
        let width = states.dims2()?.1;
        match &self.pairs {
            Pairs::Head(head) => {
                if head.linears()[0].inputs() != width {
                    return Err(misfit("relations"));
                }
                Ok(Scorer::Pairs(head.scores(states, relations)?))
            }
            Pairs::Triples(triples) => {
                let parts = match triples {
                    Triples::Halves | Triples::Complex => 2,
                    Triples::Quaternions => 4,
                    _ => 1,
                };
                if width % parts != 0 {
                    return Err(misfit("relations"));
                }
                Ok(Scorer::Triples {
                    triples: *triples,
                    states: values(states)?,
                    relations: values(relations)?,
                    width,
                })
            }
        }
    }
}

fn read_mlp(target: Target<'_>) -> Result<PairMlp> {
    let joined = tensor(target, &format!("{BODY}.mlp.0.weight"))?;
    let bias = tensor(target, &format!("{BODY}.mlp.0.bias"))?;
    let last = tensor(target, &format!("{BODY}.mlp.2.weight"))?;
    let last_bias = tensor(target, &format!("{BODY}.mlp.2.bias"))?;
    let (inner, inputs) = joined.dims2()?;
    let width = inputs / 2;
    let fits = inputs == 2 * width && last.dims() == [1, inner] && last_bias.dims() == [1];
    if !fits || bias.dims() != [inner] {
        return Err(misfit("pairs of entities"));
    }
    let half = |at: usize, bias: Option<Tensor>| -> Result<Linear> {
        Linear::new(joined.narrow(1, at * width, width)?.contiguous()?, bias)
    };
    Ok(PairMlp {
        heads: half(0, None)?,
        tails: half(1, Some(bias))?,
        output: values(&last)?,
        bias: values(&last_bias)?[0],
    })
}

/// What says how near the spans of one window are to each other.
enum Nearby {
    All,
    /// By the products of these rows.
    Products(Rows),
    Mlp {
        heads: Rows,
        tails: Rows,
        output: Vec<f32>,
        bias: f32,
    },
    Weights(Weights),
}

struct Rows {
    values: Vec<f32>,
    width: usize,
}

impl Rows {
    fn of(tensor: &Tensor) -> Result<Self> {
        Ok(Self {
            values: values(tensor)?,
            width: tensor.dims2()?.1.max(1),
        })
    }

    fn row(&self, at: usize) -> &[f32] {
        &self.values[at * self.width..(at + 1) * self.width]
    }

    fn each(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.width)
    }

    fn count(&self) -> usize {
        self.values.len() / self.width
    }

    /// What the sigmoid makes of the products of one row with all.
    fn products(&self, at: usize) -> Vec<f32> {
        let own = self.row(at);
        self.each().map(|other| sigmoid(dot(own, other))).collect()
    }

    /// Sums of all rows by the weights of each, [count, width].
    fn mixed(
        &self,
        weights: impl Fn(usize) -> Vec<f32> + Sync,
        like: &Tensor,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let rows = each_row(self.count(), cancel, |at| {
            let mut sum = vec![0f32; self.width];
            for (weight, row) in weights(at).into_iter().zip(self.each()) {
                add_scaled(&mut sum, row, weight);
            }
            sum
        })?;
        Ok(Tensor::from_vec(
            rows,
            (self.count(), self.width),
            like.device(),
        )?)
    }
}

/// So many rows one after the other, computed on all threads.
fn each_row(
    count: usize,
    cancel: &CancelToken,
    row: impl Fn(usize) -> Vec<f32> + Sync,
) -> Result<Vec<f32>> {
    let rows = (0..count).into_par_iter().map(|at| {
        cancel.check()?;
        Ok(row(at))
    });
    Ok(rows.collect::<Result<Vec<_>>>()?.concat())
}

fn add_scaled(sum: &mut [f32], row: &[f32], weight: f32) {
    sum.iter_mut()
        .zip(row)
        .for_each(|(sum, value)| *sum += weight * value);
}

/// Attention between spans: queries, keys and values side by side.
struct Weights(Rows);

impl Weights {
    fn of(attention: &Attention, states: &Tensor) -> Result<Self> {
        Ok(Self(Rows::of(&plain(&attention.inputs, states)?)?))
    }

    fn width(&self) -> usize {
        self.0.width / 3
    }

    /// How much one span attends to each in one attention head.
    fn of_head(&self, at: usize, head: usize) -> Vec<f32> {
        let (width, size) = (self.width(), self.width() / HEADS);
        let query = &self.0.row(at)[head * size..(head + 1) * size];
        let scale = 1.0 / (size as f32).sqrt();
        let keys = self.0.each().map(|row| &row[width + head * size..][..size]);
        let logits: Vec<f32> = keys.map(|key| dot(query, key) * scale).collect();
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = logits.iter().map(|logit| (logit - most).exp()).collect();
        let sum: f32 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    /// The mean over attention heads.
    fn mean(&self, at: usize) -> Vec<f32> {
        let mut mean = vec![0f32; self.0.count()];
        for head in 0..HEADS {
            add_scaled(&mut mean, &self.of_head(at, head), 1.0 / HEADS as f32);
        }
        mean
    }

    fn outputs(
        &self,
        attention: &Attention,
        states: &Tensor,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (width, size) = (self.width(), self.width() / HEADS);
        let rows = each_row(self.0.count(), cancel, |at| {
            let mut row = vec![0f32; width];
            for head in 0..HEADS {
                let place = head * size..(head + 1) * size;
                for (weight, other) in self.of_head(at, head).into_iter().zip(self.0.each()) {
                    let value = &other[2 * width + place.start..][..size];
                    add_scaled(&mut row[place.clone()], value, weight);
                }
            }
            row
        })?;
        let mixed = Tensor::from_vec(rows, (self.0.count(), width), states.device())?;
        plain(&attention.output, &mixed)
    }
}

impl Nearby {
    fn of(near: &Near, states: &Tensor, cancel: &CancelToken) -> Result<Self> {
        let width = states.dims2()?.1;
        let fits = |linear: &Linear, inputs: usize| -> Result<()> {
            match linear.inputs() {
                own if own == inputs => Ok(()),
                _ => Err(misfit("pairs of entities")),
            }
        };
        match near {
            Near::All => Ok(Self::All),
            Near::Dot => Ok(Self::Products(Rows::of(states)?)),
            Near::Mlp(parts) => {
                fits(&parts.heads, width)?;
                Ok(Self::Mlp {
                    heads: Rows::of(&plain(&parts.heads, states)?)?,
                    tails: Rows::of(&plain(&parts.tails, states)?)?,
                    output: parts.output.clone(),
                    bias: parts.bias,
                })
            }
            Near::Attention(attention) => {
                fits(&attention.inputs, width)?;
                Ok(Self::Weights(Weights::of(attention, states)?))
            }
            Near::Bilinear(linear) => {
                fits(linear, width)?;
                Ok(Self::Products(Rows::of(&plain(linear, states)?)?))
            }
            Near::Graph(both) => {
                fits(&both.0, width)?;
                fits(&both.1, both.0.outputs())?;
                let rows = Rows::of(states)?;
                let with_self = |at: usize| {
                    let mut row = rows.products(at);
                    row[at] += 1.0;
                    row
                };
                let scale = |at: usize| with_self(at).iter().sum::<f32>().max(1e-6).powf(-0.5);
                let scales = each_row(rows.count(), cancel, |at| vec![scale(at)])?;
                let weights = |at: usize| -> Vec<f32> {
                    let row = with_self(at).into_iter().zip(&scales);
                    row.map(|(value, scale)| scales[at] * value * scale)
                        .collect()
                };
                let mixed = rows.mixed(weights, states, cancel)?;
                let hidden = super::head::relu(&both.0, &mixed)?;
                Ok(Self::Products(Rows::of(&plain(&both.1, &hidden)?)?))
            }
            Near::GraphAttention(both) => {
                let (attention, last) = both.as_ref();
                fits(&attention.inputs, width)?;
                fits(last, attention.output.outputs())?;
                let weights = Weights::of(attention, states)?;
                let hidden = weights.outputs(attention, states, cancel)?;
                Ok(Self::Products(Rows::of(&plain(last, &hidden)?)?))
            }
        }
    }

    /// How near all are to one; nothing where all pairs count.
    fn row(&self, at: usize) -> Option<Vec<f32>> {
        match self {
            Self::All => None,
            Self::Products(rows) => Some(rows.products(at)),
            Self::Mlp {
                heads,
                tails,
                output,
                bias,
            } => {
                let own = heads.row(at);
                let logit = |tail: &[f32]| -> f32 {
                    let sums = own.iter().zip(tail).zip(output);
                    sums.map(|((a, b), weight)| (a + b).max(0.0) * weight)
                        .sum::<f32>()
                        + bias
                };
                Some(tails.each().map(|tail| sigmoid(logit(tail))).collect())
            }
            Self::Weights(weights) => Some(weights.mean(at)),
        }
    }
}

enum Scorer {
    Pairs(SpanScores),
    Triples {
        triples: Triples,
        states: Vec<f32>,
        relations: Vec<f32>,
        width: usize,
    },
}

impl Scorer {
    /// The logit of each relation between two spans.
    fn of(&self, head: usize, tail: usize) -> Vec<f32> {
        match self {
            Self::Pairs(scores) => scores.of(head, tail),
            Self::Triples {
                triples,
                states,
                relations,
                width,
            } => {
                let state = |at: usize| &states[at * width..(at + 1) * width];
                triples.scores(state(head), state(tail), relations.chunks_exact(*width))
            }
        }
    }
}

impl Triples {
    fn scores<'a>(
        self,
        h: &[f32],
        t: &[f32],
        relations: impl Iterator<Item = &'a [f32]>,
    ) -> Vec<f32> {
        // What a relation's vector is multiplied by, where the score is a product with it.
        let factors: Option<Vec<f32>> = match self {
            Self::Product => Some(h.iter().zip(t).map(|(h, t)| h * t).collect()),
            Self::Halves => {
                let half = h.len() / 2;
                let forward = h[..half].iter().zip(&t[half..]);
                let backward = t[..half].iter().zip(&h[half..]);
                Some(forward.chain(backward).map(|(a, b)| 0.5 * a * b).collect())
            }
            Self::Complex => {
                let half = h.len() / 2;
                let real = |at: usize| h[at] * t[at] + h[half + at] * t[half + at];
                let imaginary = |at: usize| h[at] * t[half + at] - h[half + at] * t[at];
                let real = (0..half).map(real);
                Some(real.chain((0..half).map(imaginary)).collect())
            }
            Self::Quaternions => Some(quaternions(h, t)),
            Self::Correlation => {
                let shifted = |by: usize| {
                    dot(&h[..t.len() - by], &t[by..]) + dot(&h[t.len() - by..], &t[..by])
                };
                Some((0..t.len()).map(shifted).collect())
            }
            Self::Unstructured | Self::Structure | Self::Translation | Self::Sums => None,
        };
        relations
            .map(|r| match &factors {
                Some(factors) => dot(factors, r),
                None => self.score(h, r, t),
            })
            .collect()
    }

    fn score(self, h: &[f32], r: &[f32], t: &[f32]) -> f32 {
        let each = h.iter().zip(r).zip(t);
        match self {
            Self::Unstructured => {
                let squares: f32 = h.iter().zip(t).map(|(h, t)| (h - t) * (h - t)).sum();
                -squares.sqrt().min(FARTHEST)
            }
            Self::Structure => {
                let squares: f32 = each.map(|((h, r), t)| (r * h - r * t).powi(2)).sum();
                -squares.sqrt().min(FARTHEST)
            }
            Self::Translation => {
                let sum: f32 = each.map(|((h, r), t)| (h + r - t).abs()).sum();
                -sum.min(FARTHEST)
            }
            _ => dot(h, r) + dot(h, t) + dot(r, t),
        }
    }
}

/// The Hamilton product of head and relation, multiplied by the tail: what each part of the relation adds.
fn quaternions(h: &[f32], t: &[f32]) -> Vec<f32> {
    let quarter = h.len() / 4;
    let part = |x: &[f32], number: usize, at: usize| x[number * quarter + at];
    // For each part of the relation the parts of the head that meet the four of the tail, with their signs.
    const SIGNS: [[(usize, f32); 4]; 4] = [
        [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)],
        [(1, -1.0), (0, 1.0), (3, 1.0), (2, -1.0)],
        [(2, -1.0), (3, -1.0), (0, 1.0), (1, 1.0)],
        [(3, -1.0), (2, 1.0), (1, -1.0), (0, 1.0)],
    ];
    let mut factors = Vec::with_capacity(h.len());
    for signs in SIGNS {
        factors.extend((0..quarter).map(|at| {
            let each = signs.iter().enumerate();
            each.map(|(of_tail, &(of_head, sign))| {
                sign * part(h, of_head, at) * part(t, of_tail, at)
            })
            .sum::<f32>()
        }));
    }
    factors
}
