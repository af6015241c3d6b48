"""/v1/completions: nothing generated, the best of several, token ids, what harnesses read."""

from __future__ import annotations

import threading

import pytest

from radixlm.server.bodies.logprobs import CompletionLogprobs
from radixlm.server.pipeline import answer as answer_module
from tests.server_support import events, refused

PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]
LOGLIKELIHOOD = {"logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}


def joined(chunks) -> list[dict]:
    """Each choice's chunks together, in order of the choices."""
    made: dict[int, dict] = {}
    for entry in (entry for chunk in chunks for entry in chunk["choices"]):
        known = made.setdefault(entry["index"], {"index": entry["index"], "text": ""})
        known["text"] += entry["text"]
        lists = known.setdefault("logprobs", {name: [] for name in entry["logprobs"]})
        for name, items in entry["logprobs"].items():
            lists[name] += items
    return [made[index] for index in sorted(made)]


def tops(choice) -> list:
    return choice["logprobs"]["top_logprobs"]


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_may_be_wanted(real, stream):
    answer = real.complete(PROMPTS, max_tokens=0, stream=stream)
    if stream:
        chunks = events(answer)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
    else:
        choices = answer.json()["choices"]
        usage = answer.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 0)
    assert [(c["text"], c["finish_reason"]) for c in choices] == [("", "length")] * 2


def test_an_echo_without_an_answer_scores_the_prompt(real):
    """Older harnesses send max_tokens 0, newer ones 1 and drop the last entry."""
    older = real.complete(PROMPTS, max_tokens=0, **LOGLIKELIHOOD).json()["choices"]
    newer = real.complete(PROMPTS, max_tokens=1, **LOGLIKELIHOOD).json()["choices"]
    for prompt, zero, one in zip(PROMPTS, older, newer, strict=True):
        assert {len(values) for values in zero["logprobs"].values()} == {len(prompt)}
        assert {len(values) for values in one["logprobs"].values()} == {len(prompt) + 1}
        assert zero["logprobs"]["token_logprobs"][0] is None
        assert zero["logprobs"]["token_logprobs"][1:] == pytest.approx(
            one["logprobs"]["token_logprobs"][1:-1], abs=1e-4
        )
        assert zero["logprobs"]["tokens"] == one["logprobs"]["tokens"][:-1]
        assert zero["text"] == real.engine.tokenizer.decode(prompt)
        # What is read as "is this the likeliest continuation?"
        for token, best in zip(one["logprobs"]["tokens"][1:-1], tops(one)[1:-1], strict=True):
            assert token in best
            assert len(best) <= 2


def test_the_same_in_a_stream(real):
    [whole] = real.complete(PROMPTS[:1], max_tokens=0, **LOGLIKELIHOOD).json()["choices"]
    [chunk] = events(real.complete(PROMPTS[:1], max_tokens=0, stream=True, **LOGLIKELIHOOD))
    assert chunk["choices"][0]["logprobs"]["tokens"] == whole["logprobs"]["tokens"]
    assert chunk["choices"][0]["text"] == whole["text"]


def test_no_tokens_and_at_least_some_exclude_each_other(fake):
    assert refused(fake.complete(max_tokens=0, min_tokens=1))["param"] == "min_tokens"


def test_the_best_of_several_are_given(real):
    fields = {"max_tokens": 6, "temperature": 1.5, "seed": 3, "logprobs": 0}
    tries = real.complete("hello", n=6, **fields).json()["choices"]

    def score(choice) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    expected = [choice["text"] for choice in sorted(tries, key=score, reverse=True)[:2]]
    assert len({round(score(choice), 3) for choice in tries}) > 2
    answer = real.complete("hello", n=2, best_of=6, **fields).json()
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == sum(
        len(choice["logprobs"]["tokens"]) for choice in tries
    )
    unasked = {**fields, "logprobs": None}
    silent = real.complete("hello", n=2, best_of=6, **unasked).json()["choices"]
    assert [choice["text"] for choice in silent] == expected
    assert {choice["logprobs"] for choice in silent} == {None}


def test_the_best_of_each_prompt(real):
    fields = {"max_tokens": 4, "temperature": 1.5, "seed": 3, "best_of": 4, "echo": True}
    together = real.complete(PROMPTS, logprobs=0, **fields).json()["choices"]
    alone = [real.complete(p, logprobs=0, **fields).json()["choices"][0] for p in PROMPTS]
    assert [choice["index"] for choice in together] == [0, 1]
    assert [choice["text"] for choice in together] == [choice["text"] for choice in alone]
    for prompt, choice in zip(PROMPTS, together, strict=True):
        assert len(choice["logprobs"]["tokens"]) == len(prompt) + 4


def test_the_best_can_not_be_streamed(fake):
    assert refused(fake.complete(best_of=2, stream=True))["param"] == "best_of"
    assert fake.complete(n=2, best_of=2, stream=True).status_code == 200
    assert refused(fake.complete(n=3, best_of=2))["param"] == "best_of"


def test_token_ids_come_with_those_of_the_prompt(fake):
    choices = fake.complete(PROMPTS, n=2, max_tokens=3, return_token_ids=True).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2
    assert {len(choice["token_ids"]) for choice in choices} == {3}
    streamed = fake.complete(PROMPTS, max_tokens=3, return_token_ids=True, stream=True)
    seen: dict[int, list] = {0: [], 1: []}
    for chunk in events(streamed):
        [choice] = chunk["choices"]
        seen[choice["index"]].append(choice)
    for place, prompt in enumerate(PROMPTS):
        first, *others = seen[place]
        assert first["prompt_token_ids"] == prompt
        assert not any("prompt_token_ids" in choice for choice in others)


