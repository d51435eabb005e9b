"""Writes seeded random checkpoints of well-known shapes, quickly: make_checkpoints.py NAME DIRECTORY

A word of the made-up vocabulary is one token, so texts have as many tokens as wanted. Values are
drawn on the GPU where there is one; large checkpoints are written in shards.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

SHARD_BYTES = 4 << 30


def bert(hidden, layers, heads, vocabulary=30522, head=None):
    config = {
        "architectures": ["BertForSequenceClassification" if head else "BertModel"],
        "model_type": "bert", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": 4 * hidden, "vocab_size": vocabulary,
        "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "pad_token_id": 0,
    }
    prefix = "bert." if head else ""
    shapes = {}

    def linear(name, rows, columns):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (rows, columns), (rows,)

    def norm(name):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (hidden,), (hidden,)

    table = f"{prefix}embeddings."
    shapes[f"{table}word_embeddings.weight"] = (vocabulary, hidden)
    shapes[f"{table}position_embeddings.weight"] = (512, hidden)
    shapes[f"{table}token_type_embeddings.weight"] = (2, hidden)
    norm(f"{table}LayerNorm")
    for number in range(layers):
        layer = f"{prefix}encoder.layer.{number}."
        for part in ("query", "key", "value"):
            linear(f"{layer}attention.self.{part}", hidden, hidden)
        linear(f"{layer}attention.output.dense", hidden, hidden)
        norm(f"{layer}attention.output.LayerNorm")
        linear(f"{layer}intermediate.dense", 4 * hidden, hidden)
        linear(f"{layer}output.dense", hidden, 4 * hidden)
        norm(f"{layer}output.LayerNorm")
    linear(f"{prefix}pooler.dense", hidden, hidden)
    if head:
        config.update({"num_labels": head, "id2label": {str(i): f"LABEL_{i}" for i in range(head)}})
        linear("classifier", head, hidden)
    return config, shapes, torch.float16


def llama(hidden, layers, heads, kv_heads, intermediate, tied, vocabulary=128256):
    size = hidden // heads
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": size, "intermediate_size": intermediate, "vocab_size": vocabulary,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": tied, "torch_dtype": "bfloat16",
    }
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(layers):
        layer = f"model.layers.{number}."
        shapes[f"{layer}self_attn.q_proj.weight"] = (hidden, hidden)
        shapes[f"{layer}self_attn.k_proj.weight"] = (kv_heads * size, hidden)
        shapes[f"{layer}self_attn.v_proj.weight"] = (kv_heads * size, hidden)
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{layer}mlp.gate_proj.weight"] = (intermediate, hidden)
        shapes[f"{layer}mlp.up_proj.weight"] = (intermediate, hidden)
        shapes[f"{layer}mlp.down_proj.weight"] = (hidden, intermediate)
        shapes[f"{layer}input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not tied:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return config, shapes, torch.bfloat16


def mixture(hidden, layers, heads, kv_heads, size, experts, used, inner, vocabulary=128256):
    """As Qwen3-30B-A3B, of which a part of the layers is enough to measure."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size,
        "intermediate_size": 4 * inner, "moe_intermediate_size": inner, "num_experts": experts,
        "num_experts_per_tok": used, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": vocabulary, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(layers):
        layer = f"model.layers.{number}."
        shapes[f"{layer}self_attn.q_proj.weight"] = (heads * size, hidden)
        shapes[f"{layer}self_attn.k_proj.weight"] = (kv_heads * size, hidden)
        shapes[f"{layer}self_attn.v_proj.weight"] = (kv_heads * size, hidden)
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, heads * size)
        shapes[f"{layer}self_attn.q_norm.weight"] = (size,)
        shapes[f"{layer}self_attn.k_norm.weight"] = (size,)
        shapes[f"{layer}mlp.gate.weight"] = (experts, hidden)
        for expert in range(experts):
            shapes[f"{layer}mlp.experts.{expert}.gate_proj.weight"] = (inner, hidden)
            shapes[f"{layer}mlp.experts.{expert}.up_proj.weight"] = (inner, hidden)
            shapes[f"{layer}mlp.experts.{expert}.down_proj.weight"] = (hidden, inner)
        shapes[f"{layer}input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocabulary, hidden)
    return config, shapes, torch.bfloat16


def hybrid(hidden, layers, heads, kv_heads, intermediate, ssm_heads, state, vocabulary=128256):
    """As Bamba-9B: every eighth layer attends, the others are Mamba-2."""
    size, inner = hidden // heads, 2 * hidden
    attending = list(range(7, layers, 8)) or [layers - 1]
    config = {
        "architectures": ["BambaForCausalLM"], "model_type": "bamba", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate, "vocab_size": vocabulary, "attn_layer_indices": attending,
        "mamba_n_heads": ssm_heads, "mamba_d_head": inner // ssm_heads, "mamba_d_state": state, "mamba_d_conv": 4,
        "mamba_expand": 2, "mamba_n_groups": 1, "mamba_conv_bias": True, "mamba_proj_bias": False,
        "mamba_chunk_size": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }
    channels = inner + 2 * state
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(layers):
        layer = f"model.layers.{number}."
        if number in attending:
            shapes[f"{layer}self_attn.q_proj.weight"] = (hidden, hidden)
            shapes[f"{layer}self_attn.k_proj.weight"] = (kv_heads * size, hidden)
            shapes[f"{layer}self_attn.v_proj.weight"] = (kv_heads * size, hidden)
            shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, hidden)
        else:
            shapes[f"{layer}mamba.in_proj.weight"] = (inner + channels + ssm_heads, hidden)
            shapes[f"{layer}mamba.conv1d.weight"] = (channels, 1, 4)
            shapes[f"{layer}mamba.conv1d.bias"] = (channels,)
            shapes[f"{layer}mamba.A_log"] = (ssm_heads,)
            shapes[f"{layer}mamba.D"] = (ssm_heads,)
            shapes[f"{layer}mamba.dt_bias"] = (ssm_heads,)
            shapes[f"{layer}mamba.norm.weight"] = (inner,)
            shapes[f"{layer}mamba.out_proj.weight"] = (hidden, inner)
        shapes[f"{layer}feed_forward.gate_proj.weight"] = (intermediate, hidden)
        shapes[f"{layer}feed_forward.up_proj.weight"] = (intermediate, hidden)
        shapes[f"{layer}feed_forward.down_proj.weight"] = (hidden, intermediate)
        shapes[f"{layer}input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}pre_ff_layernorm.weight"] = (hidden,)
    shapes["model.final_layernorm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocabulary, hidden)
    return config, shapes, torch.bfloat16


def whisper(hidden, layers, heads, bins, vocabulary=51866):
    """As large-v3. Its last 1,511 tokens or so are special ones; see `whisper_files`."""
    config = {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": hidden,
        "encoder_layers": layers, "decoder_layers": layers, "encoder_attention_heads": heads,
        "decoder_attention_heads": heads, "encoder_ffn_dim": 4 * hidden, "decoder_ffn_dim": 4 * hidden,
        "num_mel_bins": bins, "max_source_positions": 1500, "max_target_positions": 448, "vocab_size": vocabulary,
        "activation_function": "gelu", "scale_embedding": False, "is_encoder_decoder": True,
        "torch_dtype": "float16",
    }
    shapes = {
        "model.encoder.conv1.weight": (hidden, bins, 3), "model.encoder.conv1.bias": (hidden,),
        "model.encoder.conv2.weight": (hidden, hidden, 3), "model.encoder.conv2.bias": (hidden,),
        "model.encoder.embed_positions.weight": (1500, hidden),
        "model.decoder.embed_tokens.weight": (vocabulary, hidden),
        "model.decoder.embed_positions.weight": (448, hidden),
    }

    def linear(name, rows, columns, bias=True):
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)

    def norm(name):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (hidden,), (hidden,)

    for side, blocks in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for number in range(layers):
            layer = f"model.{side}.layers.{number}."
            for block in blocks:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{layer}{block}.{part}", hidden, hidden, bias=part != "k_proj")
                norm(f"{layer}{block}_layer_norm")
            linear(f"{layer}fc1", 4 * hidden, hidden)
            linear(f"{layer}fc2", hidden, 4 * hidden)
            norm(f"{layer}final_layer_norm")
        norm(f"model.{side}.layer_norm")
    return config, shapes, torch.float16


