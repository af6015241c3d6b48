"""`kill -9` at random moments while a disk cache is written, again and again: never a wrong answer.

    python -m fuzz.disk_kills [--kills 100] [--seconds 500] [--so-far kills.json]

`radixlm serve --deterministic --disk-write-policy all` with a random tiny model, beside a server
without any cache, whose answers are right. Each round starts the first server on the same folder
and asks, one at a time, for the prompts of the round before: each greedy answer has to be the right
one. Then fresh prompts, some of which share long beginnings, are sent all at once, and at a
random moment of that the process gets `kill -9`. The folder has room for some rounds only.

`hit_rate`: what was cached of the first prompt with each beginning of the round before, which is
what came from disk; `empty`: rounds without any; `while_it_worked`: kills before the last answer.
--so-far adds up: run it until there are --kills, as often as that takes; each run has a folder of
its own. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.disk_servers import Model
from benchmarks.peer_client import Reply
from benchmarks.peer_workloads import Ask
from benchmarks.rows import show_rows
from benchmarks.served import Served, serving
from fuzz.disk_lab import ALONE, AT_ONCE, GROUPS, KV_TOKENS, Lab, Score, balanced
from radixlm.memory.store_care import verify

Round = tuple[list[Ask], list[Reply]]
COUNTED = (
    "kills", "while_it_worked", "answers_right", "answers_wrong", "answers_lost",
    "right_before_the_kill", "wrong_before_the_kill", "prompt_tokens", "cached_tokens",
    "checked_rounds", "empty", "unbalanced", "alarms", "damaged_blocks", "runs",
)  # fmt: skip


def kills(lab: Lab, options: argparse.Namespace, so_far: dict[str, int]) -> None:
    """Go on from the counts so far, which grow, until there are enough, or time is up."""
    chance = random.Random(options.seed + so_far["kills"])
    until = time.monotonic() + options.seconds
    longest = 2.0
    before: Round | None = None
    so_far["runs"] += 1
    bar = tqdm(total=options.kills, initial=so_far["kills"], desc="kills", disable=None)
    while so_far["kills"] < options.kills and time.monotonic() < until:
        fresh, killing = lab.fresh(), Score()
        with serving(*lab.flags()) as served:
            if before is not None:
                check(lab, served, before, so_far)
            timer = threading.Timer(0.9 * chance.random() * longest, os.kill, (served.pid, 9))
            began = time.perf_counter()
            timer.start()
            replies = lab.model.ask_some(served, fresh[0], AT_ONCE)
            if len(replies) == len(fresh[0]):  # kills are to come while it works
                longest = max(0.2, time.perf_counter() - began)
            timer.join()
        killing.add(replies, fresh[1], len(fresh[0]))
        so_far["kills"] += 1
        so_far["while_it_worked"] += len(replies) < len(fresh[0])
        so_far["right_before_the_kill"] += killing.right
        so_far["wrong_before_the_kill"] += killing.wrong
        before = fresh
        keep(options.so_far, so_far)
        bar.update()
    if lab.folder.exists():
        sums = verify(lab.folder, lambda *_: None)
        so_far["damaged_blocks"] += sum(each.damaged for each in sums.values())
    keep(options.so_far, so_far)


def check(lab: Lab, served: Served, before: Round, so_far: dict[str, int]) -> None:
    """Ask for what was asked for when the kill came."""
    lab.score = Score()
    firsts = lab.check(served, *before)[:GROUPS]
    so_far["answers_right"] += lab.score.right
    so_far["answers_wrong"] += lab.score.wrong
    so_far["answers_lost"] += lab.score.lost
    so_far["prompt_tokens"] += sum(reply.prompt_tokens for reply in firsts)
    so_far["cached_tokens"] += sum(reply.cached or 0 for reply in firsts)
    so_far["checked_rounds"] += 1
    so_far["empty"] += not any(reply.cached for reply in firsts)
    so_far["unbalanced"] += balanced(served) is None
    so_far["alarms"] += len(served.alarms())


def keep(path: Path | None, so_far: dict[str, int]) -> None:
    if path is not None:
        path.write_text(json.dumps(so_far), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=100, help="in all; default: 100")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after these")
    parser.add_argument("--so-far", type=Path, help="a file with the counts, to go on from")
    parser.add_argument("--shape", default="tiny", help="default: tiny")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    so_far = dict.fromkeys(COUNTED, 0)
    if options.so_far is not None and options.so_far.exists():
        so_far |= json.loads(options.so_far.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        model = Model.made(options.shape, place, "bfloat16")
        with serving(*model.flags(KV_TOKENS, None, *ALONE)) as right:
            seed = options.seed + so_far["kills"]
            kills(Lab(model, right, place / "killed", seed), options, so_far)
    report: dict[str, Any] = {"benchmark": "disk_kills", "seed": options.seed, **so_far}
    report["hit_rate"] = round(so_far["cached_tokens"] / max(so_far["prompt_tokens"], 1), 3)
    wrong = ("answers_wrong", "answers_lost", "wrong_before_the_kill", "unbalanced")
    report["passed"] = not any(so_far[name] for name in wrong) and report["hit_rate"] > 0
    show_rows("kills", [{"what": name, "value": str(value)} for name, value in report.items()])
    print(json.dumps(report))
    sys.exit(not report["passed"])


if __name__ == "__main__":
    main()
