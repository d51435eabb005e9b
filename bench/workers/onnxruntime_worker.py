"""onnxruntime with Hugging Face tokenizers: embeddings, reranking, NER."""

import os
import time

THREADS = int(os.environ["BENCH_THREADS"])
STARTED = time.perf_counter()

import numpy
import onnxruntime
import tokenizers

import protocol

# Texts of similar length go together, so that little is padded.
BATCH = 32


class Model:
    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.path.join(path, "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        with open(os.path.join(path, "limit"), encoding="ascii") as file:
            self.tokenizer.enable_truncation(int(file.read()))
        self.tokenizer.no_padding()
        self.names = {given.name for given in self.session.get_inputs()}

    def batches(self, texts):
        """Yields the places of some texts, their mask and the model's output for them."""
        encodings = self.tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda index: -len(encodings[index].ids))
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            length = len(encodings[places[0]].ids)
            ids, mask, types = (numpy.zeros((len(places), length), dtype=numpy.int64) for _ in range(3))
            for row, place in enumerate(places):
                encoding = encodings[place]
                size = len(encoding.ids)
                ids[row, :size], mask[row, :size], types[row, :size] = encoding.ids, 1, encoding.type_ids
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
            inputs = {name: value for name, value in inputs.items() if name in self.names}
            yield places, mask, self.session.run(None, inputs)[0]


class OnnxruntimeWorker(protocol.Worker):
    def __init__(self):
        super().__init__(STARTED, THREADS)

    def versions(self):
        return {"onnxruntime": onnxruntime.__version__}

    def load_model(self, kind, path, dtype):
        return Model(path)

    def run_task(self, model, task, data):
        if task == "embed":
            return self.embed(model, data["texts"])
        if task == "rerank":
            scores = numpy.empty(len(data["documents"]), dtype=numpy.float32)
            for places, _, logits in model.batches([(data["query"], document) for document in data["documents"]]):
                scores[places] = logits[:, 0]
            return scores
        return self.tag(model, data["texts"])

    def embed(self, model, texts):
        vectors = None
        for places, mask, states in model.batches(texts):
            weights = mask[:, :, None].astype(numpy.float32)
            means = (states * weights).sum(1) / weights.sum(1)
            means /= numpy.linalg.norm(means, axis=1, keepdims=True)
            if vectors is None:
                vectors = numpy.empty((len(texts), means.shape[1]), dtype=numpy.float32)
            vectors[places] = means
        return vectors

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
