"""Patterns of a stranger's adapter, which may take for ever."""

from __future__ import annotations

import pytest

from radixlm.core.errors import UnsupportedModelError
from radixlm.models.module_patterns import ModulePattern, matching

NAMES = [
    f"model.layers.{i}.{part}" for i in range(12) for part in ("mlp.up_proj", "self_attn.q_proj")
]


def whole(*patterns: str) -> list[frozenset[str]]:
    return matching([ModulePattern(each, whole=True) for each in patterns], NAMES)


def test_they_are_pythons() -> None:
    attention, one, rest = whole(r".*q_proj", r"model\.layers\.1\..*", r"^(?!.*mlp)(?i:MODEL).*$")
    assert attention == rest == {name for name in NAMES if name.endswith("q_proj")}
    assert one == {"model.layers.1.mlp.up_proj", "model.layers.1.self_attn.q_proj"}
    assert whole("q_proj") == [frozenset()]
    assert whole() == []


def test_of_a_names_end() -> None:
    ends = [ModulePattern(each, whole=False) for each in ("q_proj", r"1\.mlp.up_proj", "proj", "")]
    found = matching(ends, NAMES)
    assert found[0] == {name for name in NAMES if name.endswith("q_proj")}
    assert found[1] == {"model.layers.1.mlp.up_proj"}
    assert found[2] == frozenset()


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "*", "(" * 100_000])
def test_a_pattern_that_is_none(pattern: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"the pattern '.* is none: "):
        whole("q_proj", pattern)


def test_one_that_tries_all_ways_to_cut_a_name_is_ended() -> None:
    endless = ModulePattern(r"(\w+\.?)+x", whole=True)
    with pytest.raises(UnsupportedModelError, match=r"24 names .*takes more than 0\.3 s; repeat"):
        matching([endless], ["a" * 200, *NAMES[:23]], seconds=0.3)
