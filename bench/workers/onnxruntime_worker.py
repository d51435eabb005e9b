"""onnxruntime with Hugging Face tokenizers: embeddings, reranking, NER."""

import os
import time

THREADS = int(os.environ["BENCH_THREADS"])
STARTED = time.perf_counter()

import numpy
import onnxruntime

import encoders
import protocol


class Model(encoders.Encoder):
    def __init__(self, path):
        super().__init__(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.path.join(path, "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.names = {given.name for given in self.session.get_inputs()}

    def run(self, inputs):
        return self.session.run(None, {name: value for name, value in inputs.items() if name in self.names})[0]


class OnnxruntimeWorker(protocol.Worker):
    def __init__(self):
        super().__init__(STARTED, THREADS)

    def versions(self):
        return {"onnxruntime": onnxruntime.__version__}

    def load_model(self, kind, path, dtype):
        return Model(path)

    def run_task(self, model, task, data):
        if task == "embed":
            return model.embed(data["texts"])
        if task == "rerank":
            scores = numpy.empty(len(data["documents"]), dtype=numpy.float32)
            for places, _, logits in model.batches([(data["query"], document) for document in data["documents"]]):
                scores[places] = logits[:, 0]
            return scores
        return self.tag(model, data["texts"])

    def tag(self, model, texts):
        """The likeliest tag of every token but the special ones: less than ours and the pipeline do with it."""
        tags = [None] * len(texts)
        for places, mask, logits in model.batches(texts):
            best = logits.argmax(2)
            for row, place in enumerate(places):
                tags[place] = best[row, 1 : mask[row].sum() - 1].tolist()
        return tags

    def encode_result(self, task, result):
        if task == "embed":
            return protocol.packed(result)
        if task == "rerank":
            return [float(score) for score in result]
        return result


if __name__ == "__main__":
    OnnxruntimeWorker().serve()
