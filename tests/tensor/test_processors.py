"""Compiled code under the features of several processors; the suite itself runs with all of them.

Each set is a process of its own: numba takes its features when it is first imported. torch is held
to the same ones, so that what the compiled code leaves to it is computed as it would be there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest
from numba.core.codegen import get_host_cpu_features

from tests.tensor.attention_cases import Heads

HERE = Path(__file__).parent
AVX512 = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c")
SAME_BITS = (
    "attention/test_same_bits.py::test_a_row_has_the_same_bits_in_any_company_and_any_chunks"
)
# Each kernel once in what its code is made for: types, codes, caps, ends of rows that are no whole
# vectors. Which rows share what, and other sizes of heads, are the same code in other order.
VECTORS = (
    "attention/test_cpu_backend.py",
    "attention/test_coded_pool.py",
    "products/test_compiled.py",
    "layers/test_experts.py",
    "layers/test_few_tokens.py::test_the_same_bits[llama-float32]",
    "layers/test_few_tokens.py::test_the_same_bits[llama-bfloat16]",
    "layers/test_few_tokens.py::test_the_same_bits[llama-int8]",
    "layers/test_lora.py",
    "layers/test_packing.py",
    "products/test_quantized.py",
)
# With vectors of another width also what a processor with AVX-512 has tested by itself.
WIDTH = (
    *VECTORS,
    "attention/test_caps_and_sinks.py::test_one_answer_of_all_backends",
    "attention/test_place.py",
    SAME_BITS,
    "attention/test_windows.py::test_a_token_sees_its_window",
    "runner/test_masks.py",
)
# What multiplies by tiles: bfloat16, and rows of bytes.
TILES = (
    "attention/test_cpu_backend.py::test_more_queries_of_a_token_than_a_block_has",
    "attention/test_cpu_backend.py::test_scores_that_grow_along_the_context",
    "attention/test_cpu_backend.py::test_pieces_leave_out_what_is_shared",
    f"{SAME_BITS}[0-False-dtype1-0.03-{Heads(4, 1, 20)}]",
    f"{SAME_BITS}[16-True-dtype1-0.03-{Heads(9, 3, 64)}]",
    "layers/test_experts.py::test_the_sum_of_the_chosen",
    "layers/test_few_tokens.py::test_the_same_bits[llama-bfloat16]",
    "layers/test_few_tokens.py::test_the_same_bits[llama-int8]",
    "layers/test_packing.py",
    "products/test_quantized.py::test_products",
    "products/test_quantized.py::test_a_row_has_the_same_bits_in_any_company_and_form",
    "products/test_quantized.py::test_what_no_form_knows_is_multiplied_in_blocks_when_bits_matter",
)
# Without float32 that is no codes: where a processor has more than these features, the suite itself
# runs just that code.
NARROWER = "test_coded_pool or test_quantized or not (dtype0 or float32)"
EMULATION = HERE / "emulated_amx.py"


class FeatureSet(NamedTuple):
    """features: LLVM's names. aten, onednn: the same for torch's own code. tests: files, functions
    and cases. plugin: of pytest, that emulates what the processor has not. chosen: which of the
    tests are run, in pytest's words.
    """

    features: tuple[str, ...]
    aten: str
    onednn: str
    tests: tuple[str, ...]
    plugin: str | None = None
    chosen: str = ""


SETS = {
    "AVX2": FeatureSet(("avx2", "fma", "f16c"), "avx2", "AVX2", WIDTH),
    "AVX-512": FeatureSet(AVX512, "avx512", "AVX512_CORE", VECTORS, chosen=NARROWER),
    "AVX-512 with bfloat16 and bytes": FeatureSet(
        (*AVX512, "avx512bf16", "avx512vnni"),
        "avx512",
        "AVX512_CORE_BF16",
        VECTORS,
        chosen=NARROWER,
    ),
    "AMX, emulated": FeatureSet(
        (*AVX512, "avx512bf16"),
        "avx512",
        "AVX512_CORE_BF16",
        TILES,
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


def emulated_home(cache: pytest.Cache) -> Path:
    """A folder for what is compiled with the emulation as it is."""
    return cache.mkdir(f"emulated-amx-{sha256(EMULATION.read_bytes()).hexdigest()[:16]}")


def run(name: str, environment: Mapping[str, str]) -> None:
    _, _, _, tests, plugin, chosen = SETS[name]
    program = [sys.executable, "-m", "pytest", "-qxrs", "-m", "not slow", "-p", "no:cacheprovider"]
    program += [option for each in HANGS for option in ("-o", each)]
    program += [] if plugin is None else ["-p", plugin]
    program += ["-k", chosen] if chosen else []
    done = subprocess.run(  # noqa: S603
        [*program, *(str(HERE / test) for test in tests)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_compiled_code(name: str, pytestconfig: pytest.Config) -> None:
    if missing := lacking(name):
        pytest.skip(f"this processor has no {', '.join(missing)}")
    features, aten, onednn, _, plugin, _ = SETS[name]
    processor = {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in features),
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "GOMP_SPINCOUNT": "0",
    }
    if plugin is not None:
        # Kernels in it only seem to be this processor's. The next run finds them compiled.
        processor["HOME"] = str(emulated_home(pytestconfig.cache))
    environment = {**os.environ, **processor}
    made = arrived(environment)
    assert made == [*(f"avx512{each}" in features for each in ("f", "bf16", "vnni")), False]
    native = arrived(os.environ)
    if (made == native) if plugin is None else native[-1]:
        pytest.skip("the suite itself runs with these")
    run(name, environment)
