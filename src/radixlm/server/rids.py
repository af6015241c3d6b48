"""Requests under way, by their client's names (`rid`) and by owner, so that they can be aborted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from radixlm.core.errors import InvalidRequestError


class Rids:
    """Which of the engine's requests each rid stands for, and whose they are, while under way.

    An owner sees nothing of the others: two may use the same rid, and neither learns of it.
    Used from the event loop's thread only.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], Sequence[str]] = {}
        self._ids: dict[str, set[str]] = {}

    @contextmanager
    def held(self, owner: str, names: Mapping[str, Sequence[str]]) -> Iterator[None]:
        """Know these rids and the engine's ids behind them for as long as the block lasts.

        Raises InvalidRequestError for a rid of the owner's that is under way already.
        """
        for rid in names:
            if (owner, rid) in self._names:
                raise InvalidRequestError(
                    f"a request with the rid {rid!r:.80} is under way", param="rid"
                )
        self._names.update({(owner, rid): ids for rid, ids in names.items()})
        try:
            yield
        finally:
            for rid in names:
                del self._names[owner, rid]

    @contextmanager
    def running(self, owner: str, request_id: str) -> Iterator[None]:
        """Know one of the engine's requests as the owner's for as long as the block lasts."""
        ids = self._ids.setdefault(owner, set())
        ids.add(request_id)
        try:
            yield
        finally:
            ids.remove(request_id)
            if not ids:
                self._ids.pop(owner, None)

    def of(self, owner: str, rid: str) -> Sequence[str]:
        """The engine's ids behind an owner's rid; none when nothing of that name is under way."""
        return self._names.get((owner, rid), ())

    def all_of(self, owner: str) -> Collection[str]:
        """The engine's ids of all that is under way for an owner."""
        return tuple(self._ids.get(owner, ()))
