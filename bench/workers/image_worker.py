"""onnxruntime on models of images, for bench/images.rb: python image_worker.py FOLDER THREADS

FOLDER has pictures of the edges that models read. Answers a line for every name of a model on the standard input: the seconds from the pixels of the image to what is found
in it, and what that is.
"""

import json
import os
import sys
import time

import numpy
import onnxruntime
import torch
from PIL import Image

FOLDER, THREADS = sys.argv[1], int(sys.argv[2])
SHOWN = 20
torch.set_num_threads(THREADS)


class Model:
    def __init__(self, name):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.inter_op_num_threads = 1
        folder = os.path.join(FOLDER, name)
        self.session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options,
                                                    providers=["CPUExecutionProvider"])
        with open(os.path.join(folder, "preprocessor_config.json"), encoding="utf-8") as file:
            settings = json.load(file)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.kind = json.load(file)["architectures"][0]
        picture = os.path.join(FOLDER, f"picture-{settings['size']['width']}.png")
        self.image = numpy.asarray(Image.open(picture).convert("RGB"))
        plain = settings.get("do_normalize") is False
        mean, deviation = ([0.0] * 3, [1.0] * 3) if plain else (settings["image_mean"], settings["image_std"])
        self.scale = (1 / 255 / numpy.array(deviation)).astype(numpy.float32)
        self.shift = (-numpy.array(mean) / numpy.array(deviation)).astype(numpy.float32)

    def pixels(self):
        return numpy.ascontiguousarray((self.image * self.scale + self.shift).transpose(2, 0, 1)[None])

    def run(self):
        found = self.session.run(None, {"pixel_values": self.pixels()})
        if "Segmentation" in self.kind:
            logits = torch.from_numpy(found[0])
            logits = torch.nn.functional.interpolate(logits, size=self.image.shape[:2], mode="bilinear")
            return logits[0].argmax(0).numpy()
        if "Detection" not in self.kind:
            return softmax(found[0][0])
        logits, boxes = found[0][0], found[1][0]
        if "RTDetr" in self.kind:
            scores = 1 / (1 + numpy.exp(-logits.reshape(-1)))
            best = numpy.argsort(-scores, kind="stable")[: len(logits)]
            return scores[best], corners(boxes[best // logits.shape[1]], self.image.shape)
        scores = softmax(logits)[:, :-1].max(-1)
        best = numpy.argsort(-scores, kind="stable")
        return scores[best], corners(boxes[best], self.image.shape)


def softmax(logits):
    powers = numpy.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def corners(boxes, shape):
    middle, half = boxes[:, :2], boxes[:, 2:] / 2
    return numpy.concatenate([middle - half, middle + half], 1) * numpy.array([shape[1], shape[0]] * 2)


def shown(found):
    if isinstance(found, tuple):
        return {"scores": found[0][:SHOWN].tolist(), "boxes": found[1][:SHOWN].tolist()}
    if found.ndim == 1:
        return {"scores": found.tolist()}
    return {"labels": found.flatten().tolist()}


def main():
    models = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name, show = line.split()
        model = models.get(name) or models.setdefault(name, Model(name))
        began = time.perf_counter()
        found = model.run()
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "found": shown(found) if show == "show" else None}), flush=True)


if __name__ == "__main__":
    main()
