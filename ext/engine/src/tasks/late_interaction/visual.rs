//! Pictures of pages to one vector per patch, beside texts to one per token (ColPali, ColQwen2, ColModernVBERT,
//! ColIdefics3).

use std::path::Path;
use std::sync::Arc;

use crate::models::decoder::image_embeddings::ImageEmbedding;
use crate::models::decoder::Decoder;
use crate::models::encoder::Piece;
use crate::models::families;
use crate::models::TextModel;
use crate::tasks::loading::{self, Checkpoint, LoadedModel};
use crate::tasks::vision::Picture;
use crate::tasks::vlm::ImageEncoder;
use crate::{CancelToken, Error, Result};
use candle_core::Tensor;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;
use serde_json::json;

/// The `model_type`s of such checkpoints.
pub const TYPES: &[&str] = &["colpali", "colqwen2", "colmodernvbert"];
/// The class of a checkpoint that calls itself Idefics 3, as the model inside it does.
const IDEFICS: &str = "ColIdefics3";
/// How many tokens that mean nothing stand behind a query.
const BUFFERS: usize = 10;

pub struct Visual {
    encoder: ImageEncoder,
    /// Before and behind a query.
    query: (String, String),
    /// Around what a prompt says of a picture.
    picture: (String, String),
    /// Whether the tokenizer puts its special tokens around both.
    special: bool,
}

/// What stands around texts and pictures, where `processor_config.json` does not say.
struct Usual {
    query: &'static str,
    picture: &'static str,
    /// The first token stands before a query, and behind the picture.
    begins: bool,
    /// What stands behind a query ten times, and then a new line; none is the padding token.
    buffer: Option<&'static str>,
}

impl Usual {
    fn of(kind: &str) -> Self {
        if kind == "colpali" {
            return Self {
                query: "Question: ",
                picture: "Describe the image.",
                begins: true,
                buffer: None,
            };
        }
        if matches!(kind, "colmodernvbert" | IDEFICS) {
            return Self {
                query: "",
                picture: if kind == IDEFICS {
                    "<|im_start|>User:<image>Describe the image.<end_of_utterance>\nAssistant:"
                } else {
                    "<|begin_of_text|>User:<image>Describe the image.<end_of_utterance>\nAssistant:"
                },
                begins: false,
                buffer: Some("<end_of_utterance>"),
            };
        }
        Self {
            query: "Query: ",
            picture: "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>\
                      <|endoftext|>",
            begins: false,
            buffer: None,
        }
    }
}

/// The kind of a checkpoint that reads pictures, and the model inside it.
pub fn inner(raw: &RawConfig) -> Result<Option<(String, RawConfig)>> {
    if raw.architectures()?.iter().any(|name| name == IDEFICS) {
        return Ok(Some((IDEFICS.to_owned(), raw.clone())));
    }
    let kind = raw.model_type()?.filter(|kind| TYPES.contains(kind));
    let Some(kind) = kind else {
        return Ok(None);
    };
    Ok(Some((kind.to_owned(), raw.nested("vlm_config")?)))
}

/// The layer that makes vectors of such a checkpoint's states.
pub fn projection(kind: &str) -> &'static str {
    if kind == IDEFICS {
        "linear"
    } else {
        "embedding_proj_layer"
    }
}

