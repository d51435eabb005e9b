"""whisper-base out of a CTranslate2 file, as whisper.cpp's files: python whisper_files.py MODEL.BIN TOKENIZER.JSON FOLDER [TYPE...]

Writes FOLDER/ggml-f32.bin, ggml-f16.bin and ggml-q8_0.bin, or those of the types, with the vocabulary of the tokenizer.
"""

import json
import struct
import sys

import numpy

TYPES = {0: numpy.float32, 1: numpy.int8, 2: numpy.int16, 3: numpy.int32, 4: numpy.float16}
MELS, STATES, TARGET, HEADS, LAYERS = 80, 1500, 448, 8, 6


def read(path):
    with open(path, "rb") as file:
        def number(form):
            return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]

        def name():
            return file.read(number("H"))[:-1].decode()

        number("I")
        name()
        number("I")
        found = {}
        for _ in range(number("I")):
            key = name()
            shape = [number("I") for _ in range(number("B"))]
            kind = TYPES[number("B")]
            found[key] = numpy.frombuffer(file.read(number("I")), kind).reshape(shape).astype(numpy.float32)
        return found


def renamed(found):
    """By OpenAI's names."""
    tensors = {}

    def norm(into, key):
        tensors[into + ".weight"] = found[key + "/gamma"]
        tensors[into + ".bias"] = found[key + "/beta"]

    def linear(into, key, part=None, parts=1, bias=True):
        for end in ("weight", "bias") if bias else ("weight",):
            value = found[f"{key}/{end}"]
            rows = len(value) // parts
            tensors[f"{into}.{end}"] = value if part is None else value[part * rows:(part + 1) * rows]

    for side in ("encoder", "decoder"):
        for layer in range(LAYERS):
            into, key = f"{side}.blocks.{layer}", f"{side}/layer_{layer}"
            norm(into + ".attn_ln", key + "/self_attention/layer_norm")
            for part, name in enumerate(("query", "key", "value")):
                linear(f"{into}.attn.{name}", key + "/self_attention/linear_0", part, 3, name != "key")
            linear(into + ".attn.out", key + "/self_attention/linear_1")
            if side == "decoder":
                norm(into + ".cross_attn_ln", key + "/attention/layer_norm")
                linear(into + ".cross_attn.query", key + "/attention/linear_0")
                for part, name in enumerate(("key", "value")):
                    linear(f"{into}.cross_attn.{name}", key + "/attention/linear_1", part, 2, name != "key")
                linear(into + ".cross_attn.out", key + "/attention/linear_2")
            norm(into + ".mlp_ln", key + "/ffn/layer_norm")
            linear(into + ".mlp.0", key + "/ffn/linear_0")
            linear(into + ".mlp.2", key + "/ffn/linear_1")
    norm("encoder.ln_post", "encoder/layer_norm")
    norm("decoder.ln", "decoder/layer_norm")
    for number in (1, 2):
        linear(f"encoder.conv{number}", f"encoder/conv{number}")
    tensors["encoder.positional_embedding"] = found["encoder/position_encodings/encodings"]
    tensors["decoder.positional_embedding"] = found["decoder/position_encodings/encodings"]
    tensors["decoder.token_embedding.weight"] = found["decoder/embeddings/weight"]
    return tensors


def vocabulary(path):
    """The bytes of the tokens of text."""
    tokens = json.load(open(path, encoding="utf-8"))["model"]["vocab"]
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    characters = {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}
    ordered = sorted((rank, token) for token, rank in tokens.items() if rank < 50257)
    return [bytes(characters[letter] for letter in token) for _, token in ordered]


def filters():
    """Mel filters, which whisper.cpp reads from its files."""
    def mels(hertz):
        return numpy.where(hertz < 1000, hertz * 3 / 200, 15 + numpy.log(numpy.maximum(hertz, 1) / 1000) * 27 / numpy.log(6.4))

    def hertz(mel):
        return numpy.where(mel < 15, mel * 200 / 3, 1000 * numpy.exp((mel - 15) * numpy.log(6.4) / 27))

    places = numpy.linspace(0, 8000, 201)
    edges = hertz(numpy.linspace(mels(numpy.array(0.0)), mels(numpy.array(8000.0)), MELS + 2))
    rows = []
    for low, middle, high in zip(edges, edges[1:], edges[2:]):
        triangle = numpy.minimum((places - low) / (middle - low), (high - places) / (high - middle))
        rows.append(numpy.maximum(triangle, 0) * 2 / (high - low))
    return numpy.array(rows, numpy.float32)


def q8_0(values):
    rows = values.reshape(-1, 32)
    scale = (numpy.abs(rows).max(-1, keepdims=True) / 127).astype(numpy.float16)
    factor = numpy.where(scale == 0, 1, scale).astype(numpy.float32)
    whole = numpy.round(rows / factor).clip(-127, 127).astype(numpy.int8)
    return numpy.concatenate([scale.view(numpy.uint8).reshape(-1, 2), whole.view(numpy.uint8)], 1).tobytes()


def write(path, tensors, tokens, kinds):
    """Matrices get ggml's type of that number."""
    width = tensors["encoder.ln_post.weight"].shape[0]
    with open(path, "wb") as file:
        words = len(tensors["decoder.token_embedding.weight"])
        file.write(struct.pack("<12I", 0x67676D6C, words, STATES, width, HEADS, LAYERS, TARGET, width, HEADS, LAYERS, MELS,
                               2007 if kinds == 8 else kinds))
        bands = filters()
        file.write(struct.pack("<2I", *bands.shape) + bands.tobytes())
        file.write(struct.pack("<I", len(tokens)))
        for token in tokens:
            file.write(struct.pack("<I", len(token)) + token)
        for name, values in tensors.items():
            if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
                values = values[:, None]
            # whisper.cpp wants convolutions in 16 bits.
            matrix = values.ndim == 2 and values.shape[1] > 1 and "positional" not in name
            kind = 0 if not kinds else 1 if values.ndim == 3 else kinds if matrix else 0
            file.write(struct.pack("<3I", values.ndim, len(name), kind))
            file.write(struct.pack(f"<{values.ndim}I", *reversed(values.shape)) + name.encode())
            if kind == 8:
                file.write(q8_0(values))
            else:
                file.write(numpy.ascontiguousarray(values, numpy.float16 if kind == 1 else numpy.float32).tobytes())


if __name__ == "__main__":
    model, tokenizer, folder, *types = sys.argv[1:]
    weights, texts = renamed(read(model)), vocabulary(tokenizer)
    for name, number in {"f32": 0, "f16": 1, "q8_0": 8}.items():
        if types and name not in types:
            continue
        write(f"{folder}/ggml-{name}.bin", weights, texts, number)
