//! What `quantization_config` says: the method, its version, and the modules that are not quantized.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::files::raw_config::RawConfig;
use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Fp8,
    Mxfp4,
    Gptq,
    Awq,
    CompressedTensors,
    ModelOpt,
    BitsAndBytes,
    Hqq,
    TorchAo,
    Mlx,
}

pub struct Scheme {
    pub method: Method,
    config: Value,
    file: PathBuf,
}

/// Where a configuration says how weights are quantized: MLX and early files of compressed-tensors have own names.
const KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// Lists of modules that are not quantized, by method.
const EXCEPTIONS: [&str; 5] = [
    "modules_to_not_convert",
    "llm_int8_skip_modules",
    "skip_modules",
    "ignore",
    "exclude_modules",
];

/// Modules that configurations list for all models, whether or not these have them.
const USUAL_EXCEPTIONS: &[&str] = &[
    "lm_head",
    "output",
    "embed_out",
    "embed_tokens",
    "embeddings",
    "wte",
    "norm",
    "router",
    "gate",
    "mlp_gate",
    "shared_expert_gate",
    "score",
    "classifier",
    "pooler",
    "visual",
    "vision",
    "vision_model",
    "vision_tower",
    "vision_encoder",
    "vision_embed_tokens",
    "multi_modal_projector",
    "mm_projector",
    "connector",
    "merger",
    "modality_projection",
    "aligner",
    "audio_tower",
    "audio_model",
    "mtp",
];

