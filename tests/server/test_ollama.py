"""Ollama's API: chats, prompts and embeddings, lines of JSON, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import chat_templates
from tests.responses_support import CALL
from tests.server_support import (
    CHATML,
    NAME,
    Client,
    fake_engine,
    idle_and_whole,
    live,
    refused,
    requests_seen,
    running,
    until,
)

USER = {"role": "user", "content": "hello"}
TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}
TOOLS = [{"type": "function", "function": TOOL}]
CALLED = {"function": {"name": "get_weather", "arguments": {"city": "Bern"}}}
TIMES = {
    *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
    *("eval_count", "eval_duration"),
}


@contextlib.contextmanager
def client_of(script: str = "hello the", template: str | None = CHATML) -> Iterator[Client]:
    engine, _ = fake_engine(script=script, template=template)
    yield Client(engine)
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.removesuffix("\n").split("\n")]


def whole(client: Client, path: str = "/api/chat", **body: Any) -> dict[str, Any]:
    answer = client.post(path, **body, stream=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_chat_is_streamed_unless_it_is_asked_for_whole():
    with client_of() as client:
        *told, last = lines(client.post("/api/chat", model=NAME, messages=[USER]))
        assert not any(line["done"] for line in told)
        assert all(line["message"]["role"] == "assistant" for line in told)
        assert "".join(line["message"]["content"] for line in told) == "hello the"
        assert last["done"]
        assert last["message"] == {"role": "assistant", "content": ""}
        answer = whole(client, model=NAME, messages=[USER])
        assert answer["message"] == {"role": "assistant", "content": "hello the"}
        assert answer.keys() == last.keys()
        assert answer.keys() > TIMES
        assert all(isinstance(answer[name], int) for name in TIMES)
        chat = client.chat("hello").json()["usage"]
        assert answer["prompt_eval_count"] == chat["prompt_tokens"]
        assert answer["eval_count"] == chat["completion_tokens"]
        assert answer["total_duration"] >= answer["prompt_eval_duration"] + answer["eval_duration"]


def test_a_prompt_is_a_user_s_message_unless_it_is_raw():
    with client_of() as client:
        *told, last = lines(client.post("/api/generate", prompt="hello"))
        assert "".join(line["response"] for line in told) == "hello the"
        assert (last["response"], last["done_reason"]) == ("", "stop")
        counts = {
            name: whole(client, "/api/generate", prompt="hello", **fields)["prompt_eval_count"]
            for name, fields in {
                "plain": {},
                "system": {"system": "Be kind."},
                "raw": {"raw": True},
            }.items()
        }
        messages = [{"role": "system", "content": "Be kind."}, USER]
        assert counts["plain"] == whole(client, messages=[USER])["prompt_eval_count"]
        assert counts["system"] == whole(client, messages=messages)["prompt_eval_count"]
        usage = client.complete("hello", max_tokens=1).json()["usage"]
        assert counts["raw"] == usage["prompt_tokens"]
        assert (
            "system"
            in refused(client.post("/api/generate", prompt="a", raw=True, system="b"))["message"]
        )


def test_without_a_template_a_prompt_is_raw():
    with client_of(template=None) as client:
        assert whole(client, "/api/generate", prompt="hello")["response"] == "hello the"
        assert "chat_template" in refused(client.post("/api/chat", messages=[USER]))[
            "message"
        ].replace(" ", "_")


def test_a_chat_goes_on_in_the_tree():
    with client_of() as client:
        first = whole(client, messages=[USER])
        seen = first["prompt_eval_count"] + first["eval_count"] - 1
        said = [USER, first["message"], {"role": "user", "content": "and?"}]
        usage = client.post("/v1/chat/completions", messages=said).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == seen
        assert whole(client, messages=said)["prompt_eval_count"] == usage["prompt_tokens"]


@pytest.mark.parametrize("stream", [True, False])
def test_calls_have_objects_for_arguments(stream):
    with client_of(CALL, chat_templates.HERMES) as client:
        body = {"messages": [USER], "tools": TOOLS, "stream": stream}
        answer = client.post("/api/chat", **body)
        told = lines(answer) if stream else [answer.json()]
        [call] = [each for line in told for each in line["message"].get("tool_calls", ())]
        assert call["function"] == {"index": 0, **CALLED["function"]}
        assert "".join(line["message"]["content"] for line in told).strip() == "I look."
        assert told[-1]["done_reason"] == "stop"


def test_a_call_that_is_cut_off_is_left_out():
    with client_of(CALL.partition('"Bern"')[0], chat_templates.HERMES) as client:
        answer = whole(client, messages=[USER], tools=TOOLS)
        assert "tool_calls" not in answer["message"]


RESULT = {"role": "tool", "content": "sunny"}


@pytest.mark.parametrize(
    "results",
    [
        [{**RESULT, "tool_call_id": "b"}, {**RESULT, "tool_call_id": "a"}],
        [{**RESULT, "tool_name": "get_time"}, {**RESULT, "tool_name": "get_weather"}],
        [RESULT, RESULT],
    ],
)
def test_results_are_of_the_calls_that_they_name_or_of_the_next(results):
    other = {"function": {"name": "get_time", "arguments": {}}}
    calls = [{"id": "a", **CALLED}, {"id": "b", **other}]
    with client_of(template=chat_templates.HERMES) as client:
        said = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
        whole(client, messages=said, tools=TOOLS)
        error = refused(client.post("/api/chat", messages=[*said, RESULT], tools=TOOLS))
        assert "messages[4].tool_name" in error["message"]


def test_thoughts_come_apart_and_are_sent_back():
    script = "<think>\nHm.\n</think>\n\nhello"
    with client_of(script, chat_templates.THINKING) as client:
        message = whole(client, messages=[USER], think=True)["message"]
        assert message == {"role": "assistant", "content": "hello", "thinking": "Hm."}
        *told, _ = lines(client.post("/api/chat", messages=[USER]))
        assert "".join(line["message"].get("thinking", "") for line in told) == "Hm."
        told = lines(client.post("/api/generate", prompt="hello"))
        assert "".join(line.get("thinking", "") for line in told) == "Hm."
        counts = [
            whole(client, messages=[USER], think=think)["prompt_eval_count"]
            for think in (None, True, False)
        ]
        assert counts[0] == counts[1] < counts[2]  # the template writes empty thoughts
        whole(client, messages=[USER, message, USER])


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_format_is_followed(path):
    body = {"messages": [USER]} if path == "/api/chat" else {"prompt": "hello"}
    schema = {"type": "object", "properties": {"city": {"enum": ["Bern"]}}, "required": ["city"]}
    engine, _ = fake_engine(script="", goes_on=True)
    client = Client(engine)
    answer = whole(client, path, **body, format=schema)
    text = answer["message"]["content"] if path == "/api/chat" else answer["response"]
    assert json.loads(text) == {"city": "Bern"}
    answer = whole(client, path, **body, format="json", options={"num_predict": 5})
    text = answer["message"]["content"] if path == "/api/chat" else answer["response"]
    assert text.startswith("{")
    assert answer["done_reason"] == "length"
    asyncio.run(engine.close())


def test_options_are_the_engine_s(monkeypatch):
    engine, _ = fake_engine()
    client = Client(engine)
    seen = requests_seen(engine, monkeypatch)
    given = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
    }
    options = {**given, "repeat_penalty": 1.5, "num_predict": 4, "stop": ["x"], "num_ctx": 4096}
    options |= {"num_gpu": 1, "typical_p": 1.0, "mirostat": 0, "num_thread": 4, "nobody": 1}
    whole(client, messages=[USER], options=options, keep_alive="5m")
    params = seen[-1].params
    assert {name: getattr(params, name) for name in given} == given
    assert (params.repetition_penalty, params.max_tokens, params.stop) == (1.5, 4, ("x",))
    for limit in (-2, -1, 0):
        whole(client, messages=[USER], options={"num_predict": limit, "stop": " "})
        assert seen[-1].params.max_tokens is None
    asyncio.run(engine.close())


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("generate", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template"),
        ("generate", {"prompt": "a", "context": [1, 2]}, "context"),
        ("generate", {"prompt": "a", "images": ["aGk="]}, "images"),
        ("chat", {"messages": [{**USER, "images": ["aGk="]}]}, "messages[0].images"),
        ("chat", {"messages": [{**USER, "tool_calls": [CALLED]}]}, "messages[0].tool_calls"),
        ("chat", {"messages": [RESULT]}, "messages[0].tool_name"),
        ("chat", {"messages": [{"role": "boss", "content": "a"}]}, "messages[0].role"),
        ("chat", {"messages": [USER], "format": "yaml"}, "format"),
        ("chat", {"messages": [USER], "format": {"type": "nonsense"}}, "format"),
        ("chat", {"messages": [USER], "think": "hard"}, "think"),
        ("chat", {"messages": [USER], "options": {"temperature": -1}}, "temperature"),
        ("chat", {"options": {"seed": 2**65}}, "seed"),
        ("generate", {"options": {"seed": 2**65}}, "seed"),
        (
            "generate",
            {"prompt": "a", "options": {"repeat_penalty": 2, "repetition_penalty": 0}},
            "options.repeat_penalty",
        ),
        ("chat", {"messages": [USER], "options": {"mirostat": 2}}, "options.mirostat"),
        ("chat", {"messages": [USER], "options": {"num_predict": -3}}, "options.num_predict"),
        ("chat", {"messages": [USER], "options": {"num_ctx": 0}}, "options.num_ctx"),
        ("chat", {"messages": [USER], "logprobs": True}, "logprobs"),
        ("chat", {"messages": [{"role": "user", "content": "a" * 9_000}]}, "tokens"),
        ("embed", {"input": []}, "input"),
        ("embed", {"input": ["a"] * 2049}, "input"),
        ("embed", {"input": [[1]]}, "input"),
        ("embeddings", {}, "prompt"),
    ],
)
def test_what_is_wrong_is_named(fake, path, body, words):
    assert words in refused(fake.post(f"/api/{path}", **body))["message"]


@pytest.mark.parametrize("path", ["chat", "generate", "show", "embed"])
def test_a_model_has_its_name_with_ollama_s_tag_too(fake, path):
    body = {"chat": {"messages": [USER]}, "generate": {"prompt": "a"}, "embed": {"input": "a"}}
    given = {**body.get(path, {}), "options": {}, "stream": False}
    answer = fake.post(f"/api/{path}", model=f"{NAME}:latest", **given)
    if path in ("chat", "generate"):
        assert answer.json()["model"] == f"{NAME}:latest"
    for name in ("another", f"{NAME}:4b", f"{NAME}:latest:latest"):
        error = refused(fake.post(f"/api/{path}", model=name, **given), 404)
        assert "not served here" in error["message"]


def test_a_model_is_loaded_and_stays(fake):
    for path, said in (
        ("chat", {"message": {"role": "assistant", "content": ""}}),
        ("generate", {"response": ""}),
    ):
        for keep in ("5m", 0, -1):
            answer = fake.post(f"/api/{path}", model=NAME, keep_alive=keep).json()
            assert answer.pop("created_at")
            assert answer == {"model": NAME, **said, "done": True, "done_reason": "load"}


def test_what_there_is_is_listed(fake):
    [listed] = fake.get("/api/tags").json()["models"]
    assert (listed["name"], listed["model"]) == (NAME, NAME)
    [runs] = fake.get("/api/ps").json()["models"]
    assert listed.items() <= runs.items()
    shown = fake.post("/api/show", name=NAME).json()
    assert shown["capabilities"] == ["completion", "tools", "embedding"]
    assert shown["model_info"]["fake.context_length"] == runs["context_length"]
    assert shown["template"] == CHATML
    assert fake.get("/api/version").json()["version"]


def test_embeddings_are_those_of_the_other_route(real):
    given = ["ab", "cde"]
    other = [each["embedding"] for each in real.post("/v1/embeddings", input=given).json()["data"]]
    answer = real.post("/api/embed", input=given, truncate=True).json()
    assert answer["embeddings"] == [pytest.approx(each, abs=1e-5) for each in other]
    assert answer["prompt_eval_count"] > 0
    one = real.post("/api/embeddings", prompt="ab").json()["embedding"]
    assert one == pytest.approx(other[0], abs=1e-5)
    [short] = real.post("/api/embed", input="ab", dimensions=4).json()["embeddings"]
    assert len(short) == 4
    error = refused(real.post("/api/embed", input="ab", dimensions=10_000))
    assert "dimensions" in error["message"]


def test_an_error_ends_a_stream_in_ollama_s_words():
    engine, runner = fake_engine(seconds=0.02)
    with live(engine) as url:
        body = {"messages": [USER], "options": {"num_predict": 500}}
        with httpx.stream("POST", f"{url}/api/chat", json=body) as answer:
            told = answer.iter_lines()
            assert "error" not in json.loads(next(told))
            runner.broken = True
            *_, last = told
        assert json.loads(last).keys() == {"error"}
    asyncio.run(engine.close())


def test_a_client_that_leaves_ends_its_answer():
    engine, _ = fake_engine(seconds=0.01)
    with live(engine) as url:
        body = {"messages": [USER], "options": {"num_predict": 1_000}}
        with httpx.stream("POST", f"{url}/api/chat", json=body) as answer:
            next(answer.iter_lines())
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_its_port_is_one_more(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running(monkeypatch, ollama_port=port) as usual:
        for each in (usual, port):
            assert httpx.get(f"http://127.0.0.1:{each}/api/version").status_code == 200
