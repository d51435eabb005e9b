//! The order in which the boxes of a page are read (PP-DocLayoutV2): a transformer over boxes and labels, and for each
//! pair of them which one comes first.

use candle_core::{DType, Device, Tensor};

use super::attention::{check_heads, residual, Mlp, Order};
use super::page_order::{check_queries, PageOrder, Pairs};
use super::rt_detr::sigmoid;
use super::Predictions;
use crate::models::config::activation;
use crate::models::modules::Modules;
use crate::models::towers::scores::{mixed, Scores};
use crate::nn::{elementwise, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, WIDTH};

/// Boxes are on a grid of so many places to a side.
const GRID: f32 = 1000.0;
/// No larger tokens or classes are in files.
const MOST: usize = 1 << 16;

#[derive(Debug)]
pub struct ReadingOrder {
    embeddings: Embeddings,
    layers: Vec<Layer>,
    relations: Relations,
    pairs: Pairs,
    /// By class: what a score must reach to be read, and the label of the order.
    classes: Vec<(f32, usize)>,
}

/// What becomes of tokens, places, boxes and labels, on the CPU.
#[derive(Debug)]
struct Embeddings {
    tokens: Table,
    types: Table,
    positions: Table,
    columns: Table,
    rows: Table,
    heights: Table,
    widths: Table,
    boxes: Linear,
    labels: Table,
    label_projection: Linear,
    norm: Norm,
    ids: Ids,
}

/// Tokens by what they stand for.
#[derive(Clone, Copy, Debug)]
struct Ids {
    start: usize,
    padding: usize,
    end: usize,
    thing: usize,
}

#[derive(Debug)]
struct Table {
    values: Vec<f32>,
    width: usize,
}

#[derive(Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    norm: Norm,
    mlp: Mlp,
    mlp_norm: Norm,
    heads: usize,
}

/// What attention adds for how two boxes lie to each other.
#[derive(Debug)]
struct Relations {
    frequencies: Vec<f32>,
    scale: f32,
    projection: Linear,
}

/// One row that the transformer reads.
struct Row {
    token: usize,
    position: usize,
    corners: [f32; 4],
    label: Option<usize>,
}

impl Table {
    fn load(modules: &Modules<'_>, name: &str) -> Result<Self> {
        let name = format!("{name}.weight");
        let width = match modules.shape(&name)?[..] {
            [_, width] if width > 0 => width,
            _ => return Err(modules.corrupt(format!("tensor {name} is not a table"))),
        };
        let values = modules.values(&name)?;
        Ok(Self { values, width })
    }

    fn row(&self, at: usize) -> Result<&[f32]> {
        let start = at.saturating_mul(self.width);
        let found = self.values.get(start..start.saturating_add(self.width));
        found.ok_or_else(|| {
            Error::CorruptModel(format!("a table of the reading order has no row {at}"))
        })
    }
}

impl Embeddings {
    fn load(raw: &RawConfig, modules: &Modules<'_>, width: usize, epsilon: f32) -> Result<Self> {
        let of = modules.at("embeddings");
        let table = |name: &str| Table::load(&of, name);
        let id = |key: &str, usual: usize| -> Result<usize> {
            Ok(raw.opt_usize_in(key, 0..=MOST)?.unwrap_or(usual))
        };
        let (columns, heights) = (
            table("x_position_embeddings")?,
            table("h_position_embeddings")?,
        );
        let inputs = 4 * columns.width + 2 * heights.width;
        let found = Self {
            tokens: table("word_embeddings")?,
            types: table("token_type_embeddings")?,
            positions: table("position_embeddings")?,
            rows: table("y_position_embeddings")?,
            widths: table("w_position_embeddings")?,
            columns,
            heights,
            boxes: of.sized_linear("spatial_proj", inputs, width)?,
            labels: Table::load(modules, "label_embeddings")?,
            label_projection: modules.sized_linear("label_features_projection", width, width)?,
            norm: of.layer_norm("norm", width, epsilon)?,
            ids: Ids {
                start: id("start_token_id", 0)?,
                padding: id("pad_token_id", 1)?,
                end: id("end_token_id", 2)?,
                thing: id("pred_token_id", 3)?,
            },
        };
        let wide = [&found.tokens, &found.types, &found.positions, &found.labels];
        let even =
            found.rows.width == found.columns.width && found.widths.width == found.heights.width;
        if !even || wide.iter().any(|table| table.width != width) {
            return Err(
                modules.corrupt("the tables of its reading order do not fit together".to_string())
            );
        }
        Ok(found)
    }

