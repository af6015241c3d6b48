"""The same requests to any servers that speak /v1/completions, side by side.

    python -m benchmarks.peers URL [URL...] [--only W1,W5] [--scale 1.0] [--json FILE]

Prompts are random token ids, answers greedy and of fixed length (`ignore_eos`). All requests of a
stage are sent at once; the next stage, whose prompts hold the answers of this one, when the last of
them has ended. Each server gets one small request to warm up, and is flushed before each workload
where it can be; prompts of two workloads have no beginning in common. Servers take turns, workload
by workload, so none of them has anything to do while another is measured.

Later prompts hold the server's own answers where it returns token ids (`return_token_ids`), so that
it may reuse what it has computed. Of a server that does not, they hold the first server's, which
are its own where outputs agree, or else random ones; `answers` says which. Prompts are as long
either way. `equal` compares token ids, or the text where one of the two has none, with the first
server's, of those requests that had the same prompt.

Wall time is from the first request to the last token, TTFT from sending to the first text or id.
This process shares the machine with the servers: `client` is its CPU time. Ends in one JSON line.
See docs/peers.md for how to start the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from benchmarks.peer_client import Peer, PeerError, Reply
from benchmarks.peer_workloads import FIRST_WORD, USUAL, WORKLOADS, Ask, Draw, Stages

DEFAULT_VOCAB_SIZE = 32_000
CONNECT_SECONDS = 5.0


class Run(NamedTuple):
    """One workload on one server. wall: seconds; client: CPU seconds of this process.

    answers: whose answers later prompts hold, "–" where there are none.
    """

    replies: list[Reply]
    wall: float
    client: float
    answers: str


async def run(peer: Peer, stages: Stages, first: Run | None, spare: Draw) -> Run:
    """Play a workload. first: the first server's run, whose answers stand in where there are none;
    spare: where there are none either.
    """
    replies: list[Reply] = []
    answers = "–"
    began, cpu = time.perf_counter(), time.process_time()
    asks = next(stages)
    while True:
        got = await together(peer, asks)
        known = [reply.token_ids for reply in got]
        source = "own"
        if first is not None and None in known:
            source = "first server's"
            known = [r.token_ids for r in first.replies[len(replies) : len(replies) + len(got)]]
        if None in known:
            source = "random"
            known = [spare.tokens(ask.out) for ask in asks]
        replies += got
        try:
            asks = stages.send([ids for ids in known if ids is not None])
        except StopIteration:
            break
        answers = source
    wall = time.perf_counter() - began
    return Run(replies, wall, time.process_time() - cpu, answers)


async def together(peer: Peer, asks: Sequence[Ask]) -> list[Reply]:
    """Ask all at once; when one fails, the others are called off."""
    tasks = [asyncio.create_task(peer.ask(ask)) for ask in asks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def compare(one: Run, other: Run) -> tuple[int, int]:
    """How many outputs are equal, of how many that had the same prompt."""
    pairs = [
        (a, b) for a, b in zip(one.replies, other.replies, strict=True) if a.prompt == b.prompt
    ]
    return sum(_equal(a, b) for a, b in pairs), len(pairs)


def _equal(a: Reply, b: Reply) -> bool:
    if a.token_ids is None or b.token_ids is None:
        return a.text == b.text
    return a.token_ids == b.token_ids


def summary(url: str, name: str, done: Run, first: Run) -> dict[str, Any]:
    """One row: times in seconds, percentiles in milliseconds."""
    replies = done.replies
    prompt, output = (sum(getattr(r, f"{k}_tokens") for r in replies) for k in ("prompt", "output"))
    cached = [reply.cached for reply in replies if reply.cached is not None]
    equal, compared = compare(first, done)
    return {
        "workload": name,
        "server": url,
        "wall_s": round(done.wall, 3),
        "prompt_per_s": round(prompt / done.wall, 1),
        "output_per_s": round(output / done.wall, 1),
        **_percentiles("ttft", [reply.first for reply in replies]),
        **_percentiles("gap", [gap for reply in replies for gap in reply.gaps]),
        "cached_tokens": sum(cached) if len(cached) == len(replies) else None,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "equal": equal,
        "compared": compared,
        "requests": len(replies),
        "answers": done.answers,
        "client_cpu_s": round(done.client, 2),
    }


def _percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    values = np.percentile(seconds, (50, 99)) if seconds else (0.0, 0.0)
    return {f"{name}_ms_p50": _ms(values[0]), f"{name}_ms_p99": _ms(values[1])}


def _ms(seconds: float) -> float:
    return round(1e3 * float(seconds), 1)


async def measure(peers: Sequence[Peer], options: argparse.Namespace) -> list[dict[str, Any]]:
    """All workloads on all servers; a workload that fails gives a row with `error`."""
    for peer in peers:
        await peer.connect(Draw(options.vocab_size or FIRST_WORD, options.seed, len(WORKLOADS)))
    sizes = [options.vocab_size or await peer.vocab_size() for peer in peers]
    vocab_size = min([size for size in sizes if size] or [DEFAULT_VOCAB_SIZE])
    turns = [(name, place) for name in options.only for place in range(len(peers))]
    rows: list[dict[str, Any]] = []
    firsts: dict[str, Run] = {}
    for name, place in tqdm(turns, dynamic_ncols=True):
        peer = peers[place]
        seeds = (options.seed, list(WORKLOADS).index(name))
        stages = WORKLOADS[name].stages(Draw(vocab_size, *seeds), options.scale)
        try:
            with alone(options.groups, place):
                await peer.flush()
                done = await run(peer, stages, firsts.get(name), Draw(vocab_size, *seeds, 1))
        except PeerError as error:
            rows.append({"workload": name, "server": peer.url, "error": str(error)})
        else:
            rows.append(summary(peer.url, name, done, firsts.setdefault(name, done)))
    return rows


@contextmanager
def alone(groups: Sequence[int], place: int) -> Iterator[None]:
    """All but one of these process groups are stopped: vLLM's idle worker keeps a core busy."""
    others = [group for index, group in enumerate(groups) if index != place]
    for group in others:
        os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        for group in others:
            os.killpg(group, signal.SIGCONT)


