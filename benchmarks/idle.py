"""What the server itself takes: time before the first token, and what thousands who wait cost.

    python -m benchmarks.idle [--requests 10000] [--connections 1000] [--asks 300]

Three parts, all with the demo model. First what comes when of a stream of `--long-prompt` tokens,
and of a short one behind it: the head, the first byte of the body, the first token. Wanted: the
head within 1 s, and no silence of more than 16 s. Then the time to the first token over HTTP, less
that of the same kind of request to an `AsyncEngine` in this process, one at a time, in blocks in
turn. Then
`--connections` that send nothing and `--requests` streams at once, of which few can run; they come
at `--rate` a second, wait, and leave: in the first round at the same rate, in the second all at
once. A process of its own asks /health all the time. Wanted: at most 3 ms added at the median,
/health within 50 ms throughout (what it takes while all leave in one moment is told apart), no more
memory in the second round than in the first. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from benchmarks.agent_loop import model_folder
from benchmarks.peer_workloads import Draw
from benchmarks.pictures import panels, save
from benchmarks.rows import show_rows
from benchmarks.served import Served, Trace, median, quantile, serving, traced
from benchmarks.wire import BrokenAnswerError, Connection, Pool, request_bytes
from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.core.sampling import SamplingParams

VOCAB = 2_048
PROMPT = 100
BLOCK = 20
KV_TOKENS = 65_536
LONG = 3_000
PROBE_EVERY = 0.02
LOST = 30.0
STAMPEDE = "they leave all at once"

Moments = list[tuple[float, float]]


async def first_bytes(port: int, tokens: int) -> list[dict[str, Any]]:
    """What comes when of a long prompt's stream, and of a short one's a second later."""
    long = asyncio.create_task(_came(port, "long prompt", Draw(VOCAB, 3).tokens(tokens)))
    await asyncio.sleep(1)
    short = await _came(port, "short, behind it", Draw(VOCAB, 4).tokens(PROMPT))
    return [await long, short]


async def _came(port: int, name: str, prompt: list[int]) -> dict[str, Any]:
    """Seconds from sending a request; silence: the longest time without a byte."""
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "stream": True}
    connection = await Connection.open(port)
    moments = [time.perf_counter()]
    connection.send(request_bytes("POST", "/v1/completions", body))
    answer = await connection.head()
    moments.append(time.perf_counter())
    pieces = connection.pieces(answer)
    while (await anext(pieces)).startswith(b":"):
        moments.append(time.perf_counter())
    moments.append(time.perf_counter())
    await connection.close()
    return {
        "stream": name,
        "prompt": len(prompt),
        "head_s": round(moments[1] - moments[0], 2),
        "pings": len(moments) - 3,
        "silence_s": round(max(b - a for a, b in pairwise(moments)), 2),
        "first_token_s": round(moments[-1] - moments[0], 2),
    }


async def added_ttft(served: Served, asks: int) -> dict[str, float]:
    """Milliseconds to the first token, over HTTP and without it."""
    engine = await asyncio.to_thread(AsyncEngine.from_config, EngineConfig(kv_tokens=KV_TOKENS))
    pool, draw = Pool(served.port), Draw(VOCAB, 5)
    http: list[float] = []
    direct: list[float] = []
    try:
        for block in tqdm(range(2 + asks // BLOCK), desc="added TTFT", dynamic_ncols=True):
            found = [await _first_over_http(pool, draw.tokens(PROMPT)) for _ in range(BLOCK)]
            others = [await _first_direct(engine, draw.tokens(PROMPT)) for _ in range(BLOCK)]
            if block > 1:  # the first ones warm both up
                http += found
                direct += others
    finally:
        await pool.close()
        await engine.close()
    return {
        "http_ttft_p50_ms": round(1e3 * median(http), 2),
        "direct_ttft_p50_ms": round(1e3 * median(direct), 2),
        "added_p50_ms": round(1e3 * (median(http) - median(direct)), 2),
        "added_p95_ms": round(1e3 * (quantile(http, 0.95) - quantile(direct, 0.95)), 2),
    }


async def _first_over_http(pool: Pool, prompt: list[int]) -> float:
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True}
    answer = await pool.ask(request_bytes("POST", "/v1/completions", body))
    assert answer.status == 200, bytes(answer.body)
    assert answer.first is not None
    return answer.first


async def _first_direct(engine: AsyncEngine, prompt: list[int]) -> float:
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    begun = time.perf_counter()
    first = None
    async for _ in engine.stream(prompt, params):
        first = first or time.perf_counter() - begun
    assert first is not None
    return first


@contextmanager
def probing(port: int) -> Iterator[Moments]:
    """Ask /health from a process of its own; (monotonic moment, seconds) of each, at the end."""
    moments: Moments = []
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_probe, args=(port, theirs))
    process.start()
    ours.recv()
    try:
        yield moments
    finally:
        ours.send("stop")
        moments += ours.recv()
        process.join()


def _probe(port: int, pipe: Pipe) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=LOST)
    moments: Moments = []
    pipe.send("ready")
    while not pipe.poll(PROBE_EVERY):
        begun = time.monotonic()
        try:
            connection.request("GET", "/health")
            healthy = connection.getresponse().read() == b'{"status":"ok"}'
        except OSError:
            healthy = False
            connection.close()
        moments.append((begun, time.monotonic() - begun if healthy else LOST))
    pipe.send(moments)


class Crowd:
    """Connections that say nothing, and streams that wait for their turn."""

    def __init__(self, served: Served, requests: int, connections: int, rate: float) -> None:
        self._served = served
        self._requests = requests
        self._connections = connections
        self._rate = rate
        self._draw = Draw(VOCAB, 6)
        self.phases: list[tuple[str, float]] = []
        self.refused = 0
        self.most_waiting = 0

    async def run(self, hold: float) -> None:
        """Two rounds; `phases` has their beginnings."""
        self._enter("idle connections")
        silent = [await Connection.open(self._served.port) for _ in range(self._connections)]
        await asyncio.sleep(2)
        for name, at_once in (("one by one", False), ("all at once", True)):
            self._enter(f"{self._requests} come ({name})")
            streams = await self._come()
            self._enter(f"they wait ({name})")
            await asyncio.sleep(hold)
            state = await asyncio.to_thread(self._served.state)
            self.most_waiting = max(self.most_waiting, state["waiting"] + state["running"])
            self._enter(STAMPEDE if at_once else f"they leave {name}")
            await self._leave(streams, at_once=at_once)
            await asyncio.to_thread(self._served.idle_state, LOST)
        self._enter("afterwards")
        await asyncio.sleep(2)
        for connection in silent:
            await connection.close()
        self._enter("end")

    async def _come(self) -> list[asyncio.Task[None]]:
        streams = []
        began = time.perf_counter()
        for place in tqdm(range(self._requests), desc="come", dynamic_ncols=True):
            await asyncio.sleep(max(began + place / self._rate - time.perf_counter(), 0))
            streams.append(asyncio.create_task(self._stream()))
        return streams

    async def _leave(self, streams: list[asyncio.Task[None]], *, at_once: bool) -> None:
        began = time.perf_counter()
        for place, stream in enumerate(streams):
            if not at_once:
                await asyncio.sleep(max(began + place / self._rate - time.perf_counter(), 0))
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    async def _stream(self) -> None:
        prompt = self._draw.tokens(PROMPT)
        body = {"prompt": prompt, "max_tokens": LONG, "ignore_eos": True, "stream": True}
        connection = await Connection.open(self._served.port)
        try:
            connection.send(request_bytes("POST", "/v1/completions", body))
            answer = await connection.head()
            self.refused += answer.status != 200
            async for _ in connection.pieces(answer):
                pass
        except BrokenAnswerError:
            self.refused += 1
        finally:
            await connection.close()

    def _enter(self, phase: str) -> None:
        self.phases.append((phase, time.monotonic()))


async def fill(served: Served) -> None:
    """Use every slot of the pool once, so that its memory is there before anything is measured."""
    pool, draw = Pool(served.port), Draw(VOCAB, 7)
    for _ in range(KV_TOKENS // LONG + 1):
        body = {"prompt": draw.tokens(LONG), "max_tokens": 1}
        await pool.ask(request_bytes("POST", "/v1/completions", body))
    await pool.close()


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], Trace, Moments]:
    report: dict[str, Any] = {"benchmark": "idle"}
    tokens = options.long_prompt
    with (
        model_folder(2 * tokens) as folder,
        serving(str(folder), "--kv-tokens", str(2 * tokens)) as served,
    ):
        report["first_bytes"] = uvloop.run(first_bytes(served.port, tokens))
    with serving("--kv-tokens", str(KV_TOKENS)) as served:
        report |= uvloop.run(added_ttft(served, options.asks))
    with serving("--kv-tokens", str(KV_TOKENS)) as served:
        uvloop.run(fill(served))
        crowd = Crowd(served, options.requests, options.connections, options.rate)
        with traced(served) as trace, probing(served.port) as moments:
            began = time.monotonic()
            uvloop.run(crowd.run(options.hold))
        state = served.idle_state(LOST)
        alarms = served.alarms()
    phases = [(name, moment - began) for name, moment in crowd.phases]
    moments = [(moment - began, seconds) for moment, seconds in moments]
    report |= {
        "requests": options.requests,
        "idle_connections": options.connections,
        "most_under_way": crowd.most_waiting,
        "refused_or_broken": crowd.refused,
        "phases": [_phase(*pair, trace, moments) for pair in _pairs(phases)],
        "slots_lost": state["kv_capacity"] - state["kv_free"] - state["kv_evictable"],
        "alarms_in_log": len(alarms),
    }
    stampede = next((begin, end) for name, begin, end in _pairs(phases) if name == STAMPEDE)
    taken = [1e3 * seconds for at, seconds in moments if not stampede[0] <= at < stampede[1]]
    rushed = [1e3 * seconds for at, seconds in moments if stampede[0] <= at < stampede[1]]
    report |= {
        "health_p50_ms": round(median(taken), 1),
        "health_p99_ms": round(quantile(taken, 0.99), 1),
        "health_max_ms": round(max(taken), 1),
        "health_max_ms_while_all_leave_at_once": round(max(rushed, default=0.0), 1),
    }
    return report, trace, moments


def _pairs(phases: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float, float]]:
    for (name, begin), (_, end) in pairwise(phases):
        yield name, begin, end


def _phase(
    name: str, begin: float, end: float, trace: Trace, moments: Moments
) -> dict[str, object]:
    """What /health and memory were between two moments."""
    taken = [1e3 * seconds for moment, seconds in moments if begin <= moment < end]
    pairs = zip(trace.seconds, trace.mb, strict=True)
    mb = [size for moment, size in pairs if begin <= moment < end]
    return {
        "phase": name,
        "begin_s": round(begin, 1),
        "health_p50_ms": round(median(taken), 1),
        "health_p99_ms": round(quantile(taken, 0.99), 1),
        "health_max_ms": round(max(taken, default=float("nan")), 1),
        "rss_mb": [round(mb[0], 1), round(mb[-1], 1)] if mb else [],
    }


def draw(path: Path, report: dict[str, Any], trace: Trace, moments: Moments) -> None:
    """/health and memory over time, the phases marked."""
    title = f"{report['idle_connections']:,} idle connections, {report['requests']:,} streams"
    figure, (health, memory) = panels(2, title)
    health.plot(*zip(*((at, 1e3 * taken) for at, taken in moments), strict=True), ".", markersize=2)
    health.axhline(50, color="gray", linestyle=":")
    health.set_yscale("log")
    health.set_title("/health answers within, ms", fontsize=9, loc="left")
    memory.plot(trace.seconds, trace.mb)
    memory.set_title("the server's resident memory, MB", fontsize=9, loc="left")
    memory.set_ylim(0, 1.3 * max(trace.mb))
    memory.set_xlabel("seconds")
    for phase in report["phases"]:
        for axes in (health, memory):
            axes.axvline(phase["begin_s"], color="gray", linewidth=0.6)
        place = (phase["begin_s"], 0.02 * max(trace.mb))
        memory.annotate(phase["phase"], place, rotation=90, fontsize=7, va="bottom")
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--connections", type=int, default=1_000, help="default: 1000")
    parser.add_argument("--rate", type=float, default=250, help="of coming; default: 250 a second")
    parser.add_argument("--hold", type=float, default=20, help="seconds of waiting; default: 20")
    parser.add_argument("--asks", type=int, default=300, help="for the added TTFT; default: 300")
    parser.add_argument("--long-prompt", type=int, default=60_000, help="tokens; default: 60000")
    parser.add_argument("--picture", type=Path, default=Path("docs/img/idle.png"))
    options = parser.parse_args(arguments)
    report, trace, moments = measure(options)
    draw(options.picture, report, trace, moments)
    tables = ("first_bytes", "phases")
    for name in tables:
        show_rows(f"idle: {name.replace('_', ' ')}", report[name])
    rest = [{"what": k, "value": str(v)} for k, v in report.items() if k not in tables]
    show_rows("idle", rest)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
