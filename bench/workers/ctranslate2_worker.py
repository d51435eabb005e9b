"""CTranslate2's encoder with Hugging Face tokenizers: embeddings."""

import os
import time

THREADS = int(os.environ["BENCH_THREADS"])
STARTED = time.perf_counter()

import ctranslate2
import numpy

import encoders
import protocol


class Model(encoders.Encoder):
    def __init__(self, path):
        super().__init__(path)
        arguments = {"compute_type": "float32"}
        self.single = ctranslate2.Encoder(path, "cpu", inter_threads=1, intra_threads=THREADS, **arguments)
        self.many = ctranslate2.Encoder(path, "cpu", inter_threads=THREADS, intra_threads=1, **arguments)

    def run_each(self, batches):
        batches = list(batches)
        encoder = self.single if len(batches) == 1 else self.many
        started = []
        for places, inputs in batches:
            mask = inputs["attention_mask"]
            ids = [row[:length].tolist() for row, length in zip(inputs["input_ids"], mask.sum(1))]
            started.append((places, mask, encoder.forward_batch(ids)))
        for places, mask, output in started:
            yield places, mask, numpy.array(output.last_hidden_state)


class Ctranslate2Worker(protocol.Worker):
    def __init__(self):
        super().__init__(STARTED, THREADS)

    def versions(self):
        return {"ctranslate2": ctranslate2.__version__}

    def load_model(self, kind, path, dtype):
        return Model(path)

    def run_task(self, model, task, data):
        return model.embed(data["texts"])

    def encode_result(self, task, result):
        return protocol.packed(result)


if __name__ == "__main__":
    Ctranslate2Worker().serve()
