"""What one key's flood does to another key's time to the first token.

    python -m benchmarks.fairness [--streams 64] [--seconds 60]

`radixlm serve` with the demo model, two keys, each with a cache of its own (--isolate-by-key). The
quiet key asks one stream at a time, alone and beside the flood in turn, each after a pause of up to
`--pause` seconds, drawn by lot (who asks at once after an answer always comes as a step has just
begun); the flooding key keeps
`--streams` streams under way, with prompts of 1,000 to 3,000 tokens and 100 tokens of answer.
Wanted: the quiet key's time to the first token at most doubles. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from benchmarks.peer_workloads import Draw
from benchmarks.pictures import panels, save
from benchmarks.rows import show_rows
from benchmarks.served import Served, median, quantile, serving
from benchmarks.wire import Answer, Pool, request_bytes

VOCAB = 2_048
QUIET, FLOOD = "the-quiet-key", "the-flooding-key"
QUIET_OUT = 16
FLOOD_PROMPT, FLOOD_OUT = (1_000, 3_000), 100
FLAGS = "--chunked-prefill-size 256"
ROUNDS = 3
SETTLE = 3.0


class Tenant:
    """Streams of fresh prompts under one key."""

    def __init__(self, served: Served, key: str, seed: int) -> None:
        self._pool = Pool(served.port)
        self._key = key
        self._draw = Draw(VOCAB, seed)
        self._random = random.Random(seed)
        self.answered = 0

    async def ask(self, prompt: int, out: int) -> Answer:
        """A stream, read to its end."""
        body = {
            "prompt": self._draw.tokens(prompt),
            "max_tokens": out,
            "ignore_eos": True,
            "stream": True,
        }
        data = request_bytes("POST", "/v1/completions", body, key=self._key)
        answer = await self._pool.ask(data)
        assert answer.status == 200, bytes(answer.body)
        self.answered += 1
        return answer

    async def one_at_a_time(self, prompt: int, seconds: float, pause: float) -> list[float]:
        """Seconds to the first token of each."""
        firsts = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await asyncio.sleep(pause * self._random.random())
            answer = await self.ask(prompt, QUIET_OUT)
            firsts.append(answer.first or answer.total)
        return firsts

    async def flood(self, streams: int) -> None:
        """Keep so many under way, until cancelled."""

        async def again_and_again() -> None:
            while True:
                await self.ask(self._random.randint(*FLOOD_PROMPT), FLOOD_OUT)

        await asyncio.gather(*(again_and_again() for _ in range(streams)))


async def in_turn(
    served: Served, options: argparse.Namespace
) -> tuple[dict[int, list[float]], dict[int, list[float]], int]:
    """Alone and beside the flood, by the length of the prompt; also the flood's answers."""
    alone: dict[int, list[float]] = {length: [] for length in options.prompts}
    beside: dict[int, list[float]] = {length: [] for length in options.prompts}
    quiet, noisy = Tenant(served, QUIET, 1), Tenant(served, FLOOD, 2)
    each = options.seconds / ROUNDS / len(options.prompts)
    for length in options.prompts:
        await quiet.one_at_a_time(length, SETTLE, options.pause)
    for _ in tqdm(range(ROUNDS), desc="rounds", dynamic_ncols=True):
        for length in options.prompts:
            alone[length] += await quiet.one_at_a_time(length, each, options.pause)
        flooding = asyncio.create_task(noisy.flood(options.streams))
        await asyncio.sleep(SETTLE)
        for length in options.prompts:
            beside[length] += await quiet.one_at_a_time(length, each, options.pause)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        await asyncio.to_thread(served.idle_state, 30)
    return alone, beside, noisy.answered


def rows_of(
    alone: dict[int, list[float]], beside: dict[int, list[float]]
) -> list[dict[str, object]]:
    """Milliseconds and ratios, by the length of the quiet key's prompts."""
    rows = []
    for length, firsts in alone.items():
        row: dict[str, object] = {"prompt_tokens": length, "asked_beside": len(beside[length])}
        for share in (0.5, 0.95):
            one, other = quantile(firsts, share), quantile(beside[length], share)
            name = f"p{100 * share:.0f}"
            row[f"alone_{name}_ms"] = round(1e3 * one, 1)
            row[f"beside_{name}_ms"] = round(1e3 * other, 1)
            row[f"ratio_{name}"] = round(other / one, 2)
        rows.append(row)
    return rows


def draw(path: Path, alone: dict[int, list[float]], beside: dict[int, list[float]]) -> None:
    figure, every = panels(len(alone), "One key's time to the first token, ms, beside a flood")
    for axes, length in zip(every, alone, strict=True):
        for name, firsts in (("alone", alone[length]), ("beside the flood", beside[length])):
            places = [(place + 0.5) / len(firsts) for place in range(len(firsts))]
            axes.plot([1e3 * first for first in sorted(firsts)], places, label=name)
        axes.axvline(2e3 * median(alone[length]), color="gray", linestyle=":", label="twice alone")
        axes.set_title(f"prompts of {length} tokens: share of requests", fontsize=9, loc="left")
        axes.set_xlim(left=0)
        axes.legend(loc="lower right")
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, default=64, help="of the flood; default: 64")
    parser.add_argument("--seconds", type=float, default=60, help="alone, and beside; default: 60")
    parser.add_argument("--pause", type=float, default=0.05, help="default: 0.05 s at most")
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=[200, 1_000], help="default: 200 1000"
    )
    parser.add_argument("--flags", default=FLAGS, help=f"of the server; default: {FLAGS!r}")
    parser.add_argument("--picture", type=Path, default=Path("docs/img/fairness.png"))
    options = parser.parse_args(arguments)
    keys = ("--api-key", QUIET, "--api-key", FLOOD, "--isolate-by-key")
    flags = ("--kv-tokens", "200000", *options.flags.split())
    with serving(*keys, *flags, key=QUIET) as served:
        alone, beside, answered = uvloop.run(in_turn(served, options))
        state = served.idle_state(30)
    rows = rows_of(alone, beside)
    draw(options.picture, alone, beside)
    show_rows(f"the quiet key beside {options.streams} streams of another", rows)
    report: dict[str, Any] = {
        "benchmark": "fairness",
        "streams": options.streams,
        "flags": options.flags,
        "pause": options.pause,
        "results": rows,
        "flood_answered": answered,
        "slots_lost": state["kv_capacity"] - state["kv_free"] - state["kv_evictable"],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
