"""sentence-transformers and transformers, on torch: embeddings, reranking, NER, encoder-decoders."""

import os
import time

THREADS = int(os.environ["BENCH_THREADS"])
STARTED = time.perf_counter()

import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer

import protocol

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class SentenceTransformersWorker(protocol.Worker):
    def __init__(self):
        torch.set_num_threads(THREADS)
        super().__init__(STARTED, THREADS)

    def versions(self):
        return {
            "torch": torch.__version__,
            "sentence-transformers": sentence_transformers.__version__,
            "transformers": transformers.__version__,
        }

    def load_model(self, kind, path, dtype):
        arguments = {"device": "cpu", "local_files_only": True, "model_kwargs": {"dtype": DTYPES[dtype]}}
        if kind == "embedding":
            return SentenceTransformer(path, **arguments)
        if kind == "reranker":
            return CrossEncoder(path, max_length=512, activation_fn=torch.nn.Identity(), **arguments)
        if kind == "seq2seq":
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path, dtype=DTYPES[dtype])
            return model.eval(), transformers.AutoTokenizer.from_pretrained(path)
        model = transformers.AutoModelForTokenClassification.from_pretrained(path, dtype=DTYPES[dtype])
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        return transformers.pipeline(
            "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple", device="cpu"
        )

    def run_task(self, model, task, data):
        if task == "embed":
            return model.encode(data["texts"], show_progress_bar=False)
        if task == "rerank":
            pairs = [(data["query"], document) for document in data["documents"]]
            return model.predict(pairs, show_progress_bar=False)
        if task.startswith("write"):
            return self.write(*model, data["texts"], beams=1 if task == "write" else 4)
        return model(data["texts"])

    # As many texts at once as ours take.
    def write(self, model, tokenizer, texts, beams, batch=32):
        rows = []
        for start in range(0, len(texts), batch):
            inputs = tokenizer(texts[start:start + batch], padding=True, return_tensors="pt")
            with torch.inference_mode():
                found = model.generate(**inputs, max_new_tokens=24, do_sample=False, num_beams=beams)
            rows += found[:, 1:].tolist()
        end = model.config.eos_token_id
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    def encode_result(self, task, result):
        if task == "embed":
            return protocol.packed(result)
        if task == "rerank":
            return [float(score) for score in result]
        if task.startswith("write"):
            return result
        return [
            [[found["entity_group"], int(found["start"]), int(found["end"]), float(found["score"])] for found in row]
            for row in result
        ]


if __name__ == "__main__":
    SentenceTransformersWorker().serve()
