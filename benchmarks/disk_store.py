"""How fast are blocks written and read, beside the same values in LMDB?

    python -m benchmarks.disk_store [--folder DIR] [--shape smollm-135m] [--blocks 128] [--runs 7]

Blocks of 128 tokens of a pool of the shape. Both write 16 values a transaction, each on disk at its
end; the values in LMDB are contiguous, ours are the pool's slots. Read is each block once, into the
pool's slots, in the order of its path: out of LMDB's map by the copy that host memory is copied
back with, and by what the server reads with, which also compares paths and sums. They take turns.
`get_cold` is from the disk, what the system holds of the files forgotten before (`pages_held`: the
shares that it holds all the same); `get` out of its memory, by a process that has read nothing yet,
`get_again` the second time: LMDB's map costs page faults once. Both are the processor's work:
`get_work` has its time in the place of wall time, which says the same on a quiet machine, and more
on a busy one. Ratios are medians of the runs' ratios. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import lmdb
import numpy as np
import torch
import xxhash

from benchmarks.disk_servers import drop_pages
from benchmarks.rows import show_rows
from benchmarks.served import median
from radixlm.core.keys import Slots, as_key
from radixlm.core.moves import Ended, Read, Report, Write
from radixlm.memory.disk_store import DiskStore
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.store_identity import StoreIdentity
from radixlm.memory.transfers import Transfers
from radixlm.testing.checkpoints import SHAPES

_TOKENS, _AT_ONCE = 128, 16


class Sides:
    """The same blocks in LMDB and in the store, in folders that are new; two pools' worth of slots:
    what is written, and where it is read into.
    """

    def __init__(self, folder: Path, shape: str, blocks: int) -> None:
        self.folder, self.blocks = folder, blocks
        values = SHAPES[shape]
        layers, heads, size = (
            int(values[name]) for name in ("num_hidden_layers", "num_key_value_heads", "head_dim")
        )
        self.tokens = as_key(np.arange(blocks * _TOKENS))
        self.pool = KVPool(layers, 2 * self.tokens.size, heads, size, torch.bfloat16)
        for part in (*self.pool.keys, *self.pool.values):
            some = torch.randn(_AT_ONCE * _TOKENS, heads, size, dtype=torch.bfloat16)
            part[:] = some.repeat(part.shape[0] // some.shape[0], 1, 1)
        self.slots = np.arange(2 * self.tokens.size, dtype=np.int32)
        self.packed = PoolBlocks(self.pool, _TOKENS)
        self.nbytes = self.packed.nbytes
        self.rows = self.packed.rows(_AT_ONCE)  # what all are, again and again
        for at, row in enumerate(self.rows):
            self.packed.pack(self.from_slots(at), row)
        self.clear()

    def clear(self) -> None:
        for name in ("lmdb", "store"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.open()

    def open(self) -> None:
        size = 2 * self.blocks * self.nbytes + (64 << 20)
        self.lmdb = lmdb.open(str(self.folder / "lmdb"), map_size=size)
        store = DiskStore.open(
            self.folder / "store",
            StoreIdentity({"model": "measured"}),
            block_tokens=_TOKENS,
            block_bytes=self.nbytes,
            limit_bytes=size,
        )
        self.moves = Moves(store, self.packed)

    def close(self) -> None:
        self.lmdb.close()
        self.moves.close()

    def forget(self) -> list[float]:
        """Have the system hold nothing of either side's files; the shares that it holds."""
        self.close()
        held = [drop_pages(self.folder / name) for name in ("lmdb", "store")]
        self.open()
        return held

    def from_slots(self, number: int) -> Slots:
        return self.slots[number * _TOKENS : (number + 1) * _TOKENS]

    def into_slots(self, number: int) -> Slots:
        return self.from_slots(self.blocks + number)

    def put_lmdb(self) -> None:
        for first in range(0, self.blocks, _AT_ONCE):
            with self.lmdb.begin(write=True) as writing:
                for at in range(_AT_ONCE):
                    writing.put(b"%032d" % (first + at), self.rows[at].numpy().data)

    def put_store(self) -> None:
        self.moves.run(Write(0, b"", self.tokens, 0, self.slots[: self.tokens.size]))

    def get_lmdb(self, *, summed: bool = False) -> None:
        for at in range(self.blocks):
            with self.lmdb.begin(buffers=True) as reading:
                value = reading.get(b"%032d" % at)
                assert value is not None
                if summed:
                    xxhash.xxh3_128_digest(value)
                self.packed.unpack(torch.frombuffer(value, dtype=torch.uint8), self.into_slots(at))

    def get_lmdb_summed(self) -> None:
        self.get_lmdb(summed=True)

    def get_store(self) -> None:
        self.moves.run(Read(0, b"", self.tokens, 0, self.slots[self.tokens.size :]))

    def check(self) -> None:
        """What was read is what was written. Forgets it."""
        for part in (*self.pool.keys, *self.pool.values):
            half = self.tokens.size
            assert torch.equal(part[:half], part[half:])
            part[half:] = 0


