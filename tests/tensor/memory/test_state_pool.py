"""The pool of states: copies are exact, sources are read before anything is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlm.core.batch import EMPTY, StateMoves
from radixlm.memory.state_pool import StatePool, StateShape

SHAPES = (StateShape((6, 3), (2, 4, 5)), StateShape(), StateShape((6, 3)))


def moves(*pairs: tuple[int, int]) -> StateMoves:
    sources, slots = (np.array(each, dtype=np.int32) for each in zip(*pairs, strict=True))
    return StateMoves(sources, slots)


@pytest.fixture
def pool() -> StatePool:
    made = StatePool(SHAPES, 4, torch.bfloat16)
    for part in (made.conv[0], made.conv[2], made.matrices[0]):
        part.copy_(torch.arange(1, 5).view(-1, *[1] * (part.dim() - 1)))
    return made


def test_states_are_copied_and_emptied_all_at_once(pool: StatePool) -> None:
    """Slot 1 is emptied, slot 2 gets what was in 1, and slot 0 what was in 2."""
    pool.move(moves((EMPTY, 1), (1, 2), (2, 0)))
    for part in (pool.conv[0], pool.conv[2], pool.matrices[0]):
        assert part.flatten(1)[:, 0].tolist() == [3, 0, 2, 4]
        assert (part.flatten(1) == part.flatten(1)[:, :1]).all()


def test_bytes_are_those_of_layers_that_have_states(pool: StatePool) -> None:
    each = 2 * 6 * 3 * 2 + 2 * 4 * 5 * 4
    assert pool.nbytes == 4 * each
    assert sum(shape.nbytes(torch.bfloat16) for shape in SHAPES) == each
    assert pool.matrices[0].dtype == torch.float32


def test_a_checkpoint_of_a_bfloat16_model_is_not_rounded() -> None:
    """sglang #33515: one kept in bfloat16 gave other tokens than the run that had left it."""
    pool = StatePool([StateShape(matrix=(4, 4))], 3, torch.bfloat16)
    [matrix] = pool.matrices
    matrix[0] = torch.full((4, 4), 1 + 2.0**-20)
    pool.move(StateMoves(np.array([0], np.int32), np.array([2], np.int32)))
    assert torch.equal(matrix[2], matrix[0])
    assert float(matrix[2, 0, 0]) != 1.0