# What stands behind the words of Whisper's vocabulary, before its times.
WHISPER_SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>",
                   "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]


def whisper_files(config, directory):
    first = config["vocab_size"] - len(WHISPER_SPECIAL) - 1501
    ids = {name: first + number for number, name in enumerate(WHISPER_SPECIAL)}
    end = ids["<|endoftext|>"]
    config.update({"bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
                   "decoder_start_token_id": ids["<|startoftranscript|>"]})
    generation = {
        "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
        "decoder_start_token_id": ids["<|startoftranscript|>"], "is_multilingual": True,
        "lang_to_id": {"<|en|>": ids["<|en|>"]}, "max_initial_timestamp_index": 50, "max_length": 448,
        "no_timestamps_token_id": ids["<|notimestamps|>"], "prev_sot_token_id": ids["<|startofprev|>"],
        "task_to_id": {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")},
        "suppress_tokens": [end], "begin_suppress_tokens": [end],
    }
    features = {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": config["num_mel_bins"],
        "chunk_length": 30, "hop_length": 160, "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000,
        "sampling_rate": 16000, "padding_side": "right", "padding_value": 0.0, "return_attention_mask": False,
    }
    (directory / "generation_config.json").write_text(json.dumps(generation))
    (directory / "preprocessor_config.json").write_text(json.dumps(features))


LARGEST_FP8 = 448.0


def fp8(made, square=None):
    """The same weights in FP8, rows of linear layers to be rounded too: a scale per output, as compressed-tensors has
    it, or per square, as DeepSeek and Qwen have it."""
    config, shapes, dtype = made
    if square:
        said = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                "weight_block_size": [square, square], "modules_to_not_convert": ["lm_head"]}
    else:
        number = {"num_bits": 8, "type": "float", "symmetric": True}
        group = {"targets": ["Linear"], "weights": {**number, "strategy": "channel", "dynamic": False},
                 "input_activations": {**number, "strategy": "token", "dynamic": True}}
        said = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                "quantization_status": "compressed", "config_groups": {"group_0": group}}
    return {**config, "quantization_config": said}, shapes, dtype


