"""Does a damaged disk cache ever give a wrong block, or end the process?

    python -m fuzz.damaged_store [--rounds 1000] [--kills 100] [--seed 0]

Each round damages one file of a copy of a small store (bits turned, cut, a stretch overwritten),
before it is opened or while it is open, and reads all: what is right to come out is each block's
own bytes or none, and an error of ours only where it was open. Then something else stands in the
index's place at a start, all sorts of things in turn; `found` is the share of the blocks that are
there afterwards, and has to be 1. Then a process that writes is killed at a random moment, again
and again; after each time every block that is found has to be right. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from radixlm.core.errors import DiskStoreError
from radixlm.core.keys import Key, as_key
from radixlm.core.moves import StoredPath
from radixlm.memory.disk_store import DiskStore, StoredBlock
from radixlm.memory.store_identity import StoreIdentity

TOKENS, BYTES, BLOCKS = 8, 9_000, 12
PATHS = 6
WRITER = "--write"


def open_store(folder: Path) -> DiskStore:
    identity = StoreIdentity({"model": "damaged"})
    limit = 1 << 28
    return DiskStore.open(
        folder, identity, block_tokens=TOKENS, block_bytes=BYTES, limit_bytes=limit
    )


def path(number: int) -> Key:
    start = number * TOKENS * BLOCKS
    return as_key(np.arange(start, start + TOKENS * BLOCKS))


def payload(tokens: Key) -> bytes:
    return np.random.default_rng(int(tokens[-1])).bytes(BYTES)


def put(store: DiskStore, number: int) -> None:
    tokens = path(number)
    ends = range(TOKENS, tokens.size + 1, TOKENS)
    store.put(StoredBlock(b"", tokens[:end], [memoryview(payload(tokens[:end]))]) for end in ends)


def right(store: DiskStore, paths: range) -> int:
    """How many blocks are found. Raises AssertionError for a wrong one."""
    count, into = 0, memoryview(bytearray(BYTES))
    for number in paths:
        tokens = path(number)
        reader = store.reader(StoredPath(b"", tokens), 0)
        for end in range(TOKENS, tokens.size + 1, TOKENS):
            if not reader.next([into]):
                break
            assert into == payload(tokens[:end]), f"path {number} has a wrong block"
            count += 1
    return count


def damage(draw: random.Random, file: Path) -> None:
    """In place, as a disk or another program would."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        match draw.randrange(3):
            case 0:
                for _ in range(draw.randint(1, 8)):
                    at = draw.randrange(size)
                    opened.seek(at)
                    byte = opened.read(1)[0] ^ (1 << draw.randrange(8))
                    opened.seek(at)
                    opened.write(bytes([byte]))
            case 1:
                opened.truncate(draw.randrange(size))
            case _:
                opened.seek(draw.randrange(size))
                opened.write(draw.choice((b"\0", b"\xff", draw.randbytes(1))) * 5_000)


def sql(statement: str) -> Callable[[Path], None]:
    def run(index: Path) -> None:
        with closing(sqlite3.connect(index, isolation_level=None)) as base:
            base.execute(statement)

    return run


def directory(index: Path) -> None:
    index.unlink()
    index.mkdir()


def theirs(index: Path) -> None:
    index.unlink()
    sql("CREATE TABLE theirs (a)")(index)


# What stands in the index's place at the next start.
ENDLESS = "SELECT 1 UNION ALL SELECT number + 1 FROM endless"
IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "nothing": Path.unlink,
    "empty": lambda index: index.write_bytes(b""),
    "zeros": lambda index: index.write_bytes(bytes(index.stat().st_size)),
    "random": lambda index: index.write_bytes(random.Random(0).randbytes(40_000)),
    "half": lambda index: os.truncate(index, index.stat().st_size // 2),
    "directory": directory,
    "another program's": theirs,
    "another schema": sql("ALTER TABLE blocks ADD COLUMN more"),
    "another layout": sql("PRAGMA user_version=7"),
    "an endless view": sql(
        f"CREATE VIEW more AS WITH RECURSIVE endless (number) AS ({ENDLESS}) SELECT * FROM endless"  # noqa: S608
    ),
    "a log ahead": lambda index: Path(f"{index}-wal").write_bytes(bytes(5_000)),
}


