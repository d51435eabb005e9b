//! How byte-level vocabularies in GGUF files cut text into words, by `tokenizer.ggml.pre`.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::PreTokenizerWrapper;

use crate::text::tokenizer::direct::patterns::{
    BAILING, DIGIT, GPT2, GPT4O, LLAMA3, MINICPM5, QWEN2, QWEN35, SEED, TEKKEN, UP_TO_THREE,
};
use crate::text::tokenizer::engine_error;
use crate::Result;

/// What the name of a pre-tokenizer stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Applied one after the other to what the former left; matches become words.
    patterns: &'static [&'static str],
    /// A word that is a token stays one, whatever the merges say.
    pub ignore_merges: bool,
    /// Whether texts begin with the BOS token when the file does not say.
    pub adds_bos: bool,
    /// Whether the checkpoint composes characters first (NFC).
    pub composes: bool,
}

const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s";
const ASIAN: &str = "[一-鿿㐀-䶿豈-\u{faff}぀-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}เ-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+";
/// Digits in threes from the right.
const THREES: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";
const PUNCTUATION_AND_BACKTICKS: &str = r"[\p{P}\$\+<=>\^~\|`]+";

/// Cuts before and after line ends, of which runs stay together.
pub(super) fn lines() -> Result<PreTokenizerWrapper> {
    Ok(isolated(r"[^\n]+|[\n]+")?.into())
}

/// Matches become words of their own.
fn isolated(pattern: &str) -> Result<Split> {
    Split::new(
        SplitPattern::Regex(pattern.to_owned()),
        SplitDelimiterBehavior::Isolated,
        false,
    )
    .map_err(engine_error)
}

const PLAIN: Rules = Rules {
    patterns: &[GPT2],
    ignore_merges: false,
    adds_bos: false,
    composes: false,
};

impl Rules {
    /// `None` for a name this version does not know.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "default" | "" => PLAIN.with(&[PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
            "gpt-2" | "phi-2" | "jais" | "trillion" | "gigachat" | "roberta-bpe" | "jina-es"
            | "jina-de" | "jina-v1-en" | "jina-v2-es" | "jina-v2-de" | "jina-v2-code"
            | "modern-bert" | "exaone4" | "mellum" | "a.x-4.0" | "granite-docling" => PLAIN,
            "mpt" | "olmo" => PLAIN.composing(),
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" | "jina-v5-nano" => {
                PLAIN.with(&[LLAMA3]).ignoring_merges().adding_bos()
            }
            "dbrx" | "smaug-bpe" | "chatglm-bpe" => PLAIN.with(&[LLAMA3]),
            "glm4" | "glm5" => PLAIN.with(&[LLAMA3]).ignoring_merges(),
            "jais-2" => PLAIN.with(&[JAIS2]),
            "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "kormo" | "f2llmv2" => {
                PLAIN.with(&[QWEN2]).composing()
            }
            "hunyuan" | "solar-open" | "grok-2" => PLAIN.with(&[QWEN2]),
            "qwen35" => PLAIN.with(&[QWEN35]).composing(),
            "laguna" => PLAIN.with(&[r"[^\n]+|[\n]+", QWEN2]),
            "minicpm5" => PLAIN.with(&[UP_TO_THREE, MINICPM5]).ignoring_merges(),
            "exaone-moe" => PLAIN.with(&[EXAONE_MOE]),
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => PLAIN.with(&[DIGIT, GPT2]),
            "falcon" => PLAIN.with(&[PUNCTUATION_AND_BACKTICKS, GPT2, "[0-9][0-9][0-9]"]),
            "deepseek-llm" => PLAIN.with(&[
                r"[\r\n]",
                r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^ა-ჺჽ-ჿ]]+",
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"\s+$",
                r"[一-龥ࠀ-一가-퟿]+",
                r"\p{N}+",
            ]),
            "deepseek-coder" => PLAIN.with(&[
                r"[\r\n]",
                r"\s?\p{L}+",
                r"\s?\p{P}+",
                r"[一-龥ࠀ-一가-퟿]+",
                DIGIT,
            ]),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
                PLAIN.with(&[UP_TO_THREE, r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3])
            }
            "afmoe" => PLAIN.with(&[THREES, ASIAN, DEEPSEEK3]),
            "youtu" => PLAIN
                .with(&[
                    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
                    YOUTU,
                ])
                .ignoring_merges(),
            "kimi-k2" => PLAIN.with(&[KIMI]),
            "bloom" | "poro-chat" | "gpt3-finnish" => PLAIN.with(&[BLOOM]),
            "viking" => PLAIN.with(&[BLOOM, DIGIT]),
            "tekken" => PLAIN.with(&[TEKKEN]).ignoring_merges().adding_bos(),
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => PLAIN.with(&[GPT4O]),
            "tiny_aya" | "cohere2moe" => PLAIN.with(&[THREES, GPT4O]),
            "chameleon" => PLAIN
                .with(&[
                    r"<sentinel:[0-9]+>",
                    r"IMGIMG[A-I]{1,4}Z",
                    r"[\t\n]|    |  ",
                    DIGIT,
                    r"[\p{P}!-/:-@\[-`{-~]",
                    GPT2,
                ])
                .adding_bos(),
            "superbpe" => PLAIN.with(&[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
            "bailingmoe" | "bailingmoe2" | "llada-moe" => PLAIN.with(&[BAILING]),
            "seed-coder" => PLAIN.with(&[SEED]),
            _ => return None,
        })
    }

    pub fn pre_tokenizer(&self, add_prefix_space: bool) -> Result<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for pattern in self.patterns {
            steps.push(isolated(pattern)?.into());
        }
        steps.push(ByteLevel::new(add_prefix_space, false, false).into());
        Ok(Sequence::new(steps).into())
    }

    const fn with(self, patterns: &'static [&'static str]) -> Self {
        Self { patterns, ..self }
    }

    const fn ignoring_merges(self) -> Self {
        Self {
            ignore_merges: true,
            ..self
        }
    }

    const fn adding_bos(self) -> Self {
        Self {
            adds_bos: true,
            ..self
        }
    }

    const fn composing(self) -> Self {
        Self {
            composes: true,
            ..self
        }
    }
}
