"""Cases that tests share: every two values meet."""

from __future__ import annotations

import itertools

import pytest

from tests.pairs import pairs

TABLES = [
    ("ab",),
    ("abc", "xy"),
    ("ab", "xy", "12", "+-"),
    ([0, 1, 7, 8], "abc", [True, False], "xyz"),
]


@pytest.mark.parametrize("parameters", TABLES)
def test_every_two_values_meet(parameters: tuple[str, ...]) -> None:
    cases = pairs(*parameters)
    assert len(set(cases)) == len(cases)
    for one, other in itertools.combinations(range(len(parameters)), 2):
        met = {(case[one], case[other]) for case in cases}
        assert met == set(itertools.product(parameters[one], parameters[other]))
    assert {case[0] for case in cases} == set(parameters[0])


def test_there_are_fewer_than_all() -> None:
    assert len(pairs(*["abc"] * 4)) <= 15
    assert pairs("ab", "xy") == list(itertools.product("ab", "xy"))


def test_the_same_cases_each_time() -> None:
    assert pairs("abc", [1, 2], "xyz") == pairs("abc", [1, 2], "xyz")


def test_values_need_not_be_hashable_or_unlike() -> None:
    assert pairs([[1], [1]], "ab") == [([1], "a"), ([1], "b"), ([1], "a"), ([1], "b")]


def test_a_parameter_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        pairs("ab", [])
