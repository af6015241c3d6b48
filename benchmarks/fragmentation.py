"""How long the runs of slots stay after hours of mixed traffic, with and without slots in reserve.

    python -m benchmarks.fragmentation [--steps 40000] [--reserves 0,16,64]

Users come with chats: one of four system prompts, turns of random length, answers of random length,
a pause, the next turn on top, until the chat ends; a fifth ask once, with a long prompt. The pool
is full all the time. No model: a step takes as long as its scheduling. At 100 ms a step, 36,000
steps are an hour. Printed: tokens of the tree and of running requests by the runs they lie in. A
*view* is a run of at least 64 slots: long enough to be read where it lies. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable

import numpy as np
from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm.cache import RadixCache
from radixlm.core.batch import Extent, ScheduledBatch, StepResult
from radixlm.core.keys import Key
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.scheduler import Scheduler, WaitingRoom, make_order

POOL = 65_536
USERS = 48
ROWS = 24
VIEW = 64
PARAMS = SamplingParams(temperature=0)


class Traffic:
    """Users over a scheduler without a model."""

    def __init__(self, reserve: int, seed: int = 0) -> None:
        self._draw = np.random.default_rng(seed)
        self._systems = [self._tokens(400) for _ in range(4)]
        self._made = 0
        self._pauses: list[int] = [0] * USERS
        self._chats: list[Key | None] = [None] * USERS
        self._under_way: dict[str, tuple[int, list[int]]] = {}
        self.cache = RadixCache(POOL, pin_budget=0, reserve=reserve)
        room = WaitingRoom(self.cache, make_order("lpm"))
        self.scheduler = Scheduler(room, chunked_prefill_size=2_048, max_running_requests=ROWS)

    def step(self) -> ScheduledBatch:
        for user, pause in enumerate(self._pauses):
            if pause == 0:
                self._ask(user)
            self._pauses[user] -= 1
        batch = self.scheduler.schedule()
        drawn = self._draw.integers(0, 50_000, len(batch.rows)).tolist()
        tokens = tuple(t if r.samples else None for t, r in zip(drawn, batch.rows, strict=True))
        for news in self.scheduler.update(batch, StepResult(tokens), {}):
            user, answer = self._under_way[news.request_id]
            answer.extend(news.token_ids)
            if news.finish_reason is not None:
                self._end(news.request_id, user, answer)
        return batch

    def _ask(self, user: int) -> None:
        chat = self._chats[user]
        if chat is None:
            once = self._draw.random() < 0.2
            chat = self._tokens(2_000) if once else self._systems[self._draw.integers(4)]
        prompt = np.concatenate((chat, self._tokens(int(self._draw.integers(10, 200)))))
        self._chats[user] = prompt
        self._made += 1
        name = f"r{self._made}"
        self._under_way[name] = (user, [])
        out = 1 + min(int(self._draw.exponential(150)), 1_000)
        self.scheduler.add(GenerateRequest(name, prompt, PARAMS, max_tokens=out, seed=0))

    def _end(self, name: str, user: int, answer: list[int]) -> None:
        del self._under_way[name]
        prompt = self._chats[user]
        if prompt is None or prompt.size > 3_000 or self._draw.random() < 0.2:
            self._chats[user] = None
        else:
            self._chats[user] = np.concatenate((prompt, np.array(answer, dtype=np.int32)))
        self._pauses[user] = int(self._draw.integers(5, 100))

    def _tokens(self, count: int) -> Key:
        return self._draw.integers(0, 50_000, count, dtype=np.int32)


def run_lengths(extents: Iterable[Extent]) -> tuple[float, float]:
    """Mean length of runs, and the share of tokens in runs that are views."""
    lengths = np.array([extent.stop - extent.start for extent in extents])
    return float(lengths.mean()), float(lengths[lengths >= VIEW].sum() / lengths.sum())


def measure(reserve: int, steps: int) -> dict[str, float]:
    traffic = Traffic(reserve)
    reads: list[tuple[float, float]] = []
    started = time.perf_counter()
    for step in tqdm(range(steps), desc=f"reserve {reserve}", dynamic_ncols=True):
        batch = traffic.step()
        if step >= steps // 2 and step % 50 == 0 and batch.rows:
            rows = [row.segments for row in batch.rows]
            reads.append(run_lengths(e for row in rows for part in row for e in part.extents))
    seconds = time.perf_counter() - started
    nodes = run_lengths(extent for node in traffic.cache.tree.nodes() for extent in node.extents)
    counters = traffic.scheduler.counters
    return {
        "reserve": reserve,
        "tree_mean_run": round(nodes[0], 1),
        "tree_views": round(nodes[1], 4),
        "read_mean_run": round(float(np.mean([mean for mean, _ in reads])), 1),
        "read_views": round(float(np.mean([share for _, share in reads])), 4),
        "hit_rate": round(counters.cached_tokens / counters.prompt_tokens, 4),
        "retractions": counters.retractions,
        "ms_per_step": round(1e3 * seconds / steps, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--reserves", default="0,16,64")
    options = parser.parse_args()
    rows = [measure(int(reserve), options.steps) for reserve in options.reserves.split(",")]
    show_rows(f"runs of slots after {options.steps:,} steps, pool of {POOL:,}", rows)
    print(json.dumps({"benchmark": "fragmentation", "steps": options.steps, "results": rows}))


if __name__ == "__main__":
    main()
