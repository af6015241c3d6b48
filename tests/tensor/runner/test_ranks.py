"""Which of several ranks is named when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
import torch

from radixlm.core.errors import CheckpointError, ConfigError
from radixlm.runner.ranks import RankProcesses


@contextmanager
def started(ends: dict[int, str], **settings: object) -> Iterator[RankProcesses]:
    """Three, of which some end in some way."""
    given = {"ends": {str(rank): end for rank, end in ends.items()}, **settings}
    ranks = RankProcesses(3, torch.device("cpu"), "tests.made_up_ranks:main", given)
    try:
        yield ranks
    finally:
        ranks.stop()


def test_what_a_rank_has_said_at_its_end_is_the_reason() -> None:
    said = r"^rank 2 of 3 \(process \d+\): a field is missing$"
    ends = {1: "fails for another", 2: "complains"}
    with started(ends) as ranks, pytest.raises(CheckpointError, match=said):
        ranks.loaded()


def test_who_fails_after_loading_is_named() -> None:
    with started({2: "fails"}, loads=True) as ranks:
        assert ranks.loaded() == 5
        with pytest.raises(ConfigError, match=r"^rank 2 of 3 .* ended with status 3"):
            ranks.join(capacity=5, longest=5)


def test_a_rank_that_fails_for_another_is_not_blamed() -> None:
    reasons: SimpleQueue[str] = SimpleQueue()
    with started({1: "fails for another", 2: "is killed"}) as ranks:
        ranks.watch(reasons.put)
        assert "rank 2 of 3" in (reason := reasons.get(timeout=60))
        assert "was ended by signal 9; no step can be computed without it" in reason
