"""What tests of whole engines share."""

from __future__ import annotations

import pytest

from radixlm.scheduler import restoring


@pytest.fixture
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is read: computing is thought to be a million times slower, however long it
    takes. For tests of what is read, which must not depend on how busy a machine is.
    """
    monkeypatch.setattr(restoring, "READING_TO_COMPUTING", 1e6)
    monkeypatch.setattr(restoring.Pace, "learn_computed", lambda *_: None)