def replaced(name: str, folder: Path) -> int:
    """How many blocks are found after a start with that in the index's place."""
    IN_ITS_PLACE[name](folder / "index.sqlite")
    with closing(open_store(folder)) as store:
        found = right(store, range(PATHS))
        put(store, PATHS)
        right(store, range(PATHS + 1))
    return found


def outcome(draw: random.Random, folder: Path) -> str:
    names = (each for each in folder.iterdir() if each.suffix != ".json" and each.stat().st_size)
    file = draw.choice(sorted(names))
    opened_before = draw.random() < 0.5
    store = None
    try:
        if opened_before:
            store = open_store(folder)
            right(store, range(draw.randrange(PATHS)))
        damage(draw, file)
        store = store or open_store(folder)
        known = sum(1 for _ in store.index())
        found = right(store, range(PATHS))
        put(store, PATHS)
        right(store, range(PATHS + 1))
        return "whole" if (known, found) == (PATHS, PATHS * BLOCKS) else "found out"
    except DiskStoreError as error:
        return type(error).__name__ if opened_before else "no start"
    except Exception:
        traceback.print_exc()
        return "wrong"
    finally:
        if store is not None:
            store.close()


def damaged(rounds: int, seed: int) -> tuple[Counter[str], dict[str, float]]:
    """Outcomes of the rounds; of each thing in the index's place, the share that was found."""
    outcomes: Counter[str] = Counter()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as root:
        whole, copy = Path(root) / "whole", Path(root) / "copy"
        store = open_store(whole)
        for number in range(PATHS):
            put(store, number)
        store.close()
        for number in tqdm(range(rounds), disable=None):
            shutil.copytree(whole, copy)
            outcomes[outcome(random.Random(f"{seed} {number}"), copy)] += 1
            shutil.rmtree(copy)
        for name in IN_ITS_PLACE:
            shutil.copytree(whole, copy)
            found[name] = replaced(name, copy) / (PATHS * BLOCKS)
            shutil.rmtree(copy)
    return outcomes, found


def killed(kills: int, seed: int) -> dict[str, int]:
    """How many blocks were there, after all kills together."""
    draw, found = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "store"
        command = [sys.executable, "-m", "fuzz.damaged_store", WRITER, str(folder)]
        for number in tqdm(range(kills), disable=None):
            with subprocess.Popen([*command, str(number * 1000)], stdout=subprocess.PIPE) as child:
                assert child.stdout is not None
                child.stdout.readline()  # it has begun
                time.sleep(draw.random() * 0.1)
                child.kill()
            store = open_store(folder)
            numbers = range(number * 1000, number * 1000 + 200)
            now = right(store, numbers)
            found += now
            paths = list(store.index())
            sizes = sum(each.tokens.size // TOKENS for each in paths)
            assert sizes == len(store), "a block that no path leads to"
            store.delete([StoredPath(b"", each.tokens[:TOKENS]) for each in paths])
            store.close()
    return {"kills": kills, "blocks_found": found}


def write(folder: Path, first: int) -> None:
    store = open_store(folder)
    print("begun", flush=True)
    while True:
        put(store, first)
        first += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=1_000, help="default: 1000")
    parser.add_argument("--kills", type=int, default=100, help="default: 100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(WRITER, nargs=2, metavar=("DIR", "FIRST"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(Path(options.write[0]), int(options.write[1]))
    logging.getLogger("radixlm.memory").setLevel(logging.ERROR)
    outcomes, found = damaged(options.rounds, options.seed)
    report: dict[str, Any] = {
        "benchmark": "damaged_store",
        "rounds": options.rounds,
        "seed": options.seed,
        "outcomes": dict(sorted(outcomes.items())),
        "found": found,
        **killed(options.kills, options.seed),
    }
    report["passed"] = not outcomes["wrong"] and not outcomes["no start"]
    report["passed"] &= min(found.values()) == 1
    report["passed"] &= not options.kills or report["blocks_found"] > 0
    print(json.dumps(report))
    sys.exit(not report["passed"])


if __name__ == "__main__":
    main()
