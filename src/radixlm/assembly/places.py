"""The places beside the pool that a config asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from radixlm.assembly.disk import Disk
from radixlm.assembly.host import Host
from radixlm.assembly.store_facts import EngineFacts
from radixlm.cache import RadixCache
from radixlm.core.config import EngineConfig
from radixlm.core.moves import Report
from radixlm.engine.tiering import Tiering
from radixlm.memory.pools import KVPool
from radixlm.memory.state_pool import StatePool
from radixlm.scheduler import WaitingRoom


class Places(NamedTuple):
    """The places that there are, with a thread each, which runs from `start` to `stop`."""

    host: Host | None = None
    disk: Disk | None = None

    def described(self) -> dict[str, Any]:
        """Fields of ModelInfo: where they are, and for how many tokens each has room."""
        found: dict[str, Any] = {}
        if self.host is not None:
            found["host_tokens"] = self.host.capacity
        if self.disk is not None:
            found |= {"disk_cache": self.disk.folder, "disk_tokens": self.disk.capacity}
        return found

    def start(self) -> None:
        for place in self._there():
            place.start()

    def stop(self) -> None:
        for place in self._there():
            place.stop()

    def tiering(self, cache: RadixCache, room: WaitingRoom) -> Tiering | None:
        """The tiering for the engine that owns the pool; None without any place."""
        stores = [place.store(cache) for place in self._there()]
        return Tiering(cache, room, stores) if stores else None

    def _there(self) -> Iterator[Host | Disk]:
        return (place for place in self if place is not None)


def open_places(
    config: EngineConfig,
    source: EngineFacts,
    pool: KVPool,
    states: StatePool | None,
    send: Callable[[Report], None],
    *,
    progress: bool,
) -> Places:
    """send: takes the reports of their threads. progress: show a bar of what takes long. Raises
    ConfigError for one that cannot be used, CheckpointError as `Disk`.
    """
    host = Host(config, pool, states, send) if config.host_kv_tokens else None
    folder = config.disk_cache
    memory = pool, states, send
    disk = None if folder is None else Disk(config, folder, source, *memory, progress=progress)
    return Places(host, disk)
