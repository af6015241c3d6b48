"""What tests of whole engines share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from radixlm.engine import EngineCore
from radixlm.scheduler import restoring
from tests.invariants import check
from tests.pretend_gpu import PretendGpu, on_pretend_gpu
from tests.tensor.draft_steps import draft_always


@pytest.fixture
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is read: computing is thought to be a million times slower, however long it
    takes. For tests of what is read, which must not depend on how busy a machine is.
    """
    monkeypatch.setattr(restoring, "READING_TO_COMPUTING", 1e6)
    monkeypatch.setattr(restoring.Pace, "learn_computed", lambda *_: None)


@pytest.fixture
def checked_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All invariants of the cache hold after each step of an engine."""
    step = EngineCore.step

    def checked(core: EngineCore) -> object:
        made = step(core)
        check(core.cache)
        return made

    monkeypatch.setattr(EngineCore, "step", checked)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads draft 5 tokens, and all are computed, whatever pays."""
    draft_always(monkeypatch)


@pytest.fixture
def gpu() -> Iterator[PretendGpu]:
    """A device that pretends to be one, as long as a test runs."""
    with on_pretend_gpu() as made:
        yield made