async def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """The report: servers and rows."""
    timeout = httpx.Timeout(options.timeout, connect=CONNECT_SECONDS)
    # A server that was stopped meanwhile ends connections that nobody used when it goes on.
    limits = httpx.Limits(max_connections=None, keepalive_expiry=1.0)
    async with httpx.AsyncClient(timeout=timeout, limits=limits) as client:
        peers = [Peer(url, client, options.model) for url in options.urls]
        rows = await measure(peers, options)
    servers = [{"url": p.url, "model": p.model, "flushes_at": p.flushes_at} for p in peers]
    given = {"scale": options.scale, "seed": options.seed, "one_at_a_time": bool(options.groups)}
    return {"benchmark": "peers", **given, "servers": servers, "results": rows}


def show(report: dict[str, Any]) -> None:
    """A table per workload, then what failed."""
    console = Console(width=140)
    columns = ("server", "wall s", "prompt/s", "out/s", "TTFT p50", "p99 ms", "gap p50", "p99 ms",
               "cached", "equal", "answers", "client s")  # fmt: skip
    for name, workload in WORKLOADS.items():
        rows = [row for row in report["results"] if row["workload"] == name]
        table = Table(title=f"{name}  {workload.what} (x {report['scale']:g})")
        for column in columns:
            table.add_column(column, justify="left" if column == "server" else "right")
        for row in rows:
            if "error" not in row:
                table.add_row(*_cells(row))
        if table.row_count:
            console.print(table)
        for row in rows:
            if "error" in row:
                console.print(f"{name} failed. {row['error']}", style="red", markup=False)
    for server in report["servers"]:
        if server["flushes_at"] is None:
            console.print(
                f"{server['url']} cannot be flushed: take another --seed for another run, or it "
                "will know all prompts.",
                markup=False,
            )


def _cells(row: dict[str, Any]) -> Iterable[str]:
    yield row["server"].split("://")[-1]
    yield f"{row['wall_s']:.2f}"
    for key in ("prompt_per_s", "output_per_s"):
        yield f"{row[key]:,.0f}"
    for key in ("ttft_ms_p50", "ttft_ms_p99", "gap_ms_p50", "gap_ms_p99"):
        yield f"{row[key]:,.1f}"
    cached = row["cached_tokens"]
    yield "–" if cached is None else f"{cached:,} of {row['prompt_tokens']:,}"
    yield f"{row['equal']} of {row['compared']}"
    yield row["answers"]
    yield f"{row['client_cpu_s']:.2f}"


def _names(value: str) -> list[str]:
    names = value.split(",")
    if unknown := set(names) - set(WORKLOADS):
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}"
        )
    return names


def _numbers(value: str) -> list[int]:
    return [int(number) for number in value.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("urls", nargs="+", metavar="URL", help="http://127.0.0.1:30000")
    parser.add_argument("--only", type=_names, default=list(USUAL), help="such as W1,W5")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="times as many requests; W3 is one tree at least"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random prompts; default: 0")
    parser.add_argument("--vocab-size", type=int, help="ids lie below; default: what we can learn")
    parser.add_argument("--model", help="default: the first one that each server lists")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds without a token")
    parser.add_argument(
        "--groups",
        type=_numbers,
        default=[],
        metavar="PGID,...",
        help="process groups of the servers, in their order: they run one at a time",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    options = parser.parse_args(arguments)
    if options.groups and len(options.groups) != len(options.urls):
        parser.error(f"{len(options.groups)} groups for {len(options.urls)} servers")
    try:
        report = asyncio.run(measure_all(options))
    except PeerError as error:
        print(error, file=sys.stderr)
        return 2
    show(report)
    line = json.dumps(report)
    if options.json is not None:
        options.json.write_text(line + "\n", encoding="utf-8")
    print(line)
    return 1 if any("error" in row for row in report["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
