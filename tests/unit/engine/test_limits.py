"""How long requests may be."""

from __future__ import annotations

import pytest

from radixlm.core.errors import ConfigError
from radixlm.engine import Limits


@pytest.mark.parametrize(("context", "capacity"), [(100, 1), (100, 0), (1, 100)])
def test_no_engine_starts_that_could_take_no_request(context: int, capacity: int) -> None:
    with pytest.raises(ConfigError, match=r"no request fits .* --max-pinned-tokens"):
        Limits(context, capacity, 9)
    assert Limits(max(context, 2), max(capacity, 2), 9).longest == 2
