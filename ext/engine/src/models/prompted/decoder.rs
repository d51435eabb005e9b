//! The masks of SAM and SAM 2: what points and boxes say and what the image shows look at each other, and become masks.

use candle_core::Tensor;

use crate::models::detection::numbers;
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{attention, elementwise, AttentionKind, AttentionOptions};
use crate::nn::{Conv2d, Epilogue, Inventory, Linear, Norm, Spread};
use crate::{Error, Result};
use formats::files::raw_config::{RawConfig, HEADS};
use kernels::tensor::matmul::matmul;
use kernels::Activation;

/// Of norms that the configuration does not name.
const EPSILON: f32 = 1e-6;

/// Attention whose heads may be narrower than what it reads.
#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
}

impl Attention {
    fn load(modules: &Modules<'_>, width: usize, heads: usize) -> Result<Self> {
        let query = modules.linear("q_proj", width)?;
        let inner = query.outputs();
        crate::models::detection::attention::check_heads(modules, inner, heads)?;
        Ok(Self {
            query,
            key: modules.sized_linear("k_proj", width, inner)?,
            value: modules.sized_linear("v_proj", width, inner)?,
            output: modules.sized_linear("out_proj|o_proj", inner, width)?,
            heads,
        })
    }

    fn forward(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let split = |linear: &Linear, x: &Tensor| -> Result<Tensor> {
            let rows = linear.forward(&x.contiguous()?)?;
            let (count, width) = rows.dims2()?;
            Ok(rows.reshape((count, self.heads, width / self.heads))?)
        };
        let (q, k) = (split(&self.query, queries)?, split(&self.key, keys)?);
        let v = split(&self.value, values)?;
        let (count, heads, width) = q.dims3()?;
        let scale = 1.0 / (width as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let (own, others) = ([0, count as u32], [0, k.dim(0)? as u32]);
        let found = attention(&q, &k, &v, &own, &others, &options)?;
        self.output.forward(&found.reshape((count, heads * width))?)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        [&self.query, &self.key, &self.value, &self.output]
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }
}

/// One exchange between tokens and image.
#[derive(Debug)]
struct Layer {
    among: Attention,
    to_image: Attention,
    to_tokens: Attention,
    norms: [Norm; 4],
    feed: Feed,
    /// Its queries do not know their places yet, and its attention replaces them.
    first: bool,
}

impl Layer {
    fn load(
        modules: &Modules<'_>,
        (width, heads): (usize, usize),
        (activation, epsilon): (Activation, f32),
        first: bool,
    ) -> Result<Self> {
        let norm =
            |number: usize| modules.layer_norm(&format!("layer_norm{number}"), width, epsilon);
        let feed = Feed::load(&modules.at("mlp"), width, activation)?;
        if feed.outputs() != width {
            let reason = format!("an MLP makes {} numbers of {width}", feed.outputs());
            return Err(modules.corrupt(reason));
        }
        let attention = |name: &str| Attention::load(&modules.at(name), width, heads);
        Ok(Self {
            among: attention("self_attn")?,
            to_image: attention("cross_attn_token_to_image")?,
            to_tokens: attention("cross_attn_image_to_token")?,
            norms: [norm(1)?, norm(2)?, norm(3)?, norm(4)?],
            feed,
            first,
        })
    }