def parts_of(name, tensor, config):
    """What a weight is stored as."""
    said = config.get("quantization_config")
    if said is None or not name.endswith("_proj.weight"):
        return {name: tensor}
    values = tensor.float()
    block = said.get("weight_block_size")
    if block:
        high, wide = (-(-size // side) for size, side in zip(values.shape, block))
        padded = torch.zeros(high * block[0], wide * block[1], device=values.device)
        padded[:values.shape[0], :values.shape[1]] = values
        squares = padded.view(high, block[0], wide, block[1])
        scales = squares.abs().amax(dim=(1, 3)).clamp(min=1e-12) / LARGEST_FP8
        spread = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        codes = values / spread[:values.shape[0], :values.shape[1]]
        beside = "weight_scale_inv"
    else:
        scales = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / LARGEST_FP8
        codes = values / scales
        beside = "weight_scale"
    codes = codes.clamp(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn)
    return {name: codes, f"{name.removesuffix('weight')}{beside}": scales}


SHAPES = {
    "whisper-v3": lambda: whisper(1280, 32, 20, 128),
    "tiny-whisper": lambda: whisper(64, 2, 4, 80, vocabulary=2000),
    "bert-base": lambda: bert(768, 12, 12),
    "bert-large": lambda: bert(1024, 24, 16),
    "bert-base-reranker": lambda: bert(768, 12, 12, head=1),
    "llama-1b": lambda: llama(2048, 16, 32, 8, 8192, tied=True),
    "llama-8b": lambda: llama(4096, 32, 32, 8, 14336, tied=False),
    "llama-8b-fp8": lambda: fp8(llama(4096, 32, 32, 8, 14336, tied=False)),
    "llama-8b-fp8-squares": lambda: fp8(llama(4096, 32, 32, 8, 14336, tied=False), square=128),
    "minilm-l6": lambda: bert(384, 6, 12),
    "mixture-15b": lambda: mixture(2048, 24, 32, 4, 128, 128, 8, 768),
    "hybrid-9b": lambda: hybrid(4096, 32, 32, 8, 14336, 128, 128),
    "tiny-bert": lambda: bert(64, 2, 4, vocabulary=1000),
    "tiny-bert-reranker": lambda: bert(64, 2, 4, vocabulary=1000, head=1),
    "tiny-llama": lambda: llama(256, 2, 4, 2, 512, tied=False, vocabulary=1000),
    "tiny-llama-fp8": lambda: fp8(llama(256, 2, 4, 2, 512, tied=False, vocabulary=1000)),
    "tiny-llama-fp8-squares": lambda: fp8(llama(256, 2, 4, 2, 512, tied=False, vocabulary=1000), square=128),
    "tiny-minilm": lambda: bert(64, 2, 4, vocabulary=1000),
    "tiny-mixture": lambda: mixture(256, 2, 4, 2, 64, 8, 2, 128, vocabulary=1000),
    "tiny-hybrid": lambda: hybrid(256, 3, 4, 2, 512, 8, 64, vocabulary=1000),
}


def tokenizer(config):
    """One token per word: "w17" is the 17th of the vocabulary. BERT's is a WordPiece, as real ones are."""
    is_bert = config["model_type"] == "bert"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] if is_bert else ["<unk>"]
    words = special + [f"w{i}" for i in range(len(special), config["vocab_size"])]
    if config["model_type"] == "whisper":
        behind = WHISPER_SPECIAL + [f"<|{step * 0.02:.2f}|>" for step in range(1501)]
        words[-len(behind):] = behind
        special += behind
    template = None
    if is_bert:
        piece = lambda kind, id, type: {kind: {"id": id, "type_id": type}}
        cls, sep = piece("SpecialToken", "[CLS]", 0), piece("SpecialToken", "[SEP]", 0)
        template = {
            "type": "TemplateProcessing",
            "single": [cls, piece("Sequence", "A", 0), sep],
            "pair": [cls, piece("Sequence", "A", 0), sep, piece("Sequence", "B", 1),
                     piece("SpecialToken", "[SEP]", 1)],
            "special_tokens": {name: {"id": name, "ids": [special.index(name)], "tokens": [name]}
                               for name in ("[CLS]", "[SEP]")},
        }
    vocabulary = {word: i for i, word in enumerate(words)}
    normalizer, splitter = None, {"type": "WhitespaceSplit"}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    if is_bert:
        normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                      "strip_accents": None, "lowercase": True}
        splitter = {"type": "BertPreTokenizer"}
        model = {"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]",
                 "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": words.index(name), "content": name, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for name in special],
        "normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": template,
        "decoder": None, "model": model,
    }


