//! The readers of strangers' files and patterns, each as a function of bytes. libFuzzer runs them here; the engine's
//! tests run them on the saved corpus and on seeded damage to it.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Device;
use engine::generation::{Constraint, Ending, Pattern, Vocabulary, WhiteSpace};
use engine::models::text::Blueprint;
use engine::tasks::sentence;
use engine::vector_index::VectorIndex;
use engine::{CancelToken, Error, Result};
use formats::files::model_files::WeightFiles;
use formats::files::models_lock::ModelsLock;
use formats::files::raw_config::{self, RawConfig};
use formats::files::shard_index;
use formats::image::{self, Limits, Processor};
use formats::text::chat_template::{ChatTemplate, Conversation};
use formats::text::tokenizer::{SpecialTokens, Tokenizer};
use formats::weights;
use sha2::{Digest, Sha256};

pub struct Reader {
    pub name: &'static str,
    read: fn(&[u8]) -> Result<()>,
    /// What reading some kilobytes may hold at most.
    pub most_bytes: usize,
}

const fn reader(name: &'static str, read: fn(&[u8]) -> Result<()>, megabytes: usize) -> Reader {
    Reader {
        name,
        read,
        most_bytes: megabytes << 20,
    }
}

pub const READERS: [Reader; 17] = [
    reader("safetensors", safetensors, 4),
    reader("gguf", gguf, 16),
    reader("ggml", ggml, 16),
    reader("torch", torch, 4),
    reader("pickle", pickle, 4),
    reader("shards", shards, 4),
    reader("tokenizer", tokenizer, 64),
    reader("sentencepiece", sentencepiece, 64),
    reader("template", template, 16),
    reader("image", picture, 64),
    reader("config", config, 4),
    reader("modules", modules, 4),
    reader("index", index, 4),
    reader("lock", lock, 4),
    reader("schema", schema, 64),
    reader("regex", regex, 64),
    reader("grammar", grammar, 64),
];

impl Reader {
    pub fn named(name: &str) -> &'static Self {
        let found = READERS.iter().find(|reader| reader.name == name);
        found.expect("there is a reader of this name")
    }

    /// Whether the bytes were taken. Panics unless they were, or were refused by an error that tells a user what is
    /// wrong with them.
    pub fn survives(&self, bytes: &[u8]) -> bool {
        let Err(error) = (self.read)(bytes) else {
            return true;
        };
        assert!(is_clear(&error), "{}: {error:?}", self.name);
        false
    }
}

/// Whether an error tells a user what is wrong: with which file, unless it is about what a text does.
fn is_clear(error: &Error) -> bool {
    match error {
        Error::CorruptModel(message) | Error::UnsupportedModel(message) => {
            message.contains("damaged") || message.contains("the chat template")
        }
        Error::InvalidInput(_) | Error::Tokenizer(_) => true,
        _ => false,
    }
}

/// A folder of this thread's own, whose path says that what lies in it is damaged.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("red-candle-damaged-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn with_file<T>(name: &str, bytes: &[u8], read: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    thread_local! {
        static FOLDER: OnceCell<Folder> = const { OnceCell::new() };
    }
    FOLDER.with(|folder| {
        let path = folder.get_or_init(Folder::new).0.join(name);
        std::fs::write(&path, bytes).expect("a temporary file can be written");
        let result = read(&path);
        let _ = std::fs::remove_file(&path);
        result
    })
}

fn read_all(files: &WeightFiles) -> Result<()> {
    let source = weights::open(files)?;
    for name in source.names() {
        source.tensor(&name, None, &Device::Cpu)?;
        source.quantized(&name)?;
    }
    for (key, value) in source.metadata().iter() {
        if let weights::Value::Array(array) = value {
            array.values().for_each(drop);
            source.metadata().opt_strings(key).ok();
        }
    }
    Ok(())
}

fn safetensors(bytes: &[u8]) -> Result<()> {
    with_file("damaged.safetensors", bytes, |path| {
        read_all(&WeightFiles::Safetensors(vec![path.to_owned()]))
    })
}

