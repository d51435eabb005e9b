"""Asks a server with the clients that people use, and fails where one can't tell what it was answered.

usage: check.py CLIENT BASE_URL
"""

import asyncio
import base64
import json
import math
import pathlib
import sys
import urllib.request

MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}

# Newer clients of Anthropic have no argument for it.
SURE = {"temperature": 0}
SOUND = pathlib.Path(__file__).parents[2] / "fixtures" / "audio" / "tones.wav"
PHOTO = pathlib.Path(__file__).parents[2] / "fixtures" / "images" / "photo.png"


def data_url():
    return "data:image/png;base64," + base64.b64encode(PHOTO.read_bytes()).decode()


def check_openai(base):
    import openai

    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    names = [model.id for model in client.models.list()]
    assert names == ["llm", "embedder", "reranker", "classifier", "ner", "sparse"], names
    assert client.models.retrieve("llm").id == "llm"

    settings = {"model": "llm", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    answer = client.chat.completions.create(**settings, logprobs=True, top_logprobs=2)
    assert answer.usage.completion_tokens == 6 and answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].logprobs.content) == 6
    stream = list(client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == answer.choices[0].message.content and stream[-1].usage.completion_tokens == 6

    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    held = client.chat.completions.create(model="llm", messages=MESSAGES, max_tokens=40, response_format=form, n=2, seed=3)
    assert [list(json.loads(choice.message.content)) for choice in held.choices] == [["ok"], ["ok"]]
    assert client.completions.create(model="llm", prompt="the dog", max_tokens=4).choices[0].text is not None

    banned = answer.choices[0].logprobs.content[0]
    biased = client.chat.completions.create(**dict(settings, max_tokens=3), logit_bias={"5": 100}, parallel_tool_calls=False,
                                            prompt_cache_key="k", reasoning_effort="low", logprobs=True)
    assert len({token.token for token in biased.choices[0].logprobs.content}) == 1
    assert biased.choices[0].logprobs.content[0].token != banned.token

    # This client asks for base64 by itself.
    vectors = client.embeddings.create(model="embedder", input=["a dog", "the dog"], dimensions=8).data
    assert [len(item.embedding) for item in vectors] == [8, 8]
    plain = client.embeddings.create(model="embedder", input="a dog", dimensions=8, encoding_format="float").data[0]
    assert all(math.isclose(one, other, abs_tol=1e-6) for one, other in zip(plain.embedding, vectors[0].embedding))

    check_responses(client, answer)
    for wrong, error in ((dict(settings, model="none"), openai.NotFoundError),
                         (dict(settings, messages=[{"role": "user", "content": "long " * 200}]), openai.BadRequestError)):
        try:
            client.chat.completions.create(**wrong)
        except error as found:
            assert found.body["message"]
        else:
            raise AssertionError("no error")
    check_batches(client)
    asyncio.run(stream_later(base))


def check_batches(client):
    import io
    import time

    import openai

    body = {"model": "llm", "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": dict(body, model=model)}
             for name, model in (("a", "llm"), ("b", "none"), ("c", "llm"))]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file = client.files.create(file=("requests.jsonl", io.BytesIO(text.encode())), purpose="batch")
    assert file.bytes == len(text) and client.files.content(file.id).text == text
    assert file.id in [found.id for found in client.files.list(purpose="batch")]
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
                                  metadata={"for": "me"})
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.request_counts.completed == 2 and batch.request_counts.failed == 1
    made = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    direct = client.chat.completions.create(**body)
    for line in made:
        answer = openai.types.chat.ChatCompletion.model_validate(line["response"]["body"])
        assert answer.choices[0].message.content == direct.choices[0].message.content
    failed = json.loads(client.files.content(batch.error_file_id).text)
    assert failed["custom_id"] == "b" and failed["response"]["status_code"] == 404
    assert [found.id for found in client.batches.list(limit=1)][0] == batch.id
    try:
        client.batches.cancel(batch.id)
    except openai.ConflictError as found:
        assert "completed" in found.body["message"]
    else:
        raise AssertionError("no error")
    assert client.files.delete(file.id).deleted
    try:
        client.files.retrieve(file.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("no error")


def check_responses(client, chat):
    settings = {"model": "llm", "input": "hi", "max_output_tokens": 6, "temperature": 0}
    answer = client.responses.create(**settings)
    assert answer.output_text == chat.choices[0].message.content and answer.usage.output_tokens == 6
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(**settings, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    # The client puts the events together by itself.
    with client.responses.stream(**settings) as stream:
        for event in stream:
            if event.type == "response.incomplete":
                assert event.response.output_text == answer.output_text
    check_stored(client, settings, answer)
    form = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}
    held = client.responses.create(model="llm", input=[{"role": "user", "content": "hi"}], max_output_tokens=40, text=form)
    assert list(json.loads(held.output_text)) == ["ok"]


def check_stored(client, settings, answer):
    import openai

    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    assert [item.type for item in client.responses.input_items.list(answer.id)] == ["message"]
    both = client.responses.create(**dict(settings, input="go on"), previous_response_id=answer.id,
                                   prompt_cache_key="k", parallel_tool_calls=False, reasoning={"effort": "low"})
    whole = [{"role": "user", "content": "hi"}, *[item.to_dict() for item in answer.output], {"role": "user", "content": "go on"}]
    again = client.responses.create(**dict(settings, input=whole), store=False)
    assert both.output_text == again.output_text and both.usage.input_tokens == again.usage.input_tokens
    assert both.previous_response_id == answer.id and both.prompt_cache_key == "k" and both.store
    client.responses.delete(answer.id)
    for missing in (answer.id, again.id):
        try:
            client.responses.retrieve(missing)
        except openai.NotFoundError:
            pass
        else:
            raise AssertionError("no error")


async def stream_later(base):
    import openai

    client = openai.AsyncOpenAI(base_url=base + "/v1", api_key="none")
    stream = await client.chat.completions.create(model="llm", messages=MESSAGES, max_tokens=4, stream=True)
    assert [chunk async for chunk in stream][-1].choices[0].finish_reason


def check_anthropic(base):
    import anthropic

    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    settings = {"model": "llm", "messages": MESSAGES, "max_tokens": 6, "extra_body": SURE}
    answer = client.messages.create(**settings)
    assert answer.type == "message" and answer.role == "assistant" and answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 6
    counted = client.messages.count_tokens(model="llm", messages=MESSAGES, system="Be brief.")
    assert counted.input_tokens > answer.usage.input_tokens + answer.usage.cache_read_input_tokens

    events = list(client.messages.create(**settings, stream=True))
    assert [event.type for event in events][:2] == ["message_start", "content_block_start"]
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == answer.content[0].text and events[-1].type == "message_stop"
    # The client puts the events together by itself.
    with client.messages.stream(**settings) as stream:
        assert "".join(stream.text_stream) == text
        whole = stream.get_final_message()
    assert whole.content[0].text == text and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 6
    total = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert total == answer.usage.input_tokens + answer.usage.cache_read_input_tokens

    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    held = client.messages.create(model="llm", messages=MESSAGES, max_tokens=40, output_config=form)
    assert list(json.loads(held.content[0].text)) == ["ok"]
    stopped = client.messages.create(**settings, stop_sequences=["never", text[1:3]])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == text[1:3]

    for wrong, error in ((dict(settings, model="none"), anthropic.NotFoundError),
                         (dict(settings, messages=[{"role": "user", "content": "long " * 200}]), anthropic.BadRequestError)):
        try:
            client.messages.create(**wrong)
        except error as found:
            assert found.body["type"] == "error" and found.body["error"]["message"]
        else:
            raise AssertionError("no error")
    asyncio.run(message_later(base, text))


async def message_later(base, text):
    import anthropic

    client = anthropic.AsyncAnthropic(base_url=base, auth_token="none", api_key=None)
    async with client.messages.stream(model="llm", messages=MESSAGES, max_tokens=6, extra_body=SURE) as stream:
        assert await stream.get_final_text() == text


def check_anthropic_images(base):
    import anthropic

    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PHOTO.read_bytes()).decode()}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": "what is it?"}]
    settings = {"model": "vlm", "messages": [{"role": "user", "content": parts}], "max_tokens": 5, "extra_body": SURE}
    answer = client.messages.create(**settings)
    with client.messages.stream(**settings) as stream:
        assert stream.get_final_text() == answer.content[0].text
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 16
    check_calls(client)
    parts[0]["source"] = {"type": "url", "url": "https://example.org/x.png"}
    try:
        client.messages.create(**settings)
    except anthropic.BadRequestError as found:
        assert "fetches nothing" in found.body["error"]["message"]
    else:
        raise AssertionError("no error")


