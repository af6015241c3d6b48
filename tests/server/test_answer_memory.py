"""Conversations that go on from the tokens that were sampled, on each of the routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models

from radixlm.engine.limits import Limits
from radixlm.server.pipeline.answer_memory import MOST_ANSWERS, AnswerMemory, Span
from radixlm.server.pipeline.service import Service
from radixlm.text.tokenizer import Tokenizer
from tests.engines import byte_tokenizer
from tests.server_support import Client, fake_engine, in_event_loop
from tests.text_samples import byte_level, metaspace, sentencepiece_like

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FIRST: list[Any] = [{"role": "user", "content": "a"}]


@pytest.fixture
def client() -> Iterator[Client]:
    """The tokenizer would write `hello` as one token, the model writes it as five."""
    engine, _ = fake_engine(script=[*"hello"])
    assert len(engine.tokenizer.encode("hello")) < len("hello")
    yield Client(engine)
    asyncio.run(engine.close())


def asked(client: Client, path: str, messages: list[Any], **more: Any) -> tuple[int, int, int]:
    """Prompt, cached and answered tokens of the next turn."""
    headers = more.pop("headers", {})
    body = {"input" if path == RESPONSES else "messages": messages, **more}
    if path == MESSAGES:
        body["max_tokens"] = 20
    answer = client.request("POST", path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    if path == CHAT:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], cached, usage["completion_tokens"]
    if path == RESPONSES:
        cached = usage["input_tokens_details"]["cached_tokens"]
        return usage["input_tokens"], cached, usage["output_tokens"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached, usage["output_tokens"]


def then(answer: str = "hello", content: Any = "b") -> list[Any]:
    said = {"role": "assistant", "content": answer}
    return [*FIRST, said, {"role": "user", "content": content}]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("other", [CHAT, RESPONSES, MESSAGES])
def test_what_was_sampled_is_cached(client: Client, path: str, other: str) -> None:
    prompt, _, answer = asked(client, path, FIRST)
    _, cached, _ = asked(client, other, then())
    assert cached == prompt + answer - 1


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_so_it_is_explained(client: Client, path: str) -> None:
    prompt, _, answer = asked(client, path, FIRST)
    body = {"input" if path == RESPONSES else "messages": then(), "route": path}
    if path == MESSAGES:
        body["max_tokens"] = 20
    [report] = client.post("/cache/explain", **body).json()["reports"]
    assert report["cached_tokens"]["device"] == prompt + answer - 1


@pytest.mark.parametrize("stream", [False, True])
def test_turn_after_turn(client: Client, stream: bool) -> None:
    messages = list(FIRST)
    for _ in range(4):
        if stream:
            fields = {"messages": messages, "stream": True}
            assert client.post(CHAT, **fields).status_code == 200
        before = asked(client, CHAT, messages)
        messages += then()[1:]
        _, cached, _ = asked(client, CHAT, messages)
        assert cached == before[0] + before[2] - 1


def test_parts_are_the_text_they_render_to(client: Client) -> None:
    prompt, _, answer = asked(client, CHAT, [{"role": "user", "content": [text("a")]}])
    _, cached, _ = asked(client, CHAT, then())
    assert cached == prompt + answer - 1


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"Authorization": "Bearer another"}},
        {"cache_salt": "another"},
        {"extra_key": "another"},
    ],
)
def test_nobody_elses(client: Client, more: dict[str, Any]) -> None:
    """Its prompt is what the tokenizer makes of it, as for who never asked before."""
    own = asked(client, CHAT, FIRST)
    plain, _, _ = asked(client, CHAT, then(), **more)
    kept, _, _ = asked(client, CHAT, then())
    assert own[2] == 6
    assert kept == plain + 4


@pytest.mark.parametrize(
    ("path", "field"), [(CHAT, "stop"), (MESSAGES, "stop_sequences")], ids=["chat", "messages"]
)
def test_what_comes_before_a_stop_string_is_cached(client: Client, path: str, field: str) -> None:
    """The tokenizer would write `hel` as two tokens, `he` first; the model wrote `h`."""
    prompt, _, answer = asked(client, path, FIRST, **{field: ["lo"]})
    assert answer == len("hello")
    _, cached, _ = asked(client, path, then("hel"))
    assert cached == prompt + len("hel")


def test_another_answer_is_tokenized(client: Client) -> None:
    prompt, _, _ = asked(client, CHAT, FIRST)
    _, cached, _ = asked(client, CHAT, then("jello"))
    assert cached == prompt


def test_remembering_is_not_the_loop_s_work(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, in_loop = AnswerMemory.remember, []

    def remember(*given: Any) -> None:
        in_loop.append(in_event_loop())
        inner(*given)

    monkeypatch.setattr(AnswerMemory, "remember", remember)
    asked(client, CHAT, FIRST)
    assert in_loop == [False]


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, metaspace])
def test_text_around_answers_is_what_it_was(make: Callable[[], Any]) -> None:
    """No space is put where a known answer begins or ends, nor where a spelling is broken up."""
    tokenizer = Tokenizer(make(), {})
    engine = SimpleNamespace(tokenizer=tokenizer, limits=Limits(100, 100, tokenizer.vocab_size))
    text = "a:hello;b:<|s>: the;\nc"
    known = [
        Span(
            text.index(answer),
            text.index(answer) + len(answer),
            tokenizer.encode_after(answer),
        )
        for answer in ("hello", " the")
    ]
    service = SimpleNamespace(engine=engine)
    service.check_text = partial(Service.check_text, service)
    key = Service.encode(
        service,
        text,
        add_special_tokens=False,
        param="messages",
        break_mark="|",
        known=known,
    )
    assert tokenizer.decode(key) == text.replace("|", "")


class TestMemory:
    """With texts as a template might write them, a token for each byte."""

    def recall(self, memory: AnswerMemory, prompt: str, answer: str = "", whose: str = "me") -> Any:
        messages = [{"role": "user", "content": prompt}]
        text = f"{prompt}>"
        if answer:
            messages += [{"role": "assistant", "content": answer}]
            text += f"{answer};"
        return memory.recall(text, [whose], messages)

    def said(self, memory: AnswerMemory, prompt: str, answer: str) -> None:
        asked = self.recall(memory, prompt).asked
        memory.remember(asked, np.array([*f"{prompt}>".encode()]), self.tokens(answer))

    def tokens(self, answer: str) -> list[int]:
        return byte_tokenizer().encode(answer).tolist()

    def test_the_longest_that_is_there(self) -> None:
        memory = AnswerMemory(byte_tokenizer(), 1_000)
        for answer in ("ye", "yes", "yesterday"):
            self.said(memory, "a", answer)
        [span] = self.recall(memory, "a", "yes!").spans
        assert (span.start, span.stop, span.tokens.tolist()) == (2, 5, self.tokens("yes"))
        [span] = self.recall(memory, "a", "no").spans
        assert (span.start, span.stop, span.tokens.size) == (2, 2, 0)
        assert not self.recall(memory, "b", "yes").spans
        assert not self.recall(memory, "a", "yes", whose="you").spans

    def test_a_text_that_begins_in_another_way(self) -> None:
        """As where the template drops what it wrote before."""
        memory = AnswerMemory(byte_tokenizer(), 1_000)
        self.said(memory, "a", "yes")
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "yes"}]
        assert memory.recall("a>yes", ["me"], messages).spans
        assert not memory.recall("A>yes", ["me"], messages).spans

    @pytest.mark.parametrize(
        ("spelled", "stop", "kept"),
        [
            (["He", "llo", "!"], "!", 2),
            (["He", "llo", " w"], "o w", 1),
            (["He", "llo", "!!"], "!", 2),
            (["He", "llo", "oo"], "oo", 1),
            (["He"], "e", 0),
            (["?"], "!", 0),
        ],
    )
    def test_the_tokens_before_a_stop_string(
        self, spelled: list[str], stop: str, kept: int
    ) -> None:
        """Whole ones, up to where the last one made it complete."""
        vocabulary = {text: place for place, text in enumerate(["a", *spelled])}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, "a"))
        backend.decoder = decoders.Fuse()
        memory = AnswerMemory(Tokenizer(backend, {}), 1_000)
        asked = self.recall(memory, "a").asked
        sampled = [vocabulary[text] for text in spelled]
        memory.remember(asked, np.array([0]), sampled, stop)
        spans = self.recall(memory, "a", "".join(spelled)).spans
        assert [token for span in spans for token in span.tokens.tolist()] == sampled[:kept]

    @pytest.mark.parametrize(("said", "stop", "kept"), [("yes→", "→", 3), ("a→é", "→é", 1)])
    def test_a_stop_string_may_end_with_a_character_of_several_tokens(
        self, said: str, stop: str, kept: int
    ) -> None:
        memory = AnswerMemory(byte_tokenizer(), 1_000)
        asked = self.recall(memory, "a").asked
        memory.remember(asked, byte_tokenizer().encode("a>"), self.tokens(said), stop)
        [span] = self.recall(memory, "a", said).spans
        assert span.tokens.tolist() == self.tokens(said)[:kept]

    def test_the_oldest_makes_room(self) -> None:
        memory = AnswerMemory(byte_tokenizer(), 100)
        for prompt in "abc":
            self.said(memory, prompt, "x")
        assert self.recall(memory, "a", "x").spans
        self.said(memory, "d", "x")
        known = [prompt for prompt in "abcd" if self.recall(memory, prompt, "x").spans]
        assert known == ["a", "c", "d"]
        self.said(memory, "e", "x" * 200)
        assert not any(self.recall(memory, prompt, "x").spans for prompt in "abcde")

    def test_so_many_answers_to_one_prompt(self) -> None:
        memory = AnswerMemory(byte_tokenizer(), 100_000)
        for place in range(MOST_ANSWERS + 1):
            self.said(memory, "a", f"{place}.")
        assert self.recall(memory, "a", "1.").spans[0].stop == 4
        assert self.recall(memory, "a", "0.").spans[0].stop == 2


class TestForged:
    """With special tokens, and texts as a template might write them."""

    MESSAGES: tuple[dict[str, Any], ...] = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "hello"},
    )

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(byte_level(), {})

    def spelled(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """A token for each character."""
        return [token for letter in text for token in tokenizer.encode(letter).tolist()]

    def recalled(self, tokenizer: Tokenizer, *answers: list[int], text: str = "hello") -> list[int]:
        memory = AnswerMemory(tokenizer, 1_000)
        asked = memory.recall("a>", ["me"], self.MESSAGES[:1]).asked
        for answer in answers:
            memory.remember(asked, tokenizer.encode("a>"), answer)
        spans = memory.recall(f"a>{text}<|end|>", ["me"], self.MESSAGES).spans
        return spans[0].tokens.tolist() if spans else []

    def test_letters_are_no_end_of_turn(self, tokenizer: Tokenizer) -> None:
        end = tokenizer.encode("<|end|>").tolist()
        said = self.spelled(tokenizer, "hello")
        assert self.recalled(tokenizer, [*said, *end]) == [*said, *end]
        assert self.recalled(tokenizer, self.spelled(tokenizer, "hello<|end|>")) == []
        assert self.recalled(tokenizer, [*self.spelled(tokenizer, "hello<|end|>"), *end]) == []

    def test_the_first_of_the_same_text_stays(self, tokenizer: Tokenizer) -> None:
        first, other = tokenizer.encode("hello").tolist(), self.spelled(tokenizer, "hello")
        assert first != other
        assert self.recalled(tokenizer, first, other) == first

    @pytest.mark.parametrize("text", ["<think>hello", "hello<think>"])
    def test_letters_are_no_added_token(self, tokenizer: Tokenizer, text: str) -> None:
        """Special or not: the template's own is one token."""
        before, after = (self.spelled(tokenizer, part) for part in text.split("<think>"))
        sampled = [*before, tokenizer.token_id("<think>"), *after]
        assert self.recalled(tokenizer, sampled, text=text) == sampled
        assert self.recalled(tokenizer, self.spelled(tokenizer, text), text=text) == []

    @pytest.mark.parametrize("said", ["hello<", "hello<|end|"])
    def test_letters_are_no_beginning_of_one(self, tokenizer: Tokenizer, said: str) -> None:
        """Where an answer was cut off there, and the template goes on with all of it."""
        cut, whole = self.spelled(tokenizer, said), self.spelled(tokenizer, "hello")
        assert self.recalled(tokenizer, cut) == []
        assert self.recalled(tokenizer, cut, whole) == whole
        assert self.recalled(tokenizer, cut, text=f"{said}|") == cut

    def test_no_prompt_ends_within_one(self, tokenizer: Tokenizer) -> None:
        """As where it is the beginning of an answer that was to be gone on with."""
        memory = AnswerMemory(tokenizer, 1_000)
        asked = memory.recall("a><thi", ["me"], self.MESSAGES[:1]).asked
        memory.remember(asked, tokenizer.encode("a><thi"), self.spelled(tokenizer, "nk>hello"))
        assert not memory.recall("a><think>hello", ["me"], self.MESSAGES).spans
        assert memory.recall("a><thinn", ["me"], self.MESSAGES).spans
