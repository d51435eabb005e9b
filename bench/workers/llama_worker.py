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

    def logits(self):
        pointer = llama_cpp.llama_get_logits_ith(self.context, -1)
        return numpy.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.vocabulary,))

    def choose(self):
        return int(self.logits().argmax())


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
        if task == "logprobs":
            return self.logprobs(model, data["prompt"])
        tokens = model.tokens(data["prompt"])
        model.decode(tokens)
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

    def logprobs(self, model, prompt):
        """Of every token of the prompt but the first, each read by itself as while decoding."""
        tokens = model.tokens(prompt)
        found = []
        for token, following in zip(tokens, tokens[1:]):
            model.decode([token])
            logits = model.logits().astype(numpy.float64)
            logits -= logits.max()
            found.append(float(logits[following] - numpy.log(numpy.exp(logits).sum())))
        return [tokens, found]


if __name__ == "__main__":
    LlamaWorker().serve()