def check_calls(client):
    settings = {"model": "roomy", "messages": MESSAGES, "max_tokens": 80, "extra_body": SURE,
                "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "f"}}
    called = client.messages.create(**settings)
    assert called.stop_reason == "tool_use" and list(called.content[0].input) == ["ok"]
    with client.messages.stream(**settings) as stream:
        again = stream.get_final_message()
    assert again.content[0].input == called.content[0].input and again.stop_reason == "tool_use"
    history = MESSAGES + [{"role": "assistant", "content": called.content},
                          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": called.content[0].id,
                                                        "content": "7"}]}]
    assert client.messages.create(model="roomy", messages=history, max_tokens=2).usage.output_tokens == 2


def check_huggingface_hub(base):
    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=base)
    answer = client.chat_completion(MESSAGES, model="llm", max_tokens=5)
    assert answer.choices[0].message.content is not None
    pieces = list(client.chat_completion(MESSAGES, model="llm", max_tokens=5, stream=True))
    assert pieces[-1].choices[0].finish_reason == "length"
    assert InferenceClient(model=base + "/embed").feature_extraction("a dog").shape == (1, 32)
    assert len(InferenceClient(model=base + "/similarity").sentence_similarity("a dog", ["a dog", "hello"])) == 2
    # Every task of the client goes to the address itself; the first model is a language model.
    root = InferenceClient(model=base)
    assert len(root.sentence_similarity("a dog", ["a dog", "hello"])) == 2
    labels = root.zero_shot_classification("a dog", ["animal", "city"])
    assert sorted(item.label for item in labels) == ["animal", "city"]
    assert isinstance(root.text_generation("the", max_new_tokens=3), str)
    assert root.text_classification("a dog", function_to_apply="softmax")[0].score > 0
    assert isinstance(root.token_classification("the dog live in Paris", aggregation_strategy="simple"), list)


