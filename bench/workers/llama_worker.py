"""llama.cpp through llama-cpp-python's low-level calls, which leave no Python in the time of a token."""

import ctypes
import os
import time

THREADS = int(os.environ["BENCH_THREADS"])
STARTED = time.perf_counter()

import llama_cpp
import numpy

import protocol

CONTEXT = 512
# How many tokens of each place of an answer are told.
LIKELIEST = 10


class Model:
    def __init__(self, path):
        self.llama = llama_cpp.Llama(
            path, n_ctx=CONTEXT, n_batch=CONTEXT, n_threads=THREADS, n_threads_batch=THREADS, verbose=False
        )
        self.context = self.llama.ctx
        self.vocabulary = self.llama.n_vocab()

    def forget(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def tokens(self, text):
        return self.llama.tokenize(text.encode("utf-8"), add_bos=False, special=True)

    def decode(self, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens)))
        if status != 0:
            raise RuntimeError(f"llama_decode answered {status}")

    def all_logits(self, tokens):
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for place, token in enumerate(tokens):
                batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            if llama_cpp.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama_decode refused the prompt")
        finally:
            llama_cpp.llama_batch_free(batch)
        return numpy.stack([self.logits(place) for place in range(len(tokens))]).astype(numpy.float64)

    def logits(self, place=-1):
        pointer = llama_cpp.llama_get_logits_ith(self.context, place)
        return numpy.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.vocabulary,))

    def choose(self):
        return int(self.logits().argmax())


class Together:
    """Several sequences in one context, each with its own tokens in every batch."""

    def __init__(self, model, count):
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = CONTEXT * count, count
        parameters.n_batch = parameters.n_ubatch = CONTEXT
        parameters.n_threads = parameters.n_threads_batch = THREADS
        self.model = model
        self.context = llama_cpp.llama_init_from_model(model.llama.model, parameters)
        if not self.context:
            raise RuntimeError("llama_init_from_model refused the context")

    def step(self, rows):
        """Rows are sequence, token, position and whether its logits are wanted; the choices by sequence."""
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for place, (sequence, token, position, wanted) in enumerate(rows):
                batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            if llama_cpp.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama_decode refused the batch")
        finally:
            llama_cpp.llama_batch_free(batch)
        chosen = {}
        for place, (sequence, _, _, wanted) in enumerate(rows):
            if wanted:
                pointer = llama_cpp.llama_get_logits_ith(self.context, place)
                floats = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
                chosen[sequence] = int(numpy.ctypeslib.as_array(floats, (self.model.vocabulary,)).argmax())
        return chosen

    def generate(self, prompts, count):
        try:
            texts = [self.model.tokens(prompt) for prompt in prompts]
            rows = [
                (sequence, token, place, place == len(text) - 1)
                for sequence, text in enumerate(texts)
                for place, token in enumerate(text)
            ]
            chosen = self.step(rows)
            said = [[chosen[sequence]] for sequence in range(len(texts))]
            for turn in range(count - 1):
                rows = [
                    (sequence, said[sequence][-1], len(text) + turn, True) for sequence, text in enumerate(texts)
                ]
                chosen = self.step(rows)
                for sequence, token in chosen.items():
                    said[sequence].append(token)
            return said
        finally:
            llama_cpp.llama_free(self.context)


class LlamaWorker(protocol.Worker):
    def __init__(self):
        super().__init__(STARTED, THREADS)

    def versions(self):
        return {"llama-cpp-python": llama_cpp.__version__}

    def load_model(self, kind, path, dtype):
        return Model(path)

    def prepare(self, model, task, data):
        model.forget()

    def run_task(self, model, task, data):
        if task == "decode_together":
            return Together(model, len(data["prompts"])).generate(data["prompts"], data["tokens"])
        if task == "logprobs":
            return self.logprobs(model, read(model, data))
        tokens = read(model, data)
        model.decode(tokens)
        if task == "likeliest":
            return self.likeliest(model, data["tokens"])
        chosen = [model.choose()]
        if task == "first_token":
            return [model.llama.detokenize(chosen).decode("utf-8", "replace")]
        if task == "prefill":
            return chosen
        return self.generate(model, chosen, data["tokens"])

    def generate(self, model, chosen, count):
        """Seconds per token after the first."""
        started = time.perf_counter()
        while len(chosen) < count:
            model.decode(chosen[-1:])
            chosen.append(model.choose())
            model.llama.detokenize(chosen[-1:])
        return chosen, (time.perf_counter() - started) / (count - 1)

    def likeliest(self, model, count):
        """The tokens that could have been chosen, best first, at each place of a greedy answer."""
        places = []
        while len(places) < count:
            if places:
                model.decode([places[-1][0][0]])
            row = log_softmax(model.logits().astype(numpy.float64))
            best = numpy.argsort(-row, kind="stable")[:LIKELIEST]
            places.append([[int(token), float(row[token])] for token in best])
        return places

    def logprobs(self, model, tokens):
        """Of every token of the prompt but the first."""
        rows = log_softmax(model.all_logits(tokens))
        return [tokens, [float(row[following]) for row, following in zip(rows, tokens[1:])]]


def read(model, data):
    """The tokens of a prompt, which may be given."""
    return data["ids"] if "ids" in data else model.tokens(data["prompt"])


def log_softmax(rows):
    rows = rows - rows.max(-1, keepdims=True)
    return rows - numpy.log(numpy.exp(rows).sum(-1, keepdims=True))


if __name__ == "__main__":
    LlamaWorker().serve()
