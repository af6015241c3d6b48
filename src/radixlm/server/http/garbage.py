"""When Python looks for garbage that its reference counts do not find: at moments of our choosing.

A full search takes time in proportion to all objects there are: half a second with a few thousand
requests waiting, in which neither the engine nor the event loop can do anything. Python would
start one whenever a quarter more objects have grown old, as they do while a queue fills. Requests
leave no such garbage behind (a test sees to it), so what is left to find is little.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# With no more requests than this a search takes no longer than a step.
_FEW = 64
EVERY_SECONDS = 10.0
# A search through a million nodes of the tree takes seconds, and finds nothing: the next one comes
# after this many times as long.
_TIMES_ITS_OWN = 200
# However busy the server is, so that what a library leaves behind cannot grow for ever; later only
# after a search that took so long.
AT_LEAST_EVERY_SECONDS = 900.0
_NEVER = 1_000_000


@contextmanager
def full_searches_on_demand() -> Iterator[None]:
    """Leave what there is now out of every search, and do no full ones unasked, in the block.

    Young objects are searched as before, which takes next to no time. Acts on the whole process.
    """
    young, middle, old = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


async def search_when_quiet(
    under_way: Callable[[], int],
    every: float = EVERY_SECONDS,
    at_least_every: float = AT_LEAST_EVERY_SECONDS,
) -> None:
    """Search while few requests are under way, and now and then in any case; until cancelled.

    The longer a search takes, the longer until the next one.
    """
    waited, pause = 0.0, every
    while True:
        await asyncio.sleep(pause)
        waited, pause = waited + pause, every
        if under_way() <= _FEW or waited >= at_least_every:
            began = time.perf_counter()
            gc.collect()
            waited, pause = 0.0, max(pause, _TIMES_ITS_OWN * (time.perf_counter() - began))