def check_ollama(base):
    import ollama

    client = ollama.Client(host=base)
    options = {"num_predict": 5, "temperature": 0}
    assert [model.model for model in client.list().models][0] == "llm"
    assert "completion" in client.show("llm").capabilities
    assert "llm" in [model.model for model in client.ps().models]
    assert client.pull("llm").status == "success"
    assert [part.status for part in client.pull("llm", stream=True)][-1] == "success"
    answer = client.chat(model="llm", messages=MESSAGES, options=options)
    assert answer.done and answer.eval_count == 5
    streamed = list(client.chat(model="llm", messages=MESSAGES, options=options, stream=True))
    assert "".join(part.message.content for part in streamed) == answer.message.content and streamed[-1].done
    assert client.generate(model="llm", prompt="the", options=options).response is not None
    assert len(client.embed(model="embedder", input=["a", "b"]).embeddings) == 2
    held = client.chat(model="llm", messages=MESSAGES, format=SCHEMA, options={"num_predict": 40})
    assert list(json.loads(held.message.content)) == ["ok"]
    try:
        client.chat(model="none", messages=MESSAGES)
    except ollama.ResponseError as error:
        assert error.status_code == 404 and "none" in error.error
    else:
        raise AssertionError("no error")


def check_ollama_images(base):
    import ollama

    client = ollama.Client(host=base)
    options = {"num_predict": 5, "temperature": 0}
    answer = client.chat(model="vlm", messages=[dict(MESSAGES[0], images=[PHOTO])], options=options)
    assert answer.message.content and "vision" in client.show("vlm").capabilities
    assert client.generate(model="vlm", prompt="hi", images=[PHOTO], options=options).response == answer.message.content
    assert client.generate(model="t5", prompt="the dog", options={"task": "summarize", "num_predict": 5}).response


