"""Checkpoints of states that another process writes."""

from __future__ import annotations

from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from radixlm.cache import RadixCache
from radixlm.cache.components.states import StateSlots
from radixlm.core.clock import VirtualClock
from radixlm.core.keys import as_key
from radixlm.core.moves import Job, Place
from radixlm.core.request import Namespace
from radixlm.engine.saving import Saving
from radixlm.memory.transfers import Transfers
from tests.store_support import BYTES, TOKENS, blocks_of, open_store


class Mover:
    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> bool:
        self.jobs.append(job)
        return True


def test_what_another_process_has_not_written_yet_is_left_to_it(tmp_path: Path) -> None:
    cache = RadixCache(200, components=[partial(StateSlots, 4)])
    tier, mover = cache.add_store(Place.DISK, TOKENS, 100, 2), Mover()
    saving = Saving(cache, tier, mover, "all", count(), VirtualClock())  # type: ignore[arg-type]
    key, namespace = as_key(range(9)), Namespace()
    path, writer = tier.sizes.path(key), open_store(tmp_path)
    carrier: Any = SimpleNamespace(block_tokens=TOKENS, nbytes=BYTES)
    reports: SimpleQueue[Any] = SimpleQueue()
    thread = Transfers(open_store(tmp_path), carrier, reports.put, news_seconds=0.05)

    def known() -> tuple[int, int]:
        """The tokens that are known to be stored, and those that a request could go on from."""
        saving.waits.append(reports.get(timeout=60))
        saving.turn(inf)
        return tier.length_of(key, namespace), tier.restorable(key, namespace)

    writer.put(blocks_of(path[:12], namespace.packed()))
    thread.start()
    assert (known(), mover.jobs) == ((8, 0), [])  # found at the start
    reports.get(timeout=60)  # the end of that
    writer.put(blocks_of(path[:16], namespace.packed()))
    assert (known(), mover.jobs) == ((8, 0), [])  # news
    writer.put(blocks_of(path, namespace.packed()))
    assert (known(), mover.jobs) == ((8, 9), [])
    assert thread.stop()
    writer.close()
