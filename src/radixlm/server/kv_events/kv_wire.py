"""Events as maps that vLLM 0.32 and SGLang 0.5.23 decode. docs/kv-events.md has their fields.

Both tag an event with its `type`, and a batch is an array: time, events, rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from radixlm.core.request import Namespace
from radixlm.server.config.kv_events_config import Libraries
from radixlm.server.kv_events.blocks import Removed, Stored

# What both call the memory that attention reads, on a CPU too.
MEDIUM = "GPU"
RANK = 0

ExtraKeys = tuple[str, ...] | None


class BlockStored(TypedDict):
    """Those that may be left out are left out where they are None."""

    type: Literal["BlockStored"]
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: str
    lora_name: str | None
    extra_keys: NotRequired[list[ExtraKeys]]
    cache_salt: NotRequired[str]


class BlockRemoved(TypedDict):
    type: Literal["BlockRemoved"]
    block_hashes: list[int]
    medium: str


class AllBlocksCleared(TypedDict):
    type: Literal["AllBlocksCleared"]


Event = BlockStored | BlockRemoved | AllBlocksCleared
CLEARED: AllBlocksCleared = {"type": "AllBlocksCleared"}


class BatchWriter:
    """Writes batches of events."""

    def __init__(self, libraries: Libraries) -> None:
        self._encode: Callable[[Any], bytes] = libraries.msgpack.Encoder().encode
        self._raw: Callable[[bytes], Any] = libraries.msgspec.Raw

    def batch(self, seconds: float, events: Iterable[Event]) -> bytes:
        """seconds: since 1970. Event by event: one call for all of them would not let the engine's
        thread have the interpreter for as long as it takes.
        """
        written = [self._raw(self._encode(event)) for event in events]
        return self._encode((seconds, written, RANK))


def events_of(change: Stored | Removed, block_size: int) -> Iterator[Event]:
    """A change as events. Of blocks that are the last to go both are told: there are readers that
    know one of them only.
    """
    if isinstance(change, Stored):
        yield _stored(change, block_size)
        return
    yield {"type": "BlockRemoved", "block_hashes": list(change.hashes), "medium": MEDIUM}
    if change.cleared:
        yield CLEARED


def _stored(stored: Stored, block_size: int) -> BlockStored:
    namespace = stored.namespace
    event: BlockStored = {
        "type": "BlockStored",
        "block_hashes": list(stored.hashes),
        "parent_block_hash": stored.parent,
        "token_ids": memoryview(stored.tokens).cast("i").tolist(),
        "block_size": block_size,
        "lora_id": None,
        "medium": MEDIUM,
        "lora_name": namespace.adapter_id or None,
    }
    keys = [_extra_keys(namespace, stored.first + at) for at in range(len(stored.hashes))]
    if any(keys):
        event["extra_keys"] = keys
    if namespace.cache_salt:
        event["cache_salt"] = namespace.cache_salt
    return event


def _extra_keys(namespace: Namespace, block: int) -> ExtraKeys:
    """As in vLLM the adapter of every block; what else divides the cache, of a prompt's first."""
    of_first = (namespace.cache_salt, namespace.extra_key) if block == 0 else ()
    return tuple(filter(None, (namespace.adapter_id, *of_first))) or None
