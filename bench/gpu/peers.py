"""The same work in PyTorch: one JSON request per line in, one JSON answer per line out.

Everything runs in inference mode with SDPA attention. Results are copied to the host before the
clock stops; each number is the median of the repetitions after a warm-up.
"""

import json
import statistics
import sys
import time
import traceback

import torch
import transformers

DEVICE = sys.argv[1]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def median_ms(repetitions, work):
    for _ in range(3):
        work()
    times = []
    for _ in range(repetitions):
        synchronize()
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def synchronize():
    if DEVICE.startswith("cuda"):
        torch.cuda.synchronize()


def load(kind, request):
    return kind.from_pretrained(
        request["path"], dtype=DTYPES[request["dtype"]], attn_implementation="sdpa"
    ).to(DEVICE).eval()


def pooled(model, ids, mask):
    hidden = model(input_ids=ids.to(DEVICE), attention_mask=mask.to(DEVICE)).last_hidden_state
    weights = mask.to(DEVICE).unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(mean.float(), dim=-1).cpu()


def encoder(request):
    model = load(transformers.AutoModel, request)
    answer = {"vectors": [], "milliseconds": {}}
    for ids in request["ids"]:
        row = torch.tensor([ids])
        answer["vectors"].append(pooled(model, row, torch.ones_like(row))[0].tolist())
    for count, length in request["shapes"]:
        ids = torch.randint(5, model.config.vocab_size, (count, length))
        mask = torch.ones_like(ids)
        work = lambda: pooled(model, ids, mask)
        answer["milliseconds"][f"{count}x{length}"] = median_ms(request["repetitions"], work)
    return answer


def sentences(request):
    from sentence_transformers import SentenceTransformer

    kwargs = {"dtype": DTYPES[request["dtype"]], "attn_implementation": "sdpa"}
    model = SentenceTransformer(request["path"], device=DEVICE, model_kwargs=kwargs)
    texts = request["texts"]
    encode = lambda: model.encode(texts, batch_size=256, show_progress_bar=False)
    vectors = model.encode(texts[: request["kept"]], show_progress_bar=False)
    return {"vectors": vectors.astype("float32").tolist(),
            "milliseconds": median_ms(request["repetitions"], encode)}


def rerank(request):
    from sentence_transformers import CrossEncoder

    kwargs = {"dtype": DTYPES[request["dtype"]], "attn_implementation": "sdpa"}
    model = CrossEncoder(request["path"], device=DEVICE, max_length=512, num_labels=1, model_kwargs=kwargs)
    pairs = [(request["query"], document) for document in request["documents"]]
    predict = lambda: model.predict(
        pairs, batch_size=256, show_progress_bar=False, activation_fn=torch.nn.Identity()
    )
    return {"scores": predict().astype("float32").tolist(),
            "milliseconds": median_ms(request["repetitions"], predict)}


def greedy(model, ids, count):
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count,
        do_sample=False, pad_token_id=0,
    ).cpu()


def decoding(model, ids, request):
    """Milliseconds of one new token, and how many more come in a second."""
    few, many = 1, request["new_tokens"]
    short, long = (median_ms(request["repetitions"], lambda: greedy(model, ids, count)) for count in (few, many))
    return short, 1000 * len(ids) * (many - few) / max(long - short, 1e-9)


def logprobs(model, ids):
    logits = model(ids).logits[0].float()
    return torch.log_softmax(logits[:-1], -1).gather(1, ids[0, 1:, None]).squeeze(1).cpu().tolist()


def decode(request):
    """The same weights in full precision say how much their own type costs."""
    model = load(transformers.AutoModelForCausalLM, request)
    ids = torch.tensor([request["ids"]], device=DEVICE)
    found = logprobs(model, ids)
    prompt, rate = decoding(model, ids, request)
    tokens = greedy(model, ids, request["new_tokens"])[0, ids.shape[1]:].tolist()
    return {"logprobs": found, "exact_logprobs": logprobs(model.float(), ids), "token_ids": tokens,
            "prompt_milliseconds": prompt, "tokens_per_second": rate}


def decode_together(request):
    model = load(transformers.AutoModelForCausalLM, request)
    _, rate = decoding(model, torch.tensor(request["ids"], device=DEVICE), request)
    return {"tokens_per_second": rate}


def whisper(request):
    """From samples to token ids, features included."""
    model = load(transformers.WhisperForConditionalGeneration, request)
    extract = transformers.WhisperFeatureExtractor.from_pretrained(request["path"])
    samples = torch.rand(request["samples"], generator=torch.Generator().manual_seed(1)).numpy() * 0.4 - 0.2
    dtype = DTYPES[request["dtype"]]

    def write(count):
        features = extract([samples] * count, sampling_rate=16000, return_tensors="pt", device=DEVICE).input_features
        many = {"max_new_tokens": request["new_tokens"], "min_new_tokens": request["new_tokens"]}
        return model.generate(features.to(DEVICE, dtype), language="en", task="transcribe", do_sample=False, **many).cpu()

    return {"milliseconds": {str(count): median_ms(1, lambda: write(count)) for count in request["counts"]}}


def about(_request):
    name = torch.cuda.get_device_name() if DEVICE.startswith("cuda") else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "device": name}
    try:
        import sentence_transformers
        versions["sentence-transformers"] = sentence_transformers.__version__
    except ImportError:
        pass
    return versions


JOBS = {"encoder": encoder, "sentences": sentences, "rerank": rerank, "decode": decode,
        "decode_together": decode_together, "whisper": whisper, "about": about}


def main():
    output = sys.stdout
    sys.stdout = sys.stderr
    transformers.logging.set_verbosity_error()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with torch.inference_mode():
                answer = JOBS[request["job"]](request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        if DEVICE.startswith("cuda"):
            torch.cuda.empty_cache()
        output.write(json.dumps(answer) + "\n")
        output.flush()


main()
