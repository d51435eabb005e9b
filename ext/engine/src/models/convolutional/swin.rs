//! Swin and its second version: attention inside windows of a map, every second layer's windows moved by half.

use super::*;
use crate::models::towers::scores::{mixed, Scores};

/// Of norms that the configuration does not name.
const EPSILON: f32 = 1e-5;
/// What is added to the scores of places that only the moved windows bring together.
const APART: f32 = -100.0;
/// Most places of an edge of a window.
const WINDOW: std::ops::RangeInclusive<usize> = 1..=256;

#[derive(Debug)]
struct Block {
    before: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    after: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
    heads: usize,
    window: usize,
    shift: usize,
    version: Version,
    /// Whether a map that is not larger than a window is one, whose places are not moved.
    shrinks: bool,
    /// [1, heads, places, places]
    bias: Tensor,
    /// [1, heads, 1, 1]: of cosines, instead of 1 / √width of products.
    scale: Option<Tensor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Norms before attention and MLP.
    First,
    /// Norms behind them.
    Second,
}

/// How a map is divided, in this order of rows.
pub struct Windows {
    pub count: usize,
    /// For each place of each window, the map's row; the one behind the last outside of the map.
    pub rows: Vec<u32>,
    /// For each row of the map, its place among all windows'.
    pub places: Vec<u32>,
    /// [windows, 1, places, places], where windows are moved.
    pub mask: Option<Vec<f32>>,
}

impl Windows {
    pub fn new((height, width): (usize, usize), size: usize, shift: usize) -> Self {
        let (down, across) = (height.div_ceil(size), width.div_ceil(size));
        let (high, wide) = (down * size, across * size);
        let (count, area) = (down * across, size * size);
        let mut rows = Vec::with_capacity(count * area);
        let mut places = vec![0u32; height * width];
        let mut regions = Vec::with_capacity(count * area);
        // Places of a moved map that were neighbours before, of both directions.
        let region =
            |at: usize, end: usize| usize::from(at + size >= end) + usize::from(at + shift >= end);
        for window in 0..count {
            for place in 0..area {
                let y = window / across * size + place / size;
                let x = window % across * size + place % size;
                regions.push(region(y, high) * 3 + region(x, wide));
                let (y, x) = ((y + shift) % high, (x + shift) % wide);
                rows.push(if y < height && x < width {
                    places[y * width + x] = rows.len() as u32;
                    y * width + x
                } else {
                    height * width
                } as u32);
            }
        }
        let mask = (shift > 0).then(|| {
            let mut values = Vec::with_capacity(count * area * area);
            for regions in regions.chunks_exact(area) {
                for own in regions {
                    let apart = |other: &usize| if own == other { 0.0 } else { APART };
                    values.extend(regions.iter().map(apart));
                }
            }
            values
        });
        Self {
            count,
            rows,
            places,
            mask,
        }
    }
}

/// For every two places of a window, the row of a table of all distances.
fn distances(size: usize) -> Vec<u32> {
    let (span, area) = (2 * size - 1, size * size);
    let mut rows = Vec::with_capacity(area * area);
    for (one, other) in (0..area).flat_map(|one| (0..area).map(move |other| (one, other))) {
        let down = one / size + size - 1 - other / size;
        let right = one % size + size - 1 - other % size;
        rows.push((down * span + right) as u32);
    }
    rows
}

/// The bias of all distances, [distances, heads]: learned one by one.
fn learned(modules: &Modules<'_>, size: usize, heads: usize) -> Result<Vec<f32>> {
    let span = 2 * size - 1;
    let name = modules
        .known("relative_position_bias_table|relative_position_bias.relative_position_bias_table");
    let name = name.unwrap_or("relative_position_bias_table");
    modules.shaped(name, &[span * span, heads])?;
    modules.values(name)
}

