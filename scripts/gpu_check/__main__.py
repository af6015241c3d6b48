"""One call that learns all that a GPU can teach of this code, in ten minutes: `make gpu-check`.

    python -m scripts.gpu_check [--out FOLDER] [--device cuda] [--only CHECK ...] [--seconds 570]

Each check is a process with a deadline. Rows come as they are found, and go to FOLDER/gpu.jsonl; a
table is last. Without a GPU each check runs small on the CPU, which shows that it can run.

Status: 0: all checks passed, on a GPU. 1: some did not. 3: none failed, but no GPU was there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from scripts.gpu_check import (
    commands,
    graphs,
    hardware,
    kernels,
    overlap,
    products,
    speeds,
    tokens,
)
from scripts.gpu_check.place import Finding, Place
from scripts.gpu_check.running import NO_GPU, Check, Report, run_all, said


class _Kind(NamedTuple):
    run: Callable[[Place], Iterator[Finding]]
    seconds: int


# In order of worth: where time ends, the rest is not begun.
KINDS: Mapping[str, _Kind] = {
    "hardware": _Kind(hardware.hardware, 60),
    "kernels": _Kind(commands.kernels, 150),
    "tests": _Kind(commands.tests, 60),
    "graphs": _Kind(graphs.graphs, 60),
    "tokens": _Kind(tokens.tokens, 150),
    "products": _Kind(products.products, 60),
    "small": _Kind(speeds.model_small, 60),
    "large": _Kind(speeds.model_large, 100),
    "overlap": _Kind(overlap.overlap, 90),
    "attention": _Kind(kernels.attention, 60),
    "launches": _Kind(kernels.launches, 30),
    "tiles": _Kind(kernels.tiles, 70),
    "bench": _Kind(commands.bench, 180),
    "parts": _Kind(speeds.parts, 60),
    "memcheck": _Kind(commands.memcheck, 90),
    "trace": _Kind(speeds.trace, 40),
}


def main() -> int:
    arguments = _arguments()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    small = arguments.device == "cpu"
    if arguments.child:
        [name] = arguments.only
        for row in KINDS[name].run(Place(arguments.device, small, out)):
            print(json.dumps(row), flush=True)
        return 0
    report = Report(out / "gpu.jsonl")
    given = ["--child", "--device", arguments.device, "--out", str(out), "--only"]
    command = [sys.executable, "-m", "scripts.gpu_check", *given]
    checks = [Check(name, KINDS[name].seconds, [*command, name]) for name in arguments.only]
    run_all(checks, report, arguments.seconds)
    return _ended(report, on_gpu=not small)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m scripts.gpu_check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    there = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=there, help="default: %(default)s")
    out = "where gpu.jsonl and a trace go; default: %(default)s"
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help=out)
    only = "these checks; default: all"
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help=only)
    seconds = "for all together; default: %(default)s"
    parser.add_argument("--seconds", type=float, default=570, help=seconds)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _ended(report: Report, *, on_gpu: bool) -> int:
    print("\n" + "\n".join(map(said, report.rows)))
    for row in report.failed:
        print(f"FAILED: {row['check']}: {row['what']}", file=sys.stderr)
    if not on_gpu:
        print(
            "No GPU: nothing of a GPU was checked, neither what it gives nor how fast it is; the "
            "checks ran small on the CPU.",
            file=sys.stderr,
        )
    status = report.status(on_gpu=on_gpu)
    print(f"status {status} (0: passed on a GPU, 1: something failed, {NO_GPU}: no GPU was there)")
    return status


if __name__ == "__main__":
    sys.exit(main())
