"""Answers that follow a grammar, over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial

import pytest

from radixlm.core.grammar import Grammar
from radixlm.core.sampling import SamplingParams
from radixlm.engine.mailbox import TaskMailbox
from radixlm.structured_output import Compiler, compiler
from radixlm.structured_output.trial import SECONDS, Trial
from tests.server_support import Client, events, fake_engine, idle_and_whole, refused, until

USER = {"role": "user", "content": "hello"}
CODE = "[a-c]{3}-[0-9]{4}"
WANTED = {
    "type": "json_schema",
    "json_schema": {
        "name": "size",
        "strict": True,
        "schema": {"type": "array", "items": {"enum": ["S", "M"]}, "maxItems": 1, "minItems": 1},
    },
}


def test_chat_follows_a_schema(fake):
    for _ in range(2):
        choice = fake.chat(response_format=WANTED).json()["choices"][0]
        assert json.loads(choice["message"]["content"]) in (["S"], ["M"])
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("late", [False, True])
def test_a_dead_end_is_that_answers_error(fake, monkeypatch, late):
    """This model has no token for a space, which shows only after the first letter.

    late: the letter and the error are read together, as on a machine that has other work.
    """
    accept, held = TaskMailbox.accept, []

    def accept_all(mailbox, outputs):
        held.extend(outputs)
        if held[-1].finished:
            accept(mailbox, held[:])
            held.clear()

    if late:
        monkeypatch.setattr(TaskMailbox, "accept", accept_all)
    assert "any further" in refused(fake.complete(regex="[ab] c"))["message"]
    first, last = events(fake.complete(regex="[ab] c", stream=True))
    assert first["choices"][0]["text"] in ("a", "b")
    assert "any further" in last["error"]["message"]
    assert fake.complete(regex="ac").json()["choices"][0]["text"] == "ac"


def test_text_is_free(fake):
    free = fake.chat(max_tokens=8, seed=1).json()["choices"][0]["message"]
    for wanted in ({"type": "text"}, None):
        assert (
            fake.chat(max_tokens=8, seed=1, response_format=wanted).json()["choices"][0]["message"]
            == free
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_every_choice_follows_it_streamed_or_not(fake, stream, n):
    answer = fake.complete(regex=CODE, n=n, stream=stream, max_tokens=20)
    texts = [""] * n
    for body in events(answer) if stream else [answer.json()]:
        for choice in body["choices"]:
            texts[choice["index"]] += choice["text"]
    assert all(re.fullmatch(CODE, text) for text in texts)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"regex": CODE}, CODE),
        ({"ebnf": 'start: "yes" | "no"'}, "yes|no"),
        ({"ebnf": 'root ::= "a" [0-9]'}, "a[0-9]"),
        ({"json_schema": {"enum": ["x", 1]}}, '"x"|1'),
        ({"json_schema": '{"enum": ["x", 1]}'}, '"x"|1'),
    ],
)
def test_sglangs_names_on_all_routes(fake, fields, wanted):
    native = fake.generate(sampling_params={**fields, "max_new_tokens": 30}).json()
    assert re.fullmatch(wanted, native["text"])
    assert native["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
    text = fake.complete(**fields, max_tokens=30).json()["choices"][0]
    assert re.fullmatch(wanted, text["text"])
    chat = fake.chat(**fields).json()["choices"][0]
    assert re.fullmatch(wanted, chat["message"]["content"])


def test_an_answer_that_is_cut_says_so(fake):
    choice = fake.complete(regex="a{40}", max_tokens=7).json()["choices"][0]
    assert choice["text"] == "a" * 7
    assert choice["finish_reason"] == "length"


def test_forced_tokens_count_as_the_answers(fake):
    usage = fake.complete(regex="abcdef", max_tokens=10).json()["usage"]
    assert usage["completion_tokens"] == 6


def test_a_bad_grammar_leaves_nothing_behind(fake):
    bad = {"type": "integer", "minimum": 5, "maximum": 3}
    for stream in (False, True):
        error = refused(fake.complete(json_schema=bad, n=4, stream=stream))
        assert error["param"] == "json_schema"
        assert "minimum (5)" in error["message"]
    assert idle_and_whole(fake.engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER], "regex": "a"}),
        ("/v1/completions", {"prompt": "hello", "regex": "a"}),
        ("/generate", {"text": "hello", "sampling_params": {"regex": "a"}}),
        (
            "/v1/responses",
            {"input": "hello", "text": {"format": {"type": "json_object"}}},
        ),
        (
            "/v1/messages",
            {
                "messages": [USER],
                "max_tokens": 4,
                "output_config": {"format": {"type": "json_schema", "schema": {"const": 1}}},
            },
        ),
    ],
)
def test_a_process_that_can_not_start_is_told_of_as_described(monkeypatch, path, body):
    engine, _ = fake_engine()
    client = Client(engine)
    monkeypatch.setattr("sys.executable", "/nowhere/at/all")
    assert "did not start" in refused(client.post(path, **body), 503)["message"]
    told = client.get("/openapi.json").json()["paths"][path]["post"]["responses"]["503"]
    assert "to try grammars in" in told["description"]
    asyncio.run(engine.close())


@pytest.fixture
def short_trials(monkeypatch):
    """A grammar may take a tenth of what it may take elsewhere."""
    monkeypatch.setattr(compiler, "Trial", partial(Trial, seconds=SECONDS / 10))


@pytest.mark.slow
@pytest.mark.usefixtures("short_trials")
def test_a_slow_grammar_holds_up_nobody():
    """Others' requests are answered while one's grammar is compiled, for as long as that takes."""
    engine, _ = fake_engine()
    order = []

    async def ask(name: str, params: SamplingParams) -> None:
        try:
            await engine.generate("hello", params)
            order.append(name)
        except ValueError:
            order.append(f"{name} was refused")

    async def both() -> None:
        slow = Grammar.json_schema({"type": "integer", "multipleOf": 999_983})
        task = asyncio.create_task(ask("slow", SamplingParams(grammar=slow)))
        await asyncio.sleep(0)
        await ask("other", SamplingParams(max_tokens=3))
        await task
        await engine.close()

    asyncio.run(both())
    assert order == ["other", "slow was refused"]


def test_leaving_ends_a_constrained_answer():
    engine, _ = fake_engine(seconds=0.01)

    async def leave() -> None:
        params = SamplingParams(max_tokens=1_000, grammar=Grammar.regex("[ab]*"))
        stream = engine.stream("hello", params)
        await anext(stream)
        await stream.aclose()
        assert await asyncio.to_thread(until, lambda: idle_and_whole(engine))
        await engine.close()

    asyncio.run(leave())


@pytest.mark.slow
def test_structured_output_is_described(fake):
    schemas = fake.get("/openapi.json").json()["components"]["schemas"]
    assert {"json_schema", "regex", "ebnf", "response_format"} <= schemas["ChatBody"][
        "properties"
    ].keys()
    assert "regex" in schemas["NativeParams"]["properties"]
    assert schemas["ResponseFormat"]["properties"]["type"]["enum"] == [
        "text",
        "json_object",
        "json_schema",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("short_trials")
@pytest.mark.parametrize("by_name", [True, False])
def test_a_request_is_aborted_while_its_grammar_is_compiled(by_name):
    """It ends at once, and never runs. Another one that waits for a grammar goes on."""
    engine, _ = fake_engine()
    slow = Grammar.json_schema({"type": "integer", "multipleOf": 999_983})

    async def go() -> None:
        params = SamplingParams(grammar=slow)
        first = asyncio.create_task(engine.generate("hello", params, request_id="first"))
        waits = SamplingParams(grammar=Grammar.regex("abc"))
        second = asyncio.create_task(engine.generate("hello", waits, request_id="second"))
        third = asyncio.create_task(engine.generate("hello", waits, request_id="third"))
        await asyncio.sleep(0)
        assert engine.abort(["first", "second"] if by_name else None) == (2 if by_name else 3)
        for task in (first, second) if by_name else (first, second, third):
            output = await task
            assert output.finish_reason == "abort"
            assert not output.token_ids
        if by_name:
            assert (await third).text == "abc"
        assert engine.abort(None) == 0
        await engine.close()

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.usefixtures("short_trials")
def test_what_waits_for_another_choice_s_grammar_is_aborted_too():
    """All choices of one HTTP request begin together."""
    engine, _ = fake_engine()
    slow = SamplingParams(grammar=Grammar.json_schema({"type": "integer", "multipleOf": 999_983}))

    async def go() -> None:
        requests = [
            engine.request("hello", slow, request_id="slow"),
            engine.request("hello", SamplingParams(max_tokens=1), request_id="plain"),
        ]
        outputs = aiter(engine.client.stream(requests))
        first = asyncio.create_task(anext(outputs))
        await asyncio.sleep(0)
        assert engine.abort(["plain"]) == 1
        assert engine.abort(["plain"]) == 0
        assert engine.abort(["slow"]) == 1
        ended = [await first, await anext(outputs)]
        assert {each.request_id: each.finish_reason for each in ended} == {
            "slow": "abort",
            "plain": "abort",
        }
        assert engine.stats().requests_aborted == 0
        await engine.close()

    asyncio.run(go())


def test_a_misspelt_keyword_is_an_error():
    engine, _ = fake_engine()
    with pytest.raises(TypeError, match="priorty"):
        engine.request("hello", SamplingParams(), priorty=3)
    asyncio.run(engine.close())


def test_a_tenant_s_grammars_are_counted_as_its_own(monkeypatch):
    engine, _ = fake_engine()
    asked = []
    monkeypatch.setattr(Compiler, "submit", lambda *given: asked.append(given[-1]) or 1 / 0)

    async def go() -> None:
        params = SamplingParams(grammar=Grammar.regex("abc"))
        with pytest.raises(ZeroDivisionError):
            await engine.generate("hello", params, tenant="mine")
        await engine.close()

    asyncio.run(go())
    assert asked == ["mine"]
