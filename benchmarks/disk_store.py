"""How fast are blocks written and read, beside the same values in LMDB?

    python -m benchmarks.disk_store [--folder DIR] [--block-mb 2.95] [--blocks 256] [--runs 5]

Both write 16 values a transaction, each on disk at its end, and read each into memory of its own;
the store also sums, and compares paths. They take turns; medians count. What is read lies in the
page cache. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import lmdb
import numpy as np
import xxhash
from numpy.typing import NDArray

from radixlm.core.keys import as_key
from radixlm.core.moves import StoredPath
from radixlm.memory.disk_store import DiskStore, StoredBlock
from radixlm.memory.store_identity import StoreIdentity

_TOKENS, _AT_ONCE = 128, 16
_PARTS = 60  # keys and values of 30 layers


def timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Sides:
    """The same values in LMDB and in the store, in folders that are new."""

    def __init__(self, folder: Path, nbytes: int, blocks: int) -> None:
        self.folder, self.nbytes, self.blocks = folder, nbytes, blocks
        self.values = np.random.default_rng(0).integers(0, 256, (_AT_ONCE, nbytes), dtype=np.uint8)
        self.pool = np.zeros((blocks, nbytes), dtype=np.uint8)
        self.tokens = as_key(np.arange(blocks * _TOKENS))
        self.clear()

    def clear(self) -> None:
        for name in ("lmdb", "store"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        size = 2 * self.blocks * self.nbytes + (64 << 20)
        self.lmdb = lmdb.open(str(self.folder / "lmdb"), map_size=size)
        self.store = DiskStore.open(
            self.folder / "store",
            StoreIdentity({"model": "measured"}),
            block_tokens=_TOKENS,
            block_bytes=self.nbytes,
            limit_bytes=size,
        )

    def close(self) -> None:
        self.lmdb.close()
        self.store.close()

    def parts(self, row: NDArray[np.uint8]) -> list[memoryview]:
        size = -(-self.nbytes // _PARTS)
        return [row.data[start : start + size] for start in range(0, self.nbytes, size)]

    def put_lmdb(self) -> None:
        for first in range(0, self.blocks, _AT_ONCE):
            with self.lmdb.begin(write=True) as writing:
                for at in range(first, first + _AT_ONCE):
                    writing.put(b"%032d" % at, self.values[at % _AT_ONCE].data)

    def put_store(self) -> None:
        for first in range(0, self.blocks, _AT_ONCE):
            self.store.put(self._block(at) for at in range(first, first + _AT_ONCE))

    def _block(self, at: int) -> StoredBlock:
        tokens = self.tokens[: (at + 1) * _TOKENS]
        return StoredBlock(b"", tokens, self.parts(self.values[at % _AT_ONCE]))

    def get_lmdb(self, *, summed: bool = False) -> None:
        for at in range(self.blocks):
            with self.lmdb.begin(buffers=True) as reading:
                value = reading.get(b"%032d" % at)
                assert value is not None
                if summed:
                    xxhash.xxh3_128_digest(value)
                np.copyto(self.pool[at], np.frombuffer(value, dtype=np.uint8))

    def get_lmdb_summed(self) -> None:
        self.get_lmdb(summed=True)

    def get_store(self) -> None:
        reader = self.store.reader(StoredPath(b"", self.tokens), 0)
        for at in range(self.blocks):
            assert reader.next(self.parts(self.pool[at]))


def rate(seconds: Iterable[float], nbytes: int) -> float:
    return round(nbytes / statistics.median(seconds) / 1e9, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--block-mb", type=float, default=2.94912)
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    nbytes, blocks = int(options.block_mb * 1e6), -(-options.blocks // _AT_ONCE) * _AT_ONCE
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        sides = Sides(Path(root), nbytes, blocks)
        for _ in range(options.runs):
            for name in ("put_lmdb", "put_store", "get_lmdb", "get_lmdb_summed", "get_store"):
                seconds.setdefault(name, []).append(timed(getattr(sides, name)))
            assert (sides.pool[-1] == sides.values[-1]).all()
            disk = sum(file.stat().st_size for file in (Path(root) / "store").iterdir())
            sides.close()
            sides.clear()
        sides.close()
    report = {name: rate(found, blocks * nbytes) for name, found in seconds.items()}
    ratios = {
        side: round(report[f"{side}_store"] / report[f"{side}_lmdb"], 2) for side in ("put", "get")
    }
    print(
        json.dumps(
            {
                "benchmark": "disk_store",
                "block_bytes": nbytes,
                "blocks": blocks,
                "gb_per_s": report,
                "over_lmdb": ratios,
                "disk_over_kv": round(disk / (blocks * nbytes), 4),
            }
        )
    )


if __name__ == "__main__":
    main()