def draw(name, shape, dtype, generator):
    values = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)
    is_norm = "norm" in name.lower()
    if is_norm and name.endswith("weight"):
        return (1 + 0.1 * values).to(dtype)
    return (0.02 * values).to(dtype)


def write_weights(config, shapes, dtype, directory):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(20261115)
    shards, current, size = [], {}, 0
    for name, shape in shapes.items():
        parts = parts_of(name, draw(name, shape, dtype, generator), config)
        if size + sum(part.nbytes for part in parts.values()) > SHARD_BYTES and current:
            shards.append(current)
            save_file(current, directory / f"part-{len(shards)}.safetensors", metadata={"format": "pt"})
            current, size = {}, 0
            shards[-1] = list(shards[-1])
        for part, tensor in parts.items():
            current[part] = tensor.cpu().contiguous()
            size += tensor.nbytes
    if not shards:
        save_file(current, directory / "model.safetensors", metadata={"format": "pt"})
        return
    shards.append(list(current))
    save_file(current, directory / f"part-{len(shards)}.safetensors", metadata={"format": "pt"})
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (directory / f"part-{number}.safetensors").rename(directory / file)
        weight_map.update({name: file for name in names})
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def main(name, directory):
    directory = Path(directory)
    if (directory / "config.json").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    config, shapes, dtype = SHAPES[name]()
    write_weights(config, shapes, dtype, directory)
    if config["model_type"] == "whisper":
        whisper_files(config, directory)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer(config)))
    kind = "BertTokenizer" if config["model_type"] == "bert" else "PreTrainedTokenizerFast"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    if kind == "BertTokenizer":
        settings.update({"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
                         "sep_token": "[SEP]", "mask_token": "[MASK]"})
    else:
        settings["model_max_length"] = 131072
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main(*sys.argv[1:])