    /// Tokens and image, each with its places.
    fn forward(
        &self,
        (tokens, token_places): (&Tensor, &Tensor),
        (image, image_places): (&Tensor, &Tensor),
    ) -> Result<(Tensor, Tensor)> {
        let add = elementwise::add;
        let x = if self.first {
            self.among.forward(tokens, tokens, tokens)?
        } else {
            let placed = add(tokens, token_places)?;
            add(tokens, &self.among.forward(&placed, &placed, tokens)?)?
        };
        let x = self.norms[0].forward(&x)?;
        let keys = add(image, image_places)?;
        let found = self
            .to_image
            .forward(&add(&x, token_places)?, &keys, image)?;
        let x = self.norms[1].forward(&add(&x, &found)?)?;
        let x = self.norms[2].forward(&add(&x, &self.feed.forward(&x)?)?)?;
        let found = self.to_tokens.forward(&keys, &add(&x, token_places)?, &x)?;
        let image = self.norms[3].forward(&add(image, &found)?)?;
        Ok((x, image))
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for attention in [&self.among, &self.to_image, &self.to_tokens] {
            attention.list(inventory)?;
        }
        self.norms
            .iter()
            .try_for_each(|norm| inventory.add_norm(norm))?;
        self.feed.list(inventory)
    }
}

/// Linear layers with an activation between them.
#[derive(Debug)]
struct Feed(Vec<Linear>, Activation);

impl Feed {
    fn load(modules: &Modules<'_>, width: usize, activation: Activation) -> Result<Self> {
        let mut layers = vec![modules.linear("lin1|proj_in", width)?];
        let inner = layers[0].outputs();
        while modules.has(&format!("layers.{}", layers.len() - 1)) {
            let name = format!("layers.{}", layers.len() - 1);
            layers.push(modules.sized_linear(&name, inner, inner)?);
        }
        layers.push(modules.linear("lin2|proj_out", inner)?);
        Ok(Self(layers, activation))
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mut linears = self.0.iter();
        linears.try_for_each(|linear| inventory.add_linear(linear))
    }

