//! Models that look whole words up: sentence-transformers' WordEmbeddings and BoW.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use candle_core::{DType, Tensor};

use crate::nn::{Inventory, PackedSequences};
use crate::serving::{Served, Stats};
use crate::tasks::loading::{LoadOptions, ModelInfo};
use crate::tasks::sentence::{join, module_weights};
use crate::{CancelToken, Error, Result};
use formats::files::json;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;

/// Cuts a text at white space into the words that it knows.
pub struct WordSplitter {
    numbers: HashMap<String, u32>,
    stop_words: HashSet<String>,
    lowercase: bool,
}

impl WordSplitter {
    fn read(path: &Path) -> Result<Self> {
        let value = json::read(path)?;
        let strings = |key: &str| -> Result<Vec<String>> {
            let wrong = || Error::corrupt(path, format!("{key:?} should be a list of words"));
            let Some(list) = value.get(key) else {
                return Ok(Vec::new());
            };
            let list = list.as_array().ok_or_else(wrong)?.iter();
            list.map(|word| word.as_str().map(str::to_owned).ok_or_else(wrong))
                .collect()
        };
        let lowercase = value.get("do_lower_case").and_then(|flag| flag.as_bool());
        Ok(Self {
            numbers: numbered(strings("vocab")?),
            stop_words: strings("stop_words")?.into_iter().collect(),
            lowercase: lowercase.unwrap_or(false),
        })
    }

    /// The numbers of the words that it knows: as they stand, without punctuation around them, or in lower case.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        let lowered = self.lowercase.then(|| text.to_lowercase());
        let text = lowered.as_deref().unwrap_or(text);
        let blank = |c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
        let words = text.split(blank).filter(|word| !word.is_empty());
        words.filter_map(|word| self.number(word)).collect()
    }

    fn number(&self, word: &str) -> Option<u32> {
        let bare = word.trim_matches(|c: char| c.is_ascii_punctuation());
        for (word, known) in [(word, true), (bare, !bare.is_empty())] {
            if self.stop_words.contains(word) {
                return None;
            }
            if let (true, Some(&number)) = (known, self.numbers.get(word)) {
                return Some(number);
            }
        }
        let lower = bare.to_lowercase();
        if self.stop_words.contains(&lower) {
            return None;
        }
        self.numbers.get(&lower).copied()
    }
}

/// The last of equal words counts.
fn numbered(words: Vec<String>) -> HashMap<String, u32> {
    let words = words.into_iter().enumerate();
    words.map(|(number, word)| (word, number as u32)).collect()
}

/// A table with a row for each word.
pub struct WordEmbeddings {
    /// f32 [words, dimension]
    table: Tensor,
    pub splitter: WordSplitter,
    pub max_length: usize,
    pub stats: Stats,
    pub info: ModelInfo,
}

/// A number for each word.
pub struct BagOfWords {
    pub splitter: WordSplitter,
    weights: Vec<f32>,
    /// A word counts as often as it stands in a text.
    cumulative: bool,
    pub stats: Stats,
    pub info: ModelInfo,
}

impl WordEmbeddings {
    pub fn load(
        files: &ModelFiles,
        folder: &str,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let name = |file: &str| join(folder, file);
        // Its first releases gave it a name of its own.
        let config = match files.file(&name("config.json"), cancel)? {
            Some(path) => path,
            None => files.require(&name("wordembedding_config.json"), cancel)?,
        };
        let config = RawConfig::read(&config)?;
        let class = config.opt_string("tokenizer_class")?.unwrap_or_default();
        if !class.ends_with("WhitespaceTokenizer") {
            let reason =
                format!("words of a {class:?} are not supported, only WhitespaceTokenizer");
            return Err(Error::unsupported(config.file(), reason));
        }
        let splitter = name("whitespacetokenizer_config.json");
        let splitter = WordSplitter::read(&files.require(&splitter, cancel)?)?;
        let source = module_weights(files, folder, cancel)?;
        let device = options.device.open()?;
        let table = source.tensor("emb_layer.weight", Some(DType::F32), &device)?;
        let (rows, dimension) = table.dims2()?;
        if splitter
            .numbers
            .values()
            .any(|&number| number as usize >= rows)
        {
            let reason = format!("the vocabulary has more words than the table's {rows} rows");
            return Err(Error::corrupt(config.file(), reason));
        }
        let limit = config.opt_usize("max_seq_length")?.unwrap_or(1_000_000);
        let max_length = options
            .max_length
            .map_or(limit, |most| most.min(limit))
            .max(1);
        let mut inventory = Inventory::default();
        inventory.add_tensor(&table);
        let sizes = (rows * dimension, dimension, rows, max_length);
        Ok(Self {
            info: info("WordEmbeddings", sizes, options, source.files(), inventory),
            stats: Stats::new(Served::Encoder),
            max_length,
            splitter,
            table,
        })
    }

