"""Never a wrong token, never a stuck request: a disk cache whose server is killed, and whose disk
fails while it serves.

    python -m benchmarks.disk_faults [--kills 10] [--faults full,deleted,permission]

`radixlm serve --deterministic --disk-write-policy all` with a random tiny model, beside a server
without any cache, whose answers are right. In each round fresh prompts, some of which share long
beginnings, are sent all at once; at a random moment the first server gets `kill -9`. It is started
again on the same folder, and asked for the same prompts and those of the round before, one at a
time, then killed, too. Each greedy answer has to be the right one. `hit_rate`: tokens from disk,
which is what is cached of the first prompt with each beginning; `empty`: rounds without any;
`while_it_worked`: kills before the last answer. The folder has room for some rounds only.

The faults, each in the middle of the same load: no file may grow any more (RLIMIT_FSIZE); the
folder is deleted; the folder and its files may not be read or written any more (as root only
without CAP_DAC_OVERRIDE, which setpriv takes away). All answers have to be right, the server has to
go on, to warn, and to have all slots back. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.disk_servers import Model, hit_rate
from benchmarks.peer_client import Reply
from benchmarks.peer_workloads import Ask, Draw
from benchmarks.rows import show_rows
from benchmarks.served import Served, serving
from radixlm.memory.store_care import verify

GROUPS, IN_GROUP, SHARED, OWN, OUT = 8, 3, 640, 50, 8
KV_TOKENS = 30_000
GIGABYTES = "0.03"
AT_ONCE = 8
_CAPABILITIES = "-dac_override,-dac_read_search"
# Where rights are for root, too.
BOUND = ("setpriv", f"--inh-caps={_CAPABILITIES}", f"--bounding-set={_CAPABILITIES}")


@dataclass(slots=True)
class Score:
    """What came of the answers. lost: requests without one."""

    right: int = 0
    wrong: int = 0
    lost: int = 0

    def add(self, replies: Sequence[Reply], expected: Sequence[Reply], asked: int) -> None:
        """expected: of all that were asked, or more."""
        known = {tuple(reply.prompt): reply.token_ids for reply in expected}
        right = sum(reply.token_ids == known[tuple(reply.prompt)] for reply in replies)
        self.right += right
        self.wrong += len(replies) - right
        self.lost += asked - len(replies)


class Lab:
    """The model, a server that computes everything, and the folder of the one under test."""

    def __init__(self, model: Model, right: Served, folder: Path, seed: int) -> None:
        self.model = model
        self.folder = folder
        self.score = Score()
        self._right = right
        self._draw = Draw(model.vocab, seed)

    def fresh(self) -> tuple[list[Ask], list[Reply]]:
        """Groups of prompts with one beginning, the groups' first ones in front; their answers."""
        asks = []
        shared = [self._draw.tokens(SHARED) for _ in range(GROUPS)]
        for _ in range(IN_GROUP):
            asks += [Ask(beginning + self._draw.tokens(OWN), OUT) for beginning in shared]
        return asks, self.model.ask(self._right, asks)

    def flags(self) -> list[str]:
        more = ("--deterministic", "--disk-block-tokens", "32", "--disk-cache-gb", GIGABYTES)
        return self.model.flags(KV_TOKENS, self.folder, *more)

    def check(self, served: Served, asks: Sequence[Ask], expected: Sequence[Reply]) -> list[Reply]:
        replies = self.model.ask_some(served, asks, 1)
        self.score.add(replies, expected, len(asks))
        return replies


def balanced(served: Served) -> bool:
    """Whether each slot is in one place, and none is held by a request."""
    state = served.idle_state(10.0)
    parts = [state[f"kv_{name}"] for name in ("free", "private", "locked", "evictable")]
    all_told: bool = sum(parts) == state["kv_capacity"]
    return all_told and not state["kv_private"] and not state["leaks"]


