"""The names that clients give to their requests (`rid`), so that they can abort them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from radixlm.core.errors import InvalidRequestError


class Rids:
    """Which of the engine's requests each rid stands for, while they are under way.

    Used from the event loop's thread only.
    """

    def __init__(self) -> None:
        self._names: dict[str, Sequence[str]] = {}

    @contextmanager
    def held(self, names: Mapping[str, Sequence[str]]) -> Iterator[None]:
        """Know these rids and the engine's ids behind them for as long as the block lasts.

        Raises InvalidRequestError for a rid that is under way already.
        """
        for rid in names:
            if rid in self._names:
                raise InvalidRequestError(
                    f"a request with the rid {rid!r:.80} is under way", param="rid"
                )
        self._names.update(names)
        try:
            yield
        finally:
            for rid in names:
                del self._names[rid]

    def of(self, rid: str) -> Sequence[str]:
        """The engine's ids behind a rid; none when nothing of that name is under way."""
        return self._names.get(rid, ())
