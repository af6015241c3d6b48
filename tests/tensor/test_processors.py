"""Compiled code under the features of several processors; the suite itself runs with all of them.

Each set is a process of its own: numba takes its features when it is first imported. torch is held
to the same ones, so that what the compiled code leaves to it is computed as it would be there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from numba.core.codegen import get_host_cpu_features

HERE = Path(__file__).parent
WHOLE = ("attention", "kernels/test_kernels.py", "layers", "runner/test_masks.py")
# What differs between processors with vectors of one width is in these.
VECTORS = ("attention/test_cpu_backend.py", "attention/test_coded_pool.py", "layers")
AVX512 = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c")


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


# What a process makes of its features, after what kernels ask for.
ARRIVED = """
from radixlm.kernels.amx import has_tiles
from radixlm.kernels.vectors import processor_has
print(*(processor_has(f"avx512{each}") for each in ("f", "bf16", "vnni")), has_tiles())
"""
# Of one test: none takes more than a few seconds, however many others use the machine.
HANGS = ("faulthandler_timeout=600", "faulthandler_exit_on_timeout=true")


def lacking(name: str) -> list[str]:
    """Features of the set that this machine's processor has not."""
    present = get_host_cpu_features().split(",")
    return [feature for feature in SETS[name].features if f"+{feature}" not in present]


def arrived(environment: Mapping[str, str]) -> list[bool]:
    """Whether a process has AVX-512, its bfloat16, its bytes, and tiles."""
    command = [sys.executable, "-c", ARRIVED]
    found = subprocess.check_output(command, env=environment, text=True)  # noqa: S603
    return [word == "True" for word in found.split()]


def run(name: str, environment: Mapping[str, str]) -> None:
    _, _, _, files, plugin = SETS[name]
    program = [sys.executable, "-m", "pytest", "-qxrs", "-m", "not slow", "-p", "no:cacheprovider"]
    program += [option for each in HANGS for option in ("-o", each)]
    program += [] if plugin is None else ["-p", plugin]
    done = subprocess.run(  # noqa: S603
        [*program, *(str(HERE / file) for file in files)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_all_compiled_code(name: str, tmp_path: Path) -> None:
    if missing := lacking(name):
        pytest.skip(f"this processor has no {', '.join(missing)}")
    features, aten, onednn, _, plugin = SETS[name]
    processor = {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in features),
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "GOMP_SPINCOUNT": "0",
    }
    if plugin is not None:
        processor["HOME"] = str(tmp_path)  # kernels in it only seem to be this processor's
    environment = {**os.environ, **processor}
    made = arrived(environment)
    assert made == [*(f"avx512{each}" in features for each in ("f", "bf16", "vnni")), False]
    native = arrived(os.environ)
    if (made == native) if plugin is None else native[-1]:
        pytest.skip("the suite itself runs with these")
    run(name, environment)
