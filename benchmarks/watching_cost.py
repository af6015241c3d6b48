"""What it costs to be watched: the server with everything on that explains it, beside without.

    python -m benchmarks.watching_cost [--shape smollm-135m] [--dtype bfloat16] [--pairs 5]

64 clients stream from one server, 100 prompt tokens that all share, 100 of their own and 128 tokens
of answer each, again and again: in turns as they are, and with a viewer that follows
/cache/events, `cache_report` in each request, and /metrics read once a second. Which of a pair is
first changes from pair to pair. The clients, the viewer and the reader of metrics run in this
process, so the CPU seconds of the server's own process tell more than wall time does. With a small
model (--shape tiny) hardly anything else is left, so what is added is exact: in microseconds a
token, and in milliseconds a second, since a viewer and metrics cost by time, not by tokens. Ends in
one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.peer_workloads import Draw
from benchmarks.served import PATIENCE, serving
from benchmarks.serving import CLIENTS, CPU_COUNT, KV_TOKENS, OUT, VOCAB, stream_all
from radixlm.bench import write_random_checkpoint
from radixlm.bench.checkpoints import SHAPES

TOKENS = CLIENTS * OUT
SHARED, OWN = 100, 100


class Taken(NamedTuple):
    """Seconds: of wall time, of this process's CPU time, of the server's."""

    wall: float
    clients: float
    server: float

    @property
    def without_clients(self) -> float:
        return self.wall - self.clients / CPU_COUNT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm-135m")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16; or float32")
    parser.add_argument("--pairs", type=int, default=5, help="default: 5")
    options = parser.parse_args()
    taken: dict[bool, list[Taken]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(write_random_checkpoint(options.shape, Path(scratch) / options.shape))
        flags = ("--dtype", options.dtype, "--kv-tokens", str(KV_TOKENS))
        with serving(folder, *flags) as served:
            draw = Draw(min(VOCAB, SHAPES[options.shape]["vocab_size"]), 0)
            for watched in (False, True):
                asyncio.run(load(served.url, served.pid, draw, watched=watched))
            for pair in range(options.pairs):
                for watched in (pair % 2 == 1, pair % 2 == 0):
                    found = asyncio.run(load(served.url, served.pid, draw, watched=watched))
                    taken[watched].append(found)
                    print(f"{'watched' if watched else 'alone':8}", *map("{:8.3f}".format, found))
    report = {"benchmark": "watching_cost", "shape": options.shape, "dtype": options.dtype}
    print(json.dumps(report | compared(taken[False], taken[True])))


def compared(alone: Sequence[Taken], watched: Sequence[Taken]) -> dict[str, float]:
    """Medians of the pairs' ratios, watched / alone, and of what is added."""
    pairs = list(zip(alone, watched, strict=True))

    def ratio(seconds: Callable[[Taken], float]) -> float:
        return round(statistics.median(seconds(b) / seconds(a) for a, b in pairs), 4)

    added = statistics.median(b.server - a.server for a, b in pairs)
    return {
        "tokens_per_s": round(TOKENS / statistics.median(each.wall for each in alone)),
        "wall": ratio(attrgetter("wall")),
        "wall_without_clients": ratio(attrgetter("without_clients")),
        "server_cpu": ratio(attrgetter("server")),
        "server_cpu_us_per_token": round(
            1e6 * statistics.median(each.server for each in alone) / TOKENS, 1
        ),
        "added_us_per_token": round(1e6 * added / TOKENS, 2),
        "added_ms_per_s": round(1e3 * added / statistics.median(each.wall for each in watched), 2),
    }


async def load(url: str, pid: int, draw: Draw, *, watched: bool) -> Taken:
    """All clients once."""
    fields = {"cache_report": True} if watched else {}
    shared = draw.tokens(SHARED)
    prompts = [shared + draw.tokens(OWN) for _ in range(CLIENTS)]
    async with looked_into(url) if watched else nullcontext():
        began = cpu_seconds(pid)
        wall, clients = await stream_all(url, prompts, draw, **fields)
        return Taken(wall, clients, cpu_seconds(pid) - began)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, all its threads together."""
    clock = (~pid << 3) | 2  # what clock_getcpuclockid(3) makes of it, exact where /proc has ticks
    return time.clock_gettime(clock)


@asynccontextmanager
async def looked_into(url: str) -> AsyncIterator[None]:
    """A viewer and a reader of metrics, from when the viewer has its first event."""
    seen = asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        tasks = [asyncio.create_task(_view(client, seen)), asyncio.create_task(_scrape(client))]
        try:
            await seen.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _view(client: httpx.AsyncClient, seen: asyncio.Event) -> None:
    async with client.stream("GET", "/cache/events") as answer:
        async for _ in answer.raise_for_status().aiter_raw():
            seen.set()


async def _scrape(client: httpx.AsyncClient) -> None:
    while True:
        (await client.get("/metrics")).raise_for_status()
        await asyncio.sleep(1)


if __name__ == "__main__":
    main()
