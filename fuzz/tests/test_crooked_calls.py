"""fuzz/crooked_calls.py: how it judges, what it damages, and what is read of that."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.template_calls import WEATHER, Found, Read, Turn
from fuzz.call_damage import DAMAGES, Sample
from fuzz.crooked_calls import (
    WRONG,
    damaged,
    fuzz,
    judged,
    origins,
    outcome,
    sample_of,
    source_of,
)

FORMATS = [str(origin) for origin in origins(None)[0]]
SAMPLE = Sample(Turn((WEATHER,)), "", "…", lambda turn: None)
VALUES = json.dumps(WEATHER.arguments)


def judge(arguments: str, *, whole: bool = True, name: str = "get_weather", text: str = "") -> str:
    return judged(SAMPLE, Read((Found(name, arguments, whole),), text, ""))


def test_a_call_is_right_only_as_it_was_meant() -> None:
    assert judge(VALUES) == "right"
    assert judged(SAMPLE, Read((), "<tool_call>get_weather", "")) == "text"
    assert judged(SAMPLE, Read((), "", "to get_weather")) == "text"
    assert judged(SAMPLE, Read((), "", "")) == "lost"


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "Bern\\n<parameter=days>\\n2"}',
        '{"city": "Ber", "days": 2}',
        '{"city": "Bern", "days": "2"}',
        '{"city": "Bern", "days": 2, "more": 1}',
        '{"city": "Bern"}',
        "[]",
        "no JSON",
    ],
)
def test_a_whole_call_with_other_values_is_invented(arguments: str) -> None:
    assert judge(arguments) == "invented"


def test_a_call_of_another_name_or_one_too_many_is_invented() -> None:
    assert judge(VALUES, name="now") == "invented"
    twice = (Found("get_weather", VALUES, True),) * 2
    assert judged(SAMPLE, Read(twice, "", "")) == "invented"


@pytest.mark.parametrize("arguments", ["", "{", '{"city": "Be', '{"city": "Bern", "days": 2'])
def test_a_beginning_is_no_invention_where_the_call_is_not_whole(arguments: str) -> None:
    assert judge(arguments, whole=False) == "begun"


def test_a_value_that_runs_over_is_told_from_one_that_was_not_written() -> None:
    assert judge('{"city": "Bern}}', whole=False) == "overrun"
    assert judge('{"city": "Genf', whole=False) == "invented"
    assert judge('{"city": "Bern}}', whole=True) == "invented"


@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_are_not_damaged_are_right(name: str) -> None:
    draw, source = random.Random(1), source_of(name)
    for _ in range(50):
        found, about = outcome(draw, source.style, sample_of(draw, source))
        assert found == "right", about


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_changes_the_text_of_a_format_or_more(damage: str) -> None:
    draw = random.Random(2)
    samples = (sample_of(draw, source_of(name)) for name in FORMATS for _ in range(20))
    made = ((sample, DAMAGES[damage](draw, sample)) for sample in samples)
    assert any(after is not None and after.text != sample.text for sample, after in made)


def test_the_same_seed_damages_the_same() -> None:
    texts = []
    for _ in range(2):
        draw, source = random.Random(3), source_of("hermes")
        texts.append([damaged(draw, sample_of(draw, source), 2)[0].text for _ in range(9)])
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_calls_are_right_or_text_and_never_invented(name: str) -> None:
    wrong = [each for each in fuzz(name, 0, 300) if each.found in WRONG]
    assert not wrong, "\n".join(f"{each.found}, {each.damages}: {each.about}" for each in wrong[:3])
