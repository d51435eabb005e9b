"""Vision-language models with seeded random weights, for bench/vlm.rb: python vlm_files.py FOLDER

Writes for each model FOLDER/NAME/model.gguf, whose matrices are Q8_0, and FOLDER/NAME/mmproj.gguf, whose matrices are
F16, with the names and keys of llama.cpp's converter. The shapes are those of published models; their vocabulary is
bytes and unused tokens.
"""

import os
import sys

import gguf
import numpy

VOCABULARY = 49_280
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>",
           "<global-img>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
SPECIAL += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
PARTS = ("{% for part in message['content'] %}{% if part['type'] == 'image' %}MARKER{% else %}{{ part['text'] }}{% endif %}"
         "{% endfor %}")
SMOL_TEMPLATE = ("<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:" + PARTS.replace("MARKER", "<image>")
                 + "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}")
QWEN_TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
                 + PARTS.replace("MARKER", "<|vision_start|><|image_pad|><|vision_end|>")
                 + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


class Text:
    def __init__(self, architecture, hidden, layers, inner, heads, keys, head, template, **others):
        self.architecture, self.hidden, self.layers, self.inner = architecture, hidden, layers, inner
        self.heads, self.keys, self.head, self.template = heads, keys, head, template
        self.pattern = others.get("pattern", "smollm")
        self.sections = others.get("sections")
        self.deep = others.get("deep", 0)

    def matrices(self):
        yield "token_embd", (VOCABULARY, self.hidden)
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_q", (self.heads * self.head, self.hidden)
            yield f"blk.{layer}.attn_k", (self.keys * self.head, self.hidden)
            yield f"blk.{layer}.attn_v", (self.keys * self.head, self.hidden)
            yield f"blk.{layer}.attn_output", (self.hidden, self.heads * self.head)
            yield f"blk.{layer}.ffn_gate", (self.inner, self.hidden)
            yield f"blk.{layer}.ffn_up", (self.inner, self.hidden)
            yield f"blk.{layer}.ffn_down", (self.hidden, self.inner)

    def norms(self):
        yield "output_norm", self.hidden
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm", self.hidden
            yield f"blk.{layer}.ffn_norm", self.hidden
            if self.sections:
                yield f"blk.{layer}.attn_q_norm", self.head
                yield f"blk.{layer}.attn_k_norm", self.head

    def keys_of(self, writer):
        writer.add_context_length(8192)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.layers)
        writer.add_feed_forward_length(self.inner)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.keys)
        writer.add_key_length(self.head)
        writer.add_value_length(self.head)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(100_000.0)
        writer.add_rope_dimension_count(self.head)
        writer.add_vocab_size(VOCABULARY)
        if self.sections:
            writer.add_rope_dimension_sections(self.sections)
            writer.add_uint32(f"{self.architecture}.n_deepstack_layers", self.deep)

    def tokenizer(self, writer):
        shown = [*map(chr, range(33, 127)), *map(chr, range(161, 173)), *map(chr, range(174, 256)),
                 *map(chr, range(256, 256 + 68))]
        tokens = SPECIAL + shown + ["\u010a\u010a"]
        kinds = [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (VOCABULARY - len(SPECIAL))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pattern)
        writer.add_token_list(tokens + [f"unused{number}" for number in range(VOCABULARY - len(tokens))])
        writer.add_token_types(kinds)
        writer.add_token_merges(["\u010a \u010a"])
        writer.add_add_bos_token(False)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_chat_template(self.template)


