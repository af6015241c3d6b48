"""What a server has left beside other processes, against the share that would be fair.

    python -m benchmarks.neighbours [--rounds 2] [--seconds 1.5] [--checkout FOLDER]

One stream to the demo model and to a random 135M, on two processors: alone, beside one and two
processes that never sleep, beside a second server of its kind, in a container with 1.5 processors'
quota (left out where cgroups can not be made). Each as the server comes, and as the user could set
OpenMP: passive threads, no spins, one thread. All servers run all the time; scenes and settings
take turns, so that what else the machine does meets all of them.

fair: what a scheduler that is fair to threads would leave of the same setting's speed alone, as it
comes: two of three processors' time beside one neighbour. best: the best of passive threads and one
thread in the same scene. Wanted: 0.67 of the fair share, 0.9 of the best, 0.4 of alone beside a
second server. --checkout measures the servers of another version (a folder that has src/). The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from tqdm import tqdm

from benchmarks.pictures import panels, save
from benchmarks.rows import show_rows
from benchmarks.served import PATIENCE, Served, serving
from radixlm.bench.tables import processor
from radixlm.testing.checkpoints import write_random_checkpoint

CORES = 2
QUOTA = 1.5
# More than a stream gives while it is measured, less than the demo model's context.
STREAM_TOKENS = 1800
AS_IT_COMES = "as it comes"
SETTINGS: dict[str, dict[str, str]] = {
    AS_IT_COMES: {},
    "passive threads": {"OMP_WAIT_POLICY": "passive"},
    "no spins": {"GOMP_SPINCOUNT": "0"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
BEST_OF = ("passive threads", "one thread")
_OPENMP = ("OMP_", "GOMP_", "MKL_")
_CGROUPS = Path("/sys/fs/cgroup")
_SPIN = "while True: pass"


class Scene(NamedTuple):
    """busy: processes that never sleep. twin: a second server works. fair: of the speed alone."""

    name: str
    fair: float
    busy: int = 0
    twin: bool = False
    quota: bool = False


SCENES = [
    Scene("alone", 1.0),
    Scene("one busy process", CORES / (CORES + 1), busy=1),
    Scene("two busy processes", CORES / (CORES + 2), busy=2),
    Scene("a second RadixLM", 1 / 2, twin=True),
    Scene(f"{QUOTA} processors", QUOTA / CORES, quota=True),
]
Speeds = dict[tuple[str, str], list[float]]


@contextmanager
def quota_group() -> Iterator[Path | None]:
    """A new cgroup with a quota, of the version that has the controller here; None without one."""
    for home, limits in (
        (_CGROUPS, {"cpu.max": f"{int(QUOTA * 100_000)} 100000"}),
        (
            _CGROUPS / "cpu",
            {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": str(int(QUOTA * 100_000))},
        ),
    ):
        group = home / f"radixlm-neighbours-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if all((group / name).exists() for name in limits):
                for name, text in limits.items():
                    (group / name).write_text(text)
                yield group
                return
        finally:
            group.rmdir()
    yield None


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Stopped until they are let go."""
    made = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        for process in made:
            process.send_signal(signal.SIGSTOP)
        yield made
    finally:
        for process in made:
            process.kill()
            process.wait()


def speed(served: Served, settle: float, seconds: float) -> float:
    """Steps a second of one stream, each of which gives a token."""
    body = {"prompt": "Once upon a time", "max_tokens": STREAM_TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=PATIENCE) as reply:
        reply.raise_for_status()
        lines = reply.iter_lines()  # kept: without it the stream would end
        next(lines)
        time.sleep(settle)
        began, before = time.perf_counter(), served.state()["steps"]
        time.sleep(seconds)
        after = served.state()["steps"]
        taken = time.perf_counter() - began
    served.idle_state(PATIENCE)  # what was left of it is aborted
    return float(after - before) / taken


