"""Random traffic on a server whose cache is abused between its starts: never a wrong answer.

    python -m fuzz.abuse [--minutes 10] [--round-seconds 20] [--seed 0]

`radixlm serve` with a random tiny model in float32, a pool for a few of its prompts, host
memory, a disk cache and three adapters' names. A server without any cache answers all first; its
answers are right. Clients then ask at random: with an adapter or none, streamed or whole, some
leave amid their answer, some let an adapter go and do not wait for it. Between rounds the server is
stopped, or killed, and something is put in place of the disk cache's index or is done to a file of
it; the adapters' names get other weights. A row for each kind of end, and after all of them one
JSON line. passed: no answer wrong, none lost while the server was up, every start came up, and all
slots came back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.disk_servers import Model
from benchmarks.peer_workloads import Draw
from benchmarks.rows import show_rows
from benchmarks.served import Served, serving
from benchmarks.wire import BrokenAnswerError, Connection, Pool, request_bytes
from fuzz.disk_lab import balanced
from radixlm.testing.peft_adapters import make_adapter

BEGINNINGS, ENDS, SHARED, OWN, OUT = 24, 6, 400, 40, 24
NAMES = ("fr", "de", "it")
KV_TOKENS, HOST_TOKENS, GIGABYTES, CLIENTS = 6_000, 6_000, "0.02", 8
DEADLINE = 60.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt of token ids, by number; folder: the adapter's weights, by number, or None."""

    prompt: int
    folder: int | None


class Truth:
    """Prompts, adapters, and the right answers of both together."""

    def __init__(self, place: Path, seed: int) -> None:
        self.model = Model.made("tiny", place, "float32")
        draw = Draw(self.model.vocab, seed)
        shared = [draw.tokens(SHARED) for _ in range(BEGINNINGS)]
        self.prompts = [beginning + draw.tokens(OWN) for beginning in shared for _ in range(ENDS)]
        folders = [place / f"adapter-{number}" for number in range(len(NAMES))]
        self.folders = [
            make_adapter(folder, self.model.folder, seed=seed + number)
            for number, folder in enumerate(folders)
        ]
        self.answers: dict[Ask, list[int]] = {}

    def adapters(self, order: Iterable[int]) -> list[str]:
        """Flags that name the folders in this order."""
        pairs = zip(NAMES, order, strict=True)
        return [
            flag for name, at in pairs for flag in ("--lora-paths", f"{name}={self.folders[at]}")
        ]

    async def learn(self, served: Served) -> None:
        pool, waiting = Pool(served.port), asyncio.Semaphore(CLIENTS)
        asks = [
            Ask(prompt, folder)
            for prompt in range(len(self.prompts))
            for folder in (None, *range(len(NAMES)))
        ]
        bar = tqdm(total=len(asks), desc="right answers", disable=None)

        async def one(ask: Ask) -> None:
            async with waiting:
                name = None if ask.folder is None else NAMES[ask.folder]
                answer = await pool.ask(self.request(ask.prompt, name, OUT, stream=False))
            self.answers[ask] = answer.json()["output_ids"]
            bar.update()

        await asyncio.gather(*map(one, asks))
        bar.close()
        await pool.close()

    def request(self, prompt: int, name: str | None, out: int, *, stream: bool) -> bytes:
        body = {
            "input_ids": self.prompts[prompt],
            "sampling_params": {"temperature": 0, "max_new_tokens": out, "ignore_eos": True},
            "stream": stream,
            **({} if name is None else {"lora_path": name}),
        }
        return request_bytes("POST", "/generate", body)


class Traffic:
    """Clients of one round, until its time is over or the server is gone."""

    def __init__(
        self, truth: Truth, served: Served, folders: dict[str, int], chance: random.Random
    ) -> None:
        self._truth = truth
        self._served = served
        self._folders = folders
        self._chance = chance
        self._pool = Pool(served.port)
        self._over = False
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float, end: Callable[[], None]) -> None:
        """end: what happens to the server when the time is over, while all ask."""
        clients = [asyncio.create_task(self._client()) for _ in range(CLIENTS)]
        await asyncio.sleep(seconds)
        self._over = True
        end()
        await asyncio.gather(*clients)
        await self._pool.close()

    async def _client(self) -> None:
        while not self._over:
            try:
                async with asyncio.timeout(DEADLINE):
                    outcome = await self._one()
            except TimeoutError:
                outcome = "hung"
            except (BrokenAnswerError, OSError):
                outcome = "cut" if self._over else "lost"
            self.counts[outcome] += 1

    async def _one(self) -> str:
        prompt = min(int(self._chance.expovariate(1 / 40)), len(self._truth.prompts) - 1)
        name = self._chance.choice((None, *NAMES))
        out, fate = self._chance.randint(1, OUT), self._chance.random()
        request = self._truth.request(prompt, name, out, stream=fate < 0.5)
        if fate < 0.1:
            return await self._leave(request)
        if fate > 0.99 and name is not None:
            return await self._swap(name)
        answer = await self._pool.ask(request)
        if answer.status != 200:
            # Between an unload and the load after it a name is not there.
            return "refused" if answer.status == 400 and name is not None else "lost"
        body = answer.body if fate >= 0.5 else answer.body.split(b"data: ")[-2]
        ids = json.loads(body)["output_ids"]
        right = self._truth.answers[Ask(prompt, None if name is None else self._folders[name])]
        return "right" if ids == right[:out] else "wrong"

    async def _leave(self, request: bytes) -> str:
        connection = await Connection.open(self._served.port)
        connection.send(request)
        await asyncio.sleep(self._chance.random() * 0.1)
        await connection.close()
        return "left"

    async def _swap(self, name: str) -> str:
        """Let an adapter go without waiting for the end of it, and load it again."""
        await self._leave(request_bytes("POST", "/unload_lora_adapter", {"lora_name": name}))
        body = {"lora_name": name, "lora_path": str(self._truth.folders[self._folders[name]])}
        answer = await self._pool.ask(request_bytes("POST", "/load_lora_adapter", body))
        return "loaded" if answer.status in (200, 400) else "lost"