    fn outputs(&self) -> usize {
        self.0.last().map_or(0, Linear::outputs)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.contiguous()?;
        for (number, layer) in self.0.iter().enumerate() {
            let inside = number + 1 < self.0.len();
            let epilogue = Epilogue {
                activation: inside.then_some(self.1),
                ..Epilogue::default()
            };
            x = layer.forward_with(&x, &epilogue)?;
        }
        Ok(x)
    }
}

#[derive(Debug)]
pub struct MaskDecoder {
    /// One for the quality of masks and one for each mask: [count, width].
    tokens: Tensor,
    layers: Vec<Layer>,
    last: Attention,
    last_norm: Norm,
    larger: Spread,
    larger_norm: Norm,
    largest: Spread,
    masks: Vec<Feed>,
    quality: Feed,
    second: Option<Second>,
}

/// What SAM 2 has beside.
#[derive(Debug)]
struct Second {
    /// Of the finest map and of the one between, which masks are made with.
    finer: [Conv2d; 2],
    /// A lone mask is replaced unless so much of it stays when its edge is moved by so much.
    stability: Option<(f32, f32)>,
}

/// Masks, before they are cut at 0, and how good each is.
pub struct Masks {
    /// Its channels are masks.
    pub map: FeatureMap,
    pub scores: Vec<f32>,
}

impl Masks {
    /// The first, or the best of the others where it depends too much on where its edge is drawn.
    fn steadiest(self, (delta, least): (f32, f32)) -> Result<Self> {
        let values = numbers(&self.map.rows)?;
        let area = |edge: f32| {
            let own = values.iter().step_by(self.scores.len().max(1));
            own.filter(|&&value| value > edge).count() as f32
        };
        let (inner, outer) = (area(delta), area(-delta));
        let steady = outer == 0.0 || inner / outer >= least;
        let others = self.scores.iter().copied().enumerate().skip(1);
        let best = others.reduce(|a, b| if b.1 > a.1 { b } else { a });
        let (chosen, score) = match best.filter(|_| !steady) {
            Some(best) => best,
            None => (0, self.scores.first().copied().unwrap_or(0.0)),
        };
        Ok(Self {
            map: self.map.narrow(chosen, 1)?,
            scores: vec![score],
        })
    }
}

impl Second {
    fn load(raw: &RawConfig, modules: &Modules<'_>, width: usize) -> Result<Self> {
        let finer = |name: &str| modules.convolution(width, Convolution::new(name, "", None));
        let number = |key: &str, usual: f64| -> Result<f32> {
            Ok(raw.opt_f64(key)?.unwrap_or(usual) as f32)
        };
        let checks = raw
            .opt_bool("dynamic_multimask_via_stability")?
            .unwrap_or(true);
        let delta = number("dynamic_multimask_stability_delta", 0.05)?;
        let least = number("dynamic_multimask_stability_thresh", 0.98)?;
        Ok(Self {
            finer: [finer("conv_s0")?, finer("conv_s1")?],
            stability: checks.then_some((delta, least)),
        })
    }
}

fn spread(modules: &Modules<'_>, name: &str, inputs: usize) -> Result<Spread> {
    let modules = modules.at(name);
    let shape = modules.shape("weight")?;
    if shape.len() != 4 || shape[0] != inputs {
        modules.shaped("weight", &[inputs, inputs / 4, 2, 2])?;
    }
    let bias = modules.optional("bias")?;
    Spread::new(&modules.tensor("weight")?, bias.as_ref())
}

impl MaskDecoder {
    /// Of SAM, or of its second version.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        width: usize,
        second: bool,
    ) -> Result<Self> {
        let heads = raw.opt_usize_in("num_attention_heads", HEADS)?.unwrap_or(8);
        let name = raw.opt_string("hidden_act")?.filter(|_| !second);
        let activation = crate::models::config::activation(name.unwrap_or("relu"), raw.file())?;
        let epsilon = raw.opt_f64("layer_norm_eps")?.filter(|_| !second);
        let epsilon = epsilon.unwrap_or(if second { 1e-5 } else { 1e-6 }) as f32;
        let quality = modules.shaped("iou_token.weight", &[1, width])?;
        let count = modules
            .shape("mask_tokens.weight")?
            .first()
            .copied()
            .unwrap_or(0);
        if !(2..=64).contains(&count) {
            return Err(modules.corrupt(format!("a decoder of {count} masks is not one")));
        }
        let masks = modules.shaped("mask_tokens.weight", &[count, width])?;
        let inside = modules.at("transformer");
        let mut layers = Vec::new();
        for number in 0..raw.opt_usize_in("num_hidden_layers", 1..=64)?.unwrap_or(2) {
            let modules = inside.at(format!("layers.{number}"));
            let style = (activation, epsilon);
            layers.push(Layer::load(&modules, (width, heads), style, number == 0)?);
        }
        let larger = spread(modules, "upscale_conv1", width)?;
        let largest = spread(modules, "upscale_conv2", larger.outputs())?;
        let feed = |number: usize| -> Result<Feed> {
            let name = format!("output_hypernetworks_mlps.{number}");
            let feed = Feed::load(&modules.at(&name), width, Activation::Relu)?;
            if feed.outputs() != largest.outputs() {
                let reason = format!("{name} makes {} numbers", feed.outputs());
                return Err(modules.corrupt(reason));
            }
            Ok(feed)
        };
        let feeds = (0..count).map(feed).collect::<Result<Vec<_>>>()?;
        let judge = Feed::load(&modules.at("iou_prediction_head"), width, Activation::Relu)?;
        if judge.outputs() != count {
            let reason = format!("{} scores are not those of {count} masks", judge.outputs());
            return Err(modules.corrupt(reason));
        }
        let mut tokens = vec![quality, masks];
        if second {
            tokens.insert(0, modules.shaped("obj_score_token.weight", &[1, width])?);
        }
        let second = second.then(|| Second::load(raw, modules, width));
        let second = second.transpose()?;
        if let Some(Second {
            finer: [finest, between],
            ..
        }) = &second
        {
            if finest.outputs() != largest.outputs() || between.outputs() != larger.outputs() {
                let reason = "the maps that masks are made with have other widths";
                return Err(modules.corrupt(reason.into()));
            }
        }
        Ok(Self {
            second,
            tokens: Tensor::cat(&tokens, 0)?.contiguous()?,
            layers,
            last: Attention::load(&inside.at("final_attn_token_to_image"), width, heads)?,
            last_norm: inside.layer_norm("layer_norm_final_attn", width, 1e-5)?,
            larger_norm: modules.layer_norm("upscale_layer_norm", larger.outputs(), EPSILON)?,
            larger,
            largest,
            masks: feeds,
            quality: judge,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.tokens);
        self.layers
            .iter()
            .try_for_each(|layer| layer.list(inventory))?;
        self.last.list(inventory)?;
        inventory.add_norm(&self.last_norm)?;
        inventory.add_norm(&self.larger_norm)?;
        self.larger.list(inventory)?;
        self.largest.list(inventory)?;
        if let Some(second) = &self.second {
            second
                .finer
                .iter()
                .try_for_each(|one| one.list(inventory))?;
        }
        let mut feeds = self.masks.iter().chain([&self.quality]);
        feeds.try_for_each(|feed| feed.list(inventory))
    }

    /// What masks are made with beside the image itself, from fine to coarse; none for SAM's first version.
    pub fn finer(&self, maps: &[FeatureMap]) -> Result<Vec<FeatureMap>> {
        let own = self.second.iter().flat_map(|second| &second.finer);
        let both = own.zip(maps);
        both.map(|(convolution, map)| convolution.forward(map))
            .collect()
    }

    /// `prompt` is [tokens, width]; several masks, or the one that stands for all.
    pub fn forward(
        &self,
        (image, finer): (&FeatureMap, &[FeatureMap]),
        places: &Tensor,
        prompt: &Tensor,
        several: bool,
    ) -> Result<Masks> {
        let own = Tensor::cat(&[&self.tokens, prompt], 0)?.contiguous()?;
        let (mut tokens, mut rows) = (own.clone(), image.rows.clone());
        for layer in &self.layers {
            (tokens, rows) = layer.forward((&tokens, &own), (&rows, places))?;
        }
        let queries = elementwise::add(&tokens, &own)?;
        let keys = elementwise::add(&rows, places)?;
        let found = self.last.forward(&queries, &keys, &rows)?;
        let tokens = self
            .last_norm
            .forward(&elementwise::add(&tokens, &found)?)?;
        let plus = |map: FeatureMap, at: usize| match finer.get(at) {
            Some(finer) => map.add(finer),
            None => Ok(map),
        };
        let map = plus(self.larger.forward(&image.with(rows)?)?, 1)?;
        let map = map.with(self.larger_norm.forward(&map.rows)?)?;
        let map = self.largest.forward(&map.activated(Activation::Gelu)?)?;
        let map = plus(map, 0)?.activated(Activation::Gelu)?;
        // Behind the token of quality, before which SAM 2 has another one.
        let first = 1 + usize::from(self.second.is_some());
        let stability = self.second.as_ref().and_then(|second| second.stability);
        let wanted = match (several, stability) {
            (true, _) => 1..self.masks.len(),
            (false, Some(_)) => 0..self.masks.len(),
            (false, None) => 0..1,
        };
        let mut made = Vec::new();
        for number in wanted.clone() {
            made.push(self.masks[number].forward(&tokens.narrow(0, first + number, 1)?)?);
        }
        let made = Tensor::cat(&made, 0)?.t()?.contiguous()?;
        let cancel = crate::CancelToken::new();
        let scores = self.quality.forward(&tokens.narrow(0, first - 1, 1)?)?;
        let mut scores = numbers(&scores)?;
        if self.second.is_some() {
            scores
                .iter_mut()
                .for_each(|score| *score = 1.0 / (1.0 + (-*score).exp()));
        }
        let scores = scores.get(wanted).map(<[f32]>::to_vec);
        let masks = Masks {
            map: map.with(matmul(&map.rows.contiguous()?, &made, &cancel)?)?,
            scores: scores.ok_or_else(|| Error::Internal("a mask without a score".into()))?,
        };
        match stability.filter(|_| !several) {
            Some(stability) => masks.steadiest(stability),
            None => Ok(masks),
        }
    }
}
