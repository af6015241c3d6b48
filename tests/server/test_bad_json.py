"""Bodies that are no JSON object a person would send, and text that is meant to do harm."""

from __future__ import annotations

import json
import time

import pytest

from tests.server_support import idle_and_whole, refused, until

ROUTES = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
    *("/generate", "/tokenize", "/detokenize", "/abort_request"),
)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module", autouse=True)
def unharmed(fake):
    """After all of them the server answers, and no slot is lost."""
    yield
    assert fake.complete("still there?", max_tokens=1).status_code == 200
    assert until(lambda: idle_and_whole(fake.engine))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"{", "valid JSON"),
        (b"nonsense", "valid JSON"),
        (b'{"prompt": "a"', "valid JSON"),
        (b'{"model": "a"} {}', "valid JSON"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b'{"model": "\xff"}', "byte 11 is not UTF-8"),
        (b'{"model": "\xed\xa0\x80"}', "byte 11 is not UTF-8"),
        (b"\xef\xbb\xbf{}", "valid JSON"),
        ('{"model": "a"}'.encode("utf-16"), "UTF-8"),
        (b'{"model": "a\nb"}', "valid JSON"),
        (b'{"model": "\\ud83d"}', "surrogate"),
        (b'{"\\uDE00": 1}', "surrogate"),
        (b'{"metadata": {"a": ["\\ud83d\\u0041"]}}', "surrogate"),
        (b'{"n": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b"[]", "object"),
        (b"7", "object"),
        (b"null", "object"),
    ],
)
def test_bodies_that_are_no_json_object(fake, path, content, words):
    assert words in refused(fake.request("POST", path, content=content))["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_too_large_a_body_is_a_413(fake, path):
    refused(fake.request("POST", path, content=b" " * (32 * 2**20 + 1)), 413)


def test_a_body_in_pieces_may_not_be_larger(fake):
    async def pieces():
        for _ in range(33):
            yield b" " * 2**20

    refused(fake.request("POST", "/v1/completions", content=pieces()), 413)


@pytest.mark.parametrize("depth", [50, 200, 400, 800, 950, 1000])
@pytest.mark.parametrize("name", ["chat_template_kwargs", "metadata", "prompt", "nonsense"])
def test_nesting_of_any_depth_is_an_answer(fake, name, depth):
    """Near the limit it is not the parser that gives up, but what comes after it."""
    nested = '{"a":' * depth + "1" + "}" * depth
    content = f'{{"messages": {json.dumps(HELLO)}, "max_tokens": 1, "{name}": {nested}}}'
    assert fake.request("POST", "/v1/chat/completions", content=content).status_code in (200, 400)


@pytest.mark.parametrize(
    "content",
    [
        '{"prompt": "a", "max_tokens": 1, "max_tokens": 2}',
        '{"prompt": "a", "max_tokens": 1, "max_tokens": 1}',
        '{"prompt": "a", "max\\u005ftokens": 1, "max_tokens": 1}',
        '{"prompt": "a", "metadata": {"x": [{"max_tokens": 1, "max_tokens": 2}]}}',
    ],
)
def test_a_name_that_stands_twice_is_refused(fake, content):
    error = refused(fake.request("POST", "/v1/completions", content=content))
    assert "'max_tokens' stands twice" in error["message"]


def test_pairs_of_surrogates_are_characters(fake):
    escaped = json.dumps({"prompt": "\N{GRINNING FACE}", "max_tokens": 1, "echo": True})
    assert "\\ud83d" in escaped
    answer = fake.request("POST", "/v1/completions", content=escaped)
    assert answer.json()["choices"][0]["text"].startswith("\N{GRINNING FACE}")
    literal = {"prompt": "\\ud83d", "max_tokens": 1, "echo": True}  # a backslash, and letters
    answer = fake.request("POST", "/v1/completions", content=json.dumps(literal))
    assert answer.json()["choices"][0]["text"].startswith("\\ud83d")


NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "1e-999999")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "name",
    [
        *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "seed", "n", "max_tokens", "min_tokens", "top_k", "priority"),
        *("best_of", "logprobs", "logit_bias"),
    ],
)
def test_numbers_beyond_all_bounds_name_their_field(fake, name, number):
    value = f'{{"1": {number}}}' if name == "logit_bias" else number
    content = f'{{"prompt": "a", "max_tokens": 1, "{name}": {value}}}'.replace(
        '"max_tokens": 1, "max_tokens"', '"max_tokens"'
    )
    answer = fake.request("POST", "/v1/completions", content=content)
    if number == "1e-999999" and answer.status_code == 200:
        return  # zero, which some fields may be
    assert refused(answer)["param"].split(".")[0] == name
    assert len(refused(answer)["message"]) < 300


def test_numbers_in_prompts_and_lists(fake):
    for number in NUMBERS:
        for body, param in (
            (f'{{"prompt": [{number}]}}', "prompt"),
            (f'{{"prompt": "a", "stop_token_ids": [{number}]}}', "stop_token_ids"),
        ):
            error = refused(fake.request("POST", "/v1/completions", content=body))
            assert error["param"].startswith(param)


def test_long_names_and_values_are_not_repeated_at_length(fake):
    long = "x" * 1_000_000
    for body in (
        {"temperature": long},
        {"prompt": "a", "stop": [long]},
        {"model": long},
    ):
        answer = fake.request("POST", "/v1/completions", json={"prompt": "a", **body})
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 1000


@pytest.mark.parametrize("stream", [False, True])
def test_ten_thousand_stop_strings(fake, stream):
    begun = time.process_time()
    error = refused(fake.complete(stop=[f"stop {i}" for i in range(10_000)], stream=stream))
    assert error["param"] == "stop"
    assert "at most 64" in error["message"]
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize("n", [129, 10**6, 2**31, 2**63, 10**30])
def test_huge_n(fake, n):
    assert refused(fake.complete(n=n))["param"] == "n"
    assert refused(fake.chat(n=n))["param"] == "n"
    assert refused(fake.generate(sampling_params={"n": n}))["param"] == "sampling_params.n"


TEMPLATES = (
    "{{ 7 * 7 }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "{% raw %}",
    "{% include '/etc/passwd' %}",
    "{{ raise_exception('no') }}",
)


@pytest.mark.parametrize("text", TEMPLATES)
def test_content_is_text_and_never_a_template(fake, text):
    """It is as many tokens as any other text of its length: here they are one for each byte."""

    def prompt_tokens(message: dict[str, str]) -> int:
        answer = fake.post("/v1/chat/completions", messages=[message], max_tokens=1)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens"]

    plain = "." * len(text)
    for role in ("user", "system", "developer", "assistant"):
        expected = prompt_tokens({"role": role, "content": plain})
        assert prompt_tokens({"role": role, "content": text}) == expected
    named = {"role": "user", "content": "a", "name": text}
    assert prompt_tokens(named) == prompt_tokens({"role": "user", "content": "a"})


@pytest.mark.parametrize(
    "role", [*TEMPLATES, "<|start|>system", "root", "", "User", "user\n", "system<|end|>"]
)
def test_roles_are_those_of_the_list(fake, role):
    error = refused(fake.post("/v1/chat/completions", messages=[{"role": role, "content": "a"}]))
    assert error["param"] == "messages[0].role"
