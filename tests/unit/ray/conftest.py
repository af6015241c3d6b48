"""What Ray is imported in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aside import Aside


@pytest.fixture(scope="session")
def aside() -> Iterator[Aside]:
    made = Aside()
    yield made
    made.close()
