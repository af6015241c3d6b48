"""Looking at a large tree: how long it takes, and how long the engine stands still for it.

    python -m benchmarks.cache_view [--nodes 1000000] [--rounds 5] [--step 0.01]

A real server over a runner without a model, whose step takes so many seconds in which others may
run, as in a model's kernels. Its tree is filled with so many nodes. Then 64 requests run again and
again, in turns unseen and with a viewer of /cache/events, and /cache/tree is asked for, pruned as
it is by default (10,000 nodes) and to 1,000. Told are seconds and bytes of the answers; the
tokens a second with a viewer, beside without; and the time between two steps, in which the engine
does all else: its median, and the longest while nobody looks, while one looks once, and while one
watches. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np

from benchmarks.served import served_here
from radixlm.build import AsyncEngine, load
from radixlm.cache import RadixCache
from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.config import EngineConfig
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineClient, EngineCore, InputProcessor, Limits
from radixlm.engine.watching import Journal
from radixlm.scheduler import Scheduler, WaitingRoom, make_order
from radixlm.server.app import create_app
from radixlm.server.serve import full_searches_on_demand
from radixlm.structured_output import Compiler
from radixlm.testing.fake_runner import FakeRunner

CLIENTS, OWN, OUT = 64, 60, 60
BELOW, EDGE = 1_000, 8
_PATIENCE = 120.0
_ASCII = 96


class Steps:
    """A runner without a model, whose step takes `seconds`. between: seconds between steps."""

    def __init__(self, capacity: int, seconds: float) -> None:
        self._runner = FakeRunner(capacity, CLIENTS, _ASCII)
        self._seconds = seconds
        self._ended = float("nan")
        self.between: list[float] = []

    def execute(self, batch: ScheduledBatch) -> StepResult:
        self.between.append(time.perf_counter() - self._ended)
        time.sleep(self._seconds)
        result = self._runner.execute(batch)
        self._ended = time.perf_counter()
        return result

    def forget(self) -> None:
        self._ended = float("nan")
        self.between = []


def weightless(cache: RadixCache, steps: Steps) -> AsyncEngine:
    """An engine on this cache and runner; the demo model gives the tokenizer."""
    loaded = load(EngineConfig(kv_tokens=1_000), progress=False)
    asyncio.run(AsyncEngine(loaded).close())
    journal = Journal()
    scheduler = Scheduler(
        WaitingRoom(cache, make_order("lpm")),
        chunked_prefill_size=loaded.config.chunked_prefill_size,
        max_running_requests=CLIENTS,
        schedule_conservativeness=1.0,
        sink=journal.note,
    )
    core = EngineCore(scheduler, cache, steps, loaded.tokenizer, journal=journal)
    size = loaded.info.vocab_size
    grammars = Compiler(loaded.tokenizer, vocab_size=size, eos_ids=())
    processor = InputProcessor(Limits(cache.capacity, cache.capacity, size), frozenset(), grammars)
    client = EngineClient(core, processor, max_queued_requests=CLIENTS)
    return AsyncEngine(replace(loaded, client=client))


def fill(cache: RadixCache, nodes: int) -> None:
    """So many nodes: prompts of two edges, a thousand below each first one."""
    draw = np.random.default_rng(0)
    ids = draw.integers(0, _ASCII, (nodes, EDGE), dtype=np.int32)
    for place in range(nodes):
        head = ids[place - place % BELOW]
        key = np.concatenate((np.full(1, _ASCII, np.int32), head, ids[place]))
        lease = cache.acquire(key)
        lease.extend(key.size - lease.cached)
        lease.commit(key.size)
        lease.release()


def ask(engine: AsyncEngine, seed: int) -> float:
    """Seconds for 64 requests, side by side."""
    draw = np.random.default_rng((1, seed))
    params = SamplingParams(max_tokens=OUT, temperature=0, ignore_eos=True)
    prompts = draw.integers(0, _ASCII, (CLIENTS, OWN)).tolist()

    async def ask_all() -> None:
        await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))

    began = time.perf_counter()
    asyncio.run(ask_all())
    return time.perf_counter() - began


def looked(url: str, query: str) -> dict[str, float]:
    """One look."""
    began = time.perf_counter()
    answer = httpx.get(f"{url}/cache/tree{query}", timeout=_PATIENCE).raise_for_status()
    return {"seconds": time.perf_counter() - began, "bytes": len(answer.content)}


@contextmanager
def watching(url: str) -> Iterator[None]:
    """A viewer that reads all there is, from its first event on, while the block runs."""
    seen, left = Event(), Event()

    def watch() -> None:
        with httpx.stream("GET", f"{url}/cache/events", timeout=_PATIENCE) as answer:
            for _ in answer.iter_raw():
                seen.set()
                if left.is_set():
                    return

    thread = Thread(target=watch)
    thread.start()
    seen.wait(_PATIENCE)
    try:
        yield
    finally:
        left.set()
        thread.join()  # its second's numbers come in any case


def measure(engine: AsyncEngine, steps: Steps, url: str, rounds: int) -> dict[str, Any]:
    wall: dict[str, list[float]] = {"alone": [], "watched": []}
    gaps: dict[str, list[float]] = {"alone": [], "watched": [], "looked at": []}
    looks: dict[str, list[dict[str, float]]] = {"": [], "?max_nodes=1000": []}
    ask(engine, 0)
    for turn in range(1, rounds + 1):
        for kind, seen in (("alone", nullcontext()), ("watched", watching(url))):
            with seen:
                steps.forget()
                wall[kind].append(ask(engine, turn))
                gaps[kind] += steps.between[1:]
        for query, answers in looks.items():
            with ThreadPoolExecutor(1) as pool:
                steps.forget()
                asked = pool.submit(ask, engine, turn)
                answers.append(looked(url, query))
                asked.result()
                gaps["looked at"] += steps.between[1:]
    ratios = [b / a for a, b in zip(wall["alone"], wall["watched"], strict=True)]
    report: dict[str, Any] = {
        "watched_over_alone": round(statistics.median(ratios), 4),
        "between_steps_ms": round(1e3 * statistics.median(gaps["alone"]), 2),
    }
    for kind, found in gaps.items():
        report[f"longest_between_steps_{kind.replace(' ', '_')}_ms"] = round(1e3 * max(found), 1)
    for query, answers in looks.items():
        name = "tree_of_1000" if query else "tree"
        report[f"{name}_s"] = round(statistics.median(each["seconds"] for each in answers), 3)
        report[f"{name}_mb"] = round(answers[-1]["bytes"] / 1e6, 2)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step", type=float, default=0.01, help="seconds")
    options = parser.parse_args()
    cache = RadixCache(EDGE * options.nodes + 2 * EDGE * BELOW + CLIENTS * (OWN + OUT) * 40)
    steps = Steps(cache.capacity, options.step)
    engine = weightless(cache, steps)
    app = create_app(engine, served_model_name="weightless")
    with served_here(app) as url, full_searches_on_demand():
        began = time.perf_counter()
        fill(cache, options.nodes)
        print(f"{cache.tree.node_count} nodes in {time.perf_counter() - began:.0f} s")
        report = measure(engine, steps, url, options.rounds)
        began = time.perf_counter()
        gc.collect()
        report["garbage_search_s"] = round(time.perf_counter() - began, 2)
    asyncio.run(engine.close())
    for name, value in report.items():
        print(f"{name:40} {value}")
    print(json.dumps({"benchmark": "cache_view", "nodes": cache.tree.node_count, **report}))


if __name__ == "__main__":
    main()
