"""The peer of bench/extraction.rb: reads a JSON object, finds what it asks for, and writes what was found and how long
each round took."""

import json
import sys
import time

import torch

# Tokens of an answer, and spans that are compared, as the pipeline of transformers 4 had them.
LONGEST = 15
CANDIDATES = 12


def gliner(asked):
    from gliner import GLiNER

    model = GLiNER.from_pretrained(asked["model"]).eval()

    def run(texts):
        lists = model.inference(texts, asked["labels"], threshold=0.5, batch_size=8)
        return [[[one["start"], one["end"], one["label"]] for one in found] for found in lists]

    return run


def ner(asked):
    from transformers import pipeline

    tagger = pipeline("token-classification", model=asked["model"], aggregation_strategy="simple", device="cpu")

    def run(texts):
        lists = tagger(texts, batch_size=8)
        return [[[one["start"], one["end"], one["entity_group"]] for one in found] for found in lists]

    return run


def question(asked):
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    model = AutoModelForQuestionAnswering.from_pretrained(asked["model"]).eval()
    types = getattr(model.config, "type_vocab_size", 0) > 1

    def answer(text):
        inputs = tokenizer(asked["question"], text, return_tensors="pt", truncation="only_second", max_length=384,
                           return_token_type_ids=types)
        encoding = inputs.encodings[0]
        output = model(**inputs)
        allowed = torch.tensor([sequence == 1 for sequence in encoding.sequence_ids])
        allowed[0] = True
        start, end = (logits[0].double().masked_fill(~allowed, -1e4).softmax(-1)
                      for logits in (output.start_logits, output.end_logits))
        scores = torch.outer(start, end).triu().tril(LONGEST - 1)
        scores[0] = 0.0
        best = scores.flatten().topk(min(CANDIDATES, scores.numel()))
        found = {}
        # Candidates with the same text count together, at the place of the likeliest.
        for score, place in zip(best.values.tolist(), best.indices.tolist()):
            if score == 0.0:
                continue
            words = [encoding.token_to_word(at) for at in divmod(place, len(end))]
            begin, finish = encoding.word_to_chars(words[0], 1)[0], encoding.word_to_chars(words[1], 1)[1]
            known = found.setdefault(text[begin:finish].lower(), [0.0, begin, finish])
            known[0] += score
        return max(found.values(), key=lambda one: one[0])[1:]

    return lambda texts: [answer(text) for text in texts]


def main():
    asked = json.load(sys.stdin)
    torch.set_grad_enabled(False)
    torch.set_num_threads(asked["threads"])
    run = {"gliner": gliner, "ner": ner, "question": question}[asked["task"]](asked)
    found = run(asked["texts"])
    times = []
    for _ in range(asked["rounds"]):
        start = time.perf_counter()
        run(asked["texts"])
        times.append(time.perf_counter() - start)
    print(json.dumps({"found": found, "times": times}))


if __name__ == "__main__":
    main()
