"""The worker of llama.cpp on the library of ik_llama.cpp, whose structures and calls differ."""

import sys

import ik_llama

sys.modules["llama_cpp"] = ik_llama

import llama_worker


class Model(llama_worker.Model):
    position = 0

    def forget(self):
        super().forget()
        self.position = 0

    def decode(self, tokens):
        array = (ik_llama.llama_token * len(tokens))(*tokens)
        batch = ik_llama.llama_batch_get_one(array, len(tokens), self.position)
        if ik_llama.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode refused the tokens")
        self.position += len(tokens)


class IkLlamaWorker(llama_worker.LlamaWorker):
    def versions(self):
        return {"ik-llama-cpp-python": ik_llama.__version__}

    def load_model(self, kind, path, dtype):
        return Model(path)


if __name__ == "__main__":
    IkLlamaWorker().serve()