    pub fn dimension(&self) -> usize {
        self.info.hidden_size
    }

    /// The rows of all words, [words, dimension].
    pub fn forward(&self, sequences: &PackedSequences) -> Result<Tensor> {
        let ids = Tensor::from_slice(sequences.ids(), sequences.tokens(), self.table.device())?;
        Ok(self.table.index_select(&ids, 0)?)
    }
}

impl BagOfWords {
    pub fn load(
        files: &ModelFiles,
        folder: &str,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let path = files.require(&join(folder, "config.json"), cancel)?;
        let config = RawConfig::read(&path)?;
        let mut vocabulary = config.opt_strings("vocab")?.unwrap_or_default();
        let mut seen = HashSet::new();
        vocabulary.retain(|word| seen.insert(word.clone()));
        if vocabulary.is_empty() {
            return Err(Error::corrupt(&path, "it has no vocabulary"));
        }
        let weights = word_weights(&config, &vocabulary)?;
        let cumulative = config.opt_bool("cumulative_term_frequency")?;
        let count = vocabulary.len();
        let sizes = (count, count, count, usize::MAX);
        Ok(Self {
            info: info("BoW", sizes, options, vec![path], Inventory::default()),
            stats: Stats::new(Served::Encoder),
            splitter: WordSplitter {
                numbers: numbered(vocabulary),
                stop_words: HashSet::new(),
                lowercase: false,
            },
            weights,
            cumulative: cumulative.unwrap_or(true),
        })
    }

    pub fn dimension(&self) -> usize {
        self.weights.len()
    }

    /// One number per word of the vocabulary.
    pub fn vector(&self, text: &str) -> Vec<f32> {
        let mut vector = vec![0f32; self.weights.len()];
        for id in self.splitter.ids(text) {
            let (slot, weight) = (&mut vector[id as usize], self.weights[id as usize]);
            *slot = if self.cumulative {
                *slot + weight
            } else {
                weight
            };
        }
        vector
    }
}

/// How much each word of a vocabulary counts, as a module's `word_weights` say.
pub fn word_weights(config: &RawConfig, vocabulary: &[String]) -> Result<Vec<f32>> {
    let given = config.opt_nested("word_weights")?;
    let otherwise = config.opt_f64("unknown_word_weight")?.unwrap_or(1.0) as f32;
    let find = |word: &str| -> Result<Option<f64>> {
        match &given {
            Some(given) => given.opt_f64(word),
            None => Ok(None),
        }
    };
    vocabulary
        .iter()
        .map(|word| {
            let weight = match find(word)? {
                Some(weight) => Some(weight),
                None => find(&word.to_lowercase())?,
            };
            Ok(weight.map_or(otherwise, |weight| weight as f32))
        })
        .collect()
}

fn info(
    name: &str,
    (parameters, dimension, vocabulary, max_length): (usize, usize, usize, usize),
    options: &LoadOptions,
    files: Vec<std::path::PathBuf>,
    inventory: Inventory,
) -> ModelInfo {
    ModelInfo {
        architecture: name.to_owned(),
        family: "words".to_owned(),
        parameters,
        hidden_size: dimension,
        layers: 0,
        attention_heads: 0,
        vocabulary,
        max_length,
        device: options.device,
        dtype: DType::F32,
        int8: false,
        files,
        inventory,
        verified: false,
    }
}