def index_of(folder: Path) -> Path:
    return folder / "index.sqlite"


def garbage(folder: Path, chance: random.Random) -> None:
    index_of(folder).write_bytes(chance.randbytes(50_000))


def cut(folder: Path, chance: random.Random) -> None:
    size = index_of(folder).stat().st_size
    os.truncate(index_of(folder), chance.randrange(size))


def overwritten(folder: Path, chance: random.Random) -> None:
    with index_of(folder).open("r+b") as file:
        for _ in range(3):
            file.seek(chance.randrange(index_of(folder).stat().st_size))
            file.write(chance.randbytes(4_000))


def emptied(folder: Path, _chance: random.Random) -> None:
    os.truncate(index_of(folder), 0)


def missing(folder: Path, _chance: random.Random) -> None:
    index_of(folder).unlink()


def another(folder: Path, _chance: random.Random) -> None:
    missing(folder, _chance)
    with sqlite3.connect(index_of(folder)) as database:
        database.execute("CREATE TABLE blocks (what TEXT)")
    database.close()


def older(folder: Path, _chance: random.Random) -> None:
    """The index of a round before, over the blocks of today."""
    kept = folder.with_suffix(".older")
    now = index_of(folder).read_bytes()
    if kept.exists():
        for file in folder.glob("index.sqlite-*"):
            file.unlink()
        index_of(folder).write_bytes(kept.read_bytes())
    kept.write_bytes(now)


def blocks(folder: Path, chance: random.Random) -> None:
    """Bytes turned in what was stored, not in the index."""
    file = max(folder.glob("*.blocks"), key=lambda each: each.stat().st_size)
    with file.open("r+b") as opened:
        for _ in range(20):
            opened.seek(chance.randrange(file.stat().st_size or 1))
            opened.write(chance.randbytes(8))


def nothing(_folder: Path, _chance: random.Random) -> None:
    """A start as after any end."""


DAMAGE = (nothing, garbage, cut, overwritten, emptied, missing, another, older, blocks)


class Abuse:
    """Rounds on one folder."""

    def __init__(self, truth: Truth, folder: Path, seed: int) -> None:
        self._truth = truth
        self._folder = folder
        self._chance = random.Random(seed)
        self.rows: dict[str, Counter[str]] = {}

    def flags(self, order: Iterable[int]) -> list[str]:
        host, disk = ("--host-kv-tokens", str(HOST_TOKENS)), ("--disk-cache-gb", GIGABYTES)
        more = (*host, *disk, "--disk-block-tokens", "32", *self._truth.adapters(order))
        return self._truth.model.flags(KV_TOKENS, self._folder, *more)

    def round(self, number: int, seconds: float) -> None:
        """A start, traffic, an end, and damage. The damage before is what it is counted under."""
        damage = DAMAGE[number % len(DAMAGE)]
        if number:
            damage(self._folder, self._chance)
        row = self.rows.setdefault(damage.__name__, Counter())
        order = self._chance.sample(range(len(NAMES)), len(NAMES))
        killed = self._chance.random() < 0.5
        row["killed"] += killed
        try:
            with serving(*self.flags(order)) as served:
                row["starts"] += 1
                folders = dict(zip(NAMES, order, strict=True))
                traffic = Traffic(self._truth, served, folders, self._chance)

                def end() -> None:
                    state = served.state()
                    row["from_disk"] += state["disk_restored"]
                    row["from_host"] += state["host_restored"]
                    if killed:
                        os.kill(served.pid, signal.SIGKILL)

                asyncio.run(traffic.run(seconds, end))
                row.update(traffic.counts)
                row["unbalanced"] += not killed and balanced(served) is None
        except SystemExit as error:
            row["no_start"] += 1
            tqdm.write(str(error)[-1_000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0, help="of traffic; default: 10")
    parser.add_argument("--round-seconds", type=float, default=20.0, help="default: 20")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        truth = Truth(Path(scratch), options.seed)
        right = truth.model.flags(
            30_000, None, "--disable-radix-cache", *truth.adapters(range(len(NAMES)))
        )
        with serving(*right) as served:
            asyncio.run(truth.learn(served))
        abuse = Abuse(truth, Path(scratch) / "disk", options.seed)
        for number in tqdm(
            range(round(options.minutes * 60 / options.round_seconds)), desc="rounds"
        ):
            abuse.round(number, options.round_seconds)
    show_rows("after", [{"after": name, **columns(row)} for name, row in abuse.rows.items()])
    total: Counter[str] = sum(abuse.rows.values(), Counter())
    report: dict[str, Any] = {
        "benchmark": "abuse",
        "seed": options.seed,
        "minutes": options.minutes,
        **columns(total),
    }
    bad = ("wrong", "lost", "hung", "no_start", "unbalanced")
    report["passed"] = total["right"] > 0 and not any(total[name] for name in bad)
    print(json.dumps(report))
    sys.exit(not report["passed"])


def columns(row: Counter[str]) -> dict[str, int]:
    names = (
        "starts", "no_start", "killed", "right", "wrong", "lost", "hung", "refused", "left",
        "cut", "loaded", "unbalanced", "from_disk", "from_host",
    )  # fmt: skip
    return {name: row[name] for name in names}


if __name__ == "__main__":
    main()
