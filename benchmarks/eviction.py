"""What it costs to evict a leaf: the policy that learns beside LRU, the same requests.

    python -m benchmarks.eviction [--leaves 2000] [--requests 6000]

Requests are of popular and of new prompts, in a pool that holds about as many leaves. Timed is
`RadixTree.evict` alone, with all that it learns in between. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from radixlm.cache import RadixCache, make_policy
from radixlm.core.keys import Slots

TOKENS = 256


class Timed:
    """A tree's `evict`, and what it took, in nanoseconds."""

    def __init__(self, cache: RadixCache) -> None:
        self._evict = cache.tree.evict
        self.spent = 0

    def __call__(self, n_tokens: int) -> Slots:
        began = time.thread_time_ns()
        slots = self._evict(n_tokens)
        self.spent += time.thread_time_ns() - began
        return slots


def microseconds_a_leaf(policy: str, leaves: int, requests: int) -> float:
    random = np.random.default_rng(0)
    cache = RadixCache(leaves * TOKENS, policy=make_policy(policy))
    timed = Timed(cache)
    cache.tree.evict = timed  # type: ignore[method-assign]
    for number in range(leaves + requests):
        if number == leaves:
            timed.spent, before = 0, cache.tree.stats.evictions
        seen = int(leaves * random.pareto(1.0))
        prompt = seen if random.random() < 0.5 else 10**6 + number
        key = np.arange(TOKENS, dtype=np.int32) + np.int32(prompt % 10**7 * 64)
        lease = cache.acquire(key)
        lease.extend(TOKENS - lease.cached)
        lease.commit(TOKENS)
        lease.release()
    return timed.spent / 1e3 / max(cache.tree.stats.evictions - before, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=6_000)
    args = parser.parse_args()
    lru, learned = (
        min(microseconds_a_leaf(policy, args.leaves, args.requests) for _ in range(3))
        for policy in ("lru", "learned")
    )
    print(f"evict, a leaf: lru {lru:.1f} us, learned {learned:.1f} us")
    report = {"lru_us": round(lru, 2), "learned_us": round(learned, 2)}
    print(json.dumps({"workload": "eviction", **report, "ratio": round(learned / lru, 2)}))


if __name__ == "__main__":
    main()
