"""Checks that are other programs: the tests for GPUs, the engine's benchmark, compute-sanitizer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.gpu_check.place import Finding, Place

_ROOT = Path(__file__).resolve().parents[2]
_TAIL = 1_500
# Other versions of libraries than ours may warn of other things.
_TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default")
_OF_KERNELS = "tests/gpu/test_attention_on_devices.py"
_BENCH = ("-c", "from radixlm.cli.start import main; main()", "bench", "shared-prefix")


def kernels(_: Place) -> Iterator[Finding]:
    """Attention against float64 in every form, by our kernels and by torch."""
    yield from _run(_OF_KERNELS, [sys.executable, *_TESTS, _OF_KERNELS])


def tests(_: Place) -> Iterator[Finding]:
    """Host copies, sampling: the rest of tests/gpu."""
    yield from _run("tests/gpu", [sys.executable, *_TESTS, "tests/gpu", "--ignore", _OF_KERNELS])


def bench(place: Place) -> Iterator[Finding]:
    """The whole engine, requests under one prefix, with the cache and without."""
    shape, counts = ("tiny", [4]) if place.small else ("qwen3-0.6b", [64, 256])
    for count in counts:
        sizes = ["--shape", shape, "--requests", str(count)]
        path = place.out / f"shared-prefix-{count}.jsonl"
        command = [sys.executable, *_BENCH, *sizes, "--json", str(path)]
        yield from _run(f"bench shared-prefix, {shape}, {count} requests", command)


def memcheck(place: Place) -> Iterator[Finding]:
    """A few tokens of the demo model under compute-sanitizer."""
    if (tool := shutil.which("compute-sanitizer")) is None or not place.on_gpu:
        yield {"what": "memcheck", "skipped": "no compute-sanitizer, or no GPU"}
        return
    code = (
        "from radixlm import Engine, SamplingParams as S; e = Engine(device='cuda', kv_tokens=500);"
        "print(e.generate(['A', 'AB'], S(max_tokens=2))); e.close()"
    )
    options = ["--tool", "memcheck", "--error-exitcode", "9"]
    yield from _run("memcheck", [tool, *options, sys.executable, "-c", code])


def _run(what: str, command: Sequence[str]) -> Iterator[Finding]:
    done = subprocess.run(
        command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    said = done.stdout.decode(errors="replace")[-_TAIL:]
    last = said.strip().rpartition("\n")[2]
    ok = done.returncode == 0
    yield {"what": what, "ok": ok, "said": last if ok else said, "status": done.returncode}