impl Scheme {
    /// `None` for a configuration that says nothing of it.
    pub fn read(config: &RawConfig) -> Result<Option<Self>> {
        let inner = config.opt_nested("text_config")?;
        let places = std::iter::once(config).chain(inner.as_ref());
        let said = places.flat_map(|place| KEYS.map(|key| (key, place.get(key).cloned())));
        let Some((key, said)) = said
            .filter_map(|(key, said)| Some((key, said?)))
            .find(|(_, said)| !said.is_null())
        else {
            return Ok(None);
        };
        let file = config.file().to_owned();
        if !said.is_object() {
            return Err(Error::corrupt(&file, format!("{key} is not an object")));
        }
        let method = method(&said, key, &file)?;
        let scheme = Self {
            method,
            config: said,
            file,
        };
        scheme.check_version()?;
        Ok(Some(scheme))
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    /// A number by one of these names; a negative one means none.
    pub fn size(&self, keys: &[&str]) -> Option<usize> {
        let found = keys.iter().find_map(|key| self.get(key));
        found.and_then(Value::as_u64).map(|size| size as usize)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        Error::unsupported(
            &self.file,
            format!(
                "the weights are quantized by {what} (quantization_config), which is not supported. Load the \
                 original checkpoint, or a GGUF file of the model"
            ),
        )
    }

    /// Versions and packings whose bytes mean something else.
    fn check_version(&self) -> Result<()> {
        let said = |key: &str| self.text(key).map(str::to_ascii_lowercase);
        match self.method {
            Method::Gptq => {
                let format = said("checkpoint_format").or_else(|| said("packing_format"));
                match format.as_deref() {
                    None | Some("gptq" | "gptq_v2") => {}
                    Some(packing) if packing.ends_with("gptq") => {}
                    Some(other) => {
                        return Err(self.unsupported(format!("GPTQ in the format {other:?}")))
                    }
                }
                if self.get("is_marlin_format") == Some(&Value::Bool(true)) {
                    return Err(self.unsupported("GPTQ in the format \"marlin\""));
                }
                match self.size(&["bits", "w_bit"]) {
                    None | Some(2 | 3 | 4 | 8) => Ok(()),
                    Some(bits) => Err(self.unsupported(format!("GPTQ with {bits} bits"))),
                }
            }
            Method::Awq => {
                let version = said("version").unwrap_or_else(|| "gemm".to_owned());
                if !["gemm", "exllama", "ipex"].contains(&version.as_str()) {
                    return Err(self.unsupported(format!("AWQ in the version {version:?}")));
                }
                match self.size(&["bits", "w_bit"]) {
                    None | Some(4) => Ok(()),
                    Some(bits) => Err(self.unsupported(format!("AWQ with {bits} bits"))),
                }
            }
            Method::Fp8 => match said("fmt").as_deref() {
                None | Some("e4m3" | "e5m2" | "float8_e4m3fn") => Ok(()),
                Some(other) => Err(self.unsupported(format!("FP8 in the format {other:?}"))),
            },
            Method::CompressedTensors => {
                let sparse = self
                    .get("sparsity_config")
                    .and_then(|config| config.get("format"))
                    .and_then(Value::as_str);
                if let Some(format) = sparse.filter(|&format| format != "dense") {
                    return Err(self.unsupported(format!("the sparse format {format:?}")));
                }
                let transforms = self
                    .get("transform_config")
                    .and_then(|config| config.get("config_groups"))
                    .and_then(Value::as_object);
                if transforms.is_some_and(|groups| !groups.is_empty()) {
                    return Err(
                        self.unsupported("compressed-tensors with transforms of its inputs")
                    );
                }
                match said("format").as_deref() {
                    Some(format @ ("marlin-24" | "sparse-24-bitmask" | "sparse-bitmask")) => {
                        Err(self.unsupported(format!("the sparse format {format:?}")))
                    }
                    _ => Ok(()),
                }
            }
            Method::Mlx => match said("mode").as_deref() {
                None | Some("affine" | "mxfp4") => Ok(()),
                Some(other) => Err(self.unsupported(format!("MLX in the mode {other:?}"))),
            },
            Method::ModelOpt => match said("quant_algo").as_deref() {
                None | Some("fp8" | "nvfp4" | "fp8_pb_wo" | "mixed_precision") => Ok(()),
                Some(other) => Err(self.unsupported(format!("ModelOpt's {other:?}"))),
            },
            Method::Mxfp4 | Method::BitsAndBytes | Method::Hqq | Method::TorchAo => Ok(()),
        }
    }

    /// An error for a list of exceptions that names modules of another model.
    pub fn check_exceptions(&self, names: &[String]) -> Result<()> {
        let segments: BTreeSet<&str> = names.iter().flat_map(|name| name.split('.')).collect();
        for key in EXCEPTIONS {
            let Some(list) = self.get(key) else { continue };
            let Some(list) = list.as_array() else {
                return Err(Error::corrupt(&self.file, format!("{key} is not a list")));
            };
            for module in list {
                let Some(module) = module.as_str() else {
                    return Err(Error::corrupt(
                        &self.file,
                        format!("{key} has {module}, which is not the name of a module"),
                    ));
                };
                if !is_known(module, &segments) {
                    return Err(Error::unsupported(
                        &self.file,
                        format!(
                            "{key} names the module {module:?}, and the checkpoint has no tensor of such a name. \
                             The configuration belongs to another model"
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether a module is of this model, as far as its first or its last name says. Patterns may say anything.
fn is_known(module: &str, segments: &BTreeSet<&str>) -> bool {
    let plain = module
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
    // Names of classes, such as Embedding, say nothing of tensors.
    let class = module.starts_with(|letter: char| letter.is_ascii_uppercase());
    if !plain || class || module.is_empty() {
        return true;
    }
    let known = |name: &str| {
        segments.contains(name)
            || USUAL_EXCEPTIONS.contains(&name)
            || segments.iter().any(|segment| segment.contains(name))
    };
    let trimmed = module.trim_matches('.');
    let mut ends = trimmed
        .split('.')
        .next()
        .into_iter()
        .chain(trimmed.rsplit('.').next());
    trimmed.is_empty() || ends.any(known)
}

fn method(said: &Value, key: &str, file: &Path) -> Result<Method> {
    let name = said.get("quant_method").and_then(Value::as_str);
    let Some(name) = name else {
        let has = |key: &str| said.get(key).is_some();
        return match key {
            _ if has("group_size") && has("bits") => Ok(Method::Mlx),
            _ if has("config_groups") => Ok(Method::CompressedTensors),
            _ if has("load_in_4bit") || has("load_in_8bit") => Ok(Method::BitsAndBytes),
            _ => Err(Error::unsupported(
                file,
                format!(
                    "{key} does not say by which method (quant_method) the weights are quantized"
                ),
            )),
        };
    };
    let packing = said.get("packing_format").and_then(Value::as_str);
    Ok(match name.to_ascii_lowercase().as_str() {
        "fp8" | "fbgemm_fp8" | "finegrained_fp8" => Method::Fp8,
        "mxfp4" => Method::Mxfp4,
        "auto-round" | "intel/auto-round" if packing.is_some_and(|name| name.contains("awq")) => {
            Method::Awq
        }
        "gptq" | "gptqmodel" | "auto-round" | "intel/auto-round" => Method::Gptq,
        "awq" => Method::Awq,
        "compressed-tensors" | "compressed_tensors" => Method::CompressedTensors,
        "modelopt" | "modelopt_fp4" => Method::ModelOpt,
        "bitsandbytes" | "bnb" => Method::BitsAndBytes,
        "hqq" => Method::Hqq,
        "torchao" => Method::TorchAo,
        "mlx" | "metal" | "affine" => Method::Mlx,
        other => {
            return Err(Error::unsupported(
                file,
                format!(
                    "the weights are quantized by {other} (quantization_config), which is not supported. Load the \
                     original checkpoint, or a GGUF file of the model"
                ),
            ))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_other_models_are_noticed() {
        let segments = ["model", "layers", "0", "self_attn", "q_proj", "weight"];
        let segments: BTreeSet<&str> = segments.into_iter().collect();
        for module in [
            "lm_head",
            "model.layers.7.gate",
            "q_proj",
            "re:.*x$",
            "Embedding",
            "vision_tower",
            "attn",
        ] {
            assert!(is_known(module, &segments), "{module}");
        }
        for module in ["transformer.h.0.c_attn", "nonsense"] {
            assert!(!is_known(module, &segments), "{module}");
        }
    }
}
