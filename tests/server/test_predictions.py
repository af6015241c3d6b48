"""OpenAI's `prediction`: the same answer, and what was right of it in usage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.server_support import Client, fake_engine, idle_and_whole, refused, until

ANSWER = "def area(width, height):\n    return width * height\n" * 3
EDITED = ANSWER.replace("height", "length", 1)


@pytest.fixture(params=["tree", "off"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Client, bool]]:
    engine, _ = fake_engine(script=ANSWER, speculative_algorithm=request.param)
    yield Client(engine), request.param == "tree"
    assert until(lambda: idle_and_whole(engine)), engine.stats()
    asyncio.run(engine.close())


def details(body: dict[str, Any]) -> tuple[int, int]:
    its = body["usage"]["completion_tokens_details"]
    return its["accepted_prediction_tokens"], its["rejected_prediction_tokens"]


@pytest.mark.parametrize(
    "content",
    [EDITED, [{"type": "text", "text": EDITED[:40]}, {"type": "text", "text": EDITED[40:]}]],
)
def test_what_was_right_is_accepted(served: tuple[Client, bool], content: Any) -> None:
    client, drafts = served
    prediction = {"type": "content", "content": content}
    body = client.chat(max_tokens=400, prediction=prediction).json()
    assert body["choices"][0]["message"]["content"] == ANSWER
    accepted, rejected = details(body)
    if drafts:
        assert accepted > 0.7 * body["usage"]["completion_tokens"]
        assert 0 < rejected < 30
    else:
        assert (accepted, rejected) == (0, 0)
    counts = {"prediction": {"drafted_tokens": accepted + rejected, "accepted_tokens": accepted}}
    assert body["usage"]["completion_tokens_details"].get("drafts", {}) == (
        counts if drafts else {}
    )
    assert client.engine.stats().accepted_of == (
        {"prediction": (accepted + rejected, accepted)} if drafts else {}
    )
    text = client.complete(max_tokens=400, prediction=prediction).json()
    assert text["choices"][0]["text"] == ANSWER
    assert (details(text)[0] > 0) == drafts


def test_each_choice_has_its_own_and_the_report_says_so(served: tuple[Client, bool]) -> None:
    client, drafts = served
    more = {"prediction": {"type": "content", "content": EDITED}, "max_tokens": 400}
    one = details(client.chat(**more).json())
    body = client.chat(n=2, cache_report=True, **more).json()
    assert [each["message"]["content"] for each in body["choices"]] == [ANSWER] * 2
    both = details(body)
    assert both[0] >= 1.9 * one[0]
    its = body["cache_report"].get("drafts", {}).get("prediction")
    assert its == ({"drafted_tokens": sum(both), "accepted_tokens": both[0]} if drafts else None)
    native = client.generate(sampling_params={"max_new_tokens": 4}, cache_report=True).json()
    assert "drafts" not in native["meta_info"]["cache_report"]


def test_a_prediction_that_is_too_long_is_named(served: tuple[Client, bool]) -> None:
    client, drafts = served
    answer = client.chat(prediction={"type": "content", "content": "word " * 200_000})
    if drafts:
        assert "the prediction has 1000000 characters" in refused(answer)["message"]
    else:
        assert answer.status_code == 200


def test_a_token_that_the_model_has_not_is_named(
    served: tuple[Client, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tokenizers with added tokens have them: it would end the engine."""
    client, drafts = served
    limits = replace(client.engine.limits, vocab_size=88)
    monkeypatch.setattr(type(client.engine), "limits", limits)
    more = {"prompt": "AB", "prediction": {"type": "content", "content": "xy"}}
    if drafts:
        assert "prediction holds token id 88" in refused(client.complete(**more))["message"]
    else:
        assert client.complete(**more).status_code == 200


def test_what_a_grammar_forces_is_told_too(fake: Client) -> None:
    params = {"max_new_tokens": 40, "regex": "[ab]:onetwothree[cd]"}
    meta = fake.generate(sampling_params=params, cache_report=True).json()["meta_info"]
    assert meta["cache_report"]["drafts"] == {
        "grammar": {"drafted_tokens": 12, "accepted_tokens": 12}
    }


@pytest.mark.parametrize(
    "prediction",
    [
        "text",
        {"type": "other", "content": "x"},
        {"type": "content"},
        {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ],
)
def test_what_is_no_prediction_is_refused(fake: Client, prediction: Any) -> None:
    error = refused(fake.chat(prediction=prediction))
    assert "prediction" in (error["param"] or error["message"])