def test_token_ids_of_a_chat(fake):
    fields = {"max_tokens": 5, "return_token_ids": True, "n": 2}
    body = fake.chat(**fields).json()
    messages = [{"role": "user", "content": "hello"}]
    prompt = fake.post("/tokenize", messages=messages).json()["tokens"]
    assert body["prompt_token_ids"] == prompt
    ids = [choice["token_ids"] for choice in body["choices"]]
    assert [len(each) for each in ids] == [5, 5]
    chunks = events(fake.chat(stream=True, **fields))
    with_prompt = [chunk for chunk in chunks if "prompt_token_ids" in chunk]
    assert [chunk["prompt_token_ids"] for chunk in with_prompt] == [prompt] * 2
    assert all("role" in chunk["choices"][0]["delta"] for chunk in with_prompt)
    streamed: dict[int, list] = {0: [], 1: []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["token_ids"]
    assert list(streamed.values()) == ids
    assert "token_ids" not in fake.chat(max_tokens=1).json()["choices"][0]
    assert "prompt_token_ids" not in fake.chat(max_tokens=1).json()


def test_a_token_without_text_is_among_the_ids(real):
    """The stop token that ends an answer is no text, but it is one of its tokens."""
    bias = {"65": 100}
    fields = {"max_tokens": 3, "logit_bias": bias, "stop_token_ids": [65], "return_token_ids": True}
    whole = real.chat(**fields).json()["choices"][0]
    assert whole["token_ids"] == [65]
    chunks = events(real.chat(stream=True, **fields))
    streamed = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert streamed == [65]


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_character_at_a_prompt_s_end_is_told_once(real, stream):
    """Of ids, which may end anywhere: what the answer does not complete is the prompt's."""
    tokenizer = real.engine.tokenizer
    prompt = tokenizer.encode("ab🙂").tolist()[:-1]
    assert tokenizer.decode(prompt).count("\ufffd") == 1
    for echo, before in ((False, ""), (True, tokenizer.decode(prompt))):
        fields = {"regex": "[a-z]", "max_tokens": 4, "echo": echo, "stream": stream}
        answer = real.complete(prompt, **fields)
        entries = events(answer) if stream else [answer.json()]
        text = "".join(entry["choices"][0]["text"] for entry in entries)
        assert text[:-1] == before
        assert text[-1].islower()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("told", [{}, {"return_token_ids": True}, {"logprobs": 1}])
@pytest.mark.parametrize("left", [1, 2])
def test_a_character_that_the_answer_completes_is_echoed_once(real, stream, told, left):
    whole = real.engine.tokenizer.encode("ab🙂").tolist()
    prompt, rest = whole[:-left], whole[-left:]
    grammar = "start: " + " ".join(f"<[{token}]>" for token in rest)
    fields = {"ebnf": grammar, "max_tokens": left, "echo": True, "stream": stream}
    answer = real.complete(prompt, **fields, **told)
    entries = events(answer) if stream else [answer.json()]
    assert "".join(entry["choices"][0]["text"] for entry in entries) == "ab🙂"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_that_is_complete_at_the_end_is_found(real, stream):
    half = real.engine.tokenizer.encode("🙂").tolist()[0]
    fields = {"max_tokens": 1, "logit_bias": {str(half): 100}, "stop": "\ufffd", "stream": stream}
    answer = real.complete("hello", **fields)
    choices = [e["choices"][0] for e in (events(answer) if stream else [answer.json()])]
    assert "".join(choice["text"] for choice in choices) == ""
    assert choices[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored_once_for_all_its_answers(real, monkeypatch, stream):
    """And written once, off the event loop where it is long: else n times 4,000 ids keep all
    waiting.
    """
    prompts = [[*range(5, 205)], [*range(7, 107)]]
    fields = {"echo": True, "logprobs": 3, "max_tokens": 2, "temperature": 0}
    singles = [real.complete([ids], **fields).json()["choices"][0] for ids in prompts]
    real.request("POST", "/flush_cache")
    before = real.engine.stats().computed_tokens
    threads = []
    write = CompletionLogprobs.of_prompt

    def spy(*args):
        threads.append(threading.current_thread())
        return write(*args)

    monkeypatch.setattr(CompletionLogprobs, "of_prompt", spy)
    monkeypatch.setattr(answer_module, "MANY_LOGPROBS", 50)
    answer = real.complete(prompts, n=8, stream=stream, **fields)
    assert real.engine.stats().computed_tokens - before < 2 * 300
    assert len(threads) == len(prompts)
    assert threading.main_thread() not in threads
    choices = joined(events(answer)) if stream else answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [*range(16)]
    for choice in choices:
        single = singles[choice["index"] // 8]
        assert choice["text"] == single["text"]
        ours, theirs = choice["logprobs"], single["logprobs"]
        assert (ours["tokens"], ours["text_offset"]) == (theirs["tokens"], theirs["text_offset"])
        assert ours["token_logprobs"][1:] == pytest.approx(theirs["token_logprobs"][1:], abs=1e-3)
