"""Compiled code under the features of several processors; the suite itself runs with all of them.

Each set is a process of its own: numba takes its features when it is first imported. torch is held
to the same ones, so that what the compiled code leaves to it is computed as it would be there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from numba.core.codegen import get_host_cpu_features

HERE = Path(__file__).parent
WHOLE = ("attention", "kernels/test_kernels.py", "layers", "runner/test_masks.py")
# What differs between processors with vectors of one width is in these.
VECTORS = ("attention/test_cpu_backend.py", "attention/test_coded_pool.py", "layers")
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c")


class FeatureSet(NamedTuple):
    """features: LLVM's names. aten, onednn: the same for torch's own code. plugin: of pytest, that
    emulates what the processor has not.
    """

    features: tuple[str, ...]
    aten: str
    onednn: str
    files: tuple[str, ...] = WHOLE
    plugin: str | None = None


SETS = {
    "AVX2": FeatureSet(("avx2", "fma", "f16c"), "avx2", "AVX2"),
    "AVX-512": FeatureSet(AVX512, "avx512", "AVX512_CORE", VECTORS),
    "AVX-512 with bfloat16 and bytes": FeatureSet(
        (*AVX512, "avx512bf16", "avx512vnni"), "avx512", "AVX512_CORE_BF16", VECTORS
    ),
    "AMX, emulated": FeatureSet(
        (*AVX512, "avx512bf16"),
        "avx512",
        "AVX512_CORE_BF16",
        ("attention/test_cpu_backend.py", "attention/test_same_bits.py", "layers"),
        "tests.tensor.emulated_amx",
    ),
}


# What a process makes of its features.
ARRIVED = """
from radixlm.kernels.amx import has_tiles
from radixlm.kernels.vectors import has_bfloat16, processor_has
print(has_bfloat16(), processor_has("avx512f"), has_tiles())
"""


def lacking(name: str) -> list[str]:
    """Features of the set that this machine's processor has not."""
    present = get_host_cpu_features().split(",")
    return [feature for feature in SETS[name].features if f"+{feature}" not in present]


def start(name: str, home: Path) -> subprocess.Popen[str]:
    """home: where kernels are kept that only seem to be this processor's."""
    features, aten, onednn, files, plugin = SETS[name]
    processor = {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in features),
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "GOMP_SPINCOUNT": "0",
    }
    if plugin is not None:
        processor["HOME"] = str(home)
    environment = {**os.environ, **processor}
    found = subprocess.check_output([sys.executable, "-c", ARRIVED], env=environment, text=True)  # noqa: S603
    assert found.split() == [str("avx512bf16" in features), str(aten == "avx512"), "False"]
    program = [sys.executable, "-m", "pytest", "-qxrs", "-m", "not slow", "-p", "no:cacheprovider"]
    program += [] if plugin is None else ["-p", plugin]
    return subprocess.Popen(  # noqa: S603
        [*program, *(str(HERE / file) for file in files)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check(name: str, run: subprocess.Popen[str]) -> None:
    output, _ = run.communicate(timeout=900)
    assert run.returncode == 0, output[-3000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All sets side by side: most of their time is compiling, on one thread each."""
    home = tmp_path_factory.mktemp("home")
    with ExitStack() as stack:
        yield {name: stack.enter_context(start(name, home)) for name in SETS if not lacking(name)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_all_compiled_code(name: str, runs: dict[str, subprocess.Popen[str]]) -> None:
    if missing := lacking(name):
        pytest.skip(f"this processor has no {', '.join(missing)}")
    check(name, runs[name])
