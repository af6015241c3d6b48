"""The use of the room in a place, and the law of it."""

from __future__ import annotations

from typing import NamedTuple

from radixlm.core.errors import InvariantError


class Usage(NamedTuple):
    """Slots, tokens or checkpoints, by what they are used for. private: a lease's, or reserved for
    a write. locked: cached, and in use. evictable: cached, and not in use.
    """

    free: int
    private: int
    locked: int
    evictable: int

    def check(self, capacity: int) -> None:
        """Raise InvariantError unless the law holds: free + private + locked + evictable ==
        capacity, none of them negative.
        """
        if sum(self) != capacity or min(self) < 0:
            raise InvariantError(f"{self} does not add up to a capacity of {capacity}")