fn gguf(bytes: &[u8]) -> Result<()> {
    with_file("damaged.gguf", bytes, |path| {
        let files = WeightFiles::Gguf(path.to_owned());
        read_all(&files)?;
        let source = weights::open(&files)?;
        let model = Blueprint::from_gguf(source.as_ref()).map(drop);
        let tokenizer = Tokenizer::from_gguf(source.metadata());
        let tokenizer = tokenizer.and_then(|tokenizer| use_tokenizer(&tokenizer));
        // A sound file of weights need not be that of a model.
        let mut others = [model, tokenizer].into_iter().filter_map(Result::err);
        others.find(|error| !is_clear(error)).map_or(Ok(()), Err)
    })
}

fn ggml(bytes: &[u8]) -> Result<()> {
    with_file("damaged.bin", bytes, |path| {
        let files = WeightFiles::Ggml(path.to_owned());
        read_all(&files)?;
        let source = weights::open(&files)?;
        let tokens = source.metadata().opt_byte_strings("whisper.tokens")?;
        let tokens = tokens.unwrap_or_default();
        use_tokenizer(&Tokenizer::from_ranks(&tokens, &[], &[], path)?)
    })
}

fn torch(bytes: &[u8]) -> Result<()> {
    with_file("damaged.bin", bytes, |path| {
        read_all(&WeightFiles::Pickle(vec![path.to_owned()]))
    })
}

/// In an archive whose checksums are right, so that the damage reaches the machine that runs pickles.
fn pickle(bytes: &[u8]) -> Result<()> {
    torch(&archive(&[
        ("m/data.pkl", bytes),
        ("m/data/0", &[0; 96]),
        ("m/data/1", &[0; 96]),
    ]))
}

/// A zip archive of members that are stored as they are.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let start = file.len() as u32;
        let mut checksum = flate2::Crc::new();
        checksum.update(bytes);
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        common.extend(checksum.sum().to_le_bytes());
        common.extend((bytes.len() as u32).to_le_bytes());
        common.extend((bytes.len() as u32).to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        file.extend([b"PK\x03\x04", &common[..], name.as_bytes(), bytes].concat());
        directory.extend([b"PK\x01\x02\x14\x00", &common[..], &[0; 10]].concat());
        directory.extend(start.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, size) = (file.len() as u32, directory.len() as u32);
    let count = (members.len() as u16).to_le_bytes();
    file.extend(directory);
    file.extend([b"PK\x05\x06\x00\x00\x00\x00", &count[..], &count[..]].concat());
    file.extend(size.to_le_bytes());
    file.extend(start.to_le_bytes());
    file.extend([0, 0]);
    file
}

fn shards(bytes: &[u8]) -> Result<()> {
    with_file("damaged.index.json", bytes, |path| {
        shard_index::read(path).map(drop)
    })
}

fn use_tokenizer(tokenizer: &Tokenizer) -> Result<()> {
    for text in ["the quick fox", "", "\u{1F600} caf\u{e9}\n\t a  b"] {
        let ids = tokenizer.ids(text, true)?;
        tokenizer.decode(&ids, true)?;
        tokenizer.decode(&ids, false)?;
    }
    Ok(())
}

fn tokenizer(bytes: &[u8]) -> Result<()> {
    with_file("damaged.json", bytes, |path| {
        use_tokenizer(&Tokenizer::from_file(path)?)
    })
}

fn sentencepiece(bytes: &[u8]) -> Result<()> {
    with_file("spiece.model", bytes, |path| {
        let folder = path.parent().unwrap_or(path);
        use_tokenizer(&Tokenizer::from_directory(folder)?)
    })
}

fn template(bytes: &[u8]) -> Result<()> {
    let source = String::from_utf8_lossy(bytes);
    let messages = serde_json::json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "hello" },
        { "role": "assistant", "content": "yes", "tool_calls": [{ "name": "f", "arguments": { "a": 1 } }] }
    ]);
    let conversation = Conversation {
        messages: &messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        variables: &serde_json::Map::new(),
    };
    let template = ChatTemplate::compile(&source)?;
    let tokens = SpecialTokens::default();
    template.render(&conversation, &tokens, &CancelToken::new())?;
    Ok(())
}

fn picture(bytes: &[u8]) -> Result<()> {
    let limits = Limits {
        max_bytes: 1 << 20,
        max_pixels: 1 << 20,
    };
    image::decode(bytes, &limits).map(drop)
}