/// The language model of one, which reads a whole prompt at once where it is Gemma.
pub fn language(kind: &str, model: &RawConfig) -> Result<RawConfig> {
    if kind == IDEFICS {
        return loading::language_config(model);
    }
    if kind != "colpali" {
        return Ok(model.clone());
    }
    let text = model.nested("text_config")?;
    if text.model_type()? != Some("gemma") {
        let reason = "ColPali on another language model than Gemma is not supported";
        return Err(Error::unsupported(model.file(), reason));
    }
    let usual = json!({"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16});
    Ok(text
        .with_defaults(usual)
        .with(json!({"use_bidirectional_attention": true})))
}

fn decoder(loaded: &LoadedModel) -> Result<&Decoder> {
    match &loaded.body {
        TextModel::Decoder(decoder) => Ok(decoder),
        _ => Err(Error::Internal("pictures need a decoder".into())),
    }
}

impl Visual {
    pub fn load(
        kind: &str,
        model: &RawConfig,
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        loaded: &LoadedModel,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let blueprint = match kind {
            "colpali" => families::Blueprint::from_config(
                &model.clone().with(json!({"model_type": "paligemma"})),
            )?,
            "colmodernvbert" => families::modernvbert(model)?,
            _ => families::Blueprint::from_config(model)?,
        };
        let host = (loaded.body.hidden_size(), &loaded.tokenizer);
        let encoder = ImageEncoder::of(blueprint, checkpoint, files, host, cancel)?;
        let settings = files.file("processor_config.json", cancel)?;
        let settings = settings.map(|path| RawConfig::read(&path)).transpose()?;
        let settings = settings.unwrap_or(RawConfig::new(
            Path::new("processor_config.json"),
            json!({}),
        )?);
        let usual = Usual::of(kind);
        let special = |role: &str| special(&loaded.tokenizer, role);
        let begin = if usual.begins {
            special("bos_token")?
        } else {
            String::new()
        };
        let query = settings.opt_string("query_prefix")?.unwrap_or(usual.query);
        let buffers = match usual.buffer {
            Some(token) => token.repeat(BUFFERS),
            None => format!("{}\n", special("pad_token")?.repeat(BUFFERS)),
        };
        let picture = settings.opt_string("visual_prompt_prefix")?;
        let picture = picture.unwrap_or(usual.picture);
        let picture = match picture.split_once(encoder.place()) {
            Some((before, behind)) => (before.to_owned(), behind.to_owned()),
            None => (String::new(), format!("{begin}{picture}\n")),
        };
        Ok(Self {
            query: (format!("{begin}{query}"), buffers),
            special: usual.buffer.is_some(),
            picture,
            encoder,
        })
    }

    pub fn inventory(&self) -> &crate::nn::Inventory {
        self.encoder.inventory()
    }

    /// The tokens of a query, of which not more than `length` are kept of the text itself.
    pub fn query(&self, tokenizer: &Tokenizer, text: &str, length: usize) -> Result<Vec<u32>> {
        let (before, behind) = &self.query;
        let ids = tokenizer.ids(&format!("{before}{text}{behind}"), self.special)?;
        if ids.len() <= length {
            return Ok(ids);
        }
        let around = if self.special {
            tokenizer.ids("", true)?.len()
        } else {
            0
        };
        let end = tokenizer.ids(behind, false)?.len() + around.saturating_sub(1);
        let room = length.saturating_sub(end);
        let end = ids.len().saturating_sub(end);
        Ok([&ids[..room.min(end)], &ids[end..]].concat())
    }

    /// The states of a picture's tokens in an encoder, [tokens, hidden]; `None` where a decoder reads them.
    pub fn states(
        &self,
        loaded: &LoadedModel,
        picture: &Picture,
        cancel: &CancelToken,
    ) -> Result<Option<Tensor>> {
        let TextModel::Encoder(encoder) = &loaded.body else {
            return Ok(None);
        };
        let image = picture.decode()?;
        let (spelling, rows) = self.encoder.look((&image, 1), cancel)?;
        let (before, behind) = &self.picture;
        let ids = loaded
            .tokenizer
            .ids(&format!("{before}{spelling}{behind}"), self.special)?;
        let marker = self.encoder.marker_id();
        let texts: Vec<&[u32]> = ids.split(|&id| Some(id) == marker).collect();
        if texts.len() != rows.len() + 1 {
            return Err(Error::UnsupportedModel(format!(
                "the tokenizer makes {} places of {} parts of an image",
                texts.len().saturating_sub(1),
                rows.len()
            )));
        }
        let mut pieces = Vec::with_capacity(2 * texts.len());
        for (number, text) in texts.into_iter().enumerate() {
            if let Some(rows) = number.checked_sub(1).and_then(|at| rows.get(at)) {
                pieces.push(Piece::Rows(&rows.rows));
            }
            pieces.push(Piece::Tokens(text));
        }
        loaded
            .info
            .device
            .compute(|| encoder.forward_mixed(&pieces, cancel))?
            .map(Some)
    }

    /// The tokens of a picture, and what is held as long as they are used.
    pub fn picture(
        &self,
        loaded: &LoadedModel,
        picture: &Picture,
        cancel: &CancelToken,
    ) -> Result<(Vec<u32>, Vec<Arc<ImageEmbedding>>)> {
        let decoder = decoder(loaded)?;
        let seen = self
            .encoder
            .encode_for(decoder, std::slice::from_ref(picture), cancel)?;
        let (before, behind) = &self.picture;
        let mut ids = Vec::new();
        let mut held = Vec::new();
        for seen in &seen {
            let prompt = format!("{before}{}{behind}", seen.spelling);
            let mut parts = seen.parts.iter();
            for (number, text) in prompt.split(self.encoder.marker()).enumerate() {
                if number > 0 {
                    let part = parts.next();
                    let part =
                        part.ok_or_else(|| Error::Internal("a marker without a picture".into()))?;
                    ids.extend(part.ids());
                }
                ids.extend(loaded.tokenizer.ids(text, false)?);
            }
            held.extend(seen.parts.iter().cloned());
        }
        Ok((ids, held))
    }
}

fn special(tokenizer: &Tokenizer, role: &str) -> Result<String> {
    let id = tokenizer.special_tokens().id(role);
    id.and_then(|id| tokenizer.id_to_token(id)).ok_or_else(|| {
        Error::UnsupportedModel(format!(
            "the tokenizer has no {role}, which the checkpoint puts beside its texts"
        ))
    })
}