    fn forward(&self, rows: &[Row], (device, dtype): (&Device, DType)) -> Result<Tensor> {
        let width = self.tokens.width;
        let (mut words, mut places, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let parts = [
                self.tokens.row(row.token)?,
                self.types.row(0)?,
                self.positions.row(row.position)?,
            ];
            words.extend((0..width).map(|at| parts.iter().map(|part| part[at]).sum::<f32>()));
            let [left, top, right, bottom] = row.corners.map(|at| at as i64);
            let extent = |extent: i64| extent.clamp(0, 1023) as usize;
            for part in [
                self.columns.row(left as usize)?,
                self.rows.row(top as usize)?,
                self.columns.row(right as usize)?,
                self.rows.row(bottom as usize)?,
                self.heights.row(extent(bottom - top))?,
                self.widths.row(extent(right - left))?,
            ] {
                places.extend_from_slice(part);
            }
            match row.label {
                Some(label) => labels.extend_from_slice(self.labels.row(label)?),
                None => labels.resize(labels.len() + width, 0.0),
            }
        }
        let tensor = |values: Vec<f32>| -> Result<Tensor> {
            let shape = (rows.len(), values.len() / rows.len().max(1));
            Ok(Tensor::from_vec(values, shape, device)?.to_dtype(dtype)?)
        };
        let named = rows
            .iter()
            .map(|row| f32::from(u8::from(row.label.is_some())));
        let named = tensor(named.collect())?;
        let labels = self.label_projection.forward(&tensor(labels)?)?;
        let labels = elementwise::multiply(&labels, &named)?;
        let placed = self.boxes.forward(&tensor(places)?)?;
        let x = elementwise::add(&elementwise::add(&tensor(words)?, &placed)?, &labels)?;
        self.norm.forward(&x)
    }
}

impl Relations {
    fn load(raw: &RawConfig, modules: &Modules<'_>, heads: usize) -> Result<Self> {
        let width = raw
            .opt_usize_in("relation_bias_embed_dim", 2..=1024)?
            .unwrap_or(16);
        let theta = raw.opt_f64("relation_bias_theta")?.unwrap_or(10_000.0) as f32;
        let half = (width / 2) as f32;
        let frequencies = (0..width)
            .step_by(2)
            .map(|at| 1.0 / theta.powf(at as f32 / half));
        let frequencies: Vec<f32> = frequencies.collect();
        let inputs = 8 * frequencies.len();
        let of = modules.at("encoder.rel_bias_module.pos_proj");
        let weight = of.shaped("weight", &[heads, inputs, 1, 1])?;
        Ok(Self {
            frequencies,
            scale: raw.opt_f64("relation_bias_scale")?.unwrap_or(100.0) as f32,
            projection: Linear::new(
                weight.reshape((heads, inputs))?,
                Some(of.shaped("bias", &[heads])?),
            )?,
        })
    }

    /// For each head, row and key: f32 [1, heads, rows, keys].
    fn forward(&self, rows: &[Row], keys: usize, like: &Tensor) -> Result<Tensor> {
        const LEAST: f32 = 1e-5;
        let places = rows.iter().map(|row| {
            let [left, top, right, bottom] = row.corners;
            let centre = [(left + right) * 0.5, (top + bottom) * 0.5];
            (centre, [(right - left).max(1e-3), (bottom - top).max(1e-3)])
        });
        let places: Vec<([f32; 2], [f32; 2])> = places.collect();
        let elements = [places.len(), keys, 8 * self.frequencies.len()];
        memory::ensure_elements(&elements, 4, "what boxes are to each other")?;
        let mut values = Vec::with_capacity(elements.iter().product());
        for (centre, size) in &places {
            for (other, extent) in places.iter().take(keys) {
                let far = [0, 1].map(|axis| {
                    ((centre[axis] - other[axis]).abs() / (size[axis] + LEAST) + 1.0).ln()
                });
                let large = [0, 1].map(|axis| ((size[axis] + LEAST) / (extent[axis] + LEAST)).ln());
                for number in [far, large].concat() {
                    let angle = |frequency: &f32| number * self.scale * frequency;
                    values.extend(self.frequencies.iter().map(|it| angle(it).sin()));
                    values.extend(self.frequencies.iter().map(|it| angle(it).cos()));
                }
            }
        }
        let shape = (rows.len() * keys, 8 * self.frequencies.len());
        let values = Tensor::from_vec(values, shape, like.device())?.to_dtype(like.dtype())?;
        let added = self.projection.forward(&values)?.t()?.contiguous()?;
        let added = added.to_dtype(DType::F32)?;
        Ok(added.reshape((1, (), rows.len(), keys))?)
    }
}

