//! The names of the files that a sharded checkpoint is spread over.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{Error, Result};

pub fn read(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read(path).map_err(|error| Error::corrupt(path, error))?;
    let json: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| Error::corrupt(path, error))?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| Error::corrupt(path, "it has no weight_map"))?;
    let names: BTreeSet<_> = map.values().filter_map(|name| name.as_str()).collect();
    Ok(names.into_iter().map(str::to_owned).collect())
}
