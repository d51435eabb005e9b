"""llama.cpp with its library for images, mtmd, for bench/vlm.rb: python vlm_worker.py FOLDER THREADS

Answers a line of JSON for every line of JSON on the standard input, which has "model", "prompt", "image", "task" and
"count". The prompt has <__media__> where the image stands. Seconds begin with the pixels of the image in memory.
"""

import ctypes
import json
import os
import sys
import time

import llama_cpp
import numpy
from llama_cpp import mtmd_cpp as mtmd
from PIL import Image

FOLDER, THREADS = sys.argv[1], int(sys.argv[2])
CONTEXT = 2048
# How many tokens of each place of an answer are told.
LIKELIEST = 10


class Model:
    def __init__(self, name):
        folder = os.path.join(FOLDER, name)
        self.llama = llama_cpp.Llama(os.path.join(folder, "model.gguf"), n_ctx=CONTEXT, n_batch=CONTEXT, n_threads=THREADS,
                                     n_threads_batch=THREADS, verbose=False)
        self.context = self.llama.ctx
        self.vocabulary = self.llama.n_vocab()
        parameters = mtmd.mtmd_context_params_default()
        parameters.use_gpu, parameters.n_threads, parameters.print_timings = False, THREADS, False
        self.tower = mtmd.mtmd_init_from_file(os.path.join(folder, "mmproj.gguf").encode(), self.llama.model, parameters)
        if not self.tower:
            raise RuntimeError("mtmd_init_from_file refused the file")

    def bitmap(self, path):
        pixels = numpy.ascontiguousarray(Image.open(path).convert("RGB"))
        height, width, _ = pixels.shape
        return mtmd.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))

    def chunks(self, prompt, bitmap):
        chunks = mtmd.mtmd_input_chunks_init()
        text = prompt.encode()
        given = mtmd.mtmd_input_text(text, len(text), False, True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if mtmd.mtmd_tokenize(self.tower, chunks, ctypes.byref(given), bitmaps, 1) != 0:
            raise RuntimeError("mtmd_tokenize refused the prompt")
        return chunks

    def encode(self, chunks):
        """The tower alone: images are prepared and encoded."""
        for number in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, number)
            if mtmd.mtmd_input_chunk_get_type(chunk) != mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                if mtmd.mtmd_encode_chunk(self.tower, chunk) != 0:
                    raise RuntimeError("mtmd_encode_chunk failed")

    def read(self, chunks):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        place = llama_cpp.llama_pos(0)
        if mtmd.mtmd_helper_eval_chunks(self.tower, self.context, chunks, 0, 0, CONTEXT, True, ctypes.byref(place)) != 0:
            raise RuntimeError("mtmd_helper_eval_chunks failed")

    def logits(self):
        pointer = llama_cpp.llama_get_logits_ith(self.context, -1)
        return numpy.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.vocabulary,))

    def decode(self, token):
        tokens = (llama_cpp.llama_token * 1)(token)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, 1)) != 0:
            raise RuntimeError("llama_decode failed")

    def run(self, task, prompt, bitmap, count):
        chunks = None
        began = time.perf_counter()
        try:
            chunks = self.chunks(prompt, bitmap)
            if task == "tower":
                self.encode(chunks)
                return {"seconds": time.perf_counter() - began}
            self.read(chunks)
            token = int(self.logits().argmax())
            if task == "first":
                return {"seconds": time.perf_counter() - began}
            if task == "answer":
                return self.answer(count) | {"size": mtmd.mtmd_helper_get_n_tokens(chunks)}
            began = time.perf_counter()
            for _ in range(count - 1):
                self.decode(token)
                token = int(self.logits().argmax())
            return {"seconds": (time.perf_counter() - began) / (count - 1)}
        finally:
            mtmd.mtmd_input_chunks_free(chunks)

    def answer(self, count):
        """The tokens that could have been chosen, best first, at each place of a greedy answer."""
        places = []
        while len(places) < count:
            if places:
                self.decode(places[-1][0][0])
            row = self.logits().astype(numpy.float64)
            row -= row.max()
            row -= numpy.log(numpy.exp(row).sum())
            best = numpy.argsort(-row, kind="stable")[:LIKELIEST]
            places.append([[int(token), float(row[token])] for token in best])
        return {"places": places}


def main():
    models = {}
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        model = models.get(asked["model"]) or models.setdefault(asked["model"], Model(asked["model"]))
        bitmap = model.bitmap(asked["image"])
        print(json.dumps(model.run(asked["task"], asked["prompt"], bitmap, asked["count"])), flush=True)
        mtmd.mtmd_bitmap_free(bitmap)


if __name__ == "__main__":
    main()
