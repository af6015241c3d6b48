"""What it costs to be watched: the server with everything on that explains it, beside without.

    python -m benchmarks.watching_cost [--shape smollm-135m] [--dtype bfloat16] [--waves 15]

Two things cost by time: a viewer that follows /cache/events, and /metrics read once a second. 64
clients stream, and both come and go every other second or two; each step is compared with those
around it. A shared machine's noise is larger than what is looked for, and comes in bursts of a
second or so: steps that took far longer than the ones around them are left out, and counted.

One thing costs by requests: `cache_report` in each of them. 64 short ones at once, in turns with
and without.

The clients take what comes without looking into it, and are in this process, which shares the
machine's cores with the server. Ends in one JSON line: shares of the throughput of 64 streams of
128 tokens, with their standard errors.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import compress, pairwise
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.peer_workloads import Draw
from benchmarks.served import PATIENCE, serving
from benchmarks.serving import CLIENTS, OUT, VOCAB
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

SHARED, OWN = 100, 100
STREAMED = 320
KV_TOKENS = 2 * CLIENTS * (OWN + STREAMED)
PHASE_SECONDS = 1.5
# Each phase begins that late: a viewer has its first picture by then, which costs once.
SETTLE_SECONDS = 0.5
# Steps before and after one that say what is usual there.
AROUND = 60
# Seven milliseconds more of 45: looking costs less than one, others on the machine cost ten.
OUTLIER = 1.15
SHORT_WAVES = 120
_TOKEN = b'"finish_reason"'


class Estimate(NamedTuple):
    mean: float
    error: float


class While(NamedTuple):
    """A while during which the server was watched, or was not. began, ended: moments."""

    watched: bool
    began: float
    ended: float


class Steps(NamedTuple):
    """The times between two tokens in one while, each beside those around it."""

    watched: bool
    of_usual: list[float]

    @property
    def kept(self) -> list[float]:
        return [ratio for ratio in self.of_usual if ratio <= OUTLIER]

    @property
    def outliers(self) -> int:
        return len(self.of_usual) - len(self.kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm-135m")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16; or float32")
    parser.add_argument("--waves", type=int, default=15, help="of 64 streams; default: 15")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(write_random_checkpoint(options.shape, Path(scratch) / options.shape))
        flags = ("--dtype", options.dtype, "--kv-tokens", str(KV_TOKENS))
        with serving(folder, *flags) as served:
            draw = Draw(min(VOCAB, SHAPES[options.shape]["vocab_size"]), 0)
            report = uvloop.run(measure(Server(served.port), draw, options.waves))
    print(json.dumps({"benchmark": "watching_cost", "shape": options.shape} | report))


class Server:
    """Asks without a library: what a client takes of the machine is taken from the server."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def answer(self, method: str, path: str, body: object = None) -> AsyncIterator[bytes]:
        """What comes, piece by piece, until the server ends it."""
        content = b"" if body is None else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            while piece := await reader.read(1 << 16):
                yield piece
        finally:
            writer.close()

    async def stream(self, prompt: Sequence[int], out: int, tokens: list[float]) -> None:
        """Ask for `out` tokens; tokens: gets the moments at which they came."""
        body = {"prompt": prompt, "max_tokens": out, "ignore_eos": True, "stream": True}
        left = b""
        async for piece in self.answer("POST", "/v1/completions", body | {"temperature": 0}):
            *events, left = (left + piece).split(_TOKEN)
            tokens += [time.perf_counter()] * len(events)

    async def ask(self, prompt: Sequence[int], *, report: bool) -> None:
        """One token, and why the prompt missed."""
        body = {"prompt": prompt, "max_tokens": 1, "cache_report": report}
        said = b"".join([piece async for piece in self.answer("POST", "/v1/completions", body)])
        if (b'"cache_report":{' in said) is not report:
            raise SystemExit(f"not what was asked for: {said[:1_000]!r}")

    async def flush(self) -> None:
        """Drop what is cached: a viewer's first picture takes long where there are many nodes."""
        said = b"".join([piece async for piece in self.answer("POST", "/flush_cache")])
        if b" 200 " not in said[:16]:
            raise SystemExit(f"not flushed: {said[:1_000]!r}")

    @asynccontextmanager
    async def looked_into(self) -> AsyncIterator[None]:
        """A viewer, and a reader of metrics."""
        tasks = [asyncio.create_task(self._view()), asyncio.create_task(self._scrape())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _view(self) -> None:
        async for _ in self.answer("GET", "/cache/events"):
            pass

    async def _scrape(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            while True:
                await asyncio.to_thread(_read, connection, "/metrics")
                await asyncio.sleep(1)
        finally:
            connection.close()


def _read(connection: http.client.HTTPConnection, path: str) -> None:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise SystemExit(f"{path} said {answer.status}")


async def measure(server: Server, draw: Draw, waves: int) -> dict[str, float]:
    reports = await cost_of_reports(server, draw)
    print(f"a report: {1e6 * reports.mean:.0f} us, +- {1e6 * reports.error:.0f}", flush=True)
    await server.flush()
    whiles: list[Steps] = []
    usual = 0.0
    for wave in range(waves):
        found, usual = await watched_wave(server, draw, first=bool(wave % 2))
        whiles += found
        looking = looking_costs(whiles)
        print(f"watched / alone: {1 + looking.mean:.4f} +- {looking.error:.4f}", flush=True)
    tokens_per_s = CLIENTS / usual
    share = reports.mean * tokens_per_s / OUT
    return {
        "tokens_per_s": round(tokens_per_s),
        "outliers": outliers(whiles, watched=False),
        "outliers_watched": outliers(whiles, watched=True),
        "viewer_and_metrics": round(looking.mean, 4),
        "viewer_and_metrics_error": round(looking.error, 4),
        "report_us": round(1e6 * reports.mean, 1),
        "report_us_error": round(1e6 * reports.error, 1),
        "reports": round(share, 4),
        "all": round(looking.mean + share, 4),
    }


async def watched_wave(server: Server, draw: Draw, *, first: bool) -> tuple[list[Steps], float]:
    """64 streams, watched every other while; also the usual seconds of a step.

    first: whether they are watched at first.
    """
    prompts = prompts_of(draw, OWN)
    moments: list[list[float]] = [[] for _ in prompts]
    streams = [
        asyncio.create_task(server.stream(prompt, STREAMED, tokens))
        for prompt, tokens in zip(prompts, moments, strict=True)
    ]
    while not all(moments):
        await asyncio.sleep(0.01)
    whiles: list[While] = []
    while not any(stream.done() for stream in streams):
        watched = bool(len(whiles) % 2) is not first
        async with server.looked_into() if watched else _alone():
            await asyncio.sleep(SETTLE_SECONDS)
            began = time.perf_counter()
            await asyncio.sleep(PHASE_SECONDS)
            whiles.append(While(watched, began, time.perf_counter()))
    await asyncio.gather(*streams)
    if len(whiles) < 3:  # in the last one they ended
        raise SystemExit("the answers end too soon to be watched: take a larger --shape")
    return steps_of(moments[0], whiles[:-1])


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    yield


def steps_of(moments: Sequence[float], whiles: Sequence[While]) -> tuple[list[Steps], float]:
    """The steps that lie within each. moments: of each token of one stream."""
    steps = list(pairwise(moments))
    seconds = [now - before for before, now in steps]
    usual = [
        statistics.median(seconds[max(at - AROUND, 0) : at + AROUND + 1])
        for at in range(len(seconds))
    ]
    found = []
    for watched, began, ended in whiles:
        within = [began <= before and now <= ended for before, now in steps]
        ratios = [one / of for one, of in zip(seconds, usual, strict=True)]
        found.append(Steps(watched, list(compress(ratios, within))))
    return found, statistics.median(seconds)


def looking_costs(whiles: Sequence[Steps]) -> Estimate:
    """What is added to a step, in shares of it. The error is that between one while and another:
    steps that follow each other are slow together.
    """
    alone, watched = (
        [statistics.mean(each.kept) for each in whiles if each.watched is kind]
        for kind in (False, True)
    )
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in (alone, watched)))
    return Estimate(statistics.mean(watched) / statistics.mean(alone) - 1, error)


