//! Every GGUF family against the checkpoint that its file was made from, and against llama.cpp.

use std::path::Path;

use candle_core::{DType, Device};
use engine::decoder::{gguf, Decoder};
use engine::model_files::ModelFiles;
use engine::{weights, CancelToken};

use super::decoder::{folders, greedy, in_chunks, logprobs, tiny, worst, Expectations};

/// The files hold the checkpoint's numbers exactly, so only the order of summation differs.
const EXACT: f32 = 1e-4;
/// llama.cpp looks activations up in half precision.
const LLAMA_CPP: f32 = 5e-3;
/// Its file does not say that a window slides, so that texts agree up to there only.
const WINDOWLESS: [&str; 2] = ["mistral", "starcoder2"];
const WINDOW: usize = 8;

fn load(folder: &Path) -> Decoder {
    let cancel = CancelToken::new();
    let files = ModelFiles::open(folder.to_str().unwrap(), None, &cancel).unwrap();
    let source = weights::open(&files.weights(None, &cancel).unwrap()).unwrap();
    let (config, names) =
        gguf::read(source.as_ref()).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    Decoder::load(source, config, &names, &Device::Cpu, DType::F32, &cancel)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

/// The checkpoint that a folder's file was made from.
fn origin(folder: &Path) -> std::path::PathBuf {
    let name = folder.file_name().unwrap().to_str().unwrap();
    tiny("decoders").join(name.trim_end_matches("-split"))
}

fn plain() -> impl Iterator<Item = std::path::PathBuf> {
    folders("gguf-decoders")
        .into_iter()
        .filter(|folder| !folder.join("expected.json").exists())
}

#[test]
fn a_file_says_what_its_checkpoint_says() {
    for folder in plain() {
        let decoder = load(&folder);
        let expected = Expectations::read(&origin(&folder));
        let windowless = WINDOWLESS.iter().any(|name| folder.ends_with(name));
        for (index, ids) in expected.sequences.iter().enumerate() {
            let reference = expected.logprobs(index);
            let same = if windowless {
                WINDOW.min(ids.len() - 1)
            } else {
                ids.len() - 1
            };
            let whole = in_chunks(&decoder, ids, ids.len());
            let got = logprobs(&whole, &ids[1..]);
            let off = worst(&reference[..same], &got[..same]);
            assert!(off < EXACT, "{}: {off}", folder.display());
            if !windowless {
                let sequence = greedy(&decoder, &ids[..expected.prompt_lengths[index]], ids.len());
                assert_eq!(&sequence, ids, "{}", folder.display());
            }
        }
    }
}
