"""Turns the ONNX export of a BERT-like encoder, or those of the two halves of T5, into
safetensors with the names of the original checkpoint.

    onnx_to_safetensors.py model.onnx... model.safetensors

Exporters fold a linear layer into `MatMul(x, W)` with an anonymous W of shape
[in, out]; the node's name still holds the module's path, from which the tensor's
name is taken. Dynamically quantized weights (`W_quantized`, `W_scale`,
`W_zero_point`) become f32 again.
"""

import re
import sys

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

QUANTIZED = "_quantized"
PARAMETER = re.compile(r"\.(weight|bias)$")
NODE_SUFFIX = re.compile(r"/(MatMul|Gemm)(_\d+)?(_MatMul)?(_quant)?$")
PRODUCTS = ("MatMul", "MatMulInteger", "Gemm")
# What the classes that T5's halves were wrapped in for the export are called.
WRAPPED = {"enc.": "encoder.", "m.": ""}


class Checkpoint:
    """The constants of a graph, read as the parameters of a model."""

    def __init__(self, graph):
        self.graph = graph
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def value(self, name):
        """The f32 array behind the name of a constant, quantized or not."""
        array = self.constants[name].astype(np.float32)
        if not name.endswith(QUANTIZED):
            return array
        base = name[: -len(QUANTIZED)]
        scale = self.constants[base + "_scale"].astype(np.float32)
        zero_point = self.constants[base + "_zero_point"].astype(np.float32)
        return (array - zero_point) * scale

    def matrices(self):
        """Weights of linear layers as (name, [out, in])."""
        for node in self.graph.node:
            if node.op_type not in PRODUCTS or node.input[1] not in self.constants:
                continue
            constant = node.input[1]
            transposed = any(attribute.name == "transB" and attribute.i == 1 for attribute in node.attribute)
            matrix = self.value(constant)
            yield self.matrix_name(node, constant), constant, matrix if transposed else matrix.T

    @staticmethod
    def matrix_name(node, constant):
        plain = constant[: -len(QUANTIZED)] if constant.endswith(QUANTIZED) else constant
        if PARAMETER.search(plain):
            return plain
        path = NODE_SUFFIX.sub("", node.name)
        if path == node.name or not path.startswith("/"):
            raise SystemExit(f"cannot name the weight {constant} of node {node.name!r}")
        return path.strip("/").replace("/", ".") + ".weight"

    def parameters(self):
        """All parameters by name."""
        result, used = {}, set()
        for name, constant, matrix in self.matrices():
            result[name] = matrix
            used.add(constant)
        for constant in self.constants:
            plain = constant[: -len(QUANTIZED)] if constant.endswith(QUANTIZED) else constant
            if constant not in used and PARAMETER.search(plain):
                result[plain] = self.value(constant)
                used.add(constant)
        self.check_nothing_is_left(used)
        return {name: np.ascontiguousarray(array) for name, array in result.items()}

    def check_nothing_is_left(self, used):
        left = [name for name, array in self.constants.items()
                if name not in used and array.ndim == 2 and array.size > 4096 and array.dtype != np.int64]
        if left:
            raise SystemExit(f"constants that belong to no known layer: {left}")


def unwrapped(name):
    start = next((start for start in WRAPPED if name.startswith(start)), None)
    return name if start is None else WRAPPED[start] + name.removeprefix(start)


def main(sources, target):
    parameters = {}
    for source in sources:
        for name, array in Checkpoint(onnx.load(source).graph).parameters().items():
            parameters[unwrapped(name)] = array
    save_file(parameters, target, metadata={"format": "pt"})
    print(f"{len(parameters)} tensors, {sum(array.size for array in parameters.values()):,} parameters")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(sys.argv[1:-1], sys.argv[-1])
