"""Requests as lines of a trace."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radixlm.core.request import Breakpoint
from radixlm.formats.trace_lines import PrefixHasher, Recorded, trace_line

TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=40)


def key(ids: list[int]) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def test_what_says_nothing_is_left_out():
    line = trace_line(Recorded(0.0, key([1, 2]), key([3])))
    assert json.loads(line) == {"timestamp": 0.0, "token_ids": [1, 2], "output_ids": [3]}
    assert line.endswith(b"\n")


def test_hints_are_kept():
    line = trace_line(Recorded(1.5, key([1, 2]), key([3]), breakpoints=(Breakpoint(2, 300.0),)))
    fields = json.loads(line)
    assert fields["timestamp"] == 1_500
    assert fields["hints"] == {"breakpoints": [[2, 300.0]]}


@given(TOKENS, TOKENS)
def test_hashed_prompts_share_exactly_what_they_shared(left, right):
    hasher = PrefixHasher(b"a secret")
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    ours, theirs = hasher.ids(key(left)).tolist(), hasher.ids(key(right)).tolist()
    assert ours[:common] == theirs[:common]
    assert all(one != other for one, other in zip(ours[common:], theirs[common:], strict=False))
    assert min(ours) >= 0


def test_other_secrets_give_other_ids():
    tokens = key(list(range(100)))
    one, other = (PrefixHasher(secret).ids(tokens) for secret in (b"one", b"other"))
    assert not (one == other).any()
    assert PrefixHasher(b"one").name("salt") != PrefixHasher(b"other").name("salt")
    assert PrefixHasher(b"one").name("") == ""
