//! `*.index.json`: which tensor of a sharded checkpoint is in which file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::json;
use crate::{Error, Result};

const MOST_BYTES: usize = 64 << 20;
const MOST_SHARDS: usize = 10_000;

#[derive(Deserialize)]
struct Index {
    /// From tensor to file.
    weight_map: BTreeMap<String, String>,
}

/// The distinct shard files that an index names, each proven to be a plain name beside it.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let index = parse(path)?;
    let shards: BTreeSet<&String> = index.weight_map.values().collect();
    if shards.is_empty() {
        return Err(Error::corrupt(path, "it names no shards"));
    }
    if shards.len() > MOST_SHARDS {
        return Err(Error::corrupt(
            path,
            format!("it names {} shards", shards.len()),
        ));
    }
    for shard in &shards {
        check_name(path, shard)?;
    }
    Ok(shards.into_iter().cloned().collect())
}

/// Verifies that every tensor of the index beside `shard` is in the file that the index says.
/// Without an index there is nothing to verify. `file_of` knows which file a tensor is in.
pub fn verify(shard: &Path, file_of: impl Fn(&str) -> Option<PathBuf>) -> Result<()> {
    let Some(path) = beside(shard) else {
        return Ok(());
    };
    for (name, shard) in parse(&path)?.weight_map {
        let Some(file) = file_of(&name) else {
            return Err(Error::corrupt(
                &path,
                format!("tensor {name:?} should be in {shard}, but no shard has it"),
            ));
        };
        if file
            .file_name()
            .is_some_and(|actual| actual != shard.as_str())
        {
            let actual = file.display();
            return Err(Error::corrupt(
                &path,
                format!("tensor {name:?} should be in {shard}, but is in {actual}"),
            ));
        }
    }
    Ok(())
}

fn parse(path: &Path) -> Result<Index> {
    let text = json::read_text(path, MOST_BYTES)?;
    serde_json::from_str(&text)
        .map_err(|error| Error::corrupt(path, format!("it is not a shard index ({error})")))
}

/// A shard is a plain file name: anything else could reach outside of the model's directory.
fn check_name(index: &Path, shard: &str) -> Result<()> {
    let refuse = |why: &str| Err(Error::corrupt(index, format!("shard {shard:?} {why}")));
    let mut components = Path::new(shard).components();
    let plain = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(name)), None) if name == shard
    );
    if !plain || shard.contains(['/', '\\', ':', '\0']) {
        return refuse("is not a plain file name in the model's directory");
    }
    if shard.ends_with(".json") {
        return refuse("is an index itself, not a weight file");
    }
    if shard.len() > 255 {
        return refuse("has a name longer than files can have");
    }
    Ok(())
}

/// `model-00001-of-00002.safetensors` belongs to `model.safetensors.index.json`.
fn beside(shard: &Path) -> Option<PathBuf> {
    let name = shard.file_name()?.to_str()?;
    let (stem, extension) = name.rsplit_once('.')?;
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut parts = stem.rsplitn(4, '-');
    let (total, of, number, base) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if !digits(total) || of != "of" || !digits(number) {
        return None;
    }
    let index = shard.with_file_name(format!("{base}.{extension}.index.json"));
    index.is_file().then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_shards() {
        let index = Path::new("model.safetensors.index.json");
        assert!(check_name(index, "model-00001-of-00002.safetensors").is_ok());
        for name in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "../other/model.safetensors",
            "a/../../b.safetensors",
            "sub/model.safetensors",
            "..\\model.safetensors",
            "C:model.safetensors",
            "./model.safetensors",
            "model.safetensors/",
            "model.safetensors.index.json",
            "a\0b",
        ] {
            let error = check_name(index, name).unwrap_err();
            assert!(matches!(error, Error::CorruptModel(_)), "{name}");
            assert!(error.to_string().contains("index.json"), "{name}");
        }
    }
}
