"""Writes a GGUF file of random Q4_K and Q6_K blocks in a well-known shape: make_quantized.py NAME DIRECTORY

Which tensors are Q6_K is llama.cpp's choice for Q4_K_M. The blocks are drawn as they are: nothing is
quantized, so that eight billion weights take seconds.
"""

import json
import struct
import sys
from pathlib import Path

import numpy
import torch

from make_checkpoints import SHAPES, tokenizer

F32, Q4_K, Q6_K = 0, 12, 14
ALIGNMENT = 32
BLOCK = 256
BYTES = {Q4_K: 144, Q6_K: 210}
# Where the f16 fields of a block lie, and what makes weights of a spread of about 0.02.
SCALES = {Q4_K: {0: 8e-5, 2: 6e-4}, Q6_K: {208: 1.5e-5}}
UINT32, FLOAT32, STRING = 4, 6, 8

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name):
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def kind_of(name, layers):
    if "norm" in name:
        return F32
    if name == "output.weight":
        return Q6_K
    if name.split(".")[-2] in ("attn_v", "ffn_down"):
        layer = int(name.split(".")[1])
        eighth = layers // 8
        more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        return Q6_K if more else Q4_K
    return Q4_K


def size_of(shape, kind):
    elements = numpy.prod(shape, dtype=numpy.int64)
    return int(elements * 4 if kind == F32 else elements // BLOCK * BYTES[kind])


def draw(shape, kind, generator):
    if kind == F32:
        return numpy.ones(shape, dtype="<f4").tobytes()
    blocks = size_of(shape, kind) // BYTES[kind]
    drawn = torch.randint(0, 256, (blocks, BYTES[kind]), generator=generator, device=generator.device,
                          dtype=torch.uint8).cpu().numpy()
    for at, value in SCALES[kind].items():
        drawn[:, at:at + 2] = numpy.frombuffer(numpy.array(value, dtype="<f2").tobytes(), dtype=numpy.uint8)
    return drawn.tobytes()


def text(value):
    value = value.encode()
    return struct.pack("<Q", len(value)) + value


def metadata(config):
    size = config["hidden_size"] // config["num_attention_heads"]
    fields = {
        "general.architecture": "llama", "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"], "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "llama.rope.freq_base": config["rope_theta"],
        "llama.rope.dimension_count": size, "llama.vocab_size": config["vocab_size"],
    }
    packed = b""
    for key, value in fields.items():
        packed += text(key)
        if isinstance(value, str):
            packed += struct.pack("<I", STRING) + text(value)
        elif isinstance(value, float):
            packed += struct.pack("<If", FLOAT32, value)
        else:
            packed += struct.pack("<II", UINT32, value)
    return len(fields), packed


def main(name, directory):
    directory = Path(directory)
    path = directory / "model.gguf"
    if path.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    config, shapes, _ = SHAPES[name]()
    tensors = [(gguf_name(name), shape) for name, shape in shapes.items()]
    tensors = [(name, shape, kind_of(name, config["num_hidden_layers"])) for name, shape in tensors]
    count, fields = metadata(config)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + fields
    offset = 0
    for name, shape, kind in tensors:
        header += text(name) + struct.pack("<I", len(shape))
        header += b"".join(struct.pack("<Q", size) for size in reversed(shape)) + struct.pack("<IQ", kind, offset)
        offset += -(-size_of(shape, kind) // ALIGNMENT) * ALIGNMENT
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(20261116)
    with open(directory / "part", "wb") as file:
        file.write(header + b"\0" * (-len(header) % ALIGNMENT))
        for _, shape, kind in tensors:
            data = draw(shape, kind, generator)
            file.write(data + b"\0" * (-len(data) % ALIGNMENT))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer(config)))
    (directory / "part").rename(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
