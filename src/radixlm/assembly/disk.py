"""The disk cache that a config asks for, opened, and the thread that reads and writes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from radixlm.assembly.store_facts import EngineFacts
from radixlm.cache import RadixCache
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, DiskStoreError
from radixlm.core.moves import Failed, News, Place, Report
from radixlm.engine.tiering import PlaceStore
from radixlm.memory.disk_store import DiskStore
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.state_pool import StatePool
from radixlm.memory.store_folder import private_folder
from radixlm.memory.transfers import Transfers
from radixlm.memory.weight_sums import WeightSums
from radixlm.scheduler.restoring import Pace

# How fast a disk is thought to be before anything was read, in bytes a second.
FIRST_RATE = 1e9
# Bytes of the pool that are had from the system before the server listens, 0.1 s. In the background
# (2 GB were tried) they held up the first requests by up to 2 s.
MOST_POPULATED = 256 << 20
# The first requests find what is listed in this time.
SECONDS_TO_LIST = 0.5


class Disk:
    """The store of a config, and its thread, which runs from `start` to `stop`.

    capacity: tokens that it has room for. Raises ConfigError for a folder, a limit or an index that
    cannot be used, CheckpointError for weights that were written since they were loaded.
    """

    def __init__(
        self,
        config: EngineConfig,
        folder: str,
        source: EngineFacts,
        pool: KVPool,
        states: StatePool | None,
        send: Callable[[Report], None],
        *,
        progress: bool,
    ) -> None:
        blocks = PoolBlocks(pool, config.disk_block_tokens, states)
        private_folder(Path(folder))  # sums are remembered in it
        sums = WeightSums(Path(folder))
        try:
            store = DiskStore.open(
                Path(folder),
                source.identity(config, pool, blocks, sums, progress=progress),
                block_tokens=config.disk_block_tokens,
                block_bytes=blocks.nbytes,
                limit_bytes=int(config.disk_cache_gb * 1e9),
                strict=config.disk_cache_strict,
            )
        except DiskStoreError as error:
            raise ConfigError(f"--disk-cache {folder}: {error}") from None
        self._policy = config.disk_write_policy
        self.folder = folder
        self.capacity = store.capacity * config.disk_block_tokens
        self._sizes = blocks.states
        self._rate = FIRST_RATE / blocks.nbytes * config.disk_block_tokens
        self._pool = pool
        self._listed = listed = threading.Event()

        def report(news: Report) -> None:
            send(news)
            if isinstance(news, Failed) or (isinstance(news, News) and news.complete):
                listed.set()

        # Not a method of this object, which would hold the pool as long as there is a collector.
        self._thread = Transfers(store, blocks, report)

    def start(self) -> None:
        """Returns when all that is stored has been listed, or goes on being so for a while."""
        tokens = min(self._pool.capacity, MOST_POPULATED * self._pool.capacity // self._pool.nbytes)
        self._pool.populate(tokens)
        self._thread.start()
        self._listed.wait(SECONDS_TO_LIST)

    def stop(self) -> None:
        """End when the jobs under way are done, or after some seconds."""
        self._thread.stop()

    def store(self, cache: RadixCache) -> PlaceStore:
        """The store for the engine that owns the pool."""
        block, of_state = self._sizes
        tier = cache.add_store(Place.DISK, block, self.capacity, of_state)
        return PlaceStore(tier, self._thread, self._policy, Pace(self._rate))