def kills(lab: Lab, count: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    killing, early, empty, unbalanced = Score(), 0, 0, 0
    firsts: list[Reply] = []
    older: list[Reply] = []
    alarms: list[str] = []
    before: tuple[list[Ask], list[Reply]] = ([], [])
    longest = 2.0
    for _ in tqdm(range(count), desc="kills", disable=None):
        asks, expected = lab.fresh()
        with serving(*lab.flags()) as served:
            timer = threading.Timer(chance.random() * longest, os.kill, (served.pid, 9))
            began = time.perf_counter()
            timer.start()
            replies = lab.model.ask_some(served, asks, AT_ONCE)
            if len(replies) == len(asks):  # kills are to come while it works
                longest = max(0.2, time.perf_counter() - began)
            early += len(replies) < len(asks)
            timer.join()
        killing.add(replies, expected, len(asks))
        with serving(*lab.flags()) as served:
            now = lab.check(served, asks, expected)[:GROUPS]
            older += lab.check(served, before[0], before[1])[:GROUPS]
            unbalanced += not balanced(served)
            alarms += served.alarms()
            os.kill(served.pid, signal.SIGKILL)  # it is not to write what is left at a stop
        firsts += now
        empty += not any(reply.cached for reply in now)
        before = asks, expected
    sums = verify(lab.folder, lambda *_: None) if count else {}
    return {
        "kills": count,
        "answers_right": lab.score.right,
        "answers_wrong": lab.score.wrong + killing.wrong,
        "answers_lost": lab.score.lost,
        "answers_before_the_kill": killing.right,
        "while_it_worked": early,
        "hit_rate": round(hit_rate(firsts), 3) if firsts else None,
        "hit_rate_of_round_before": round(hit_rate(older), 3) if older else None,
        "empty": empty,
        "unbalanced": unbalanced,
        "damaged_blocks": sum(each.damaged for each in sums.values()),
        "alarms": alarms,
    }


def full(served: Served, folder: Path) -> None:
    largest = max(file.stat().st_size for file in folder.iterdir())
    resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (largest, largest))


def deleted(_: Served, folder: Path) -> None:
    away = folder.rename(folder.with_suffix(".away"))  # in one moment
    shutil.rmtree(away)


def permission(_: Served, folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0)
    folder.chmod(0)


FAULTS: dict[str, Callable[[Served, Path], None]] = {
    "full": full,
    "deleted": deleted,
    "permission": permission,
}


def fault(lab: Lab, name: str) -> dict[str, Any]:
    """Something stored, the fault while more is sent, then all of it again; a start after it."""
    lab.score = Score()
    old, new = lab.fresh(), lab.fresh()
    launcher = BOUND if name == "permission" and os.geteuid() == 0 else ()
    with serving(*lab.flags(), launcher=launcher) as served:
        lab.score.add(lab.model.ask_some(served, old[0], AT_ONCE), old[1], len(old[0]))
        timer = threading.Timer(0.05, FAULTS[name], (served, lab.folder))
        timer.start()
        lab.score.add(lab.model.ask_some(served, new[0], AT_ONCE), new[1], len(new[0]))
        timer.join()
        lab.model.flush(served)
        again = [*lab.check(served, *old), *lab.check(served, *new)]
        more = lab.fresh()
        lab.check(served, *more)
        good = balanced(served)
        alarms = [json.loads(line).get("message", line) for line in served.alarms()]
    _mend(lab.folder)
    with serving(*lab.flags()) as served:
        after = [*lab.check(served, *old), *lab.check(served, *new)]
        lab.check(served, *more)
    return {
        "fault": name,
        "answers_right": lab.score.right,
        "answers_wrong": lab.score.wrong,
        "answers_lost": lab.score.lost,
        "cached_while_it_lasted": sum(reply.cached or 0 for reply in again),
        "cached_after_a_start": sum(reply.cached or 0 for reply in after),
        "unbalanced": int(not good),
        "alarms": alarms,
    }


def _mend(folder: Path) -> None:
    if folder.exists():
        folder.chmod(0o700)
        for file in folder.iterdir():
            file.chmod(0o600)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=10, help="default: 10")
    parser.add_argument("--faults", default=",".join(FAULTS), help="default: all")
    parser.add_argument("--shape", default="tiny", help="default: tiny")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    names = [name for name in options.faults.split(",") if name]
    if unknown := set(names) - set(FAULTS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(FAULTS)}")
    report: dict[str, Any] = {"benchmark": "disk_faults", "seed": options.seed}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        model = Model.made(options.shape, place, "bfloat16")
        alone = model.flags(KV_TOKENS, None, "--deterministic", "--disable-radix-cache")
        with serving(*alone) as right:
            lab = Lab(model, right, place / "killed", options.seed)
            report["killed"] = kills(lab, options.kills, options.seed)
            report["faults"] = []
            for name in tqdm(names, desc="faults", disable=None):
                lab.folder = place / name
                report["faults"].append(fault(lab, name))
    every = [report["killed"], *report["faults"]]
    bad = ("answers_wrong", "answers_lost", "unbalanced")
    report["passed"] = not any(each[key] for each in every for key in bad)
    report["passed"] &= not options.kills or bool(report["killed"]["hit_rate"])
    report["passed"] &= all(each["alarms"] for each in report["faults"])
    for title, rows in (("killed", [report["killed"]]), ("faults", report["faults"])):
        if rows:
            show_rows(title, rows)
    print(json.dumps(report))
    sys.exit(not report["passed"])


if __name__ == "__main__":
    main()
