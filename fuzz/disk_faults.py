"""Never a wrong token, never a stuck request: a disk that fails while a server uses it.

    python -m fuzz.disk_faults [--faults full,deleted,permission,slow,hangs,clock,damaged]

`radixlm serve --deterministic --disk-write-policy all` with a random tiny model, beside a server
without any cache, whose answers are right. In the middle of a load of prompts, some of which share
long beginnings: no file may grow any more (RLIMIT_FSIZE); the folder is deleted; the folder and its
files may not be read or written any more (as root only without CAP_DAC_OVERRIDE, which setpriv
takes away); each call on the folder's files takes 0.3 s; or 60 s; the wall clock jumps by days and
back (the last three by fuzz/faulty_calls.c, which needs a C compiler). `damaged`: before each
of several later starts something else is put in the index's place. All answers have to be right,
the server has to start and to go on, to warn where it writes no more, and to have all slots back
while the fault lasts. `seconds`: of the slowest answer while it lasted. What kills do:
fuzz/disk_kills.py. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks.disk_servers import Model, whole
from benchmarks.rows import show_rows
from benchmarks.served import Served, serving
from fuzz.damaged_store import IN_ITS_PLACE
from fuzz.disk_lab import ALONE, AT_ONCE, KV_TOKENS, Lab, Score, balanced

_CAPABILITIES = "-dac_override,-dac_read_search"
# Where rights are for root, too.
BOUND = ("setpriv", f"--inh-caps={_CAPABILITIES}", f"--bounding-set={_CAPABILITIES}")
SOURCE = Path(__file__).with_name("faulty_calls.c")


class Scene(NamedTuple):
    """Where a fault happens. control: the file that faulty_calls.c reads."""

    served: Served
    folder: Path
    control: Path


class Fault(NamedTuple):
    """begin: makes it happen. warns: the server has to say that it writes no more. starts: what is
    done to the index before each later start.
    """

    begin: Callable[[Scene], None]
    warns: bool = True
    called: bool = False
    starts: Sequence[Callable[[Path], object]] = (lambda _index: None,)


def full(scene: Scene) -> None:
    largest = max(file.stat().st_size for file in scene.folder.iterdir())
    resource.prlimit(scene.served.pid, resource.RLIMIT_FSIZE, (largest, largest))


def deleted(scene: Scene) -> None:
    away = scene.folder.rename(scene.folder.with_suffix(".away"))  # in one moment
    shutil.rmtree(away)


def permission(scene: Scene) -> None:
    for file in scene.folder.iterdir():
        file.chmod(0)
    scene.folder.chmod(0)


def slow(scene: Scene) -> None:
    scene.control.write_text("300 0", encoding="ascii")


def hangs(scene: Scene) -> None:
    scene.control.write_text("60000 0", encoding="ascii")


def clock(scene: Scene) -> None:
    for days in (3, -400, 30_000, 0, -1, 2):
        scene.control.write_text(f"0 {days * 86_400}", encoding="ascii")
        time.sleep(0.2)


FAULTS = {
    "full": Fault(full),
    "deleted": Fault(deleted),
    "permission": Fault(permission),
    "slow": Fault(slow, warns=False, called=True),
    "hangs": Fault(hangs, called=True),
    "clock": Fault(clock, warns=False, called=True),
    "damaged": Fault(lambda _scene: None, warns=False, starts=tuple(IN_ITS_PLACE.values())),
}


def fault(lab: Lab, name: str, calls: Path) -> dict[str, Any]:
    """Something stored, the fault while more is sent, then all of it again; a start after it."""
    lab.score = Score()
    what, control = FAULTS[name], lab.folder.with_suffix(".control")
    old, new = lab.fresh(), lab.fresh()
    control.write_text("0 0", encoding="ascii")
    names = {"LD_PRELOAD": calls, "FAULTY_CONTROL": control, "FAULTY_FOLDER": lab.folder}
    environment = {**os.environ, **({k: str(v) for k, v in names.items()} if what.called else {})}
    launcher = BOUND if name == "permission" and os.geteuid() == 0 else ()
    with serving(*lab.flags(), launcher=launcher, environment=environment) as served:
        lab.score.add(lab.model.ask_some(served, old[0], AT_ONCE), old[1], len(old[0]))
        scene = Scene(served, lab.folder, control)
        timer = threading.Timer(0.05, what.begin, (scene,))
        timer.start()
        during = lab.model.ask_some(served, new[0], AT_ONCE)
        lab.score.add(during, new[1], len(new[0]))
        timer.join()
        lab.model.flush(served)
        again = [*lab.check(served, *old), *lab.check(served, *new)]
        more = lab.fresh()
        during += again + lab.check(served, *more)
        held = balanced(served)
        state = served.state()
        alarms = [json.loads(line).get("message", line) for line in served.alarms()]
        control.write_text("0 0", encoding="ascii")
    _mend(lab.folder)
    after = []
    for damage in what.starts:
        damage(lab.folder / "index.sqlite")
        with serving(*lab.flags()) as served:
            after += [*lab.check(served, *old), *lab.check(served, *new)]
            lab.check(served, *more)
    return {
        "fault": name,
        "answers_right": lab.score.right,
        "answers_wrong": lab.score.wrong,
        "answers_lost": lab.score.lost,
        "seconds": round(max(whole(reply) for reply in during), 2),
        "cached_while_it_lasted": sum(reply.cached or 0 for reply in again),
        "cached_after_a_start": sum(reply.cached or 0 for reply in after),
        "writing_off": state["disk_writing_off"],
        "slow_reads": state["disk_slow_reads"],
        "hung": state["disk_hung"],
        "slots_back_s": held,
        "unbalanced": int(held is None),
        "alarms": alarms,
    }


def _mend(folder: Path) -> None:
    if folder.exists():
        folder.chmod(0o700)
        for file in folder.iterdir():
            file.chmod(0o600)


def compiled(place: Path) -> Path:
    """fuzz/faulty_calls.c as a library."""
    library = place / "faulty_calls.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
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
        calls = compiled(place) if any(FAULTS[name].called for name in names) else place
        model = Model.made(options.shape, place, "bfloat16")
        with serving(*model.flags(KV_TOKENS, None, *ALONE)) as right:
            lab = Lab(model, right, place / "none", options.seed)
            report["faults"] = []
            for name in tqdm(names, desc="faults", disable=None):
                lab.folder = place / name
                report["faults"].append(fault(lab, name, calls))
    bad = ("answers_wrong", "answers_lost", "unbalanced")
    report["passed"] = not any(each[key] for each in report["faults"] for key in bad)
    warned = [bool(each["alarms"]) or not FAULTS[each["fault"]].warns for each in report["faults"]]
    report["passed"] &= all(warned)
    show_rows("faults", report["faults"])
    print(json.dumps(report))
    sys.exit(not report["passed"])


if __name__ == "__main__":
    main()
