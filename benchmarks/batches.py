"""A batch against 64 clients, its order, its memory, and what other clients feel of it.

    python -m benchmarks.batches [--requests 20000] [--prefixes 100] [--lines 1000000]

Few-shot prompts, prefixes of 512 tokens with 24 of their own, shuffled, 8 tokens each, by servers
with the demo model and a pool that a quarter of the prefixes fill: through 64 clients, then as a
batch, by one engine and by replicas. Tokens computed are compared with the fewest possible, the
nodes of the tree of all prompts.
Then the largest memory of a process that puts many lines in order and writes answers that come at
once; and the time to the first token of a client, alone and beside a batch. Wanted: 1.01 of the
fewest, 1.3 of the clients' speed, 300 MB more for a hundred times as many lines, 1.5 of the time.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from benchmarks.served import Served, median, memory, serving
from radixlm.batch.batch_run import answer_all
from radixlm.batch.lines import BatchLine
from radixlm.batch.order import plan
from radixlm.batch.results import LineAnswer, Results
from radixlm.testing.deployed import serving as deployed

VOCAB, PREFIX, OWN, ANSWER, CLIENTS = 2_000, 512, 24, 8, 64
FLAGS = ("--kv-tokens", "16384", "--disable-access-log")
URL = "/v1/completions"
FIRSTS, EVERY_SECONDS = 60, 0.2
ANSWERED = b'{"object":"text_completion","choices":[{"text":"four words or five"}]}'


def prompts(count: int, prefixes: int) -> list[list[int]]:
    draw = random.Random(0)
    first = [[draw.randrange(16, VOCAB) for _ in range(PREFIX)] for _ in range(prefixes)]
    own = ([draw.randrange(16, VOCAB) for _ in range(OWN)] for _ in range(count))
    found = [first[n % prefixes] + each for n, each in enumerate(own)]
    draw.shuffle(found)
    return found


def fewest(asked: list[list[int]]) -> int:
    """The nodes of the tree of prompts."""
    tokens = 0
    for before, after in pairwise([[], *sorted(asked)]):
        shared = next(
            (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0
        )
        tokens += len(after) - shared
    return tokens


def body(prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}


def write_lines(path: Path, asked: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="ascii") as file:
        for n, each in enumerate(asked):
            line = {"custom_id": f"r{n}", "method": "POST", "url": URL, "body": each}
            file.write(json.dumps(line) + "\n")


def computed(served: Served, answers: int) -> int:
    """Prompt tokens that went through the model: an answer's last token does not."""
    tokens: int = served.idle_state(60)["computed_tokens"] - answers * (ANSWER - 1)
    return tokens


async def by_clients(url: str, asked: list[list[int]]) -> None:
    waiting = iter(asked)

    async def client(http: httpx.AsyncClient) -> None:
        for prompt in waiting:
            (await http.post(URL, json=body(prompt))).raise_for_status()

    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))


def start_batch(url: str, path: Path) -> str:
    with path.open("rb") as file, httpx.Client(base_url=url, timeout=600) as http:
        made = http.post("/v1/files", files={"file": file}, data={"purpose": "batch"})
        asked = {"input_file_id": made.json()["id"], "endpoint": URL, "completion_window": "24h"}
        batch: str = http.post("/v1/batches", json=asked).json()["id"]
        return batch


def wait_for(url: str, batch: str) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = httpx.get(f"{url}/v1/batches/{batch}").json()
        if found["status"] not in ("validating", "in_progress"):
            return found
        time.sleep(0.2)