class Moves:
    """The server's thread over a store."""

    def __init__(self, store: DiskStore, blocks: PoolBlocks) -> None:
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._thread = Transfers(store, blocks, self._reports.put)
        self._thread.start()

    def run(self, job: Read | Write) -> None:
        assert self._thread.submit(job)
        while not isinstance(report := self._reports.get(timeout=100), Ended):
            pass
        assert report.upto == job.tokens.size, report

    def close(self) -> None:
        assert self._thread.stop()


def measured(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    blocks = -(-options.blocks // _AT_ONCE) * _AT_ONCE
    sides = Sides(root, options.shape, blocks)
    seconds: dict[str, list[float]] = {}
    worked: dict[str, list[float]] = {}
    held: list[float] = []

    def take(name: str, work: Callable[[], None]) -> None:
        started, before = time.perf_counter(), time.process_time()
        work()
        seconds.setdefault(name, []).append(time.perf_counter() - started)
        worked.setdefault(name, []).append(time.process_time() - before)
        if name.startswith("get"):
            sides.check()

    for number in range(options.runs):
        turns = ("lmdb", "store") if number % 2 else ("store", "lmdb")
        for side in turns:
            take(f"put_{side}", getattr(sides, f"put_{side}"))
        held += sides.forget()
        for times in ("get_cold", "get", "get_again"):
            if times == "get":  # a process that has read nothing yet
                sides.close()
                sides.open()
            for side in turns:
                take(f"{times}_{side}", getattr(sides, f"get_{side}"))
        take("get_again_lmdb_summed", sides.get_lmdb_summed)
        disk = sum(file.stat().st_size for file in (root / "store").iterdir())
        sides.close()
        sides.clear()
    sides.close()
    nbytes = blocks * sides.nbytes
    ratios = {
        name: [
            one / ours
            for one, ours in zip(took[f"{times}_lmdb"], took[f"{times}_store"], strict=True)
        ]
        for name, took, times in (
            ("put", seconds, "put"),
            ("get_cold", seconds, "get_cold"),
            ("get", seconds, "get"),
            ("get_again", seconds, "get_again"),
            ("get_work", worked, "get"),
            ("get_again_work", worked, "get_again"),
        )
    }
    return {
        "block_bytes": sides.nbytes,
        "blocks": blocks,
        **{f"{name}_gb_s": round(nbytes / median(each) / 1e9, 2) for name, each in seconds.items()},
        **{f"{times}_over_lmdb": round(median(each), 3) for times, each in ratios.items()},
        **{f"all_{times}": [round(one, 2) for one in each] for times, each in ratios.items()},
        "pages_held": held,
        "disk_over_kv": round(disk / nbytes, 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm-135m")
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        found = measured(options, Path(root))
    show_rows("disk store", [{"what": key, "value": str(value)} for key, value in found.items()])
    print(json.dumps({"benchmark": "disk_store", "shape": options.shape, **found}))


if __name__ == "__main__":
    main()