/// The same, which a small network makes of the distances.
fn computed(modules: &Modules<'_>, size: usize, learned: usize, heads: usize) -> Result<Vec<f32>> {
    let mlp = modules.at("continuous_position_bias_mlp");
    let inner = mlp.shape("0.weight")?.first().copied().unwrap_or(0);
    mlp.shaped("0.weight", &[inner, 2])?;
    mlp.shaped("0.bias", &[inner])?;
    mlp.shaped("2.weight", &[heads, inner])?;
    let (weight, bias) = (mlp.values("0.weight")?, mlp.values("0.bias")?);
    let second = mlp.values("2.weight")?;
    let last = match (learned, size) {
        (0, 1) => 1.0,
        (0, size) => (size - 1) as f32,
        (learned, _) => learned as f32 - 1.0,
    };
    let place = |at: usize| {
        let distance = (at as f32 - (size as f32 - 1.0)) / last * 8.0;
        let far = (distance.abs() + 1.0).log2() / 3.0;
        if distance == 0.0 {
            0.0
        } else {
            far.copysign(distance)
        }
    };
    let span = 2 * size - 1;
    let mut table = Vec::with_capacity(span * span * heads);
    for at in 0..span * span {
        let (down, right) = (place(at / span), place(at % span));
        let inside: Vec<f32> = weight
            .chunks_exact(2)
            .zip(&bias)
            .map(|(weight, bias)| (weight[0] * down + weight[1] * right + bias).max(0.0))
            .collect();
        table.extend(second.chunks_exact(inner.max(1)).map(|row| {
            let sum: f32 = row.iter().zip(&inside).map(|(a, b)| a * b).sum();
            16.0 / (1.0 + (-sum).exp())
        }));
    }
    Ok(table)
}

/// What the layers of a stage have in common.
#[derive(Clone, Copy)]
struct Sizes {
    width: usize,
    heads: usize,
    window: usize,
    /// Of the windows that the model was trained with before.
    learned: usize,
    version: Version,
    activation: Activation,
    epsilon: f32,
    shrinks: bool,
}

impl Block {
    fn load(modules: &Modules<'_>, sizes: Sizes, shift: usize) -> Result<Self> {
        let (width, heads, size) = (sizes.width, sizes.heads, sizes.window);
        crate::models::detection::attention::check_heads(modules, width, heads)?;
        let attention = modules.at("attention");
        let own = if attention.has("self") {
            attention.at("self")
        } else {
            attention.clone()
        };
        let linear = |name: &str| own.sized_linear(name, width, width);
        let norm = |name: &str| modules.layer_norm(name, width, sizes.epsilon);
        let up = modules.linear("intermediate.dense|mlp.fc1", width)?;
        let inner = up.outputs();
        let table = match sizes.version {
            Version::First => learned(&own, size, heads)?,
            Version::Second => computed(&own, size, sizes.learned, heads)?,
        };
        let area = size * size;
        let (device, rows) = (modules.device(), distances(size));
        let mut bias = Vec::with_capacity(heads * area * area);
        for head in 0..heads {
            bias.extend(rows.iter().map(|&row| table[row as usize * heads + head]));
        }
        let scale = match sizes.version {
            Version::First => None,
            Version::Second => {
                own.shaped("logit_scale", &[heads, 1, 1])?;
                let most = (100f32).ln();
                let scales = own.values("logit_scale")?;
                let scales = scales.into_iter().map(|scale| scale.min(most).exp());
                let scales = Tensor::from_vec(scales.collect(), (1, heads, 1, 1), device)?;
                Some(scales)
            }
        };
        Ok(Self {
            before: norm("layernorm_before")?,
            query: linear("query|q_proj")?,
            key: linear("key|k_proj")?,
            value: linear("value|v_proj")?,
            output: attention.sized_linear("output.dense|o_proj", width, width)?,
            after: norm("layernorm_after")?,
            up,
            down: modules.sized_linear("output.dense|mlp.fc2", inner, width)?,
            activation: sizes.activation,
            heads,
            window: size,
            shift,
            version: sizes.version,
            shrinks: sizes.shrinks,
            bias: Tensor::from_vec(bias, (1, heads, area, area), device)?,
            scale,
        })
    }

    fn attend(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let mut shift = self.shift;
        let least = map.height.min(map.width);
        if self.shrinks && least <= self.window {
            shift = 0;
            if least < self.window {
                return Err(Error::InvalidInput(format!(
                    "the image became a map of {}x{} places, which is smaller than the model's windows of {} places: \
                     its preprocessor_config.json belongs to another model",
                    map.height, map.width, self.window
                )));
            }
        }
        let windows = Windows::new(map.size(), self.window, shift);
        let (count, area) = (windows.count, self.window * self.window);
        let device = map.rows.device();
        let divided = map.picked(windows.rows, 0.0)?.contiguous()?;
        let width = divided.dim(1)?;
        let heads = |linear: &Linear| -> Result<Tensor> {
            let rows = linear.forward(&divided)?;
            let rows = rows.reshape((count, area, self.heads, width / self.heads))?;
            Ok(rows.transpose(1, 2)?.contiguous()?)
        };
        let mask = windows.mask.map(|mask| -> Result<Tensor> {
            Ok(Tensor::from_vec(mask, (count, 1, area, area), device)?)
        });
        let mask = mask.transpose()?;
        let mut added = vec![&self.bias];
        added.extend(mask.as_ref());
        let scores = match &self.scale {
            Some(scale) => Scores::Cosine(scale),
            None => Scores::Product,
        };
        let inputs = [heads(&self.query)?, heads(&self.key)?, heads(&self.value)?];
        let mixed = mixed(inputs.each_ref(), scores, &added)?;
        let mixed = self.output.forward(&mixed)?;
        let places = windows.places;
        let number = places.len();
        let rows = mixed.index_select(&Tensor::from_vec(places, number, device)?, 0)?;
        map.with(rows.contiguous()?)
    }

