"""A seeded stress run of the radix cache against a brute-force model and a simulated memory.

    python -m tests.cache_stress --operations 1000000 --seed 0

The model (tests/cache_model.py) knows no tree: it is the set of all cached and remembered prefixes,
in whole pages. The memory says of every slot which whole prefix was computed into it, so any wrong
sharing shows. Small pools, few tokens and several leases make splits, merges, collisions, pins over
budget and evictions common; large pools with many tokens keep more than 10,000 nodes.

After every operation: the conservation law, all counters against the model's, and the slots and
contents of the lease that it was about. At every eviction: that an unlocked leaf goes, and its end;
in small pools also that no candidate's policy key is smaller (in large ones, every 50th time). At
every so many operations: `check()`, the whole tree against the model page by page, the free slots
one by one, every lease, the depth-first order. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixlm.cache import NAMES
from tests.checked_cache import CheckedCache, Reader

MANY_NODES = 10_000


@dataclass(frozen=True)
class Setup:
    """Sizes in pages. kinds: different whole pages. recent: keys that new ones begin like.
    fill: whole requests are served, one after another, until there are so many nodes.
    """

    page_size: int
    pages: int = 32
    enabled: bool = True
    kinds: int = 2
    longest: int = 10
    added: int = 5
    recent: int = 9
    leases: int = 6
    fill: int = 0
    flush: float = 0.01
    policy: float = 0.01
    pins: int = 4
    ghosts: int = 24
    order_every: int = 1
    check_every: int = 20
    share: float = 0.02


SMALL = (
    Setup(1),
    Setup(1, 12, ghosts=48),
    Setup(4, 24),
    Setup(16, 24, ghosts=0),
    Setup(1, 256, kinds=3, longest=60, added=40, ghosts=256, pins=8),
    Setup(4, 24, enabled=False),
)


def large(page_size: int, pages: int, share: float) -> Setup:
    return Setup(
        page_size,
        pages,
        kinds=1_000,
        longest=40,
        added=8,
        recent=5_000,
        leases=100,
        fill=MANY_NODES,
        flush=0.0,
        policy=0.0001,
        pins=100,
        ghosts=pages,
        order_every=50,
        check_every=5_000,
        share=share,
    )


LARGE = (large(1, 40_000, 0.53), large(4, 40_000, 0.35))


class Stress:
    """Random operations on a CheckedCache, always the same for the same seed."""

    def __init__(self, seed: int, setup: Setup) -> None:
        size = setup.page_size
        self.setup = setup
        self.checked = CheckedCache(
            setup.pages * size,
            size,
            enabled=setup.enabled,
            ghost_budget=setup.ghosts * size,
            pin_budget=setup.pages * size // 3,
            order_every=setup.order_every,
        )
        self.page_size = size
        self._fills = setup.fill > 0
        self._random = random.Random(seed)
        self._keys: list[list[int]] = [[0] * size]

    def run(self, operations: int, check_every: int = 0, log_every: int = 0) -> Counter[str]:
        """Do that many operations, then let everything go: nothing may be left behind."""
        counts, cache = self.checked.counts, self.checked.cache
        check_every = check_every or self.setup.check_every
        due, told, began = check_every, log_every, time.perf_counter()
        while (done := counts["operations"]) < operations:
            self._step()
            nodes = cache.tree.node_count
            done, before = counts["operations"], done
            counts["nodes x operations"] += nodes * (done - before)
            counts["operations at 10k nodes"] += (nodes >= MANY_NODES) * (done - before)
            if done >= due:
                self.checked.verify()
                due = done + check_every
            if log_every and done >= told:
                told += log_every
                seconds = time.perf_counter() - began
                ghosts = cache.tree.ghosts.size
                print(f"  {done:>9,} operations {counts['checks']:>7,} checks {nodes:>7,} nodes "
                      f"{ghosts:>7,} ghosts {seconds:>6.1f} s", flush=True)  # fmt: skip
        self.checked.close()
        stats, watch = cache.tree.stats, self.checked.watch
        counts |= {
            "splits": stats.splits,
            "merges": stats.merges,
            "evictions": stats.evictions,
            "evicted": stats.evicted_tokens,
            "revived": stats.revived_tokens,
            "forgotten": stats.forgotten_tokens,
            "trims": watch.trims,
            "orders compared": watch.compared,
        }
        return counts

    def _step(self) -> None:
        checked, pick = self.checked, self._random
        readers, draw = checked.readers, pick.random()
        checked.clock.advance(pick.random())
        if self._fills:
            self._fills = checked.cache.tree.node_count < self.setup.fill
            self._serve()
            return
        if pick.random() < self.setup.flush:
            checked.flush()
        elif pick.random() < self.setup.policy:
            checked.set_policy(pick.choice(sorted(NAMES)))
        elif draw < 0.05:
            checked.look(self._key(), self._namespace())
        elif draw < 0.08:
            self._pin()
        elif draw < 0.10:
            checked.unpin(pick.choice([*checked.pins, 0]))
        elif len(readers) < self.setup.leases and (draw < 0.35 or not readers):
            tokens = self._key()
            limit = None if draw < 0.3 else pick.randint(0, tokens.size)
            priority = pick.choice([0, 0, 0, 1, 2])
            checked.acquire(tokens, self._namespace(), limit, priority)
        elif readers:
            self._use(pick.choice(readers), draw)

    def _serve(self) -> None:
        reader = self.checked.acquire(self._key(), self._namespace())
        left = reader.tokens.size - len(reader.row)
        if not left or self.checked.extend(reader, left):
            self.checked.commit(reader, reader.tokens.size)
        self.checked.release(reader)

    def _use(self, reader: Reader, draw: float) -> None:
        length, pick = len(reader.row), self._random
        left = reader.tokens.size - length
        if draw < 0.65 and left:
            whole = left if pick.random() < 0.5 else pick.randint(1, left)
            if not self.checked.extend(reader, whole) and pick.random() < 0.7:
                self.checked.commit(reader, length)
                self.checked.release(reader)
        elif draw < 0.85 or (left and pick.random() < 0.8):
            self.checked.commit(reader, pick.choice([length, length, length // 2]))
        else:  # aborted, where something is left
            self.checked.release(reader)

    def _pin(self) -> None:
        ttl = None if self._random.random() < 0.3 else self._random.uniform(1, 30)
        if len(self.checked.pins) < self.setup.pins:
            self.checked.pin(self._key(), self._namespace(), ttl)

    def _key(self) -> npt.NDArray[np.int32]:
        """An earlier key, or its beginning and a few pages more; some of them torn."""
        pick, size, setup = self._random, self.page_size, self.setup
        tokens = list(pick.choice(self._keys))
        if pick.random() < 0.2:
            return np.array(tokens, dtype=np.int32)
        del tokens[pick.randint(0, len(tokens)) :]
        for _ in range(pick.randint(0, setup.added)):
            tokens.extend([pick.randrange(setup.kinds)] * size)
        if pick.random() < 0.3:
            tokens.extend([setup.kinds] * pick.randint(1, size))
        tokens = tokens[: setup.longest * size] or [pick.randint(0, 1)]
        if len(self._keys) < setup.recent:
            self._keys.append(tokens)
        else:
            self._keys[pick.randrange(setup.recent)] = tokens
        return np.array(tokens, dtype=np.int32)

    def _namespace(self) -> Hashable:
        return self._random.choice([None, None, None, "adapter"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=200_000, help="in total")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    total: Counter[str] = Counter()
    began = time.perf_counter()
    columns = ("operations", "checks", "splits", "merges", "evictions", "evicted", "revived",
               "forgotten", "remaps", "aborts", "refused", "pins", "orders compared")  # fmt: skip
    for setup in (*SMALL, *LARGE):
        start = time.perf_counter()
        kind = f"pages of {setup.page_size}, a pool of {setup.pages * setup.page_size:,} tokens"
        print(kind if setup.enabled else f"{kind}, cache off", flush=True)
        stress = Stress(args.seed, setup)
        counts = stress.run(round(args.operations * setup.share), log_every=50_000)
        total.update(counts)
        seconds = time.perf_counter() - start
        mean = counts["nodes x operations"] // counts["operations"]
        told = ", ".join(f"{counts[name]:,} {name}" for name in columns)
        print(f"  {told}, {mean:,} nodes on average, {seconds:.1f} s", flush=True)
    seconds = round(time.perf_counter() - began, 1)
    done = total["operations"]
    result = {name: count for name, count in sorted(total.items()) if " x " not in name}
    means = {
        "mean_nodes": total["nodes x operations"] // done,
        "share_of_operations_at_10k_nodes": round(total["operations at 10k nodes"] / done, 3),
    }
    head = {"benchmark": "cache_stress", "seed": args.seed, "seconds": seconds}
    print(json.dumps(head | means | result))


if __name__ == "__main__":
    main()
