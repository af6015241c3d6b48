"""Over real sockets: clients that leave, the openai package, the command's own server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import closing

import httpx
import openai
import pytest

from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.listen import bind
from tests.server_support import NAME, events, fake_engine, idle_and_whole, live, until

STEP = 0.02


@pytest.fixture(scope="module")
def slow():
    """URL and engine; a step takes STEP seconds."""
    engine, _ = fake_engine(seconds=STEP)
    with live(engine) as url:
        yield url, engine
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_ends_its_requests_within_a_step(slow, path, stream, n):
    url, engine = slow
    body = {"max_tokens": 1500, "stream": stream, "n": n}
    body |= (
        {"prompt": "a"}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "a"}]}
    )
    data = json.dumps(body).encode()
    host, port = url.removeprefix("http://").split(":")
    before = engine.stats()
    with closing(socket.create_connection((host, int(port)))) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        assert until(lambda: engine.stats().running == n)
        if stream:
            assert connection.recv(100)
    steps = engine.stats().steps
    assert until(lambda: engine.stats().requests_aborted == before.requests_aborted + n)
    assert engine.stats().steps <= steps + 3  # one in flight, one to notice, one for a slow CI
    assert idle_and_whole(engine)


def test_a_client_that_leaves_the_queue_ends_its_request():
    engine, _ = fake_engine(seconds=STEP, max_running_requests=1)
    with live(engine) as url, httpx.Client(base_url=url) as client:
        whole: list[httpx.Response] = []
        body = {"prompt": "a", "max_tokens": 40}
        thread = threading.Thread(
            target=lambda: whole.append(client.post("/v1/completions", json=body))
        )
        thread.start()
        assert until(lambda: engine.stats().running == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json={"prompt": "b", "stream": True}, timeout=0.1)
        assert until(lambda: engine.stats().requests_aborted == 1)
        thread.join()
    assert whole[0].json()["usage"]["completion_tokens"] == 40
    asyncio.run(engine.close())


def test_chunks_come_one_by_one(slow):
    url, _ = slow
    body = {"prompt": "a", "max_tokens": 5, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert len(lines) == 6
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize(("grace", "force"), [(0.1, False), (60, True)])
def test_what_runs_when_the_server_ends_is_told(grace, force):
    engine, _ = fake_engine(seconds=STEP)
    answers: dict[bool, httpx.Response] = {}

    told: list[httpx.Response] = []

    def send(url: str, stream: bool) -> None:
        body = {"prompt": "a", "max_tokens": 1500, "n": 2, "stream": stream}
        answers[stream] = httpx.post(f"{url}/v1/completions", json=body, timeout=30)

    def send_message(url: str) -> None:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1500, "stream": True}
        told.append(httpx.post(f"{url}/v1/messages", json={"model": NAME, **body}, timeout=30))

    with live(engine, grace=grace, force=force) as url:
        threads = [threading.Thread(target=send, args=(url, stream)) for stream in (False, True)]
        threads.append(threading.Thread(target=send_message, args=(url,)))
        for thread in threads:
            thread.start()
        assert until(lambda: engine.stats().running == 5)
    for thread in threads:
        thread.join()
    assert answers[False].status_code == 503
    *_, last = events(answers[True])
    for error in (answers[False].json()["error"], last["error"]):
        assert error["code"] == "server_shutting_down"
        assert error["message"].startswith("the server is shutting down")
    error = told[0].text.rpartition("data: ")[2]
    assert json.loads(error)["error"]["type"] == "overloaded_error"
    assert "the server is shutting down" in error


def test_the_log_says_that_it_ends_and_what_for(caplog):
    caplog.set_level("INFO", logger="radixlm.server")

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "radixlm.server"]

    engine, _ = fake_engine(seconds=STEP)
    with live(engine):
        pass
    assert said() == ["ending: no request runs"]
    with live(engine, grace=60) as url:
        body = {"prompt": "a", "max_tokens": 20}
        thread = threading.Thread(
            target=httpx.post, args=(f"{url}/v1/completions",), kwargs={"json": body}
        )
        thread.start()
        assert until(lambda: engine.stats().running == 1)
    thread.join()
    assert said()[1:] == [
        "ending: 1 request under way, with 60 s to finish; Ctrl-C again ends them now"
    ]
    asyncio.run(engine.close())


def test_what_ends_in_time_is_answered_when_the_server_ends():
    engine, _ = fake_engine(seconds=STEP)
    answers: list[httpx.Response] = []
    with live(engine) as url:
        body = {"prompt": "a", "max_tokens": 20}
        thread = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/v1/completions", json=body))
        )
        thread.start()
        assert until(lambda: engine.stats().running == 1)
    thread.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 20
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def client(real):
    with live(real.engine, "tiny") as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as api:
        yield api


def test_openai_chat(client):
    messages = [{"role": "user", "content": "Hello"}]
    options = {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0}
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2, n=2)
    assert whole.choices[0].message.content == whole.choices[1].message.content
    assert len(whole.choices[1].logprobs.content) == 6
    assert whole.usage.prompt_tokens_details.cached_tokens is not None
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 6


def test_openai_completions(client):
    options = {"model": "tiny", "prompt": "Once", "max_tokens": 6, "seed": 3}
    whole = client.completions.create(**options, n=2, logprobs=1)
    assert len(whole.choices) == 2
    assert len(whole.choices[0].logprobs.tokens) == 6
    chunks = list(client.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    first = whole.choices[0].text[:1]
    assert client.completions.create(**options, stop=first).choices[0].text == ""


def test_openai_sees_what_is_cached(client, real):
    assert real.get("/flush_cache").status_code == 200
    system = {"role": "system", "content": "word " * 100}
    cached = []
    for question in ("What is this?", "Who are you?"):
        answer = client.chat.completions.create(
            model="tiny", messages=[system, {"role": "user", "content": question}], max_tokens=1
        )
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    shared = "<|im_start|>system\n" + "word " * 100 + "<|im_end|>\n<|im_start|>user\nWh"
    specials = 3 * (len("<|im_start|>") - 1) - 2  # each mark is one token
    assert cached == [0, len(shared) - specials]


def test_openai_models_and_errors(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a", temperature=-1)
    assert caught.value.param == "temperature"


def test_a_port_in_use_says_what_to_do():
    with (
        closing(bind("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="choose another with --host, --port"),
    ):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match=r"--port is a number from 0 to 65535, got 70000"):
        ServerConfig(port=70000)