    fn feed(&self, x: &Tensor) -> Result<Tensor> {
        let epilogue = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        self.down.forward(&self.up.forward_with(x, &epilogue)?)
    }
}

impl Own for Block {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let add = |a: &Tensor, b: &Tensor| map.with(elementwise::add(a, b)?);
        match self.version {
            Version::First => {
                let normed = map.with(self.before.forward(&map.rows)?)?;
                let map = add(&map.rows, &self.attend(&normed)?.rows)?;
                add(&map.rows, &self.feed(&self.after.forward(&map.rows)?)?)
            }
            Version::Second => {
                let attended = self.attend(map)?;
                let map = add(&map.rows, &self.before.forward(&attended.rows)?)?;
                add(&map.rows, &self.after.forward(&self.feed(&map.rows)?)?)
            }
        }
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in [
            &self.query,
            &self.key,
            &self.value,
            &self.output,
            &self.up,
            &self.down,
        ] {
            inventory.add_linear(linear)?;
        }
        inventory.add_tensor(&self.bias);
        self.scale
            .iter()
            .for_each(|scale| inventory.add_tensor(scale));
        inventory.add_norm(&self.before)?;
        inventory.add_norm(&self.after)
    }
}

/// Four places become one.
#[derive(Debug)]
struct Merging {
    norm: Norm,
    reduction: Linear,
    version: Version,
}

impl Merging {
    fn load(modules: &Modules<'_>, width: usize, version: Version) -> Result<Self> {
        let normed = if version == Version::First { 4 } else { 2 };
        Ok(Self {
            norm: modules.layer_norm("norm", normed * width, EPSILON)?,
            reduction: modules.sized_linear("reduction", 4 * width, 2 * width)?,
            version,
        })
    }
}

impl Own for Merging {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let (height, width) = (map.height.div_ceil(2), map.width.div_ceil(2));
        let outside = map.height * map.width;
        let mut rows = Vec::with_capacity(4 * height * width);
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            for (right, down) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (y, x) = (2 * y + down, 2 * x + right);
                let inside = y < map.height && x < map.width;
                rows.push(if inside { y * map.width + x } else { outside } as u32);
            }
        }
        let four = map.picked(rows, 0.0)?.contiguous()?;
        let four = four.reshape((height * width, 4 * map.channels()?))?;
        let rows = match self.version {
            Version::First => self.reduction.forward(&self.norm.forward(&four)?)?,
            Version::Second => self.norm.forward(&self.reduction.forward(&four)?)?,
        };
        FeatureMap::new(rows, (height, width))
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_norm(&self.norm)?;
        inventory.add_linear(&self.reduction)
    }
}

/// Zeros to the right and below until edges are multiples of this.
#[derive(Debug)]
struct Whole(usize);

impl Own for Whole {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let missing = |places: usize| places.next_multiple_of(self.0) - places;
        map.padded(missing(map.width), missing(map.height))
    }

    fn list(&self, _: &mut Inventory) -> Result<()> {
        Ok(())
    }
}

/// What is added to the places of a map of one size.
#[derive(Debug)]
struct Positions(Tensor);

impl Own for Positions {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        if self.0.dim(0)? != map.rows.dim(0)? {
            return Err(Error::InvalidInput(format!(
                "the image became {}x{} patches, and the model has positions for {}: its preprocessor_config.json \
                 belongs to another model",
                map.width,
                map.height,
                self.0.dim(0)?
            )));
        }
        map.with(elementwise::add(&map.rows, &self.0)?)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.0);
        Ok(())
    }
}

