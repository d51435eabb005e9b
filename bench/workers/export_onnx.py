"""Writes a checkpoint as ONNX for onnxruntime: export_onnx.py KIND SOURCE TARGET [int8].

The graph gets onnxruntime's own fusions for BERT, and with "int8" its dynamic
quantization with a scale per channel.
"""

import json
import os
import shutil
import sys
import tempfile

import onnx
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions

CLASSES = {
    "embedding": transformers.AutoModel,
    "reranker": transformers.AutoModelForSequenceClassification,
    "ner": transformers.AutoModelForTokenClassification,
}
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
# What libraries read beside the graph, where the checkpoint has it.
BESIDE = ["tokenizer.json", "config.json", "tokenizer_config.json", "special_tokens_map.json"]


class FirstOutput(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids, attention_mask, token_type_ids, return_dict=False)[0]


def export(kind, source, path):
    model = CLASSES[kind].from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    example = torch.ones((2, 16), dtype=torch.int64)
    axes = {0: "texts", 1: "tokens"}
    # The graphs of the newer exporter keep onnxruntime from fusing attention.
    torch.onnx.export(
        FirstOutput(model),
        (example, example, torch.zeros_like(example)),
        path,
        input_names=INPUTS,
        output_names=["output"],
        dynamic_axes={**dict.fromkeys(INPUTS, axes), "output": {0: "texts"} if kind == "reranker" else axes},
        opset_version=17,
        dynamo=False,
    )
    return model.config


def longest(source):
    """What sentence-transformers cuts texts to, or the positions of the model."""
    path = os.path.join(source, "sentence_bert_config.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)["max_seq_length"]
    return 512


def main():
    kind, source, target, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as directory:
        plain = os.path.join(directory, "plain.onnx")
        config = export(kind, source, plain)
        staged = os.path.join(directory, "staged")
        os.mkdir(staged)
        fused = optimizer.optimize_model(
            plain,
            model_type="bert",
            num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size,
            optimization_options=FusionOptions("bert"),
        )
        print(fused.get_fused_operator_statistics(), file=sys.stderr)
        path = os.path.join(staged, "model.onnx")
        if options == ["int8"]:
            wide = os.path.join(directory, "fused.onnx")
            fused.save_model_to_file(wide)
            # Types can't be inferred through the fused operators.
            known = {"DefaultTensorType": onnx.TensorProto.FLOAT}
            quantize_dynamic(wide, path, per_channel=True, weight_type=QuantType.QInt8, extra_options=known)
        else:
            fused.save_model_to_file(path)
        for name in filter(lambda name: os.path.exists(os.path.join(source, name)), BESIDE):
            shutil.copy(os.path.join(source, name), staged)
        with open(os.path.join(staged, "limit"), "w", encoding="ascii") as file:
            file.write(str(longest(source)))
        os.rename(staged, target)


if __name__ == "__main__":
    main()
