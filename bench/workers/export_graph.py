"""Writes an embedding checkpoint for openvino or CTranslate2: export_graph.py FORMAT SOURCE TARGET."""

import os
import shutil
import sys
import tempfile

from export_onnx import longest


def openvino_graph(source, directory):
    import openvino
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    ones = torch.ones((2, 16), dtype=torch.int64)
    example = {"input_ids": ones, "attention_mask": ones, "token_type_ids": torch.zeros_like(ones)}
    graph = openvino.convert_model(model, example_input=example)
    openvino.save_model(graph, os.path.join(directory, "model.xml"), compress_to_fp16=False)


def ctranslate2_graph(source, directory):
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(source).convert(directory, force=True)


def main():
    kind, source, target = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as directory:
        staged = os.path.join(directory, "staged")
        os.mkdir(staged)
        {"openvino": openvino_graph, "ctranslate2": ctranslate2_graph}[kind](source, staged)
        shutil.copy(os.path.join(source, "tokenizer.json"), staged)
        with open(os.path.join(staged, "limit"), "w", encoding="ascii") as file:
            file.write(str(longest(source)))
        os.rename(staged, target)


if __name__ == "__main__":
    main()
