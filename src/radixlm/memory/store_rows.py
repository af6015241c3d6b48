"""The rows of the disk cache's index, and their keys.

A block's key is a digest of its parent's key and its own tokens; a first block's parent is a digest
of the identity and the namespace. So a row that says what its key stands for is undamaged.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from radixlm.core.errors import DamagedStoreError
from radixlm.core.keys import Key
from radixlm.memory.block_records import SUM_BYTES
from radixlm.memory.store_files import slot_bytes
from radixlm.memory.store_identity import WINDOW_BYTES, Fact

_KEY_BYTES = 32
# Numbers that a slot may have; a damaged row may say anything.
SLOTS = range(2**31)


class Identity(NamedTuple):
    """A row of `identities`; slots: that its file has, used or not."""

    id: int
    digest: str
    facts: str
    block_tokens: int
    block_bytes: int
    slots: int

    @property
    def slot_bytes(self) -> int:
        return slot_bytes(self.block_tokens, self.block_bytes)

    @property
    def described(self) -> dict[str, Fact]:
        """The facts; empty where they cannot be read."""
        try:
            facts = json.loads(self.facts)
        except (ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

    @property
    def window_bytes(self) -> int:
        """The bytes of a block that are of layers with window slots, the last ones; 0 without
        such.
        """
        nbytes = self.described.get(WINDOW_BYTES)
        return nbytes if isinstance(nbytes, int) and 0 < nbytes <= self.block_bytes else 0


class Room(NamedTuple):
    """Most bytes: of all files of blocks, and of these and the index."""

    blocks: int
    together: int


class Lying(NamedTuple):
    """A block's place in its file. born: the higher, the later it was stored."""

    key: bytes
    parent: bytes
    slot: int
    born: int


class Row(NamedTuple):
    """The row of a block: where it lies, and what is known of it. sum: of its bytes; a second one
    follows where those of layers with window slots are stored: the first is without them then as
    well.
    """

    parent: bytes
    namespace: bytes
    tokens: bytes
    slot: int
    sum: bytes

    @property
    def sums(self) -> int:
        """How many it has; 0 for a damaged row."""
        whole = isinstance(self.sum, bytes) and len(self.sum) in (SUM_BYTES, 2 * SUM_BYTES)
        return len(self.sum) // SUM_BYTES if whole else 0

    @property
    def is_sound(self) -> bool:
        """Whether there may be bytes with its sums in its slot."""
        return self.sums > 0 and isinstance(self.slot, int) and self.slot in SLOTS


def blocks_path(folder: Path, identity: Identity) -> Path:
    return folder / f"{identity.digest[:32]}.blocks"


def root_key(identity: Identity, namespace: bytes) -> bytes:
    """The key before a namespace's first blocks."""
    whole = bytes.fromhex(identity.digest) + namespace
    return hashlib.blake2b(whole, digest_size=_KEY_BYTES).digest()


def keys_of(identity: Identity, namespace: bytes, tokens: Key) -> list[bytes]:
    """The key before the first block, then that of each whole block."""
    keys, size = [root_key(identity, namespace)], 4 * identity.block_tokens
    view = np.ascontiguousarray(tokens, dtype=np.int32).data.cast("B")
    for start in range(0, view.nbytes - size + 1, size):
        keys.append(key_after(keys[-1], view[start : start + size]))
    return keys


def is_sound(
    identity: Identity, key: bytes, parent: object, namespace: object, tokens: object
) -> bool:
    """Whether a row is as it was written, so that its key is the digest of what it says."""
    return (
        isinstance(parent, bytes)
        and isinstance(namespace, bytes)
        and isinstance(tokens, bytes)
        and len(tokens) == 4 * identity.block_tokens
        and key == key_after(parent, tokens)
    )


def key_after(parent: bytes, tokens: bytes | memoryview) -> bytes:
    total = hashlib.blake2b(parent, digest_size=_KEY_BYTES)
    total.update(tokens)
    return total.digest()


def identity_of(row: Any, path: Path) -> Identity:
    found = Identity(*row)
    numbers = (found.id, found.block_tokens, found.block_bytes, found.slots)
    if not (
        all(isinstance(each, int) and 0 <= each < 2**48 for each in numbers)
        and isinstance(found.digest, str)
        and isinstance(found.facts, str)
        and len(found.digest) == 2 * _KEY_BYTES
        and set(found.digest) <= set("0123456789abcdef")
        and min(found.block_tokens, found.block_bytes) > 0
    ):
        raise DamagedStoreError(f"{path} is damaged: an identity is {row!r:.200}")
    return found
