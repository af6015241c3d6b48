"""The host's memory that a config asks for beside the pool, and the thread that copies."""

from __future__ import annotations

import logging
from collections.abc import Callable

from radixlm.cache import RadixCache
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.core.moves import Place, Report
from radixlm.engine.tiering import PlaceStore
from radixlm.memory.host_store import HostStore
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool, free_host_memory
from radixlm.memory.state_pool import StatePool
from radixlm.memory.transfers import Transfers
from radixlm.scheduler.restoring import Pace

# How fast copies are thought to be before any was made, in bytes a second.
FIRST_RATE = 5e9

_logger = logging.getLogger("radixlm.assembly")


class Host:
    """Host memory as a place, with its thread, which runs from `start` to `stop`. Raises
    ConfigError for more than there is.

    capacity: tokens.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: KVPool,
        states: StatePool | None,
        send: Callable[[Report], None],
    ) -> None:
        blocks = PoolBlocks(pool, config.disk_block_tokens, states)
        count = config.host_kv_tokens // blocks.block_tokens
        on_cpu = pool.device.type == "cpu"
        own = pool.nbytes + (0 if states is None else states.nbytes)
        free = free_host_memory() - (own if on_cpu else 0)
        try:
            if count * blocks.nbytes > free:
                raise MemoryError(f"{max(free, 0) / 1e9:.3g} GB are left")
            store = HostStore(blocks, count)
        except (RuntimeError, MemoryError, ValueError) as error:
            raise ConfigError(
                f"no memory for --host-kv-tokens {config.host_kv_tokens}, which take "
                f"{count * blocks.nbytes / 1e9:.3g} GB: {error}"
            ) from None
        if on_cpu:
            _logger.info("on a CPU --host-kv-tokens take the pool's own memory: see --kv-tokens")
        self._sizes = blocks.states
        self.capacity = count * blocks.block_tokens
        self._rate = FIRST_RATE / blocks.nbytes * blocks.block_tokens
        self._thread = Transfers(store, store, send, place=Place.HOST)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End when the jobs under way are done, or after some seconds."""
        self._thread.stop()

    def store(self, cache: RadixCache) -> PlaceStore:
        """The store for the engine that owns the pool. What is evicted next is copied, once the
        pool is nearly full: what is in both has no use in one of them.
        """
        block, of_state = self._sizes
        tier = cache.add_store(Place.HOST, block, self.capacity, of_state)
        return PlaceStore(tier, self._thread, "evict", Pace(self._rate))
