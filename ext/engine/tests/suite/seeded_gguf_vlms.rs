//! GGUF files of seeded vision-language models, as llama.cpp's converter lays out decoder and tower, against what
//! transformers says of the checkpoints.

use serde_json::{json, Map, Value};

use super::seeded_gguf::file_of;
use super::seeded_tensors::elements;
use super::seeded_vlms::{difference, open, record};
use super::weight_files::Folder;

type Stored = (String, Vec<u64>, Vec<f32>);

/// What the files call parts of tensors' names.
const DECODER: [(&str, &str); 14] = [
    ("model.language_model.embed_tokens.", "token_embd."),
    ("model.language_model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("model.language_model.layers.", "blk."),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.", "ffn_"),
    ("_proj.", "."),
];
const TOWER: [(&str, &str); 12] = [
    ("merger.norm", "v.post_ln"),
    ("merger.linear_fc1", "mm.0"),
    ("merger.linear_fc2", "mm.2"),
    ("pos_embed", "v.position_embd"),
    ("patch_embed.proj", "v.patch_embd"),
    ("blocks.", "v.blk."),
    ("attn.qkv", "attn_qkv"),
    ("attn.proj", "attn_out"),
    ("mlp.linear_fc1", "ffn_up"),
    ("mlp.linear_fc2", "ffn_down"),
    ("norm1", "ln1"),
    ("norm2", "ln2"),
];

fn renamed(name: &str, table: &[(&str, &str)]) -> String {
    let replace = |name: String, (from, to): &(&str, &str)| name.replace(from, to);
    table.iter().fold(name.to_owned(), replace)
}

/// Name, shape with the innermost extent first, and numbers.
fn stored(name: String, shape: &[u64], values: Vec<f32>) -> Stored {
    (name, shape.iter().rev().copied().collect(), values)
}

/// The tensors of the decoder and those of the tower.
fn tensors(name: &str, deep: &[u64]) -> (Vec<Stored>, Vec<Stored>) {
    let description = record(name, "tensors.json");
    let seed = description["seed"].as_u64().unwrap();
    let (mut decoder, mut tower) = (Vec::new(), Vec::new());
    for (name, one) in description["tensors"].as_object().unwrap() {
        let bytes = elements(name, seed, one);
        let values: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        let shape = one["shape"].as_array().unwrap().iter();
        let shape: Vec<u64> = shape.map(|extent| extent.as_u64().unwrap()).collect();
        let Some(own) = name.strip_prefix("model.visual.") else {
            decoder.push(stored(renamed(name, &DECODER), &shape, values));
            continue;
        };
        if own == "patch_embed.proj.weight" {
            let [out, channels, frames, high, wide] = shape[..] else {
                panic!("{shape:?}");
            };
            let area = (high * wide) as usize;
            for frame in 0..frames as usize {
                let pixels = values.chunks_exact(area).skip(frame);
                let pixels = pixels.step_by(frames as usize).flatten().copied();
                let name = ["v.patch_embd.weight", "v.patch_embd.weight.1"][frame].to_owned();
                let shape = [out, channels, high, wide];
                tower.push(stored(name, &shape, pixels.collect()));
            }
            continue;
        }
        let own = match own.strip_prefix("deepstack_merger_list.") {
            Some(rest) => {
                let (number, rest) = rest.split_once('.').unwrap();
                let layer = deep[number.parse::<usize>().unwrap()];
                format!("v.deepstack.{layer}.{}", rest.replace("linear_fc", "fc"))
            }
            None => renamed(own, &TOWER),
        };
        tower.push(stored(own, &shape, values));
    }
    (decoder, tower)
}

pub fn tokens(name: &str, metadata: &mut Map<String, Value>) {
    let tokenizer = record(name, "tokenizer.json");
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap().iter();
    let mut all: Vec<(u64, String, i32)> = vocabulary
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone(), 1))
        .collect();
    for token in tokenizer["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap();
        all.retain(|(other, ..)| *other != id);
        all.push((id, token["content"].as_str().unwrap().to_owned(), 3));
    }
    all.sort();
    let merges = tokenizer["model"]["merges"].as_array().unwrap().iter();
    let merges = merges.map(|pair| {
        let half = |at: usize| pair[at].as_str().unwrap();
        format!("{} {}", half(0), half(1))
    });
    let texts: Vec<&str> = all.iter().map(|(_, token, _)| token.as_str()).collect();
    let kinds: Vec<i32> = all.iter().map(|(.., kind)| *kind).collect();
    let mut put = |key: &str, kind: &str, value: Value| {
        metadata.insert(format!("tokenizer.{key}"), json!([kind, value]));
    };
    put("ggml.model", "string", json!("gpt2"));
    put("ggml.pre", "string", json!("gpt-2"));
    put("ggml.tokens", "array string", json!(texts));
    put("ggml.token_type", "array int32", json!(kinds));
    put(
        "ggml.merges",
        "array string",
        json!(merges.collect::<Vec<_>>()),
    );
    put("ggml.add_bos_token", "bool", json!(false));
    let template = record(name, "tokenizer_config.json")["chat_template"].clone();
    put("chat_template", "string", template);
}