impl Layer {
    fn load(
        modules: &Modules<'_>,
        (width, heads): (usize, usize),
        (epsilon, name): (f32, kernels::Activation),
    ) -> Result<Self> {
        let linear = |name: &str| modules.sized_linear(name, width, width);
        let mlp = Mlp::named(
            modules,
            width,
            &["intermediate.dense", "output.dense"],
            name,
        )?;
        super::check_outputs(modules, &mlp, width)?;
        Ok(Self {
            query: linear("attention.self.query")?,
            key: linear("attention.self.key")?,
            value: linear("attention.self.value")?,
            output: linear("attention.output.dense")?,
            norm: modules.layer_norm("attention.output.norm", width, epsilon)?,
            mlp,
            mlp_norm: modules.layer_norm("output.norm", width, epsilon)?,
            heads,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in [&self.query, &self.key, &self.value, &self.output] {
            inventory.add_linear(linear)?;
        }
        inventory.add_norm(&self.norm)?;
        inventory.add_norm(&self.mlp_norm)?;
        self.mlp.list(inventory)
    }

    /// All rows see the first ones, as many as `added` has keys.
    fn forward(&self, x: &Tensor, added: &Tensor) -> Result<Tensor> {
        let keys = added.dim(3)?;
        let x = residual(x, &self.norm, Order::Post, |x| {
            let size = x.dim(1)? / self.heads;
            let split = |linear: &Linear, x: &Tensor| -> Result<Tensor> {
                let rows = linear.forward(x)?.reshape(((), self.heads, size))?;
                Ok(rows.transpose(0, 1)?.unsqueeze(0)?)
            };
            let seen = x.narrow(0, 0, keys)?.contiguous()?;
            let inputs = [
                split(&self.query, x)?,
                split(&self.key, &seen)?,
                split(&self.value, &seen)?,
            ];
            let mixed = mixed(inputs.each_ref(), Scores::Product, &[added])?;
            self.output.forward(&mixed)
        })?;
        residual(&x, &self.mlp_norm, Order::Post, |x| self.mlp.forward(x))
    }
}

impl ReadingOrder {
    /// Of a model of so many classes and queries, from the configuration of the whole.
    pub fn load(
        whole: &RawConfig,
        modules: &Modules<'_>,
        (classes, queries): (usize, usize),
        cancel: &CancelToken,
    ) -> Result<Self> {
        check_queries(whole)?;
        let raw = &whole.nested("reading_order_config")?;
        let modules = &modules.at("reading_order");
        let size = |key: &str, range, usual: usize| -> Result<usize> {
            Ok(raw.opt_usize_in(key, range)?.unwrap_or(usual))
        };
        let width = size("hidden_size", WIDTH, 512)?;
        let heads = size("num_attention_heads", HEADS, 8)?;
        check_heads(modules, width, heads)?;
        let flag =
            |key: &str, usual: bool| -> Result<bool> { Ok(raw.opt_bool(key)?.unwrap_or(usual)) };
        if flag("has_relative_attention_bias", false)? || !flag("has_spatial_attention_bias", true)?
        {
            let reason = "a reading order without spatial_attention_bias, or with relative_attention_bias, is not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let epsilon = raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32;
        let name = activation(raw.opt_string("hidden_act")?.unwrap_or("gelu"), raw.file())?;
        let mut layers = Vec::new();
        for number in 0..size("num_hidden_layers", LAYERS, 6)? {
            cancel.check()?;
            let of = modules.at(format!("encoder.layer.{number}"));
            layers.push(Layer::load(&of, (width, heads), (epsilon, name))?);
        }
        let embeddings = Embeddings::load(raw, modules, width, epsilon)?;
        let labels = whole.opt_integers("class_order")?.unwrap_or_default();
        let labels = labels
            .iter()
            .map(|&label| usize::try_from(label).unwrap_or(usize::MAX));
        let labels: Vec<usize> = labels.collect();
        let thresholds = whole.opt_numbers("class_thresholds")?.unwrap_or_default();
        if labels.len() < classes || thresholds.len() < classes {
            let reason = format!(
                "\"class_order\" and \"class_thresholds\" are not those of {classes} classes"
            );
            return Err(Error::corrupt(whole.file(), reason));
        }
        // A start, an end, and one token for each query are behind the padding.
        let last = embeddings.ids.padding.saturating_add(queries + 2);
        embeddings.positions.row(last)?;
        for &label in &labels {
            embeddings.labels.row(label)?;
        }
        Ok(Self {
            embeddings,
            layers,
            relations: Relations::load(raw, modules, heads)?,
            pairs: Pairs::load(raw, &modules.at("relative_head"), width)?,
            classes: thresholds
                .into_iter()
                .map(|least| least as f32)
                .zip(labels)
                .collect(),
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let Embeddings {
            boxes,
            label_projection,
            norm,
            ..
        } = &self.embeddings;
        inventory.add_linear(boxes)?;
        inventory.add_linear(label_projection)?;
        inventory.add_norm(norm)?;
        inventory.add_linear(&self.relations.projection)?;
        self.pairs.list(inventory)?;
        self.layers
            .iter()
            .try_for_each(|layer| layer.list(inventory))
    }

    /// The same predictions, those that are read first, with the place of each in the order.
    pub fn arrange(
        &self,
        found: Predictions,
        place: (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Predictions> {
        let classes = found.classes.max(1);
        let best = found.logits.chunks_exact(classes).map(|row| {
            let all = row.iter().copied().enumerate();
            all.reduce(|a, b| if b.1 > a.1 { b } else { a })
                .unwrap_or((0, f32::NEG_INFINITY))
        });
        let best: Vec<(usize, f32)> = best.collect();
        // The label of what is read.
        let label = |query: usize| {
            let (class, logit) = best[query];
            let (least, label) = *self.classes.get(class)?;
            (sigmoid(logit) >= least).then_some(label)
        };
        let all = 0..found.boxes.len();
        let (read, others): (Vec<usize>, Vec<usize>) =
            all.partition(|&query| label(query).is_some());
        let things = read
            .iter()
            .filter_map(|&query| Some((corners(found.boxes[query]), label(query)?)));
        let things: Vec<([f32; 4], usize)> = things.collect();
        let ranks = self.ranks(&things, found.boxes.len(), place, cancel)?;
        let order = [read, others].concat();
        let row = |&query: &usize| &found.logits[query * classes..][..classes];
        Ok(Predictions {
            logits: order.iter().flat_map(row).copied().collect(),
            classes: found.classes,
            boxes: order.iter().map(|&query| found.boxes[query]).collect(),
            order: Some(PageOrder::Ranks(ranks)),
        })
    }

    /// The place of each of so many queries in the order, of which the first are things with a label.
    fn ranks(
        &self,
        things: &[([f32; 4], usize)],
        queries: usize,
        place: (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Vec<usize>> {
        let ids = self.embeddings.ids;
        let first = ids.padding + 1;
        let count = things.len();
        let plain = |token: usize, position: usize, label: Option<usize>| Row {
            token,
            position,
            corners: [0.0; 4],
            label,
        };
        let usual = self.classes.first().map(|&(_, label)| label);
        let mut rows = vec![plain(ids.start, first, None)];
        for (number, &(corners, label)) in things.iter().enumerate() {
            rows.push(Row {
                token: ids.thing,
                position: first + 1 + number,
                corners,
                label: Some(label),
            });
        }
        // Where there are as many things as queries, no query is left for the end.
        let end = usual.filter(|_| count < queries);
        rows.push(plain(ids.end, first + 1 + count, end));
        // What stands behind the end is all alike, and no row sees it.
        if count + 1 < queries {
            rows.push(plain(ids.padding, ids.padding, usual));
        }
        let mut x = self.embeddings.forward(&rows, place)?;
        let added = self.relations.forward(&rows, count + 2, &x)?;
        for layer in &self.layers {
            cancel.check()?;
            x = layer.forward(&x, &added)?;
        }
        let shown = (rows.len() - 1).min(queries);
        self.pairs
            .ranks(&x.narrow(0, 1, shown)?.contiguous()?, queries)
    }
}

/// Left, top, right and bottom on the grid.
fn corners([x, y, wide, high]: [f32; 4]) -> [f32; 4] {
    let edges = [
        x - 0.5 * wide,
        y - 0.5 * high,
        x + 0.5 * wide,
        y + 0.5 * high,
    ];
    edges.map(|edge| (edge * GRID).clamp(0.0, GRID))
}
