"""Kernels that were compiled once are fetched from then on, for the very same thing only."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixlm.kernels import jit as kernels
from radixlm.kernels.jit import Kernel, KernelStore, fetch_kernel
from radixlm.kernels.openmp import Worker
from radixlm.kernels.vectors import take_unit, words

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is kept there")


Arguments = namedtuple("Arguments", "counters number into")


def adder(by: int) -> Callable[[Any], None]:
    def kernel(args: Any) -> None:
        words(args.into)[take_unit(args.counters)] = args.number + by

    return kernel


def fetch(store: KernelStore | None, *args: int, **kwargs: int) -> Kernel:
    return fetch_kernel(store, Arguments, adder, args, kwargs)


def result(kernel: Kernel) -> int:
    into = ctypes.c_int64(0)
    Worker(kernel, number=40, into=ctypes.addressof(into))(1)
    return into.value


@pytest.fixture
def store(tmp_path: Path) -> KernelStore:
    return KernelStore(tmp_path / "kernels")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with each."""
    made: list[None] = []
    compile_it = kernels.compile_kernel

    def counted(*args: Any) -> tuple[str, bytes, bool]:
        made.append(None)
        return compile_it(*args)

    monkeypatch.setattr(kernels, "compile_kernel", counted)
    return made


def test_a_kernel_is_compiled_once(store: KernelStore, compilations: list[None]) -> None:
    assert [result(fetch(store, 2)) for _ in range(3)] == [42] * 3
    assert len(compilations) == 1


def test_other_arguments_are_another_kernel(store: KernelStore) -> None:
    assert result(fetch(store, 2)) == 42
    assert result(fetch(store, 3)) == 43
    assert result(fetch(store, by=4)) == 44


def test_a_wrong_name_of_an_argument_is_an_error(store: KernelStore) -> None:
    with pytest.raises(AttributeError):
        Worker(fetch(store, 2), numbr=40)
    with pytest.raises(AttributeError):
        Worker(fetch(store, 2)).arguments.numbr = 40


def test_without_a_store_it_is_compiled(compilations: list[None]) -> None:
    assert [result(fetch(None, 2)) for _ in range(2)] == [42] * 2
    assert len(compilations) == 2


@pytest.mark.parametrize(
    "what", ["binding.get_host_cpu_name", "get_host_cpu_features", "numba.__version__"]
)
def test_another_machine_or_compiler_is_another_kernel(
    store: KernelStore, compilations: list[None], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(store, 2)
    changed = "other" if what.endswith("__version__") else lambda: "other"
    monkeypatch.setattr(f"radixlm.kernels.jit.{what}", changed)
    kernels.machine_id.cache_clear()
    fetch(store, 2)
    monkeypatch.undo()
    kernels.machine_id.cache_clear()
    assert len(compilations) == 2


def test_other_sources_are_another_kernel(
    store: KernelStore, compilations: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for sources in (b"before", b"after"):
        monkeypatch.setattr(kernels, "digest_of", lambda _folder, text=sources: text)
        fetch(store, 2)
    assert len(compilations) == 2


def test_sources_are_told_apart(tmp_path: Path) -> None:
    digests = set()
    for name, text in [("a.py", "x"), ("a.py", "y"), ("b.py", "x"), ("a.py", "")]:
        folder = tmp_path / str(len(digests))
        folder.mkdir()
        (folder / name).write_text(text)
        digests.add(kernels.digest_of(folder))
    assert len(digests) == 4


def test_code_that_needs_what_numba_brings_is_not_kept() -> None:
    """It would end the process that loads it: a new array needs numba's own memory."""

    def kernel(args: Any) -> None:
        words(args.into)[0] = len([args.number])

    _, _, movable = kernels.compile_kernel(Arguments, kernel)
    assert not movable


PROCESS = """
import sys
from pathlib import Path
import torch
from radixlm.kernels import jit as kernels
from radixlm.attention.direct import make_direct_kernel
from radixlm.kernels.jit import KernelStore
from radixlm.kernels.amx import has_tiles
from radixlm.attention.merge import make_merge_kernel
from radixlm.attention.tile_layout import TileShape
from radixlm.attention.tiles import make_tile_kernel
from radixlm.attention.place import make_place_kernel
from radixlm.kernels.code_dots import has_code_dots
from radixlm.products import compiled, panel_products
from radixlm.products.low_rank import low_rank_kernel
from radixlm.products.quantizing import quantize
from radixlm.products.quantized_products import forms_of, kind_of, quantized_kernel

users = kernels.user_store()

class Shared(KernelStore):  # what other tests compile counts, and the other way round
    def get(self, key):
        found = users.get(key) if users else None
        if found:
            super().put(key, found)
        return found

    def put(self, key, content):
        super().put(key, content)
        if users:
            users.put(key, content)

kept = {"compile": Shared, "fetch": KernelStore}[sys.argv[2]](Path(sys.argv[1]))
kernels.user_store = lambda: kept
if sys.argv[2] == "fetch":
    kernels.compile_kernel = None
made = []
for halves in (False, True):
    tiles = halves and has_tiles()
    for coded in (False, True) if has_code_dots(64) else (False,):
        made.append(make_direct_kernel(3, 64, bfloat16=halves, coded=coded))
        made.append(make_tile_kernel(TileShape(5, 80, halves, tiles=tiles, coded=coded)))
        made.append(make_place_kernel(64, bfloat16=halves, coded=coded))
    made.append(make_merge_kernel(64, bfloat16=halves))
    made.append(compiled.norm_kernel(bfloat16=halves))
    made += [
        compiled.gate_kernel(kind, bfloat16=halves, in_turns=each)
        for kind in compiled.GATES
        for each in (False, True)
    ]
    made += [low_rank_kernel(side, bfloat16=halves) for side in ("a", "b")]
    forms = [("vectors", 3, None), *([("tiles", 2, "silu")] if tiles else [])]
    for form, vectors, gate in forms:
        made.append(
            panel_products.product_kernel(form, vectors, pairs=halves, halves=halves, gate=gate)
        )
    weight = quantize(torch.ones(64, 64), bits=4, group=32)
    for form in forms_of(weight):
        dtype = torch.bfloat16 if halves else torch.float32
        made.append(quantized_kernel(form, kind_of(weight, dtype, dtype)))
print(len(made))
"""


@pytest.mark.slow
def test_every_worker_is_loaded_by_a_process_that_compiles_none(tmp_path: Path) -> None:
    for what in ("compile", "fetch"):
        command = [sys.executable, "-c", PROCESS, str(tmp_path), what]
        made = subprocess.check_output(command, timeout=600, text=True)  # noqa: S603
        assert len(list(tmp_path.iterdir())) >= int(made) > 14  # quantizing compiles, too