/// The metadata of the decoder and those of the tower.
fn metadata(name: &str) -> (Value, Value) {
    let config = record(name, "config.json");
    let (text, vision) = (&config["text_config"], &config["vision_config"]);
    let rope = &text["rope_parameters"];
    let mut sections = rope["mrope_section"].as_array().unwrap().clone();
    sections.push(json!(0));
    let mut decoder = json!({
        "general.architecture": ["string", "qwen3vl"],
        "qwen3vl.block_count": ["uint32", text["num_hidden_layers"]],
        "qwen3vl.context_length": ["uint32", text["max_position_embeddings"]],
        "qwen3vl.embedding_length": ["uint32", text["hidden_size"]],
        "qwen3vl.feed_forward_length": ["uint32", text["intermediate_size"]],
        "qwen3vl.attention.head_count": ["uint32", text["num_attention_heads"]],
        "qwen3vl.attention.head_count_kv": ["uint32", text["num_key_value_heads"]],
        "qwen3vl.attention.key_length": ["uint32", text["head_dim"]],
        "qwen3vl.attention.value_length": ["uint32", text["head_dim"]],
        "qwen3vl.attention.layer_norm_rms_epsilon": ["float32", text["rms_norm_eps"]],
        "qwen3vl.rope.freq_base": ["float32", rope["rope_theta"]],
        "qwen3vl.rope.dimension_sections": ["array int32", sections],
        "qwen3vl.n_deepstack_layers": ["uint32", 2],
    });
    tokens(name, decoder.as_object_mut().unwrap());
    let depth = vision["depth"].as_u64().unwrap();
    let deep = vision["deepstack_visual_indexes"].as_array().unwrap();
    let marks: Vec<bool> = (0..depth)
        .map(|layer| deep.contains(&json!(layer)))
        .collect();
    let images = record(name, "preprocessor_config.json");
    let tower = json!({
        "general.architecture": ["string", "clip"],
        "general.type": ["string", "mmproj"],
        "clip.has_vision_encoder": ["bool", true],
        "clip.projector_type": ["string", "qwen3vl_merger"],
        "clip.use_gelu": ["bool", true],
        "clip.vision.projection_dim": ["uint32", vision["out_hidden_size"]],
        "clip.vision.image_size": ["uint32", 24],
        "clip.vision.patch_size": ["uint32", vision["patch_size"]],
        "clip.vision.embedding_length": ["uint32", vision["hidden_size"]],
        "clip.vision.feed_forward_length": ["uint32", vision["intermediate_size"]],
        "clip.vision.block_count": ["uint32", depth],
        "clip.vision.attention.head_count": ["uint32", vision["num_heads"]],
        "clip.vision.attention.layer_norm_epsilon": ["float32", 1e-6],
        "clip.vision.image_mean": ["array float32", images["image_mean"]],
        "clip.vision.image_std": ["array float32", images["image_std"]],
        "clip.vision.image_min_pixels": ["uint32", images["size"]["shortest_edge"]],
        "clip.vision.image_max_pixels": ["uint32", images["size"]["longest_edge"]],
        "clip.vision.spatial_merge_size": ["uint32", vision["spatial_merge_size"]],
        "clip.vision.is_deepstack_layers": ["array bool", marks],
    });
    (decoder, tower)
}

fn files(name: &str) -> (Folder, Value) {
    let config = record(name, "config.json");
    let deep = config["vision_config"]["deepstack_visual_indexes"].as_array();
    let deep: Vec<u64> = deep
        .unwrap()
        .iter()
        .map(|at| at.as_u64().unwrap())
        .collect();
    let (decoder, tower) = tensors(name, &deep);
    let (keys, tower_keys) = metadata(name);
    let folder = Folder::new();
    folder.write("model.gguf", file_of(&keys, &decoder).bytes());
    folder.write("mmproj-f32.gguf", file_of(&tower_keys, &tower).bytes());
    (folder, tower_keys)
}

#[test]
fn gguf_files_of_qwen3_vl_see_what_the_checkpoint_sees() {
    let (folder, _) = files("qwen3_vl");
    let model = open(&folder).unwrap();
    let questions = &record("qwen3_vl", "expected.json")["asked"];
    for question in questions.as_array().unwrap() {
        assert_eq!(difference(&model, question), None);
    }
}

#[test]
fn marks_of_more_layers_than_there_are_are_refused() {
    let (folder, mut keys) = files("qwen3_vl");
    keys["clip.vision.is_deepstack_layers"] = json!(["array bool", [true, false, true, true]]);
    let (_, tower) = tensors("qwen3_vl", &[1, 2]);
    folder.write("mmproj-f32.gguf", file_of(&keys, &tower).bytes());
    let error = open(&folder).err().unwrap().to_string();
    assert!(error.contains("4 layers of 3"), "{error}");
}
