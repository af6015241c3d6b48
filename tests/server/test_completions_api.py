"""/v1/completions: shapes of answers and streams, prompts of all four kinds, echo, logprobs."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.server_support import events, requests_seen


def test_an_answer_has_openai_s_shape(fake):
    body = fake.complete(max_tokens=4, model="test-model").json()
    assert body["object"] == "text_completion"
    assert body["model"] == "test-model"
    assert body["id"].startswith("cmpl-")
    [choice] = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4
    assert "cached_tokens" in usage["prompt_tokens_details"]


def test_sixteen_tokens_are_the_default(fake):
    assert fake.complete().json()["usage"]["completion_tokens"] == 16


def test_the_second_time_the_prompt_is_cached(fake):
    prompt = list(range(1, 60))
    first = fake.complete(prompt, max_tokens=2).json()["usage"]
    second = fake.complete(prompt, max_tokens=2).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == 58


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("ab", 1), (["ab", "cd"], 2), ([65, 66], 1), ([[65], [66, 67], [68]], 3)],
)
def test_prompts_of_every_kind(fake, prompt, count):
    choices = fake.complete(prompt, max_tokens=3).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(count))


def test_each_prompt_is_answered_as_if_alone(fake):
    together = fake.complete(["ab", "cde"], max_tokens=5).json()
    alone = [fake.complete(text, max_tokens=5).json() for text in ("ab", "cde")]
    assert [c["text"] for c in together["choices"]] == [a["choices"][0]["text"] for a in alone]
    assert together["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)


def test_n_choices_count_their_prompt_once(fake):
    body = fake.complete("zyx", n=3, best_of=3, max_tokens=2).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 6


def test_a_stream_is_the_same_text(fake):
    whole = fake.complete(max_tokens=8).json()["choices"][0]["text"]
    chunks = events(fake.complete(max_tokens=8, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_comes_last_in_a_stream_that_asked(fake):
    options = {"include_usage": True}
    *chunks, last = events(fake.complete(max_tokens=3, stream=True, stream_options=options))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert "cached_tokens" in last["usage"]["prompt_tokens_details"]


def test_choices_of_a_stream_carry_their_index(fake):
    chunks = events(fake.complete(["ab", "cd"], n=2, max_tokens=3, stream=True))
    texts = dict.fromkeys(range(4), "")
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    whole = fake.complete(["ab", "cd"], n=2, max_tokens=3).json()["choices"]
    assert texts == {choice["index"]: choice["text"] for choice in whole}


def test_stop_strings_are_left_out(fake):
    text = fake.complete(max_tokens=12).json()["choices"][0]["text"]
    stop = text[4:6]
    for stopped in (stop, [stop, "never there"]):
        choice = fake.complete(max_tokens=12, stop=stopped).json()["choices"][0]
        assert choice["text"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"
    chunks = events(fake.complete(max_tokens=12, stop=stop, stream=True))
    joined = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert joined == text[: text.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("prompt", ["hello", [65, 66]])
def test_echo_puts_the_prompt_in_front(fake, prompt):
    plain = fake.complete(prompt, max_tokens=3).json()["choices"][0]["text"]
    begin = prompt if isinstance(prompt, str) else fake.engine.tokenizer.decode(prompt)
    echoed = fake.complete(prompt, max_tokens=3, echo=True).json()["choices"][0]["text"]
    assert echoed == begin + plain
    chunks = events(fake.complete(prompt, max_tokens=3, echo=True, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == begin + plain


def test_logprobs_are_parallel_lists(real):
    choice = real.complete("hello", max_tokens=5, logprobs=2, temperature=0).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {5}
    assert logprobs["text_offset"][0] == 0
    assert all(len(best) <= 3 for best in logprobs["top_logprobs"])
    for token, logprob, best in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert logprob == pytest.approx(max(best.values()))
        assert token in best


@pytest.mark.parametrize("count", [0, 2])
def test_the_chosen_token_is_among_the_top_ones(real, count):
    fields = {"max_tokens": 12, "temperature": 2.0, "seed": 5, "echo": True}
    choice = real.complete("hello", logprobs=count, **fields).json()["choices"][0]
    logprobs = choice["logprobs"]
    tops = logprobs["top_logprobs"]
    assert tops[0] is None
    for token, best in zip(logprobs["tokens"][1:], tops[1:], strict=True):
        assert token in best
        assert len(best) <= count + 1


def test_echo_with_logprobs_covers_the_prompt(real):
    fields = {"max_tokens": 4, "logprobs": 1, "echo": True, "temperature": 0}
    whole = real.complete("hello", **fields).json()["choices"][0]
    logprobs = whole["logprobs"]
    assert logprobs["tokens"][:5] == list("hello")
    assert logprobs["text_offset"][:6] == [0, 1, 2, 3, 4, 5]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert {len(values) for values in logprobs.values()} == {9}
    assert whole["text"].startswith("hello")
    chunks = events(real.complete("hello", stream=True, **fields))
    streamed = [token for chunk in chunks for token in chunk["choices"][0]["logprobs"]["tokens"]]
    assert streamed == logprobs["tokens"]


def test_a_seed_makes_the_same_answer_and_choices_differ(real):
    fields = {"max_tokens": 8, "seed": 7, "n": 2, "temperature": 1.0}
    first, second = (real.complete("hello", **fields).json()["choices"] for _ in range(2))
    assert [choice["text"] for choice in first] == [choice["text"] for choice in second]
    assert first[0]["text"] != first[1]["text"]
    alone = real.complete("hello", **{**fields, "n": 1, "seed": 8}).json()["choices"][0]
    assert alone["text"] == first[1]["text"]


def test_the_largest_seed_may_have_several_choices(fake):
    assert len(fake.complete(seed=2**64 - 1, n=3, max_tokens=1).json()["choices"]) == 3


@pytest.mark.slow
def test_many_at_once_are_answered_as_one_by_one(fake):
    prompts = [[7] * (1 + i % 5) + [i] for i in range(40)]
    alone = [fake.complete(prompt, max_tokens=6).json()["choices"] for prompt in prompts]

    async def send(client: httpx.AsyncClient, place: int) -> str:
        body = {"prompt": prompts[place], "max_tokens": 6, "stream": place % 2 == 0}
        answer = await client.post("/v1/completions", json=body)
        if body["stream"]:
            return "".join(chunk["choices"][0]["text"] for chunk in events(answer))
        return answer.json()["choices"][0]["text"]

    async def send_all() -> list[str]:
        transport = httpx.ASGITransport(fake.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await asyncio.gather(*(send(client, place) for place in range(40)))

    assert asyncio.run(send_all()) == [choices[0]["text"] for choices in alone]


def test_biases_stop_tokens_and_namespaces_arrive(real):
    sent = real.complete("hi", max_tokens=3, logit_bias={"65": 100}, temperature=0).json()
    assert sent["choices"][0]["text"] == "AAA"
    sent = real.complete("hi", max_tokens=3, logit_bias={"65": 100}, stop_token_ids=[65]).json()
    assert sent["choices"][0]["finish_reason"] == "stop"
    assert sent["usage"]["completion_tokens"] == 1
    prompt = list(range(40))
    counts = [
        real.complete(prompt, max_tokens=1, cache_salt=salt).json()["usage"]
        for salt in ("a", "b", "a")
    ]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in counts]
    assert cached == [0, 0, 39]


def test_the_api_key_is_the_tenant(monkeypatch, fake):
    seen = requests_seen(fake.engine, monkeypatch)
    for headers in ({"Authorization": "Bearer mine"}, {"Authorization": "Basic x"}, {}):
        body = {"prompt": "hello", "max_tokens": 1}
        assert fake.request("POST", "/v1/completions", json=body, headers=headers).is_success
    messages = [{"role": "user", "content": "hello"}]
    body = {"messages": messages, "max_tokens": 1}
    headers = {"Authorization": "bearer yours"}
    assert fake.request("POST", "/v1/chat/completions", json=body, headers=headers).is_success
    mine, *nobody, yours = (request.tenant for request in seen)
    assert nobody == ["", ""]
    assert "" != mine != yours != ""
    assert "mine" not in mine


def test_token_ids_come_when_asked_for(fake):
    whole = fake.complete([5, 6, 7], max_tokens=6, return_token_ids=True).json()
    ids = whole["choices"][0]["token_ids"]
    assert len(ids) == 6
    streamed = fake.complete([5, 6, 7], max_tokens=6, return_token_ids=True, stream=True)
    parts = [choice["token_ids"] for event in events(streamed) for choice in event["choices"]]
    assert [token for part in parts for token in part] == ids
    plain = fake.complete([5, 6, 7], max_tokens=6).json()
    assert "token_ids" not in plain["choices"][0]