def speed(count: int, prefixes: int) -> dict[str, Any]:
    asked = prompts(count, prefixes)
    least = fewest(asked)
    rows: dict[str, Any] = {"fewest_tokens": least}
    with serving("--speculative-algorithm", "off", *FLAGS) as served:
        began = time.perf_counter()
        asyncio.run(by_clients(served.url, asked))
        rows["clients_s"] = round(time.perf_counter() - began, 1)
        rows["clients_computed"] = round(computed(served, count) / least, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        write_lines(path, map(body, asked))
        with serving("--speculative-algorithm", "off", *FLAGS) as served:
            began = time.perf_counter()
            # The wish for a batch is a client's: lines wait for it to be over, as they should.
            done = wait_for(served.url, start_batch(served.url, path))
            rows["batch_s"] = round(time.perf_counter() - began, 1)
            rows["batch_counts"] = done["request_counts"]
            rows["batch_computed"] = round(computed(served, count) / least, 4)
    return rows | {"clients_over_batch": round(rows["clients_s"] / rows["batch_s"], 2)}


def over_replicas(count: int, prefixes: int, replicas: int) -> dict[str, Any]:
    asked = prompts(count, prefixes)
    flags = ("--replicas", str(replicas), "--speculative-algorithm", "off", *FLAGS)
    with tempfile.TemporaryDirectory() as folder, deployed("deploy", *flags) as served:
        path = Path(folder) / "in.jsonl"
        write_lines(path, map(body, asked))
        url, client = str(served.client.base_url), served.client

        def state() -> dict[str, Any]:
            found: dict[str, Any] = client.get("/server_info").json()["internal_states"][0]
            return found

        before, began = state()["computed_tokens"], time.perf_counter()
        done = wait_for(url, start_batch(url, path))
        seconds = round(time.perf_counter() - began, 1)
        time.sleep(3)  # they report once a second
        tokens = state()["computed_tokens"] - before - count * (ANSWER - 1)
        homes = {
            each["replica"]: sum(each["chosen"].values())
            for each in client.get("/router/replicas").json()["replicas"]
        }
    return {
        "replicas": replicas,
        "replicas_s": seconds,
        "replicas_counts": done["request_counts"],
        "replicas_lines": sorted(homes.values()),
        "replicas_computed": round(tokens / fewest(asked), 4),
    }


def first_tokens(url: str, count: int) -> float:
    """The median milliseconds until a client's first token."""
    draw, times = random.Random(1), []
    with httpx.Client(base_url=url, timeout=60) as http:
        for _ in range(count):
            prompt = [draw.randrange(16, VOCAB) for _ in range(PREFIX)]
            began = time.perf_counter()
            with http.stream("POST", URL, json=body(prompt) | {"stream": True}) as answer:
                next(answer.iter_lines())
                times.append(time.perf_counter() - began)
            time.sleep(EVERY_SECONDS)
    return round(1e3 * median(times), 2)


def beside(count: int, prefixes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, serving(*FLAGS) as served:
        path = Path(folder) / "in.jsonl"
        write_lines(path, map(body, prompts(count, prefixes)))
        first_tokens(served.url, 10)
        alone = first_tokens(served.url, FIRSTS)
        batch = start_batch(served.url, path)
        time.sleep(12)  # clients are quiet, the batch has all there is
        with_it = first_tokens(served.url, FIRSTS)
        found = httpx.get(f"{served.url}/v1/batches/{batch}").json()
        if found["status"] != "in_progress":
            raise SystemExit(f"the batch ended too early: {found}")
        httpx.post(f"{served.url}/v1/batches/{batch}/cancel")
        again = first_tokens(served.url, FIRSTS)
    found = {"alone_ms": alone, "beside_ms": with_it, "alone_again_ms": again}
    return found | {"beside_over_alone": round(2 * with_it / (alone + again), 2)}


def hold(lines: int, folder: Path) -> int:
    """The largest memory, in bytes, of a process that answers as many lines at once."""

    async def ask(line: BatchLine, _content: bytes, _part: int) -> LineAnswer:
        return LineAnswer(200, line.custom_id, ANSWERED)

    draw = random.Random(2)
    shots = ["".join(draw.choice("abcdefgh ") for _ in range(1_000)) for _ in range(100)]
    order = (draw.randrange(100) for _ in range(lines))
    write_lines(folder / "in.jsonl", ({"prompt": f"{shots[at]} {draw.random()}"} for at in order))
    whole = plan(folder / "in.jsonl", 1 << 20)
    results = Results(whole.mark, whole.numbers, folder / "out.jsonl", folder / "out.jsonl")
    asyncio.run(answer_all(whole, results, ask, lambda: 256))
    results.close()
    if results.completed != lines:
        raise SystemExit(f"{results.completed} of {lines} lines were answered")
    # A later run reads what is there.
    Results(whole.mark, whole.numbers, folder / "out.jsonl", folder / "out.jsonl").close()
    return memory(os.getpid(), "VmHWM")


def held(lines: int) -> float:
    """The megabytes that a process of its own needs for so many lines."""
    command = [sys.executable, "-m", "benchmarks.batches", "--hold", str(lines)]
    return int(subprocess.run(command, check=True, capture_output=True).stdout) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--prefixes", type=int, default=100)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("speed", "replicas", "beside", "memory"))
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(hold(args.hold, Path(folder)))
        return
    rows: dict[str, Any] = {}
    if args.only in (None, "speed"):
        rows |= speed(args.requests, args.prefixes)
        print(rows, flush=True)
    if args.only in (None, "replicas"):
        rows |= over_replicas(args.requests, args.prefixes, args.replicas)
        print(rows, flush=True)
    if args.only in (None, "beside"):
        rows |= beside(args.requests, args.prefixes)
        print(rows, flush=True)
    if args.only in (None, "memory"):
        few, many = held(args.lines // 100), held(args.lines)
        rows |= {"few_lines_mb": few, "many_lines_mb": many, "more_mb": many - few}
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
