"""News of checkpoints of states that other processes write."""

from __future__ import annotations

from functools import partial
from itertools import count
from math import inf

from radixlm.cache import RadixCache
from radixlm.cache.components.states import StateSlots
from radixlm.core.clock import VirtualClock
from radixlm.core.keys import as_key
from radixlm.core.moves import Drop, Job, News, Place, StoredPath
from radixlm.core.request import Namespace
from radixlm.engine.saving import Saving

B = 4


class Mover:
    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> bool:
        self.jobs.append(job)
        return True


def test_what_another_process_has_not_written_yet_is_left_to_it() -> None:
    cache = RadixCache(200, components=[partial(StateSlots, 4)])
    tier, mover = cache.add_store(Place.DISK, B, 100, 2), Mover()
    saving = Saving(cache, tier, mover, "all", count(), VirtualClock())  # type: ignore[arg-type]
    key, namespace = as_key(range(9)), Namespace()
    path = tier.sizes.path(key)

    def known(size: int, *, complete: bool) -> int:
        """What a request could go on from, once so much of the path is known to be stored."""
        stored = StoredPath(namespace.packed(), path[:size])
        saving.waits.append(News([stored], complete=complete))
        saving.turn(inf)
        return tier.restorable(key, namespace)

    assert known(12, complete=False) == 0
    [job] = mover.jobs  # at the start: what nobody will go on with
    assert isinstance(job, Drop)
    mover.jobs.clear()
    assert [known(size, complete=True) for size in (12, 16, path.size)] == [0, 0, 9]
    assert mover.jobs == []
