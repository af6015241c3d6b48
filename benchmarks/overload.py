"""A server that is asked ten times more than it can do: who is refused, and what the others feel.

    python -m benchmarks.overload [--seconds 300] [--times 10] [--prompt 512] [--out 64]

First the capacity of a `radixlm serve` with the demo model: closed loops of 1, 2, 4, ... clients,
each with streams of its own prompts; the least number of clients that reaches 95 % of the best rate
is what the server works on best at a time. Then a server with --max-queued-requests of that number,
at capacity (that many clients in a closed loop) and at `--times` the rate of it: requests arrive at
random moments, whether others are answered or not. Before and after the overload the server is
measured at capacity, for the machine may have changed; and at capacity while as many questions as
in the overload are put to a wall instead (benchmarks/wall.py), for asking takes a part of the two
cores that are measured. Wanted: no status but 200 and 429, with Retry-After on each 429, the
admitted ones' times within 20 % of those at capacity, memory flat. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from benchmarks.peer_workloads import Draw
from benchmarks.pictures import draw_memory, panels, save
from benchmarks.rows import show_rows
from benchmarks.served import Trace, median, quantile, serving, traced
from benchmarks.wall import wall
from benchmarks.wire import Answer, BrokenAnswerError, Pool, request_bytes

VOCAB = 2_048
DEADLINE = 120.0
KV_TOKENS = 65_536
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
NEARLY = 0.95


@dataclass(slots=True)
class Seen:
    """What came of requests. admitted: (moment of its end, first, total) of each, in seconds;
    statuses by number, 0 for no answer.
    """

    admitted: list[tuple[float, float, float]] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    without_retry_after: int = 0
    cut_short: int = 0
    refusal_seconds: list[float] = field(default_factory=list)

    def add(self, answer: Answer, moment: float) -> None:
        self.statuses[answer.status] += 1
        if answer.status == 429:
            self.without_retry_after += "retry-after" not in answer.headers
            self.refusal_seconds.append(answer.total)
        elif answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n"):
            self.admitted.append((moment, answer.first or answer.total, answer.total))
        else:
            self.cut_short += 1

    def times(self) -> dict[str, float]:
        """Milliseconds of the admitted ones."""
        firsts = [first for _, first, _ in self.admitted]
        totals = [total for _, _, total in self.admitted]
        return {
            "ttft_p50_ms": round(1e3 * median(firsts), 1),
            "ttft_p95_ms": round(1e3 * quantile(firsts, 0.95), 1),
            "total_p50_ms": round(1e3 * median(totals), 1),
            "total_p95_ms": round(1e3 * quantile(totals, 0.95), 1),
        }


class Load:
    """Streams of fresh prompts at one server."""

    def __init__(self, port: int, prompt: int, out: int, seed: int) -> None:
        self._pool = Pool(port)
        self._draw = Draw(VOCAB, seed)
        self._random = random.Random(seed)
        self._prompt = prompt
        self._out = out

    async def closed(self, clients: int, seconds: float) -> tuple[Seen, float]:
        """Clients that ask again as soon as they are answered; also the requests per second."""
        seen = Seen()
        end = time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < end:
                await self._one(seen)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        rate = len(seen.admitted) / (time.perf_counter() - began)
        await self._pool.close()
        return seen, rate

    async def closed_beside(self, other: Load, rate: float, clients: int, seconds: float) -> Seen:
        """The same while `other` sends `rate` requests a second elsewhere."""
        (seen, _), _ = await asyncio.gather(
            self.closed(clients, seconds), other.open(rate, seconds)
        )
        return seen

    async def open(self, rate: float, seconds: float) -> Seen:
        """Requests at random moments, `rate` of them a second."""
        seen = Seen()
        began = due = time.perf_counter()
        with tqdm(total=round(seconds), desc="overload, s", dynamic_ncols=True) as bar:
            async with asyncio.TaskGroup() as group:
                while due - began < seconds:
                    due += self._random.expovariate(rate)
                    await asyncio.sleep(max(due - time.perf_counter(), 0))
                    group.create_task(self._one(seen))
                    bar.update(int(due - began) - bar.n)
        await self._pool.close()
        return seen

    async def _one(self, seen: Seen) -> None:
        body = {
            "prompt": self._draw.tokens(self._prompt),
            "max_tokens": self._out,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await self._pool.ask(request_bytes("POST", "/v1/completions", body))
        except (TimeoutError, BrokenAnswerError, OSError):
            seen.statuses[0] += 1
        else:
            seen.add(answer, time.perf_counter())


def knee(rates: dict[int, float]) -> int:
    """The least number of clients that is as good as any."""
    best = max(rates.values())
    return min(clients for clients, rate in rates.items() if rate >= NEARLY * best)


def capacity(flags: Sequence[str], prompt: int, out: int, seconds: float) -> dict[int, float]:
    """Requests per second by the number of clients."""
    rates = {}
    with serving(*flags) as served:
        for clients in tqdm(CLIENTS, desc="capacity", dynamic_ncols=True):
            load = Load(served.port, prompt, out, clients)
            uvloop.run(load.closed(clients, seconds / 4))
            _, rates[clients] = uvloop.run(load.closed(clients, seconds))
    return rates


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[Seen], Trace]:
    """The report, what was seen at capacity, over it, and at capacity again; memory meanwhile."""
    prompt, out = options.prompt, options.out
    flags = ["--kv-tokens", str(KV_TOKENS)]
    rates = capacity(flags, prompt, out, options.probe)
    clients = options.max_queued_requests or knee(rates)
    flags += ["--max-queued-requests", str(clients)]
    with serving(*flags) as served:
        load = Load(served.port, prompt, out, 99)
        uvloop.run(load.closed(clients, 3 * options.probe))  # what comes first is slower
        before, rate = uvloop.run(load.closed(clients, 3 * options.probe))
        began = time.perf_counter()
        with traced(served) as trace:
            over = uvloop.run(load.open(options.times * rate, options.seconds))
        over.admitted = [(end - began, first, total) for end, first, total in over.admitted]
        state = served.idle_state(DEADLINE)
        after, rate_after = uvloop.run(load.closed(clients, 3 * options.probe))
        with wall() as port:
            asking = Load(port, prompt, out, 100)
            offered = options.times * rate
            beside = uvloop.run(load.closed_beside(asking, offered, clients, 3 * options.probe))
        alarms = served.alarms()
    at_capacity = Seen(before.admitted + after.admitted)
    report = {
        "benchmark": "overload",
        "prompt": prompt,
        "out": out,
        "seconds": options.seconds,
        "requests_per_s_by_clients": {n: round(found, 1) for n, found in rates.items()},
        "max_queued_requests": clients,
        "capacity_requests_per_s": [round(rate, 1), round(rate_after, 1)],
        "offered_requests_per_s": round(over.statuses.total() / options.seconds, 1),
        "admitted_requests_per_s": round(len(over.admitted) / options.seconds, 1),
        "statuses": {str(status): count for status, count in sorted(over.statuses.items())},
        "cut_short": over.cut_short,
        "429_without_retry_after": over.without_retry_after,
        "refused_in_ms_p50": round(1e3 * median(over.refusal_seconds), 1),
        "before": before.times(),
        "over": over.times(),
        "after": after.times(),
        "beside_a_wall": beside.times(),
        "over_to_capacity": ratios(over, at_capacity),
        "over_to_beside_a_wall": ratios(over, beside),
        "slots_lost": state["kv_capacity"] - state["kv_free"] - state["kv_evictable"],
        "alarms_in_log": len(alarms),
        "rss_mb_end": round(trace.mb[-1], 1),
        "rss_mb_growth_after_20_percent": round(trace.growth(), 1),
    }
    return report, [before, over, after], trace


def ratios(over: Seen, other: Seen) -> dict[str, float]:
    """The times of one beside those of another."""
    times = other.times()
    return {
        name.removesuffix("_ms"): round(value / times[name], 3)
        for name, value in over.times().items()
    }


def draw(path: Path, report: dict[str, Any], over: Seen, trace: Trace) -> None:
    """Times of the admitted ones over time beside those at capacity, and memory."""
    title = (
        f"{report['offered_requests_per_s']:.0f} requests a second at a server that can do "
        f"{report['capacity_requests_per_s'][0]:.0f}"
    )
    figure, (times, memory) = panels(2, title)
    for place, (name, label) in enumerate((("ttft", "to the first token"), ("total", "in all"))):
        moments = [entry[0] for entry in over.admitted]
        taken = [1e3 * entry[1 + place] for entry in over.admitted]
        times.plot(moments, taken, ".", markersize=2, color=f"C{place}", label=f"{label}, ms")
        at_capacity = report["before"][f"{name}_p50_ms"]
        times.axhline(at_capacity, color=f"C{place}", linewidth=1)
        times.text(
            0, at_capacity, f"median at capacity {at_capacity:g} ms", va="bottom", fontsize=8
        )
    times.set_ylim(bottom=0)
    times.legend(loc="upper right", markerscale=4)
    draw_memory(memory, trace.seconds, trace.mb)
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=300, help="of overload; default: 300")
    parser.add_argument("--probe", type=float, default=10, help="seconds per number of clients")
    parser.add_argument("--times", type=float, default=10, help="the capacity; default: 10")
    parser.add_argument("--prompt", type=int, default=512, help="tokens; default: 512")
    parser.add_argument("--out", type=int, default=64, help="tokens; default: 64")
    parser.add_argument(
        "--max-queued-requests", type=int, default=0, help="default: what was found best"
    )
    parser.add_argument("--picture", type=Path, default=Path("docs/img/overload.png"))
    options = parser.parse_args(arguments)
    report, (_, over, _), trace = measure(options)
    draw(options.picture, report, over, trace)
    show_rows("overload", [{"what": name, "value": str(value)} for name, value in report.items()])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
