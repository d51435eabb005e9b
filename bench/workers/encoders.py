"""What workers share whose library runs an encoder's graph and leaves the rest to the caller: tokenizing, batches of
similar lengths, pooling."""

import os

import numpy
import tokenizers

# Texts of similar length go together, so that little is padded.
BATCH = 32


class Encoder:
    """A directory with a model, its tokenizer.json and its limit; a subclass runs the model."""

    def __init__(self, path):
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        with open(os.path.join(path, "limit"), encoding="ascii") as file:
            self.tokenizer.enable_truncation(int(file.read()))
        self.tokenizer.no_padding()

    def run(self, inputs):
        """The first output for a batch."""
        raise NotImplementedError

    def run_each(self, batches):
        """The places, the mask and the output of every batch."""
        for places, inputs in batches:
            yield places, inputs["attention_mask"], self.run(inputs)

    def batches(self, texts):
        """Yields the places of some texts, their mask and the model's output for them."""
        return self.run_each(self.inputs(texts))

    def inputs(self, texts):
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
            yield places, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}

    def embed(self, texts):
        vectors = None
        for places, mask, states in self.batches(texts):
            weights = mask[:, :, None].astype(numpy.float32)
            means = (states * weights).sum(1) / weights.sum(1)
            means /= numpy.linalg.norm(means, axis=1, keepdims=True)
            if vectors is None:
                vectors = numpy.empty((len(texts), means.shape[1]), dtype=numpy.float32)
            vectors[places] = means
        return vectors
