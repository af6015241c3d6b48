"""Drafts from a predicted text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixlm.core.keys import as_key
from radixlm.drafts.draft import Draft
from radixlm.drafts.prediction import PredictedText

PROMPT = [1, 2, 3]


def steps(predicted: Sequence[int], answer: Sequence[int], most: int = 8) -> int:
    """How many steps an answer takes with drafts from its prediction; the answer stays the same."""
    source = PredictedText(as_key(predicted), len(PROMPT))
    known, taken = 0, 0
    while known < len(answer):
        draft = source.propose(None, as_key([*PROMPT, *answer[:known]]), most)
        for token in draft.tokens if draft is not None else ():
            if known == len(answer) or token != answer[known]:
                break
            known += 1
        known += 1
        taken += 1
    return taken


def test_a_prediction_is_proposed_from_its_beginning_to_its_end() -> None:
    source = PredictedText(as_key(range(10, 20)), 3)
    assert source.propose(None, PROMPT, 4) == Draft((10, 11, 12, 13), "prediction", 0)
    tokens = [*PROMPT, *range(10, 18)]
    assert source.propose(None, tokens, 4) == Draft((18, 19), "prediction", 8)
    assert source.propose(None, [*tokens, 18, 19], 4) is None
    assert source.propose(None, [*tokens, 18, 19, 20], 4) is None


def test_an_answer_comes_back_after_a_change() -> None:
    text = np.random.default_rng(0).integers(0, 500, 900).tolist()
    assert steps(text, text) == 100
    changed = [*text[:450], 9999, *text[451:]]
    assert steps(text, changed) <= 104
    removed = [*text[:300], *text[330:]]
    assert steps(text, removed) <= 103
    longer = [*text[:300], *range(1000, 1020), *text[300:]]
    assert steps(text, longer) <= 100 + 24
    turned = [*text[450:], *text[:450]]
    assert steps(text, turned) <= 124


def test_the_prompt_is_no_part_of_the_answer() -> None:
    source = PredictedText(as_key([1, 2, 3, 4, 5]), 3)
    assert source.propose(None, [*PROMPT, 9], 2) is None
