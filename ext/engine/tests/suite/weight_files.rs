//! Weight files built by hand, sound or not.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that is removed with its contents.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("red-candle-weights-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file that `spec/fixtures/make_weights.py` wrote.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../spec/fixtures/weights")
        .join(name)
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// A safetensors file from the text of its header.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// A safetensors file of f32 vectors, one after the other.
pub fn safetensors_of(tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, values) in tensors {
        let start = data.len();
        data.extend(f32_bytes(values));
        header.push(format!(
            r#""{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[{start},{}]}}"#,
            values.len(),
            data.len()
        ));
    }
    safetensors(&format!("{{{}}}", header.join(",")), &data)
}

/// A GGUF file piece by piece; every number may be a lie.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub keys: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub key_count: Option<u64>,
    pub tensor_count: Option<u64>,
    pub data: Vec<u8>,
}

impl Gguf {
    pub fn new() -> Self {
        Self {
            version: 3,
            keys: Vec::new(),
            tensors: Vec::new(),
            key_count: None,
            tensor_count: None,
            data: Vec::new(),
        }
    }

    pub fn string(text: &str) -> Vec<u8> {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    pub fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        let mut bytes = Self::string(name);
        bytes.extend(kind.to_le_bytes());
        bytes.extend_from_slice(value);
        self.keys.push(bytes);
        self
    }

    /// `shape` in the file's own order, innermost first.
    pub fn tensor(mut self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
        let mut bytes = Self::string(name);
        bytes.extend((shape.len() as u32).to_le_bytes());
        bytes.extend(shape.iter().flat_map(|extent| extent.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        self.tensors.push(bytes);
        self
    }

    pub fn data(mut self, data: Vec<u8>) -> Self {
        self.data = data;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        let tensors = self.tensor_count.unwrap_or(self.tensors.len() as u64);
        file.extend(tensors.to_le_bytes());
        let keys = self.key_count.unwrap_or(self.keys.len() as u64);
        file.extend(keys.to_le_bytes());
        file.extend(self.keys.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend_from_slice(&self.data);
        file
    }
}

/// A member of a zip archive.
pub struct Member<'a> {
    pub name: &'a str,
    pub bytes: &'a [u8],
    pub packed: bool,
    /// The size that the directory claims, where it is a lie.
    pub claimed: Option<u32>,
}

impl<'a> Member<'a> {
    pub fn stored(name: &'a str, bytes: &'a [u8]) -> Self {
        Self {
            name,
            bytes,
            packed: false,
            claimed: None,
        }
    }
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    use std::io::Read;
    let mut packed = Vec::new();
    flate2::read::DeflateEncoder::new(bytes, flate2::Compression::best())
        .read_to_end(&mut packed)
        .unwrap();
    packed
}

pub fn zip(members: &[Member<'_>]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for member in members {
        let start = file.len() as u32;
        let data = if member.packed {
            deflate(member.bytes)
        } else {
            member.bytes.to_vec()
        };
        let mut checksum = flate2::Crc::new();
        checksum.update(member.bytes);
        let mut common = vec![20, 0, 0, 0];
        common.extend(if member.packed { 8u16 } else { 0 }.to_le_bytes());
        common.extend([0; 4]);
        common.extend(checksum.sum().to_le_bytes());
        common.extend((data.len() as u32).to_le_bytes());
        let size = member.claimed.unwrap_or(member.bytes.len() as u32);
        common.extend(size.to_le_bytes());
        common.extend((member.name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        file.extend(b"PK\x03\x04");
        file.extend_from_slice(&common);
        file.extend_from_slice(member.name.as_bytes());
        file.extend(data);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend_from_slice(&common);
        directory.extend([0; 10]);
        directory.extend(start.to_le_bytes());
        directory.extend_from_slice(member.name.as_bytes());
    }
    let (start, size) = (file.len() as u32, directory.len() as u32);
    file.extend(directory);
    file.extend(b"PK\x05\x06\x00\x00\x00\x00");
    file.extend((members.len() as u16).to_le_bytes());
    file.extend((members.len() as u16).to_le_bytes());
    file.extend(size.to_le_bytes());
    file.extend(start.to_le_bytes());
    file.extend([0, 0]);
    file
}

/// A PyTorch checkpoint from its pickle and its storages, numbered from 0.
pub fn checkpoint(pickle: &[u8], storages: &[&[u8]]) -> Vec<u8> {
    let names: Vec<String> = (0..storages.len()).map(|i| format!("m/data/{i}")).collect();
    let mut members = vec![Member::stored("m/data.pkl", pickle)];
    members.extend(
        names
            .iter()
            .zip(storages)
            .map(|(name, bytes)| Member::stored(name, bytes)),
    );
    zip(&members)
}

/// The pickle of a state dict with one f32 tensor over storage "0".
pub fn pickle_of(
    name: &str,
    elements: i32,
    offset: i32,
    shape: &[i32],
    strides: &[i32],
) -> Vec<u8> {
    let text = |text: &str| {
        let mut bytes = vec![b'X'];
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    };
    let number = |value: i32| [&b"J"[..], &value.to_le_bytes()].concat();
    let tuple = |values: &[i32]| {
        let items: Vec<u8> = values.iter().flat_map(|&value| number(value)).collect();
        [&b"("[..], &items, b"t"].concat()
    };
    [
        b"\x80\x02}(".to_vec(),
        text(name),
        b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        b"ctorch\nFloatStorage\n".to_vec(),
        text("0"),
        text("cpu"),
        number(elements),
        b"tQ".to_vec(),
        number(offset),
        tuple(shape),
        tuple(strides),
        b"\x89ccollections\nOrderedDict\n)RtRu.".to_vec(),
    ]
    .concat()
}
