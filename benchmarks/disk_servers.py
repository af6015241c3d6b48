"""Servers with a disk cache, for benchmarks: what they are asked, and what lies in their folder."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peer_client import Peer, PeerError, Reply
from benchmarks.peer_workloads import Ask, Draw
from benchmarks.served import PATIENCE, Served, serving
from radixlm.core.keys import as_key
from radixlm.core.request import Namespace
from radixlm.memory.disk_store import DiskStore, StoredBlock
from radixlm.memory.pools import bytes_per_token
from radixlm.memory.store_care import contents
from radixlm.memory.store_identity import StoreIdentity
from radixlm.models import load_config
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

BLOCK_TOKENS = 128
# A disk is at rest when its files have been the same for so long, seconds.
_QUIET = 1.0
# Blocks of a path that `fill` stores, and of a transaction.
_PATH, _AT_ONCE = 32, 256


@dataclass(frozen=True, slots=True)
class Model:
    """A random model of a shape in a folder, and how it is served."""

    shape: str
    folder: Path
    dtype: str

    @classmethod
    def made(cls, shape: str, place: Path, dtype: str) -> Model:
        return cls(shape, write_random_checkpoint(shape, place / shape), dtype)

    @property
    def vocab(self) -> int:
        size: int = SHAPES[self.shape]["vocab_size"]
        return size

    @property
    def token_bytes(self) -> int:
        """Of keys and values, all layers."""
        config = load_config(self.folder)
        kind: torch.dtype = getattr(torch, self.dtype)
        return bytes_per_token(config.n_layers, config.n_kv_heads, config.head_dim, kind)

    def flags(self, kv_tokens: int, disk: Path | None, *more: str) -> list[str]:
        """Of `radixlm serve`. disk: the folder of its disk cache, to which all is written."""
        flags = [str(self.folder), "--dtype", self.dtype, "--kv-tokens", str(kv_tokens), *more]
        if disk is not None:
            flags += ["--disk-cache", str(disk)]
            flags += ["--disk-write-policy", "all"] if "--disk-write-policy" not in more else []
        return flags

    def ask(self, served: Served, asks: Sequence[Ask], at_once: int = 1) -> list[Reply]:
        """The answers. Raises PeerError for one that does not come, or is an error."""
        return asyncio.run(self._ask(served, asks, at_once))

    def ask_some(self, served: Served, asks: Sequence[Ask], at_once: int) -> list[Reply]:
        """Those answers that come: the server may be killed meanwhile."""
        return asyncio.run(self._ask(served, asks, at_once, broken=True))

    def flush(self, served: Served) -> None:
        """Forget what is in memory; what is on disk stays. Raises PeerError."""

        async def flush() -> None:
            async with httpx.AsyncClient(timeout=PATIENCE) as client:
                peer = Peer(served.url, client, self.folder.name)
                peer.flushes_at = "/flush_cache"
                await peer.flush()

        asyncio.run(flush())

    async def _ask(
        self, served: Served, asks: Sequence[Ask], at_once: int, *, broken: bool = False
    ) -> list[Reply]:
        waiting, replies = asyncio.Semaphore(at_once), []
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
            peer = Peer(served.url, client, self.folder.name)

            async def one(ask: Ask) -> Reply | PeerError:
                async with waiting:
                    try:
                        return await peer.ask(ask)
                    except PeerError as error:
                        if not broken:
                            raise
                        return error

            for reply in await asyncio.gather(*map(one, asks)):
                if isinstance(reply, Reply):
                    replies.append(reply)
        return replies


def warm(model: Model, served: Served, seed: int) -> None:
    """Some requests of other sizes, so that what is asked next is not the first of its kind."""
    draw = Draw(model.vocab, seed, 99)
    for size in (600, 100, 20):
        model.ask(served, [Ask(draw.tokens(size), 4)])
    model.flush(served)


def whole(reply: Reply) -> float:
    """Seconds from sending to the last token."""
    return reply.first + sum(reply.gaps)


def hit_rate(replies: Sequence[Reply]) -> float:
    """Cached tokens of all prompt tokens."""
    return sum(reply.cached or 0 for reply in replies) / sum(r.prompt_tokens for r in replies)


def settle(folder: Path) -> None:
    """Wait until nothing has been written for a moment."""
    seen: object = None
    since = time.monotonic()
    while time.monotonic() < since + _QUIET:
        stats = [file.stat() for file in sorted(folder.iterdir())]
        now = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.05)


def drop_pages(folder: Path) -> float:
    """Have the system forget what it holds of the files; the share of their pages that it still
    holds.
    """
    files = [file for file in folder.iterdir() if file.stat().st_size]
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    held = np.concatenate([np.zeros(0, np.uint8), *map(_held_pages, files)])
    return round(float(held.mean()), 4) if held.size else 0.0


def plain_read(folder: Path, nbytes: int) -> float:
    """Seconds in which the system reads so many bytes of the blocks, of which it holds none."""
    (file,) = folder.glob("*.blocks")
    drop_pages(folder)
    into = bytearray(1 << 20)
    with file.open("rb", buffering=0) as opened:
        began = time.perf_counter()
        for _ in range(0, nbytes, len(into)):
            opened.readinto(into)
        return time.perf_counter() - began


def _held_pages(file: Path) -> NDArray[np.uint8]:
    """Of each page of a file, 1 where it lies in memory (mincore(2)). To read a byte instead, even
    one that may not wait, has the system read ahead.
    """
    mapped = np.memmap(file, np.uint8, "r")
    pages = np.empty(-(-mapped.nbytes // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    asked = (ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(mapped.nbytes))
    if libc.mincore(*asked, ctypes.c_void_p(pages.ctypes.data)):
        raise OSError(ctypes.get_errno(), "mincore", str(file))
    return pages & np.uint8(1)


def disk_over_kv(model: Model, folder: Path) -> float:
    """Bytes that all files take, over those of keys and values that are stored in them."""
    taken = 512 * sum(file.stat().st_blocks for file in folder.iterdir())
    tokens = sum(each.blocks * each.block_tokens for each in contents(folder))
    return round(taken / (tokens * model.token_bytes), 4)


def fill(model: Model, folder: Path, tokens: int) -> list[int]:
    """Store so many tokens for the server of this model, with numbers by chance; a path of them."""
    with serving(*model.flags(BLOCK_TOKENS * _PATH, folder)):
        pass  # it writes down who it is
    (own,) = contents(folder)
    nbytes = BLOCK_TOKENS * model.token_bytes
    store = DiskStore.open(
        folder,
        StoreIdentity({name: fact for name, fact in own.facts.items() if name != "model"}),
        block_tokens=BLOCK_TOKENS,
        block_bytes=nbytes,
        limit_bytes=2 * tokens * model.token_bytes + (1 << 30),
    )
    kind: torch.dtype = getattr(torch, model.dtype)
    numbers = torch.randn(nbytes // kind.itemsize, dtype=kind)
    payload = [numbers.view(torch.uint8).numpy().data]
    draw, namespace = Draw(model.vocab, 7), Namespace().packed()
    path: list[int] = []
    for first in range(0, tokens, BLOCK_TOKENS * _AT_ONCE):
        blocks = []
        for _ in range(first, min(first + BLOCK_TOKENS * _AT_ONCE, tokens), BLOCK_TOKENS * _PATH):
            path = draw.tokens(BLOCK_TOKENS * _PATH)
            ends = range(BLOCK_TOKENS, len(path) + 1, BLOCK_TOKENS)
            blocks += [StoredBlock(namespace, as_key(path[:end]), payload) for end in ends]
        if store.put(blocks) != len(blocks):
            raise SystemExit(f"{folder} has no room for {tokens} tokens")
    store.close()
    if contents(folder)[0].digest != own.digest or len(contents(folder)) != 1:
        raise SystemExit(f"the blocks in {folder} are another model's")
    return path
