"""Stop strings count from the end of an answer's thoughts on, by every route that has any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from radixlm.parsers import harmony
from tests.server_support import CHATML, NAME, Client, events, fake_engine, idle_and_whole, until

THOUGHT, ANSWER = "is it Rome? No: Paris", "It is Paris, not Rome."
_OFF = "{% if add_generation_prompt and enable_thinking is false %}<think></think>{% endif %}"
TAGGED = CHATML + _OFF  # the model opens its thoughts
OPENED = CHATML.replace("assistant\n", "assistant\n<think>\n")
HARMONY = "Valid channels: analysis, final.\n" + CHATML.replace("assistant\n", "assistant")
CHANNELS = (  # these engines end at <|end|>
    f"<|channel|>analysis<|message|>{THOUGHT}<|call|>"
    f"<|start|>assistant<|channel|>final<|message|>{ANSWER}"
)
# By name: the template, what the model writes, and special tokens.
MODELS: dict[str, tuple[str, str, Sequence[str]]] = {
    "opens": (TAGGED, f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}", ()),
    "opened": (OPENED, f"{THOUGHT}\n</think>\n\n{ANSWER}", ()),
    "special": (TAGGED, f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}", ("<think>", "</think>")),
    "channels": (HARMONY, CHANNELS, harmony.MARKERS),
}


@contextmanager
def served(name: str) -> Iterator[Client]:
    template, script, special = MODELS[name]
    engine, _ = fake_engine(template=template, script=script, special=special)
    yield Client(engine)
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def read(client: Client, **fields: Any) -> tuple[str, str, str | None]:
    """Thoughts, text and the reason of the end; whole and streamed they are the same."""
    choice = client.chat(**fields).json()["choices"][0]
    message = choice["message"]
    whole = message.get("reasoning_content", ""), message["content"] or "", choice["finish_reason"]
    thoughts = text = ""
    reason = None
    for event in events(client.chat(stream=True, **fields)):
        for entry in event["choices"]:
            thoughts += entry["delta"].get("reasoning_content", "")
            text += entry["delta"].get("content") or ""
            reason = entry["finish_reason"] or reason
    assert (thoughts, text, reason) == whole
    return whole


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_stop_string_in_thoughts_is_passed_over(name: str, logprobs: bool) -> None:
    with served(name) as client:
        asked: dict[str, Any] = {"max_tokens": 300, "logprobs": logprobs}
        assert read(client, **asked) == (THOUGHT, ANSWER, "stop")
        assert read(client, **asked, stop=["Rome"]) == (THOUGHT, "It is Paris, not ", "stop")
        assert read(client, **asked, stop=["No:"]) == (THOUGHT, ANSWER, "stop")
        # Markers, and what stands across one.
        assert read(client, **asked, stop=["<", "|", "Paris\n", "k>"])[:2] == (THOUGHT, ANSWER)


@pytest.mark.parametrize("name", MODELS)
def test_each_choice_has_its_own_thoughts(name: str) -> None:
    with served(name) as client:
        answer = client.chat(n=3, stop=["Rome"], max_tokens=300).json()
    assert len(answer["choices"]) == 3
    for choice in answer["choices"]:
        assert choice["message"]["reasoning_content"] == THOUGHT
        assert choice["message"]["content"] == "It is Paris, not "


@pytest.mark.parametrize("name", MODELS)
def test_thoughts_that_do_not_end_are_not_stopped(name: str) -> None:
    with served(name) as client:
        half = MODELS[name][1].index("No:")
        thoughts, text, reason = read(client, max_tokens=half, stop=["Rome"], min_tokens=2)
    assert thoughts.startswith("is it Rome? ")
    assert (text, reason) == ("", "length")


@pytest.mark.parametrize("name", MODELS)
def test_messages_do_the_same(name: str) -> None:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 300,
        "stop_sequences": ["Rome"],
    }
    with served(name) as client:
        message = client.post("/v1/messages", **body).json()
        told = client.post("/v1/messages", **body, stream=True).text
    assert message["stop_reason"] == "stop_sequence"
    assert message["stop_sequence"] == "Rome"
    assert message["content"][-1]["text"] == "It is Paris, not "
    deltas = [json.loads(line[6:]) for line in told.split("\n") if line.startswith("data: ")]
    texts = [each["delta"].get("text", "") for each in deltas if "delta" in each]
    assert "".join(texts) == "It is Paris, not "


def test_where_nothing_reads_thoughts_all_text_is_the_answer() -> None:
    with served("opens") as client:
        whole = client.complete("a", stop=["Rome"], max_tokens=300).json()
        assert whole["choices"][0]["text"] == "<think>\nis it "
        params = {"stop": ["Rome"], "max_new_tokens": 300}
        assert client.generate("a", sampling_params=params).json()["text"] == "<think>\nis it "


def test_an_answer_without_thoughts_is_stopped_as_ever() -> None:
    template, _, _ = MODELS["opens"]
    engine, _ = fake_engine(template=template, script=" <thin air, <b>")
    client = Client(engine)
    assert read(client, stop=["<"]) == ("", " ", "stop")
    assert read(client, stop=["<t"], min_tokens=4) == ("", " <thin air, <b>", "stop")
    assert read(client, stop=["air"]) == ("", " <thin ", "stop")
    asyncio.run(engine.close())


def test_the_end_of_thoughts_may_be_the_stop_string() -> None:
    with served("opens") as client:
        assert read(client, stop=["</think>"], max_tokens=300) == (THOUGHT + "\n", "", "stop")