class Tower:
    def __init__(self, projector, hidden, layers, inner, heads, edge, target, merged, **others):
        self.projector, self.hidden, self.layers, self.inner = projector, hidden, layers, inner
        self.heads, self.edge, self.target, self.merged = heads, edge, target, merged
        self.longest = others.get("longest")
        self.deep = others.get("deep", [])

    def joined(self):
        return self.hidden * self.merged**2

    def linears(self):
        """Those with biases."""
        for layer in range(self.layers):
            parts = ["attn_qkv"] if self.projector == "qwen3vl_merger" else ["attn_q", "attn_k", "attn_v"]
            for part in parts:
                yield f"v.blk.{layer}.{part}", (self.hidden * 3 // len(parts), self.hidden)
            yield f"v.blk.{layer}.attn_out", (self.hidden, self.hidden)
            yield f"v.blk.{layer}.ffn_up", (self.inner, self.hidden)
            yield f"v.blk.{layer}.ffn_down", (self.hidden, self.inner)
        if self.projector == "qwen3vl_merger":
            for name in ["mm.0", *(f"v.deepstack.{layer}.fc1" for layer in self.deep)]:
                yield name, (self.joined(), self.joined())
            for name in ["mm.2", *(f"v.deepstack.{layer}.fc2" for layer in self.deep)]:
                yield name, (self.target, self.joined())

    def norms(self):
        yield "v.post_ln", self.hidden
        for layer in range(self.layers):
            yield f"v.blk.{layer}.ln1", self.hidden
            yield f"v.blk.{layer}.ln2", self.hidden
        for layer in self.deep:
            yield f"v.deepstack.{layer}.norm", self.joined()

    def keys_of(self, writer):
        writer.add_type("mmproj")
        writer.add_clip_has_vision_encoder(True)
        writer.add_vision_projection_dim(self.target)
        writer.add_vision_embedding_length(self.hidden)
        writer.add_vision_feed_forward_length(self.inner)
        writer.add_vision_block_count(self.layers)
        writer.add_vision_head_count(self.heads)
        writer.add_vision_patch_size(16)
        writer.add_vision_image_size(self.edge)
        writer.add_vision_attention_layernorm_eps(1e-6)
        writer.add_vision_image_mean([0.5, 0.5, 0.5])
        writer.add_vision_image_std([0.5, 0.5, 0.5])
        writer.add_vision_use_gelu(True)
        writer.add_clip_projector_type(self.projector)
        if self.projector == "idefics3":
            writer.add_vision_projector_scale_factor(self.merged)
            writer.add_vision_preproc_image_size(self.longest)
        else:
            writer.add_vision_spatial_merge_size(self.merged)
            writer.add_array("clip.vision.is_deepstack_layers", [layer in self.deep for layer in range(self.layers)])


# SmolVLM 256M as it is, with images of 2 x 2 tiles and one of the whole; and of Qwen3-VL the tower of its smallest,
# with half of the layers, before a decoder of the size of Qwen3 0.6B.
MODELS = {
    "smolvlm-256m": (Text("llama", 576, 30, 1536, 9, 3, 64, SMOL_TEMPLATE),
                     Tower("idefics3", 768, 12, 3072, 12, 512, 576, 4, longest=1024)),
    "qwen3-vl": (Text("qwen3vl", 1024, 28, 3072, 16, 8, 128, QWEN_TEMPLATE, pattern="qwen2", sections=[24, 20, 20, 0], deep=3),
                 Tower("qwen3vl_merger", 1024, 12, 4096, 16, 768, 1024, 2, deep=[2, 5, 8])),
}


class Numbers:
    """Seeded ones, in the order of the tensors."""

    def __init__(self):
        self.count = 0

    def normal(self, shape, deviation):
        self.count += 1
        drawn = numpy.random.default_rng([self.count, 11]).standard_normal(shape, dtype=numpy.float32)
        return drawn * numpy.float32(deviation)


def written(path, architecture, fill):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    staged = f"{path}.{os.getpid()}"
    writer = gguf.GGUFWriter(staged, architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(staged, path)


def fill_text(writer, text):
    numbers, kind = Numbers(), gguf.GGMLQuantizationType.Q8_0
    text.keys_of(writer)
    text.tokenizer(writer)
    for name, shape in text.matrices():
        # The table is the head as well: its rows keep scores of tokens apart.
        deviation = 0.15 if name == "token_embd" else shape[1] ** -0.5
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(numbers.normal(shape, deviation), kind), raw_dtype=kind)
    for name, size in text.norms():
        writer.add_tensor(f"{name}.weight", 1 + numbers.normal(size, 0.1))


def fill_tower(writer, tower):
    numbers = Numbers()
    tower.keys_of(writer)
    patches = ["", ".1"] if tower.projector == "qwen3vl_merger" else [""]
    for name in patches:
        writer.add_tensor(f"v.patch_embd.weight{name}", numbers.normal((tower.hidden, 3, 16, 16), 0.03).astype(numpy.float16))
    writer.add_tensor("v.patch_embd.bias", numbers.normal(tower.hidden, 0.1))
    writer.add_tensor("v.position_embd.weight", numbers.normal(((tower.edge // 16) ** 2, tower.hidden), 0.3))
    for name, shape in tower.linears():
        writer.add_tensor(f"{name}.weight", numbers.normal(shape, shape[1] ** -0.5).astype(numpy.float16))
        writer.add_tensor(f"{name}.bias", numbers.normal(shape[0], 0.1))
    if tower.projector == "idefics3":
        shape = (tower.target, tower.joined())
        writer.add_tensor("mm.model.fc.weight", numbers.normal(shape, 0.15 * shape[1] ** -0.5).astype(numpy.float16))
    for name, size in tower.norms():
        writer.add_tensor(f"{name}.weight", 1 + numbers.normal(size, 0.1))
        writer.add_tensor(f"{name}.bias", numbers.normal(size, 0.1))


def main():
    for name, (text, tower) in MODELS.items():
        folder = os.path.join(sys.argv[1], name)
        for file, architecture, fill, part in (("model.gguf", text.architecture, fill_text, text),
                                               ("mmproj.gguf", "clip", fill_tower, tower)):
            path = os.path.join(folder, file)
            if not os.path.exists(path):
                written(path, architecture, lambda writer, fill=fill, part=part: fill(writer, part))


if __name__ == "__main__":
    main()
