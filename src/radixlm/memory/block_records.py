"""Records behind the blocks in their slots, so that an index can be made from the blocks alone."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

_MAGIC = b"RXLMblk2"
# With a second sum, of the part of layers with a window, before the namespace, whose room it takes.
_MAGIC_WINDOWS = b"RXLMblk3"
SUM_BYTES = 16
# Magic, when it was stored, the namespace's length, the parent's key, the block's sum.
_HEAD = struct.Struct("<8sqI32s16s")
# A longer one has no room in a record: its blocks are in the index only.
NAMESPACE_BYTES = 1024
_CHECK_BYTES = 16


class Record(NamedTuple):
    """The index's row of a block, but its slot. born: the higher, the later it was stored. sum:
    one, or two, see Row.
    """

    parent: bytes
    namespace: bytes
    tokens: bytes
    sum: bytes
    born: int


def record_bytes(block_tokens: int) -> int:
    return _HEAD.size + NAMESPACE_BYTES + 4 * block_tokens + _CHECK_BYTES


def packed(digest: str, block_tokens: int, record: Record) -> bytes:
    """Pack a record as it is written behind a block; zeros, which are no record, for one that has
    no room there.

    digest: of the identity, without which it is not read back.
    """
    size, more = len(record.namespace), record.sum[SUM_BYTES:]
    if size > NAMESPACE_BYTES - len(more):
        return bytes(record_bytes(block_tokens))
    magic = _MAGIC_WINDOWS if more else _MAGIC
    head = _HEAD.pack(magic, record.born, size, record.parent, record.sum[:SUM_BYTES])
    body = head + (more + record.namespace).ljust(NAMESPACE_BYTES, b"\0") + record.tokens
    return body + _check(digest, body)


def unpacked(digest: str, content: bytes) -> Record | None:
    """None for all that `packed` did not give."""
    body, check = content[:-_CHECK_BYTES], content[-_CHECK_BYTES:]
    if not body.startswith((_MAGIC, _MAGIC_WINDOWS)) or check != _check(digest, body):
        return None
    magic, born, size, parent, total = _HEAD.unpack_from(body)
    at = _HEAD.size
    tokens = body[at + NAMESPACE_BYTES :]
    if magic == _MAGIC_WINDOWS:
        total, at = total + body[at : at + SUM_BYTES], at + SUM_BYTES
    return Record(parent, body[at : at + size], tokens, total, born)


def _check(digest: str, body: bytes) -> bytes:
    return hashlib.blake2b(bytes.fromhex(digest) + body, digest_size=_CHECK_BYTES).digest()