class Servers:
    """One for each setting, a twin of the one that comes as it is, and those in the container."""

    def __init__(self, folder: str | None, checkout: Path | None, group: Path | None) -> None:
        self._flags = ([folder] if folder else []) + ["--kv-tokens", "8192"]
        self._plain = {k: v for k, v in os.environ.items() if not k.startswith(_OPENMP)}
        if checkout is not None:
            self._plain["PYTHONPATH"] = str(checkout.resolve() / "src")
        self._group = group
        self._stack = ExitStack()
        self.by_setting: dict[str, Served] = {}
        self.in_group: dict[str, Served] = {}

    def __enter__(self) -> Servers:
        with ExitStack() as stack:
            for name, extra in tqdm(SETTINGS.items(), desc="starting servers", leave=False):
                self.by_setting[name] = self._start(stack, extra)
                if self._group is not None:
                    self.in_group[name] = self._start(stack, extra, self._group)
            self.twin = self._start(stack, {})
            self._stack = stack.pop_all()
        return self

    def _start(self, stack: ExitStack, extra: dict[str, str], group: Path | None = None) -> Served:
        launcher: list[str] = []
        if group is not None:
            join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
            launcher = ["sh", "-c", join, "sh"]
        environment = {**self._plain, **extra}
        return stack.enter_context(
            serving(*self._flags, launcher=launcher, environment=environment)
        )

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measure(servers: Servers, options: argparse.Namespace, desc: str) -> Speeds:
    """Tokens a second, by scene and setting."""
    found: Speeds = {}
    scenes = [scene for scene in SCENES if servers.in_group or not scene.quota]
    with (
        busy_processes(max(scene.busy for scene in SCENES)) as busy,
        ThreadPoolExecutor(1) as second,
        tqdm(total=options.rounds * len(scenes) * len(SETTINGS), desc=desc) as bar,
    ):
        for _ in range(options.rounds):
            for scene in scenes:
                for name in SETTINGS:
                    bar.set_postfix_str(f"{scene.name}, {name}")
                    if not (scene.twin and name != AS_IT_COMES):
                        served = (servers.in_group if scene.quota else servers.by_setting)[name]
                        settle = options.settle if scene.name == "alone" else options.settle / 3
                        for process in busy[: scene.busy]:
                            process.send_signal(signal.SIGCONT)
                        span = settle, options.seconds
                        other = second.submit(speed, servers.twin, *span) if scene.twin else None
                        speeds = [speed(served, *span)]
                        if other is not None:
                            speeds.append(other.result())
                        for process in busy:
                            process.send_signal(signal.SIGSTOP)
                        found.setdefault((scene.name, name), []).append(min(speeds))
                    bar.update()
    return found


def rows(model: str, speeds: Speeds) -> Iterator[dict[str, Any]]:
    medians = {key: statistics.median(each) for key, each in speeds.items()}
    alone = medians["alone", AS_IT_COMES]
    for scene in SCENES:
        if (scene.name, AS_IT_COMES) not in medians:
            continue
        own = medians[scene.name, AS_IT_COMES]
        known = [medians[scene.name, name] for name in BEST_OF if (scene.name, name) in medians]
        yield {
            "model": model,
            "beside": scene.name,
            **{name: _short(medians.get((scene.name, name))) for name in SETTINGS},
            "of alone": round(own / alone, 2),
            "of fair": round(own / (scene.fair * alone), 2),
            "of best": round(own / max(known), 2) if known else "",
        }


def _short(speed: float | None) -> float | str:
    return "" if speed is None else round(speed, 1)


def draw(path: Path, title: str, made: Sequence[dict[str, Any]]) -> None:
    """Bars by scene, one panel a model."""
    models = list(dict.fromkeys(row["model"] for row in made))
    figure, axes = panels(len(models), title)
    for each, model in zip(axes, models, strict=True):
        own = [row for row in made if row["model"] == model]
        for place, name in enumerate(SETTINGS):
            heights = [row[name] or 0 for row in own]
            each.bar([at + 0.2 * place for at in range(len(own))], heights, 0.18, label=name)
        each.set_xticks([at + 0.3 for at in range(len(own))], [row["beside"] for row in own])
        each.set_title(f"{model}: tokens a second", fontsize=9, loc="left")
        each.legend(fontsize=8, frameon=False)
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=2, help="default: 2")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a measurement")
    parser.add_argument("--settle", type=float, default=1.5, help="before it; a third in crowds")
    parser.add_argument("--models", nargs="+", default=["demo", "smollm-135m"])
    parser.add_argument("--dtype", default="float32", help="of random weights; default: float32")
    parser.add_argument("--checkout", type=Path, help="measure the servers of this version")
    parser.add_argument("--picture", type=Path, default=Path("docs/img/neighbours.png"))
    options = parser.parse_args(arguments)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    made: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, quota_group() as group:
        for model in options.models:
            folder = None
            if model != "demo":
                folder = str(
                    write_random_checkpoint(model, f"{scratch}/{model}", dtype=options.dtype)
                )
            with Servers(folder, options.checkout, group) as servers:
                made += rows(model, measure(servers, options, model))
    if group is None:
        print("no container: cgroups can not be made here (root is needed)")
    title = f"{CORES} processors of {processor()}"
    show_rows(title, made)
    draw(options.picture, title, made)
    print(json.dumps({"benchmark": "neighbours", "processor": processor(), "rows": made}))


if __name__ == "__main__":
    main()
