"""Threads for a step: what the engine's thread is given, and when."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixlm.runner.paced import PacedRunner


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Steps:
    """A step of n tokens takes n milliseconds of a thread, shared among those there are."""

    def __init__(self, crowded: bool, threads: int = 3) -> None:
        self.crowded = crowded
        self.dozing: list[bool] = []
        self.threads: list[int] = []
        self._now = 0.0
        torch.set_num_threads(threads)
        parts: Any = SimpleNamespace(
            look=lambda: self.crowded, stepped=lambda: None, doze=self.dozing.append
        )
        self._runner = PacedRunner(
            self, 10, threads=threads, crowd=parts, own_team=parts, seconds=lambda: self._now
        )

    def execute(self, batch: Any) -> Any:
        self.threads.append(torch.get_num_threads())
        self._now += 1e-3 * batch.n_tokens / self.threads[-1]

    def run(self, *sizes: int) -> list[int]:
        """The threads that each step had."""
        self.threads.clear()
        for size in sizes:
            self._runner.execute(SimpleNamespace(n_tokens=size))  # type: ignore[arg-type]
        return self.threads


def test_alone_it_has_all() -> None:
    steps = Steps(crowded=False)
    assert steps.run(1, 1, 100, 1) == [3, 3, 3, 3]
    assert not any(steps.dozing)


def test_in_a_crowd_little_work_gets_one_and_much_gets_all() -> None:
    """Ten layers: 10 ms is much. Of the first step of a size nothing is known."""
    steps = Steps(crowded=True)
    assert steps.run(1, 1, 64, 64, 1, 64) == [3, 1, 3, 3, 1, 3]
    assert all(steps.dozing)


def test_what_was_learnt_alone_is_known_in_a_crowd() -> None:
    steps = Steps(crowded=False)
    steps.run(1, 64)
    steps.crowded = True
    assert steps.run(1, 64) == [1, 3]
    steps.crowded = False
    assert steps.run(1, 64) == [3, 3]


def test_one_thread_needs_no_watching() -> None:
    steps = Steps(crowded=True, threads=1)
    assert steps.run(1, 64) == [1, 1]
    assert not steps.dozing
