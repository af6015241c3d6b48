"""What a router makes of KV events: independent of the server's own code, and strict."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

Prefix = tuple[Hashable, tuple[int, ...]]


class Stored(msgspec.Struct, tag="BlockStored", omit_defaults=True):
    """As vLLM has it, with SGLang's field behind."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    cache_salt: str | None = None


class Removed(msgspec.Struct, tag="BlockRemoved", omit_defaults=True):
    block_hashes: list[int]
    medium: str | None


class Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


decode_batch = msgspec.msgpack.Decoder(Batch).decode


class Follower:
    """The blocks that are there by events alone: each hash and the prompt up to its end."""

    def __init__(self) -> None:
        self.blocks: dict[int, Prefix] = {}
        self._children: dict[int | None, set[int]] = {}
        self._parents: dict[int, int | None] = {}

    @property
    def prefixes(self) -> set[Prefix]:
        return set(self.blocks.values())

    def take(self, payload: bytes) -> Batch:
        batch = decode_batch(payload)
        for event in batch.events:
            match event:
                case Stored():
                    self._store(event)
                case Removed():
                    for name in event.block_hashes:
                        self._remove(name)
                case Cleared():
                    self.blocks, self._children, self._parents = {}, {}, {}
        return batch

    def _store(self, event: Stored) -> None:
        size, parent = event.block_size, event.parent_block_hash
        assert event.block_hashes
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert event.extra_keys is None or len(event.extra_keys) == len(event.block_hashes)
        for at, name in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[at * size : (at + 1) * size])
            keys = event.extra_keys[at] if event.extra_keys else None
            assert 0 <= name < 2**63
            assert name not in self.blocks, "stored twice"
            if parent is None:
                self.blocks[name] = (keys, tokens)
            else:
                assert keys is None or keys == (event.lora_name,)
                assert parent in self.blocks, "its parent is not there"
                namespace, above = self.blocks[parent]
                self.blocks[name] = (namespace, above + tokens)
            self._parents[name] = parent
            self._children.setdefault(parent, set()).add(name)
            parent = name

    def _remove(self, name: int) -> None:
        del self.blocks[name]
        assert not self._children.pop(name, None), "its children are still there"
        self._children[self._parents.pop(name)].remove(name)
