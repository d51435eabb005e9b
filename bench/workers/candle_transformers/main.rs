//! candle-transformers as it comes, for `rake bench`: its BERT on a checkpoint and its quantized Llama on a GGUF
//! file. A request is one line of JSON on the standard input, a reply one line on the standard output.

mod embedder;
mod language_model;

use std::collections::hash_map::{Entry, HashMap};
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

use serde::Deserialize;
use serde_json::{json, Value};

use embedder::Embedder;
use language_model::LanguageModel;

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The result of a task, and its seconds where only a part of the work counts.
type Done = (Value, Option<f64>);

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Request {
    Hello,
    Load {
        key: String,
        kind: String,
        path: String,
        dtype: Option<String>,
    },
    Run {
        key: String,
        task: String,
        input: String,
        repeat: usize,
        #[serde(default)]
        result: bool,
    },
    Memory,
}

enum Model {
    Embedder(Box<Embedder>),
    Language(Box<LanguageModel>),
}

struct Worker {
    started: Instant,
    models: HashMap<String, Model>,
    inputs: HashMap<String, Value>,
}

fn main() {
    let mut worker = Worker {
        started: Instant::now(),
        models: HashMap::new(),
        inputs: HashMap::new(),
    };
    for line in std::io::stdin().lock().lines() {
        let reply = line
            .map_err(Box::from)
            .and_then(|line| worker.answer(serde_json::from_str(&line)?))
            .unwrap_or_else(|error| json!({ "error": error.to_string() }));
        let mut output = std::io::stdout().lock();
        if writeln!(output, "{reply}").and(output.flush()).is_err() {
            return;
        }
    }
}

impl Worker {
    fn answer(&mut self, request: Request) -> Answer<Value> {
        match request {
            Request::Hello => Ok(json!({
                "versions": { "candle-transformers": version() },
                "import_seconds": self.started.elapsed().as_secs_f64(),
                "build": { "debug": cfg!(debug_assertions) },
            })),
            Request::Load {
                key,
                kind,
                path,
                dtype,
            } => {
                let started = Instant::now();
                if let Entry::Vacant(place) = self.models.entry(key) {
                    place.insert(load(&kind, &path, dtype.as_deref())?);
                }
                Ok(json!({ "seconds": started.elapsed().as_secs_f64() }))
            }
            Request::Run {
                key,
                task,
                input,
                repeat,
                result,
            } => self.run(&key, &task, &input, repeat, result),
            Request::Memory => Ok(json!({ "peak_bytes": peak_bytes()? })),
        }
    }

    fn run(
        &mut self,
        key: &str,
        task: &str,
        input: &str,
        repeat: usize,
        wants_result: bool,
    ) -> Answer<Value> {
        if !self.inputs.contains_key(input) {
            let data = serde_json::from_str(&std::fs::read_to_string(input)?)?;
            self.inputs.insert(input.to_owned(), data);
        }
        let data = &self.inputs[input];
        let model = self.models.get_mut(key).ok_or("no such model is loaded")?;
        let mut seconds = Vec::new();
        let mut last = Value::Null;
        for _ in 0..repeat.max(1) {
            let started = Instant::now();
            let (result, part) = model.perform(task, data)?;
            seconds.push(part.unwrap_or_else(|| started.elapsed().as_secs_f64()));
            last = result;
        }
        seconds.sort_by(f64::total_cmp);
        let median = (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2]) / 2.0;
        let mut reply = json!({ "seconds": median });
        if wants_result {
            reply["result"] = last;
        }
        Ok(reply)
    }
}

impl Model {
    fn perform(&mut self, task: &str, data: &Value) -> Answer<Done> {
        match self {
            Self::Embedder(model) if task == "embed" => Ok((model.embed(&data["texts"])?, None)),
            Self::Embedder(_) => Err(format!("no such task: {task}").into()),
            Self::Language(model) => model.perform(task, data),
        }
    }
}

fn load(kind: &str, path: &str, dtype: Option<&str>) -> Answer<Model> {
    match (kind, dtype) {
        ("embedding", Some("f32")) => Ok(Model::Embedder(Box::new(Embedder::load(path)?))),
        ("llm", _) => Ok(Model::Language(Box::new(LanguageModel::load(path)?))),
        _ => Err(format!("no {kind} in {dtype:?} here").into()),
    }
}

/// The version that this was built with, from the lock file.
fn version() -> Option<&'static str> {
    let lock = include_str!("../../../Cargo.lock");
    let (_, rest) = lock.split_once("name = \"candle-transformers\"\nversion = \"")?;
    rest.split('"').next()
}

fn peak_bytes() -> Answer<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes
        .ok_or("no VmHWM in /proc/self/status")?
        .parse::<u64>()?
        * 1024)
}
