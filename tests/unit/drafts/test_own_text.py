"""Drafts from a request's own text, against a search at each place."""

from __future__ import annotations

from random import Random

import numpy as np

from radixlm.drafts.draft import Draft
from radixlm.drafts.own_text import LEAST, MOST, OwnText


def searched(text: list[int], most: int) -> Draft | None:
    best = end = 0
    for place in range(1, len(text)):
        matched = 0
        while matched < min(MOST, place) and text[place - 1 - matched] == text[-1 - matched]:
            matched += 1
        if matched >= best:
            best, end = matched, place
    return Draft(tuple(text[end : end + most]), "own_text", best) if best >= LEAST else None


def test_the_longest_match_of_the_last_tokens_and_of_equals_the_newest() -> None:
    random = Random(0)
    for case in range(300):
        text = [random.randrange(2 + case % 3) for _ in range(random.randint(1, 80))]
        tokens = np.array(text, dtype=np.int32).data
        assert OwnText().propose(None, tokens, 5) == searched(text, 5)
