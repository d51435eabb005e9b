"""Writes a language model of seeded weights as GGUF: make_hybrid.py VOCABULARY KIND TARGET.

VOCABULARY is a GGUF file whose tokenizer the model takes. KIND is "hybrid", most of whose layers are Mamba-2, or
"attention", all of whose layers attend; both have the same bytes of weights within a percent.
"""

import os
import sys

import gguf
import numpy

HIDDEN, LAYERS, MLP = 768, 32, 2048
HEADS, KEY_HEADS, HEAD = 12, 4, 64
SSM_HEADS, SSM_HEAD, STATE, TAPS = 48, 32, 128, 4
INNER = SSM_HEADS * SSM_HEAD
CHANNELS = INNER + 2 * STATE
# Every eighth layer of the hybrid attends.
ATTENDS = 8
SCALE = 0.03


def attention(layer):
    width, keys = HEADS * HEAD, KEY_HEADS * HEAD
    parts = {"attn_q": (width, HIDDEN), "attn_k": (keys, HIDDEN), "attn_v": (keys, HIDDEN), "attn_output": (HIDDEN, width)}
    return {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}


def mamba(layer):
    parts = {"ssm_in": (INNER + CHANNELS + SSM_HEADS, HIDDEN), "ssm_out": (HIDDEN, INNER)}
    return {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}


def matrices(kind):
    """The large tensors, by name; the MLPs of the model that only attends make up for what its layers lack."""
    hybrid = [attention(layer) if layer % ATTENDS == ATTENDS - 1 else mamba(layer) for layer in range(LAYERS)]
    mixers = hybrid if kind == "hybrid" else [attention(layer) for layer in range(LAYERS)]
    size = lambda layers: sum(rows * columns for layer in layers for rows, columns in layer.values())
    missing = (size(hybrid) - size(mixers)) / (3 * HIDDEN * LAYERS)
    inner = MLP + 32 * round(missing / 32)
    shapes = {}
    for layer, mixer in enumerate(mixers):
        shapes |= mixer
        shapes |= {f"blk.{layer}.ffn_{name}.weight": (inner, HIDDEN) for name in ("gate", "up")}
        shapes[f"blk.{layer}.ffn_down.weight"] = (HIDDEN, inner)
    return shapes, inner


def small(layer, kind):
    """The vectors of a layer."""
    numbers = numpy.random.default_rng(layer)
    vectors = {"attn_norm.weight": numpy.ones(HIDDEN), "ffn_norm.weight": numpy.ones(HIDDEN)}
    if kind == "hybrid" and layer % ATTENDS != ATTENDS - 1:
        vectors |= {
            "ssm_conv1d.weight": numbers.normal(0, 0.3, (CHANNELS, TAPS)),
            "ssm_conv1d.bias": numpy.zeros(CHANNELS),
            "ssm_dt.bias": numbers.uniform(-4, -1, SSM_HEADS),
            "ssm_a": -numbers.uniform(1, 8, (SSM_HEADS, 1)),
            "ssm_d": numpy.ones((SSM_HEADS, 1)),
            "ssm_norm.weight": numpy.ones((1, INNER)),
        }
    return {f"blk.{layer}.{name}": vector for name, vector in vectors.items()}


def describe(writer, kind, inner, vocabulary):
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(HEADS)
    attends = [KEY_HEADS if layer % ATTENDS == ATTENDS - 1 else 0 for layer in range(LAYERS)]
    writer.add_head_count_kv(attends if kind == "hybrid" else KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(vocabulary)
    writer.add_attention_scale(HEAD**-0.5)
    writer.add_embedding_scale(1.0)
    writer.add_residual_scale(0.2)
    writer.add_logit_scale(1.0)
    if kind == "hybrid":
        writer.add_ssm_conv_kernel(TAPS)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_group_count(1)
        writer.add_ssm_inner_size(INNER)
        writer.add_ssm_time_step_rank(SSM_HEADS)
        writer.add_rope_scaling_finetuned(False)


def copy_tokenizer(reader, writer):
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)


def main():
    source, kind, target = sys.argv[1:]
    reader = gguf.GGUFReader(source)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    staged = f"{target}.{os.getpid()}"
    writer = gguf.GGUFWriter(staged, "granitehybrid" if kind == "hybrid" else "granite")
    shapes, inner = matrices(kind)
    describe(writer, kind, inner, vocabulary)
    copy_tokenizer(reader, writer)
    shapes = {"token_embd.weight": (vocabulary, HIDDEN)} | shapes
    for number, (name, shape) in enumerate(shapes.items()):
        weights = numpy.random.default_rng([number, 7]).standard_normal(shape, dtype=numpy.float32)
        writer.add_tensor(name, (SCALE * weights).astype(numpy.float16))
    for layer in range(LAYERS):
        for name, vector in small(layer, kind).items():
            writer.add_tensor(name, vector.astype(numpy.float32))
    writer.add_tensor("output_norm.weight", numpy.ones(HIDDEN, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(staged, target)


if __name__ == "__main__":
    main()
