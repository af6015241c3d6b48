"""The `openai` package: sync, async, streaming, errors as its own exceptions."""

from __future__ import annotations

import asyncio
from typing import Any

import openai

from scripts.try_clients.outcome import Outcome, raised
from scripts.try_clients.questions import ANSWER, ASKED
from scripts.try_clients.server import KEY, MODEL, Served

_PROMPT = "The capital of Spain is"
_AT_ONCE = 16


def use_openai(server: Served) -> Outcome:
    """Every way to call; raises AssertionError where one is not as it should be."""
    client = openai.OpenAI(base_url=server.v1, api_key=KEY, max_retries=0)
    _models(client)
    _chat(client)
    _completions(client)
    _logprobs(client)
    errors = _errors(client, server)
    streams = asyncio.run(_async_client(server))
    return Outcome(
        client="openai",
        version=openai.__version__,
        did="models, chat, completions, logprobs, streams; sync and async; errors by their types",
        numbers={"error_types": errors, "async_streams_at_once": streams},
    )


def _models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def _chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0)
    assert answer.choices[0].message.content == ANSWER, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer._request_id, "no x-request-id"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=ASKED,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER, text
    assert len(chunks) > 4, "the stream came in one piece"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == answer.usage.completion_tokens
    with client.chat.completions.stream(model=MODEL, messages=ASKED, temperature=0) as stream:
        last = [event for event in stream if event.type == "content.done"]
    assert last[0].content == ANSWER


def _completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=[_PROMPT, "12 + 7 ="], temperature=0, max_tokens=8, n=2, seed=1
    )
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert "Madrid" in texts[0] == texts[1], texts
    assert texts[2] == texts[3], texts
    assert texts[2].startswith(" 19"), texts
    chunks = client.completions.create(
        model=MODEL, prompt=_PROMPT, temperature=0, max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == texts[0]
    stopped = client.completions.create(model=MODEL, prompt=_PROMPT, temperature=0, stop=["."])
    assert stopped.choices[0].text == " Madrid"
    assert stopped.choices[0].finish_reason == "stop"


def _logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        max_completion_tokens=4,
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 4
    for token in found.content:
        assert token.top_logprobs[0].logprob == token.logprob <= 0
        assert bytes(token.bytes or []).decode() == token.token
    echoed = client.completions.create(
        model=MODEL, prompt=_PROMPT, temperature=0, echo=True, logprobs=2, max_tokens=1
    )
    lists = echoed.choices[0].logprobs
    assert lists is not None
    assert lists.tokens is not None
    assert lists.token_logprobs is not None
    assert "".join(lists.tokens) == echoed.choices[0].text
    assert lists.token_logprobs[0] is None
    assert all(value is not None for value in lists.token_logprobs[1:])


def _with_a_full_queue(client: openai.OpenAI) -> None:
    """Ask for more answers than there is room for beside a stream of many; see main's _FLAGS."""
    create = client.chat.completions.create
    with create(model=MODEL, messages=ASKED, n=99, max_tokens=2_000, stream=True) as busy:
        next(busy)
        create(model=MODEL, messages=ASKED, n=2)


def _errors(client: openai.OpenAI, server: Served) -> int:
    """Each wrong request raises the exception that the package has for it; says how many."""
    stranger = openai.OpenAI(base_url=server.v1, api_key="wrong", max_retries=0)
    hasty = openai.OpenAI(base_url=server.v1, api_key=KEY, max_retries=0, timeout=0.001)
    create = client.chat.completions.create
    cases: list[tuple[type[openai.APIError], str | None, str | None, Any]] = [
        (
            openai.AuthenticationError,
            None,
            "invalid_api_key",
            lambda: stranger.chat.completions.create(model=MODEL, messages=ASKED),
        ),
        (
            openai.NotFoundError,
            "model",
            "model_not_found",
            lambda: create(model="gpt-99", messages=ASKED),
        ),
        (
            openai.BadRequestError,
            "temperature",
            None,
            lambda: create(model=MODEL, messages=ASKED, temperature=1000),
        ),
        (
            openai.BadRequestError,
            "messages",
            "context_length_exceeded",
            lambda: create(model=MODEL, messages=[{"role": "user", "content": "word " * 9_000}]),
        ),
        (
            openai.RateLimitError,
            None,
            "queue_full",
            lambda: _with_a_full_queue(client),
        ),
        (
            openai.NotFoundError,
            None,
            "unsupported_route",
            lambda: client.moderations.create(model=MODEL, input="not here"),
        ),
        (
            openai.APITimeoutError,
            None,
            None,
            lambda: hasty.chat.completions.create(model=MODEL, messages=ASKED),
        ),
    ]
    for kind, param, code, call in cases:
        error = raised(kind, call)
        assert (error.param, error.code) == (param, code), error
    return len({kind for kind, *_ in cases})


async def _async_client(server: Served) -> int:
    """Streams side by side give what each gives alone; says how many."""

    async def streamed(client: openai.AsyncOpenAI, number: int) -> str:
        question: Any = [{"role": "user", "content": f"What is {number} + 17?"}]
        stream = await client.chat.completions.create(
            model=MODEL, messages=question, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with openai.AsyncOpenAI(base_url=server.v1, api_key=KEY, max_retries=0) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0)
        assert answer.choices[0].message.content == ANSWER
        texts = await asyncio.gather(*(streamed(client, number) for number in range(_AT_ONCE)))
        assert texts == [await streamed(client, number) for number in range(_AT_ONCE)], texts
        assert "12 + 17 = 29." in texts
        left = await client.completions.create(
            model=MODEL, prompt=_PROMPT, max_tokens=2_000, stream=True
        )
        await anext(aiter(left))
        await left.close()  # the server must let go of it; the books say whether it did
    return _AT_ONCE
