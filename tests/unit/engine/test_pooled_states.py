"""Sums of states over steps: chunks, requests that begin again, end, and are forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from radixlm.core.request import FinishReason, Pooled, RequestOutput
from radixlm.engine.pooled_states import PooledStates


def taken(states: PooledStates, pooled: Pooled, start: int, value: float) -> None:
    request = SimpleNamespace(request_id="a", pooled=pooled)
    batch: Any = SimpleNamespace(rows=[SimpleNamespace(request=request, start=start)])
    result: Any = SimpleNamespace(hidden={0: np.full(2, value, dtype=np.float32)})
    states.take(batch, result)


def ended(states: PooledStates, **fields: Any) -> Any:
    return states.complete(RequestOutput("a", prompt_tokens=4, **fields)).hidden


def test_a_mean_is_that_of_all_chunks_once_the_prompt_is_whole() -> None:
    states = PooledStates()
    taken(states, Pooled.MEAN, 0, 100.0)
    taken(states, Pooled.MEAN, 0, 5.0)  # it was retracted, and begins again
    taken(states, Pooled.MEAN, 3, 7.0)
    assert ended(states) is None
    assert ended(states, token_ids=(1,)).tolist() == [3.0, 3.0]
    assert ended(states, token_ids=(1,)) is None


def test_scores_are_made_of_the_last_state() -> None:
    states = PooledStates(np.array([[1, 1], [0, 2], [3, 0]], dtype=np.float32))
    taken(states, Pooled.SCORES, 3, 2.0)
    assert ended(states, token_ids=(1,)).tolist() == [4.0, 4.0, 6.0]


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.ABORT])
def test_what_fails_has_none(reason: FinishReason) -> None:
    states = PooledStates()
    taken(states, Pooled.MEAN, 0, 1.0)
    assert ended(states, finish_reason=reason) is None
    taken(states, Pooled.MEAN, 3, 1.0)
    assert ended(states, token_ids=(1,)).tolist() == [0.25, 0.25]
    taken(states, Pooled.FIRST, 0, 1.0)
    states.drop("a")
    assert ended(states, token_ids=(1,)) is None