def outliers(whiles: Sequence[Steps], *, watched: bool) -> float:
    """Their share of the steps."""
    kind = [each for each in whiles if each.watched is watched]
    return round(sum(e.outliers for e in kind) / sum(len(e.of_usual) for e in kind), 3)


async def cost_of_reports(server: Server, draw: Draw) -> Estimate:
    """Seconds that the report of one request adds to 64 short ones at once."""
    added = []
    for _ in range(SHORT_WAVES // 2):
        plain, more, again, last = [
            await _short_wave(server, prompts_of(draw, 1), report=report)
            for report in (False, True, True, False)
        ]
        added.append((more + again - plain - last) / 2 / CLIENTS)
    return estimate(added)


async def _short_wave(server: Server, prompts: Sequence[Sequence[int]], *, report: bool) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(server.ask(prompt, report=report) for prompt in prompts))
    return time.perf_counter() - began


def prompts_of(draw: Draw, own: int) -> list[list[int]]:
    shared = draw.tokens(SHARED)
    return [shared + draw.tokens(own) for _ in range(CLIENTS)]


def estimate(values: Sequence[float]) -> Estimate:
    """The mean without the tenth at either end, and its standard error."""
    cut = len(values) // 10
    kept = sorted(values)[cut : len(values) - cut]
    return Estimate(statistics.mean(kept), statistics.stdev(values) / math.sqrt(len(kept)))


if __name__ == "__main__":
    main()
