"""Works through conversations with reasoning and tools, with the clients that people use, and fails where one can't.

usage: agents.py CLIENT BASE_URL FOLDER
"""

import json
import pathlib
import subprocess
import sys

QUESTION = [{"role": "user", "content": "How is the weather?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = {"type": "object", "title": "Answer", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
          "additionalProperties": False}


def function(name, parameters):
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def check_openai(base, _folder):
    import openai

    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    settings = {"model": "thinker", "messages": QUESTION, "tools": [function("weather", CITY)]}
    message = client.chat.completions.create(**settings).choices[0].message
    assert message.reasoning_content == "I look in two cities." and message.content == "Wait."
    cities = [json.loads(call.function.arguments)["city"] for call in message.tool_calls]
    assert cities == ["Rome", "Oslo"], cities

    calls, thoughts, text, first = {}, "", "", {}
    for chunk in client.chat.completions.create(**settings, stream=True):
        delta = chunk.choices[0].delta
        thoughts += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
        for call in delta.tool_calls or []:
            first.setdefault(call.index, call.function.name)
            calls[call.index] = calls.get(call.index, "") + (call.function.arguments or "")
    assert thoughts == message.reasoning_content and text == "Wait." and first == {0: "weather", 1: "weather"}
    assert [json.loads(calls[index])["city"] for index in (0, 1)] == cities
    single = client.chat.completions.create(**settings, parallel_tool_calls=False, reasoning_effort="low")
    assert len(single.choices[0].message.tool_calls) == 1
    history = QUESTION + [message.to_dict()] + [{"role": "tool", "tool_call_id": call.id, "content": "sunny"}
                                                for call in message.tool_calls]
    told = client.chat.completions.create(**dict(settings, messages=history))
    assert told.choices[0].message.content == "It is sunny in both." and told.choices[0].finish_reason == "stop"
    assert told.usage.completion_tokens_details.reasoning_tokens > 0
    check_responses(client)


def check_responses(client):
    tools = [{"type": "function", "name": "weather", "parameters": CITY, "strict": False}]
    settings = {"model": "thinker", "tools": tools, "reasoning": {"effort": "low"}}
    first = client.responses.create(**settings, input="How is the weather?")
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert first.output[0].content[0].text == "I look in two cities." and first.output_text == "Wait."
    with client.responses.stream(**settings, input="How is the weather?") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.reasoning_text.delta" in kinds and "response.function_call_arguments.delta" in kinds
    assert [item.type for item in final.output] == [item.type for item in first.output]
    assert [json.loads(item.arguments) for item in final.output[2:]] == [json.loads(item.arguments) for item in first.output[2:]]
    for before in (first, final):
        results = [{"type": "function_call_output", "call_id": item.call_id, "output": "sunny"} for item in before.output[2:]]
        told = client.responses.create(**settings, input=results, previous_response_id=before.id)
        assert told.output_text == "It is sunny in both.", told
        assert client.responses.retrieve(told.id).previous_response_id == before.id


TOOLS = [
    {"name": "read_file", "description": "Reads a file", "input_schema": {
        "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}},
    {"name": "edit_file", "description": "Replaces text in a file", "input_schema": {
        "type": "object", "properties": {name: {"type": "string"} for name in ("path", "old", "new")},
        "required": ["path", "old", "new"]}},
    {"name": "run_tests", "description": "Runs the tests", "input_schema": {"type": "object", "properties": {}}},
]


def work(folder, call):
    """What a coding agent does for a call: the result, and whether it failed."""
    given = call.input
    try:
        if call.name == "read_file":
            return (folder / given["path"]).read_text(), False
        if call.name == "edit_file":
            path = folder / given["path"]
            text = path.read_text()
            if given["old"] not in text:
                return "old is not in the file", True
            path.write_text(text.replace(given["old"], given["new"]))
            return "edited", False
        run = subprocess.run([sys.executable, "test_sum.py"], cwd=folder, capture_output=True, text=True)
        return (run.stdout + run.stderr)[-2000:] or "passed", run.returncode != 0
    except OSError as error:
        return str(error), True


def check_anthropic(base, folder):
    """A coding agent repairs a program: it plans, reads, edits, fails, edits again, and runs the tests."""
    import anthropic

    folder = pathlib.Path(folder)
    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    system = [{"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}}]
    settings = {"model": "thinker", "max_tokens": 2048, "system": system, "tools": TOOLS,
                "thinking": {"type": "enabled", "budget_tokens": 1024}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Fix sum.py, please."}]}]
    used = []
    for _ in range(12):
        at_once = client.messages.create(**settings, messages=messages)
        kinds = set()
        with client.messages.stream(**settings, messages=messages) as stream:
            for event in stream:
                if event.type == "content_block_delta":
                    kinds.add(event.delta.type)
            message = stream.get_final_message()
        plain = [block.model_dump(exclude={"id", "parsed_output", "caller"}) for block in message.content]
        assert plain == [block.model_dump(exclude={"id", "parsed_output", "caller"}) for block in at_once.content], (plain, at_once)
        assert message.content[0].type == "thinking" and "thinking_delta" in kinds
        assert message.usage.output_tokens > 0 and message.usage.cache_read_input_tokens is not None
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        assert message.stop_reason == "tool_use" and "input_json_delta" in kinds
        results = []
        for call in calls:
            text, failed = work(folder, call)
            used.append((call.name, failed))
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": failed})
        messages.append({"role": "user", "content": results})
    assert message.stop_reason == "end_turn" and "adds" in message.content[-1].text
    assert used == [("read_file", False), ("read_file", False), ("edit_file", True), ("edit_file", False),
                    ("run_tests", False)], used
    assert "a + b" in (folder / "sum.py").read_text()
    assert client.messages.count_tokens(model="thinker", messages=messages[:-1], tools=TOOLS).input_tokens > 20


def check_ollama(base, _folder):
    import ollama

    client = ollama.Client(host=base)
    settings = {"model": "thinker", "messages": QUESTION, "tools": [function("weather", CITY)], "think": True}
    answer = client.chat(**settings)
    assert answer.message.thinking == "I look in two cities." and answer.message.content == "Wait."
    cities = [call.function.arguments["city"] for call in answer.message.tool_calls]
    assert cities == ["Rome", "Oslo"]
    parts = list(client.chat(**settings, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == answer.message.thinking
    assert [call.function.arguments["city"] for part in parts for call in part.message.tool_calls or []] == cities
    history = QUESTION + [answer.message, {"role": "tool", "tool_name": "weather", "content": "sunny"}]
    assert client.chat(**dict(settings, messages=history)).message.content == "It is sunny in both."


def check_langchain(base, _folder):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    common = {"base_url": base + "/v1", "api_key": "none", "max_retries": 0}
    chat = ChatOpenAI(model="thinker", **common).bind_tools([function("weather", CITY)])
    question = [HumanMessage("How is the weather?")]
    answer = chat.invoke(question)
    assert answer.content == "Wait." and [call["args"]["city"] for call in answer.tool_calls] == ["Rome", "Oslo"]
    whole = None
    for chunk in chat.stream(question):
        whole = chunk if whole is None else whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [call["args"] for call in answer.tool_calls]
    results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
    assert chat.invoke([*question, answer, *results]).content == "It is sunny in both."
    responses = ChatOpenAI(model="thinker", use_responses_api=True, **common)
    assert "4" in responses.invoke("What is 2 + 2?").text
    held = ChatOpenAI(model="roomy", temperature=0, max_tokens=60, **common).with_structured_output(SCHEMA, method="json_schema")
    assert list(held.invoke("hi")) == ["ok"]
    called = ChatOpenAI(model="roomy", temperature=0, max_tokens=80, **common).with_structured_output(SCHEMA, method="function_calling")
    assert list(called.invoke("hi")) == ["ok"]
    vectors = OpenAIEmbeddings(model="embedder", check_embedding_ctx_length=False, **common).embed_documents(["a dog", "a cat"])
    assert [len(vector) for vector in vectors] == [32, 32]


if __name__ == "__main__":
    globals()["check_" + sys.argv[1]](sys.argv[2], sys.argv[3])
    print("ok")
