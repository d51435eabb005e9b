"""fastembed on an exported graph: embeddings."""

import os
import time

THREADS = int(os.environ["BENCH_THREADS"])
STARTED = time.perf_counter()

import fastembed
import numpy
from fastembed.common.model_description import ModelSource, PoolingType

import protocol

BATCH = 32


class FastembedWorker(protocol.Worker):
    def __init__(self):
        super().__init__(STARTED, THREADS)

    def versions(self):
        return {"fastembed": fastembed.__version__}

    def load_model(self, kind, path, dtype):
        name = "bench/" + os.path.basename(path)
        fastembed.TextEmbedding.add_custom_model(
            model=name,
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(hf=name),
            dim=384,
            model_file="model.onnx",
        )
        return fastembed.TextEmbedding(name, threads=THREADS, specific_model_path=path)

    # It batches texts as they come, so that it gets them by length.
    def run_task(self, model, task, data):
        texts = data["texts"]
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        rows = list(model.embed([texts[index] for index in order], batch_size=BATCH))
        vectors = numpy.empty((len(texts), len(rows[0])), dtype=numpy.float32)
        vectors[order] = rows
        return vectors

    def encode_result(self, task, result):
        return protocol.packed(result)


if __name__ == "__main__":
    FastembedWorker().serve()
