"""Workers that were compiled once are fetched from then on, for the very same thing only."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radixlm.kernels import jit as kernels
from radixlm.kernels.jit import Kernel, KernelStore, fetch_kernel
from radixlm.kernels.vectors import words

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is kept there")


def adder(by: int) -> Callable[[int], None]:
    def worker(arguments: int) -> None:
        words(arguments)[0] += by

    return worker


def result(kernel: Kernel) -> int:
    number = ctypes.c_int64(40)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernel.address)(ctypes.addressof(number))
    return number.value


@pytest.fixture
def store(tmp_path: Path) -> KernelStore:
    return KernelStore(tmp_path / "kernels")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with each."""
    made: list[None] = []
    compile_it = kernels._compile

    def counted(function: Callable[[int], None]) -> tuple[str, bytes, bool]:
        made.append(None)
        return compile_it(function)

    monkeypatch.setattr(kernels, "_compile", counted)
    return made


def test_a_kernel_is_compiled_once(store: KernelStore, compilations: list[None]) -> None:
    assert [result(fetch_kernel(store, adder, (2,), {})) for _ in range(3)] == [42] * 3
    assert len(compilations) == 1


def test_other_arguments_are_another_kernel(store: KernelStore) -> None:
    assert result(fetch_kernel(store, adder, (2,), {})) == 42
    assert result(fetch_kernel(store, adder, (3,), {})) == 43
    assert result(fetch_kernel(store, adder, (), {"by": 4})) == 44


def test_without_a_store_it_is_compiled(compilations: list[None]) -> None:
    assert [result(fetch_kernel(None, adder, (2,), {})) for _ in range(2)] == [42] * 2
    assert len(compilations) == 2


@pytest.mark.parametrize(
    "what", ["binding.get_host_cpu_name", "get_host_cpu_features", "numba.__version__"]
)
def test_another_machine_or_compiler_is_another_kernel(
    store: KernelStore, compilations: list[None], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_kernel(store, adder, (2,), {})
    changed = "other" if what.endswith("__version__") else lambda: "other"
    monkeypatch.setattr(f"radixlm.kernels.jit.{what}", changed)
    kernels._machine.cache_clear()
    fetch_kernel(store, adder, (2,), {})
    monkeypatch.undo()
    kernels._machine.cache_clear()
    assert len(compilations) == 2


def test_other_sources_are_another_kernel(
    store: KernelStore, compilations: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for sources in (b"before", b"after"):
        monkeypatch.setattr(kernels, "_sources", lambda _folder, text=sources: text)
        fetch_kernel(store, adder, (2,), {})
    assert len(compilations) == 2


def test_sources_are_told_apart(tmp_path: Path) -> None:
    digests = set()
    for name, text in [("a.py", "x"), ("a.py", "y"), ("b.py", "x"), ("a.py", "")]:
        folder = tmp_path / str(len(digests))
        folder.mkdir()
        (folder / name).write_text(text)
        digests.add(kernels._sources(folder))
    assert len(digests) == 4


def test_code_that_needs_what_numba_brings_is_not_kept() -> None:
    """It would end the process that loads it: a new array needs numba's own memory."""

    def worker(arguments: int) -> None:
        words(arguments)[0] = len([arguments])

    _, _, movable = kernels._compile(worker)
    assert not movable


PROCESS = """
import sys
from pathlib import Path
import torch
from radixlm.attention import kernels
from radixlm.attention.direct import make_worker
from radixlm.kernels.jit import KernelStore
from radixlm.kernels.vectors import has_bfloat16
from radixlm.attention.rows import make_merge_worker
from radixlm.attention.tile_layout import Shape
from radixlm.attention.tiles import make_tile_worker
from radixlm.layers import compiled, products

store = KernelStore(Path(sys.argv[1]))
kernels._store = lambda: store
if sys.argv[2] == "fetch":
    kernels._compile = None
for halves in (False, True):
    make_worker(3, 64, bfloat16=halves)
    make_tile_worker(Shape(5, 80, halves))
    make_merge_worker(bfloat16=halves)
    for make in (compiled._norm_worker, compiled._gate_worker, compiled._rotate_worker):
        make(bfloat16=halves)
    products._make_worker(pairs=halves and has_bfloat16(), halves=halves)
"""


@pytest.mark.slow
def test_every_worker_is_loaded_by_a_process_that_compiles_none(tmp_path: Path) -> None:
    for what in ("compile", "fetch"):
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", PROCESS, str(tmp_path), what], timeout=600, check=True
        )
    assert len(list(tmp_path.iterdir())) == 14
