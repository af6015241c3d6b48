"""The real server under tens of thousands of requests that misbehave: what leaks, hangs or grows.

    python -m fuzz.soak [--requests 20000] [--clients 48]

`radixlm serve` with the demo model and a pool of a tenth of what its users come with. Chats,
completions and /generate, streamed and whole, text and ids, one choice or two; /tokenize, /health,
/metrics. 30 % of all are aborted at random moments: half of the body sent, before the answer, amid
it, or by /abort_request; 5 % are malformed. Every request has a deadline; one that misses it hangs.
Afterwards the server must be idle with every slot free or evictable, and without an error in its
log. Printed: requests by route and outcome, memory over time; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from benchmarks.pictures import draw_memory, panels, save
from benchmarks.rows import show_rows
from benchmarks.served import Served, Trace, serving, traced
from benchmarks.wire import Answer, BrokenAnswerError, Connection, Pool, request_bytes
from fuzz.soak_traffic import Ask, Traffic
from radixlm.text.model_folder import DEMO_MODEL
from radixlm.text.tokenizer import Tokenizer

DEADLINE = 60.0
IDLE_PATIENCE = 30.0
# What a server may do to a request; whatever else happens is a defect.
GOOD = ("answered", "left", "aborted", "ended before", "refused")


class Soak:
    """Clients that ask until the traffic is over."""

    def __init__(self, served: Served, traffic: Traffic, requests: int) -> None:
        self._served = served
        self._traffic = traffic
        self._left = requests
        self._pool = Pool(served.port)
        self._bar = tqdm(total=requests, desc="soak", dynamic_ncols=True)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.bad: list[str] = []

    async def run(self, clients: int) -> None:
        await asyncio.gather(*(self._client() for _ in range(clients)))
        await self._pool.close()
        self._bar.close()

    async def _client(self) -> None:
        while self._left:
            self._left -= 1
            ask = self._traffic.next()
            try:
                async with asyncio.timeout(DEADLINE):
                    outcome = await self._meet(ask)
            except TimeoutError:
                outcome = "hung"
            except (BrokenAnswerError, OSError) as error:
                outcome = f"broken: {error}"
            if outcome not in GOOD:
                self.bad.append(f"{ask.path} {ask.fate}: {outcome}")
            route = "malformed" if ask.fate == "malformed" else ask.path
            self.outcomes[route, outcome] += 1
            self._bar.update()

    async def _meet(self, ask: Ask) -> str:
        match ask.fate:
            case "half" | "early" | "amid":
                return await self._leave(ask)
            case "abort":
                return await self._abort(ask)
            case "malformed":
                answer = await self._pool.ask(ask.data)
                return "refused" if 400 <= answer.status < 500 else f"status {answer.status}"
        return judged(ask, await self._pool.ask(ask.data))

    async def _leave(self, ask: Ask) -> str:
        """Cut the connection at the moment that the request's fate says."""
        connection = await Connection.open(self._served.port)
        try:
            if ask.fate == "half":
                connection.send(ask.data[: len(ask.data) * 2 // 3])
                await asyncio.sleep(ask.patience)
                return "left"
            async with asyncio.timeout(None) as limit:
                if ask.fate == "early":
                    limit.reschedule(asyncio.get_running_loop().time() + ask.patience)
                connection.send(ask.data)
                answer = await connection.head()
                async for piece in connection.pieces(answer):
                    answer.body += piece
                    if limit.when() is None:
                        limit.reschedule(asyncio.get_running_loop().time() + ask.patience / 8)
            return "ended before" if judged(ask, answer) == "answered" else judged(ask, answer)
        except TimeoutError:
            if limit.expired():
                return "left"
            raise
        finally:
            await connection.close()

    async def _abort(self, ask: Ask) -> str:
        answering = asyncio.create_task(self._pool.ask(ask.data))
        try:
            await asyncio.sleep(ask.patience)
            abort = request_bytes("POST", "/abort_request", {"rid": ask.rid})
            said = await self._pool.ask(abort)
            if said.status != 200:
                return f"abort: status {said.status}"
            answer = await answering
        finally:
            answering.cancel()
        outcome = judged(ask, answer)
        if outcome == "answered":
            return "aborted" if b'"abort"' in answer.body else "ended before"
        return outcome


def judged(ask: Ask, answer: Answer) -> str:
    """`answered`, or what is wrong with an answer that came whole."""
    if answer.status != 200:
        return f"status {answer.status}"
    if ask.streams:
        whole = answer.body.endswith(b"data: [DONE]\n\n") and b'data: {"error"' not in answer.body
    else:
        whole = len(answer.body) > 0
    return "answered" if whole else "cut short"


def measure(requests: int, clients: int) -> tuple[dict[str, Any], Trace]:
    traffic = Traffic(Tokenizer.load(DEMO_MODEL))
    pool = traffic.working_set() // 10
    with serving("--kv-tokens", str(pool)) as served:
        files = served.open_files()
        began = time.perf_counter()
        with traced(served) as trace:
            soak = Soak(served, traffic, requests)
            uvloop.run(soak.run(clients))
            seconds = time.perf_counter() - began
        state = served.idle_state(IDLE_PATIENCE)
        lost = state["kv_capacity"] - state["kv_free"] - state["kv_evictable"]
        report = {
            "benchmark": "soak",
            "requests": requests,
            "clients": clients,
            "seconds": round(seconds),
            "working_set_tokens": traffic.working_set(),
            "kv_tokens": state["kv_capacity"],
            "hit_rate": round(state["hit_rate"], 3),
            "engine_requests_aborted": state["requests_aborted"],
            "retractions": state["retractions"],
            "idle": not state["running"] and not state["waiting"],
            "slots_lost": lost,
            "leaks_seen_by_server": state["leaks"],
            "hangs": sum(n for (_, outcome), n in soak.outcomes.items() if outcome == "hung"),
            "bad": len(soak.bad),
            "first_bad": soak.bad[:5],
            "alarms_in_log": len(served.alarms()),
            "first_alarms": served.alarms()[:3],
            "files_left_open": served.open_files() - files,
            "rss_mb_end": round(trace.mb[-1], 1),
            "rss_mb_growth_after_20_percent": round(trace.growth(), 1),
        }
    show_rows("requests by route and outcome", _rows(soak.outcomes))
    report["outcomes"] = {
        f"{route} {outcome}": count for (route, outcome), count in sorted(soak.outcomes.items())
    }
    return report, trace


def _rows(outcomes: Counter[tuple[str, str]]) -> list[dict[str, object]]:
    columns = sorted({outcome for _, outcome in outcomes})
    routes = sorted({route for route, _ in outcomes})
    return [
        {"route": route} | {column: outcomes[route, column] for column in columns}
        for route in routes
    ]


def draw(path: Path, report: dict[str, Any], trace: Trace) -> None:
    title = f"Soak: {report['requests']:,} requests, 30 % aborted, 5 % malformed"
    figure, [axes] = panels(1, title)
    draw_memory(axes, trace.seconds, trace.mb)
    axes.axvline(trace.seconds[len(trace.seconds) // 5], linestyle=":", color="gray")
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=20_000, help="default: 20000")
    parser.add_argument("--clients", type=int, default=48, help="default: 48")
    parser.add_argument("--picture", type=Path, default=Path("docs/img/soak.png"))
    options = parser.parse_args(arguments)
    report, trace = measure(options.requests, options.clients)
    draw(options.picture, report, trace)
    kept = {name: value for name, value in report.items() if name != "outcomes"}
    show_rows("soak", [{"what": name, "value": str(value)} for name, value in kept.items()])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