fn stem(raw: &RawConfig, modules: &Modules<'_>, version: Version) -> Result<Stage> {
    let stem = modules.at("embeddings");
    let kernel = stem.shape("patch_embeddings.projection.weight")?;
    let patch = kernel.last().copied().unwrap_or(0).max(1);
    let of = Convolution {
        stride: patch,
        padding: Some(0),
        ..Convolution::new("patch_embeddings.projection", "", None)
    };
    let (patches, channels) = Layer::load(&stem, CHANNELS, of)?;
    let norm = Layer::Norm(stem.layer_norm("norm", channels, EPSILON)?);
    let mut layers = vec![Layer::Own(Box::new(Whole(patch))), patches, norm];
    if raw.opt_bool("use_absolute_embeddings")?.unwrap_or(false) {
        if version == Version::Second {
            let reason = "use_absolute_embeddings of swinv2 is not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let shape = stem.shape("position_embeddings")?;
        let count = shape.get(1).copied().unwrap_or(0);
        let table = stem.shaped("position_embeddings", &[1, count, channels])?;
        layers.push(Layer::Own(Box::new(Positions(table.squeeze(0)?))));
    }
    Ok(Stage { layers, channels })
}

/// Rows of places of the picture that the model was made for.
fn grid_height(raw: &RawConfig) -> Result<usize> {
    let first = |key: &str, usual: usize| -> Result<usize> {
        let edges = raw.opt_integers(key)?.unwrap_or_default();
        let edge = edges
            .first()
            .map_or(Ok(usual), |&edge| usize::try_from(edge));
        let edge = edge.ok().filter(|edge| (1..=1 << 20).contains(edge));
        edge.ok_or_else(|| Error::corrupt(raw.file(), format!("{key:?} is not a size")))
    };
    Ok(first("image_size", 224)? / first("patch_size", 4)?)
}

pub fn load(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let version = match raw.model_type()? {
        Some("swinv2") => Version::Second,
        _ => Version::First,
    };
    let depths = sizes(raw, "depths", &[2, 2, 6, 2], None)?;
    let count = Some(depths.len());
    let heads = sizes(raw, "num_heads", &[3, 6, 12, 24], count)?;
    let whole = raw.opt_usize_in("window_size", WINDOW)?.unwrap_or(7);
    let learned = raw
        .opt_integers("pretrained_window_sizes")?
        .unwrap_or_default();
    let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
    let activation = crate::models::config::activation(name, raw.file())?;
    let epsilon = raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32;
    // Other models read its maps: then windows keep their size.
    let read = modules.has("hidden_states_norms");
    let body = if modules.has("swin") {
        modules.at("swin")
    } else {
        modules.clone()
    };
    let first = stem(raw, &body, version)?;
    let mut channels = first.channels;
    let mut stages = vec![first];
    let (grid, mut merging) = (grid_height(raw)?, None);
    for (stage, &depth) in depths.iter().enumerate() {
        let modules = body.at(format!("encoder.layers.{stage}"));
        let mut layers: Vec<Layer> = merging.take().into_iter().collect();
        let places = grid.checked_shr(stage as u32).unwrap_or(0);
        let (window, still) = match version {
            Version::First => (whole, false),
            Version::Second => (whole.min(places), places <= whole),
        };
        if window == 0 {
            let reason = "its stages have no places left for windows";
            return Err(Error::corrupt(raw.file(), reason));
        }
        let learned = learned.get(stage).copied().unwrap_or(0);
        let sizes = Sizes {
            width: channels,
            heads: heads[stage],
            window,
            learned: usize::try_from(learned).unwrap_or(0),
            version,
            activation,
            epsilon,
            shrinks: version == Version::First && !read,
        };
        for number in 0..depth {
            let modules = modules.at(format!("blocks.{number}"));
            let moved = number % 2 == 1 && !still;
            let shift = if moved { whole / 2 } else { 0 };
            let block = Block::load(&modules, sizes, shift)?;
            layers.push(Layer::Own(Box::new(block)));
        }
        stages.push(Stage { layers, channels });
        if stage + 1 < depths.len() {
            let next = Merging::load(&modules.at("downsample"), channels, version)?;
            merging = Some(Layer::Own(Box::new(next)));
            channels *= 2;
        }
    }
    let mut output_norms = Vec::new();
    for (stage, width) in stages.iter().map(|stage| stage.channels).enumerate() {
        let name = match stage {
            0 => "hidden_states_norms.stem".to_owned(),
            number => format!("hidden_states_norms.stage{number}"),
        };
        if modules.has(&name) {
            output_norms.push((stage, modules.layer_norm(&name, width, EPSILON)?));
        }
    }
    Ok(Backbone {
        family: if version == Version::First {
            "swin"
        } else {
            "swinv2"
        },
        stages,
        places_norm: if body.has("layernorm") && !read {
            Some(body.layer_norm("layernorm", channels, epsilon)?)
        } else {
            None
        },
        output_norms,
        ..Backbone::default()
    })
}
