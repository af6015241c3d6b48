"""What the radix tree costs per request, beside the physical limit: one memcmp of the same bytes.

    python -m benchmarks.tree_ops [--only a,b,...] [--scale 1.0]

Per request: match, lock (take hold, splitting), insert (from the held node, the lock moves along),
unlock, and evict where the pool is full. Microseconds, median and p99; each has the time of reading
the clock in it, which stands beside the sum: not taken off. The index is what the tree keeps beside
the keys and values: bytes per cached token, by tracemalloc. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from radixlm.cache import RadixCache, RadixTree, SlotAllocator
from radixlm.cache.radix.node import NO_SLOTS
from radixlm.core.keys import Key

OPERATIONS = ("match", "lock", "insert", "unlock", "evict")
clock = time.perf_counter_ns


@dataclass
class Timings:
    """Nanoseconds by operation, one entry per request (evict: per freed token)."""

    spent: dict[str, list[float]] = field(default_factory=lambda: {n: [] for n in OPERATIONS})

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "median_us": round(statistics.median(values) / 1e3, 3),
                "p99_us": round(float(np.quantile(values, 0.99)) / 1e3, 3),
            }
            for name, values in self.spent.items()
            if values
        }


class Index:
    """A tree and its free list, driven as a cache drives them, every step timed."""

    def __init__(self, capacity: int) -> None:
        self.tree = RadixTree()
        self.slots = SlotAllocator(capacity)
        self.timings = Timings()

    def serve(self, key: Key) -> None:
        """One request from admission to end."""
        spent = self.timings.spent
        t0 = clock()
        match = self.tree.match_prefix(key)
        t1 = clock()
        held = self.tree.inc_lock_ref(match)
        t2 = clock()
        spent["match"].append(t1 - t0)
        spent["lock"].append(t2 - t1)
        new = key.size - match.length
        short = new - self.slots.free_size
        if short > 0:
            t0 = clock()
            freed = self.tree.evict(short)
            spent["evict"].append((clock() - t0) / freed.size)
            self.slots.free(freed)
        fresh = self.slots.allocate(new) if new else NO_SLOTS
        slots = np.concatenate((match.slots(), fresh))
        t0 = clock()
        node = self.tree.insert(key, slots, start=held).node
        t1 = clock()
        self.tree.dec_lock_ref(node)
        t2 = clock()
        spent["insert"].append(t1 - t0)
        spent["unlock"].append(t2 - t1)


def system_prompt(scale: float) -> Iterator[Key]:
    """(a) 2,500 shared tokens, 100 own."""
    draw = np.random.default_rng(0)
    shared = draw.integers(0, 50_000, 2_500)
    for _ in range(int(10_000 * scale)):
        yield np.concatenate((shared, draw.integers(0, 50_000, 100))).astype(np.int32)


def chats(scale: float) -> Iterator[Key]:
    """(b) 500 chats of 10 turns of 200 tokens, interleaved."""
    draw = np.random.default_rng(1)
    count = int(500 * scale)
    texts = draw.integers(0, 50_000, (count, 2_000)).astype(np.int32)
    for turn in range(1, 11):
        for chat in range(count):
            yield texts[chat, : turn * 200].copy()


def tree_of_thought(scale: float) -> Iterator[Key]:
    """(c) a root of 1,000 tokens, branching 4, depth 6, 64 tokens a node."""
    draw = np.random.default_rng(2)
    level = [draw.integers(0, 50_000, 1_000).astype(np.int32)]
    yield level[0]
    for _ in range(6 if scale >= 1 else 4):
        level = [
            np.concatenate((parent, draw.integers(0, 50_000, 64).astype(np.int32)))
            for parent in level
            for _ in range(4)
        ]
        yield from level


def unique(scale: float) -> Iterator[Key]:
    """(d) 5,000 x 1,000 unique tokens, in a pool for 1,000 of them."""
    draw = np.random.default_rng(3)
    for _ in range(int(5_000 * scale)):
        yield draw.integers(0, 2**31 - 1, 1_000).astype(np.int32)


def long_prompt(scale: float) -> Iterator[Key]:
    """(e) one prompt of 131,072 tokens, 1,000 times."""
    key = np.random.default_rng(4).integers(0, 50_000, 131_072).astype(np.int32)
    for _ in range(int(1_000 * scale)):
        yield key.copy()


Workload = Callable[[float], Iterator[Key]]
WORKLOADS: dict[str, tuple[Workload, int]] = {
    "a": (system_prompt, 2_000_000),
    "b": (chats, 2_000_000),
    "c": (tree_of_thought, 2_000_000),
    "d": (unique, 1_000_000),
    "e": (long_prompt, 400_000),
}


def run(workload: Workload, capacity: int, scale: float) -> dict[str, object]:
    """Time every request of a workload; the garbage collector waits."""
    index = Index(capacity)
    gc.collect()
    gc.disable()
    longest = 0
    for key in workload(scale):
        index.serve(key)
        longest = max(longest, key.size)
    gc.enable()
    summary = index.timings.summary()
    total = sum(v["median_us"] for name, v in summary.items() if name != "evict")
    return {
        "requests": len(index.timings.spent["match"]),
        "operations": summary,
        "sum_us": round(total, 3),
        "timers_us": round(4 * empty_timer(), 3),
        "memcmp_us": round(memcmp(longest), 3),
        "index_bytes_per_token": index_bytes(workload, capacity, scale),
    }


def memcmp(tokens: int) -> float:
    """Microseconds that comparing two equal keys of that length takes, at the best."""
    left = np.arange(tokens, dtype=np.int32).tobytes()
    right = bytearray(left)
    return min(_timed(lambda: left.startswith(right)) for _ in range(2_000)) / 1e3


def empty_timer() -> float:
    """Microseconds that a measurement of nothing takes, the median."""
    spent = []
    for _ in range(10_000):
        start = clock()
        spent.append(clock() - start)
    return statistics.median(spent) / 1e3


def index_bytes(workload: Workload, capacity: int, scale: float) -> float:
    """Bytes that the tree keeps for each token in it, once the keys themselves are gone."""
    index = Index(capacity)
    gc.collect()
    tracemalloc.start()
    tree = RadixTree()
    index.tree = tree
    for key in workload(min(scale, 0.2)):
        index.serve(key)
    index.timings = Timings()
    gc.collect()
    tokens = tree.evictable_size
    del key
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(held / tokens, 2)


def evict_leaves(leaves: int) -> dict[str, float]:
    """(f) many live leaves, 64 tokens each; evict 1,000 times 64. Microseconds per freed leaf."""
    tree = RadixTree()
    rest = np.zeros(63, dtype=np.int32)
    slots = np.arange(64, dtype=np.int32)
    for leaf in range(leaves):
        tree.insert(np.concatenate(([leaf], rest)).astype(np.int32), slots)
    spent = [_timed(lambda: tree.evict(64)) / 1e3 for _ in range(1_000)]
    return {
        "leaves": leaves,
        "median_us": round(statistics.median(spent), 3),
        "p99_us": round(float(np.quantile(spent, 0.99)), 3),
    }


def decode(leaf: int, pool: int = 262_144, tokens: int = 4_096) -> dict[str, float]:
    """(g) one lease takes slots token by token, out of a pool full of leaves that must go."""
    cache = RadixCache(pool)
    for number in range(pool // leaf):
        lease = cache.acquire(np.full(leaf, number, dtype=np.int32))
        lease.extend(leaf)
        lease.commit(leaf)
        lease.release()
    lease = cache.acquire([pool])
    gc.collect()
    start = clock()
    for _ in range(tokens):
        lease.extend(1)
    return {"leaf": leaf, "mean_us": round((clock() - start) / tokens / 1e3, 3)}


def _timed(call: Callable[[], object]) -> int:
    start = clock()
    call()
    return clock() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="a,b,c,d,e,f,g")
    options.add_argument("--scale", type=float, default=1.0)
    args = options.parse_args()
    wanted = args.only.split(",")
    report: dict[str, object] = {"benchmark": "tree_ops", "scale": args.scale}
    head = f"{'':4}{'requests':>9}" + "".join(f"{name:>16}" for name in OPERATIONS)
    print(head + f"{'sum':>9}{'timers':>9}{'memcmp':>9}{'B/token':>9}   (us: median / p99)")
    for name, (workload, capacity) in WORKLOADS.items():
        if name in wanted:
            row = run(workload, capacity, args.scale)
            report[name] = row
            print(_line(name, row))
    if "f" in wanted:
        sizes = [1_000, int(100_000 * args.scale), int(1_000_000 * args.scale)]
        report["f"] = [
            evict_leaves(leaves) for leaves in sizes if leaves > 1_000 or leaves == 1_000
        ]
        for row in report["f"]:  # type: ignore[attr-defined]
            print(f"f   evict a leaf of {row['leaves']:,}: {row['median_us']} / {row['p99_us']} us")
    if "g" in wanted:
        report["g"] = [decode(leaf) for leaf in (256, 32_768, 131_072)]
        for row in report["g"]:  # type: ignore[attr-defined]
            print(f"g   decode a token, leaves of {row['leaf']:,}: {row['mean_us']} us")
    report["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(report))


def _line(name: str, row: dict[str, object]) -> str:
    operations = row["operations"]
    assert isinstance(operations, dict)
    cells = "".join(
        f"{operations[op]['median_us']:>8}/{operations[op]['p99_us']:<7}"
        if op in operations
        else f"{'-':>16}"
        for op in OPERATIONS
    )
    figures = f"{row['sum_us']:>9}{row['timers_us']:>9}{row['memcmp_us']:>9}"
    figures += f"{row['index_bytes_per_token']:>9}"
    return f"{name:4}{row['requests']:>9}{cells}{figures}"


if __name__ == "__main__":
    main()