def check_litellm(base):
    import litellm

    litellm.telemetry = False
    common = {"api_base": base + "/v1", "api_key": "none"}
    # A sampled answer of the tiny model ends before its fifth token now and then.
    asked = {"model": "openai/llm", "messages": MESSAGES, "max_tokens": 5, "temperature": 0, **common}
    answer = litellm.completion(**asked)
    assert answer.usage.completion_tokens == 5
    chunks = list(litellm.completion(**asked, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(litellm.embedding(model="openai/embedder", input=["a dog"], **common).data[0]["embedding"]) == 32
    ranked = litellm.rerank(model="jina_ai/reranker", query="dog", documents=["cat", "dog"], api_base=base + "/v1/rerank",
                            api_key="none")
    assert len(ranked.results) == 2


def check_openai_images(base):
    import openai

    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": data_url()}}]
    settings = {"model": "vlm", "messages": [{"role": "user", "content": parts}], "max_tokens": 5, "temperature": 0}
    answer = client.chat.completions.create(**settings)
    assert answer.choices[0].message.content and answer.usage.prompt_tokens > 16
    stream = client.chat.completions.create(**settings, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == answer.choices[0].message.content
    items = [{"type": "input_text", "text": "what is it?"}, {"type": "input_image", "image_url": data_url()}]
    told = client.responses.create(model="vlm", input=[{"role": "user", "content": items}], max_output_tokens=5, temperature=0)
    assert told.output_text == text
    vectors = client.embeddings.create(model="clip", input=["a dog", data_url()]).data
    assert [len(item.embedding) for item in vectors] == [24, 24]
    assert math.isclose(sum(value * value for value in vectors[1].embedding), 1, abs_tol=1e-4)
    # What the client has no argument for goes into the body.
    german = {"task": "translate", "to": "de"}
    written = client.completions.create(model="t5", prompt="the dog", max_tokens=4, extra_body=german)
    chatted = client.chat.completions.create(model="t5", messages=[{"role": "user", "content": "the dog"}], max_tokens=4,
                                             extra_body=german)
    assert written.choices[0].text == chatted.choices[0].message.content
    settings["messages"][0]["content"][1]["image_url"]["url"] = "https://example.org/x.png"
    try:
        client.chat.completions.create(**settings)
    except openai.BadRequestError as found:
        assert "fetches nothing" in found.body["message"]
    else:
        raise AssertionError("no error")


def check_openai_audio(base):
    import openai

    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    call = {"model": "speech", "language": "de"}

    def write(**more):
        with SOUND.open("rb") as file:
            return client.audio.transcriptions.create(file=file, **call, **more)

    plain = write()
    assert isinstance(plain, openai.types.audio.Transcription) and plain.text and plain.usage.seconds == 1
    assert write(response_format="text") == plain.text + "\n"
    assert write(response_format="srt").startswith("1\n00:00:00,")
    assert write(response_format="vtt").startswith("WEBVTT\n\n00:00:00.")
    for granularities in (["word"], ["segment", "word"], ["word", "segment"]):
        timed = write(response_format="verbose_json", timestamp_granularities=granularities)
        assert isinstance(timed, openai.types.audio.TranscriptionVerbose) and timed.duration == 0.8
        if "segment" in granularities:
            assert "".join(segment.text for segment in timed.segments).strip() == timed.text
        else:
            assert timed.segments is None
        assert timed.words and all(0 <= word.start <= word.end <= 1 for word in timed.words)
    assert not write(response_format="verbose_json").words
    events = list(write(stream=True))
    assert {event.type for event in events[:-1]} == {"transcript.text.delta"}
    assert events[-1].type == "transcript.text.done" and events[-1].text == plain.text
    assert "".join(event.delta for event in events[:-1]).strip() == plain.text
    prompted = write(prompt="the cat", temperature=0.0)
    assert prompted.text != plain.text
    with SOUND.open("rb") as file:
        english = client.audio.translations.create(model="speech", file=file)
    assert isinstance(english, openai.types.audio.Translation) and english.text
    labels = client.audio.transcriptions.create(model="labels", file=("a.wav", SOUND.read_bytes()))
    assert labels.text
    for wrong, error in ((dict(model="none", file=SOUND), openai.NotFoundError),
                         (dict(model="speech", file=("a.wav", b"no audio")), openai.BadRequestError)):
        try:
            client.audio.transcriptions.create(**wrong)
        except error as found:
            assert found.body["message"]
        else:
            raise AssertionError("no error")


def check_huggingface_hub_images(base):
    from huggingface_hub import InferenceClient

    found = InferenceClient(model=base + "/classify_image").image_classification(PHOTO)
    assert abs(sum(item.score for item in found) - 1) < 1e-4
    assert len(InferenceClient(model=base + "/classify_image").image_classification(PHOTO, top_k=1)) == 1
    ranked = InferenceClient(model=base + "/classify_image").zero_shot_image_classification(PHOTO, ["dog", "flower"])
    assert sorted(item.label for item in ranked) == ["dog", "flower"]
    assert InferenceClient(model=base + "/describe").image_to_text(PHOTO).generated_text
    assert InferenceClient(model=base + "/summarize").summarization("the dog").summary_text
    german = InferenceClient(model=base + "/translate").translation("the dog", src_lang="en", tgt_lang="de")
    assert german.translation_text


def check_prometheus_client(base):
    from prometheus_client.parser import text_string_to_metric_families

    text = urllib.request.urlopen(base + "/metrics").read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, kind in (("candle_requests", "counter"), ("candle_request_seconds", "histogram"),
                       ("candle_first_token_seconds", "histogram"), ("process_resident_memory_bytes", "gauge")):
        assert families[name].type == kind and families[name].samples, name


if __name__ == "__main__":
    globals()["check_" + sys.argv[1]](sys.argv[2])
    print("ok")
