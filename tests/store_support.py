"""Stores of small blocks, and what lies in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from radixlm.core.keys import Key, as_key
from radixlm.core.moves import StoredPath
from radixlm.memory.disk_store import DiskStore, StoredBlock
from radixlm.memory.store_identity import StoreIdentity

TOKENS, BYTES = 4, 5000
IDENTITY = StoreIdentity({"model": "m", "dtype": "float32"})
# What starts a process to which rights apply, though it is root's.
_CAPABILITIES = "-dac_override,-dac_read_search"
BOUND = ("setpriv", f"--inh-caps={_CAPABILITIES}", f"--bounding-set={_CAPABILITIES}")


def open_store(
    folder: Path, identity: StoreIdentity = IDENTITY, blocks: int = 1000, **options: bool
) -> DiskStore:
    """A store with room for as many blocks at least. options: of `DiskStore.open`."""
    return DiskStore.open(
        folder,
        identity,
        block_tokens=TOKENS,
        block_bytes=BYTES,
        limit_bytes=limit_of(blocks),
        **options,
    )


def limit_of(blocks: int) -> int:
    return (8 << 20) + blocks * 9000


def payload(namespace: bytes, tokens: Key) -> bytes:
    """The bytes of a block that ends a path: others for any other path."""
    seed = np.frombuffer(namespace + tokens.tobytes(), dtype=np.uint8)
    return np.random.default_rng(seed).bytes(BYTES)


def block(namespace: bytes, tokens: Key) -> StoredBlock:
    return StoredBlock(namespace, tokens, [memoryview(payload(namespace, tokens))])


def blocks_of(tokens: Key, namespace: bytes = b"") -> list[StoredBlock]:
    """All of a path."""
    ends = range(TOKENS, tokens.size + 1, TOKENS)
    return [block(namespace, tokens[:end]) for end in ends]


def path(n_blocks: int, first: int = 0) -> Key:
    return as_key(np.arange(first, first + n_blocks * TOKENS))


def found(store: DiskStore, tokens: Key, namespace: bytes = b"") -> int:
    """How many blocks of a path are read, each with the bytes that it was stored with."""
    reader, into = store.reader(StoredPath(namespace, tokens), 0), bytearray(BYTES)
    count = 0
    while reader.next([memoryview(into)]):
        count += 1
        assert bytes(into) == payload(namespace, tokens[: count * TOKENS])
    return count


def leaves(store: DiskStore) -> set[tuple[bytes, tuple[int, ...]]]:
    return {(each.namespace, tuple(each.tokens.tolist())) for each in store.index()}