fn config(bytes: &[u8]) -> Result<()> {
    with_file("damaged.json", bytes, |path| {
        let config = RawConfig::read(path)?;
        config.id2label()?;
        config.opt_usize_in("num_hidden_layers", raw_config::LAYERS)?;
        match config.model_type()? {
            Some(_) => Blueprint::from_config(&config).map(drop),
            None => Processor::read(&config).map(drop),
        }
    })
}

fn modules(bytes: &[u8]) -> Result<()> {
    with_file("damaged.json", bytes, |path| {
        sentence::modules(path).map(drop)
    })
}

/// With the checksum that its contents have, so that the damage is not all that is seen of it.
fn index(bytes: &[u8]) -> Result<()> {
    let mut bytes = bytes.to_vec();
    if let Some(checksum) = index_checksum(&bytes) {
        bytes[40..48].copy_from_slice(&checksum);
    }
    with_file("damaged.index", &bytes, |path| {
        let cancel = CancelToken::new();
        let mut index = VectorIndex::open(path, &cancel)?;
        let query = vec![1; 4 * index.dimension()];
        index.search(&query, 3, None, None, &cancel)?;
        let ids: Vec<_> = index.search(&query, 1, None, Some(1), &cancel)?;
        for (id, _) in ids {
            index.contains(&id);
            index.delete(&id)?;
        }
        // The graph is searched, grown and repaired.
        if let Some((links, _)) = index.graph() {
            index.start_graph(links)?;
            if let Some(block) = index.build_graph(4, &cancel)? {
                index.grow_graph(block)?;
            }
            index.save(&path.with_extension("again"), &cancel)?;
        }
        Ok(())
    })
}

fn index_checksum(bytes: &[u8]) -> Option<[u8; 8]> {
    let number = |at: usize| -> Option<usize> {
        let word = bytes.get(at..at + 8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(word)).ok()
    };
    let (kind, dimension, rows) = (number(8)?, number(16)?, number(24)?);
    let row = match kind {
        0 => dimension.checked_mul(4)?,
        1 => dimension,
        _ => dimension.div_ceil(8),
    };
    let start = rows.checked_mul(row)?.checked_add(64)?;
    let mut hash = Sha256::new();
    hash.update(bytes.get(..40)?);
    hash.update(bytes.get(start..)?);
    hash.finalize().first_chunk().copied()
}

fn lock(bytes: &[u8]) -> Result<()> {
    with_file("damaged.lock", bytes, |path| {
        let lock = ModelsLock::read(path)?;
        lock.find("org/model");
        Ok(())
    })
}

fn schema(bytes: &[u8]) -> Result<()> {
    follow(|text| Pattern::Schema(text, WhiteSpace::Compact), bytes)
}

fn regex(bytes: &[u8]) -> Result<()> {
    follow(Pattern::Regex, bytes)
}

fn grammar(bytes: &[u8]) -> Result<()> {
    follow(Pattern::Lark, bytes)
}

/// Compiles a pattern and takes a few tokens that it allows.
fn follow(pattern: impl FnOnce(String) -> Pattern, bytes: &[u8]) -> Result<()> {
    const FIXTURE: &str = "../../spec/fixtures/tokenizers/byte_level_bpe";
    const END: u32 = 1;
    thread_local! {
        static VOCABULARY: Vocabulary = {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXTURE);
            let tokenizer = Tokenizer::from_directory(&folder);
            let made = tokenizer.and_then(|tokenizer| Vocabulary::new(&tokenizer));
            made.expect("the fixture has a vocabulary")
        };
    }
    let pattern = pattern(String::from_utf8_lossy(bytes).into_owned());
    let cancel = CancelToken::new();
    let mut constraint =
        VOCABULARY.with(|vocabulary| vocabulary.compile(&pattern, Ending::Complete, &cancel))?;
    for turn in 0..6 {
        let mask = constraint.allowed(&[END])?;
        let allowed =
            (0..32 * mask.len() as u32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1);
        let allowed: Vec<u32> = allowed.filter(|&id| id != END).collect();
        if allowed.is_empty() || constraint.is_satisfied() {
            break;
        }
        constraint.accept(allowed[turn * 31 % allowed.len()])?;
    }
    Ok(())
}
