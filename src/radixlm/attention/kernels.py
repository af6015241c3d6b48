"""Workers: functions of one address, compiled for this processor once and kept on disk.

    factory(shape) -> Python function -> numba -> object code -> file        the first time
                                                   object code <- file        from then on

The file's name is a digest of all that the code hangs on: the sources, the factory and its
arguments, the versions of the compilers, the processor. Its content is the name of the function,
a line break and the object code, in the machine's format for it; nothing in it is a pickle.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, cast

import llvmlite
import numba
from llvmlite import binding
from numba import njit, types
from numba.core import config
from numba.core.codegen import get_host_cpu_features

from radixlm.attention.kernel_store import KernelStore
from radixlm.attention.vectors import FAST

_P = ParamSpec("_P")

# Numba's functions have two places for results before their arguments.
_ENTRY = """
declare i32 @"{name}"(ptr, ptr, i64)
define void @worker(i64 %arguments) {{
  %result = alloca ptr
  %error = alloca ptr
  call i32 @"{name}"(ptr %result, ptr %error, i64 %arguments)
  ret void
}}
"""


class Kernel:
    """A compiled worker. address: of its code, which goes with this object."""

    def __init__(self, name: str, code: bytes) -> None:
        target = binding.Target.from_default_triple()
        machine = target.create_target_machine(codemodel="jitdefault", jit=True)
        entry = binding.parse_assembly(_ENTRY.format(name=name))
        self._engine = binding.create_mcjit_compiler(entry, machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.address: int = self._engine.get_function_address("worker")


def compiled(factory: Callable[_P, Callable[[int], None]]) -> Callable[_P, Kernel]:
    """Make a factory of Python functions one of kernels, each made once.

    factory: what it returns hangs on its arguments alone, and on constants of `attention` and of
    its own package; their `repr` tells arguments apart.
    """

    @functools.cache
    def make(*args: Any, **kwargs: Any) -> Kernel:
        return fetch_kernel(_store(), factory, args, kwargs)

    return cast("Callable[_P, Kernel]", make)


def fetch_kernel(
    store: KernelStore | None,
    factory: Callable[..., Callable[[int], None]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Kernel:
    """What the store has, else what is compiled now, for the store to have."""
    key = _key(factory, args, kwargs)
    kept = store.get(key) if store else None
    if kept is not None:
        name, code = kept.split(b"\n", 1)
        return Kernel(name.decode(), code)
    made, code, movable = _compile(factory(*args, **kwargs))
    if store and movable:
        store.put(key, made.encode() + b"\n" + code)
    return Kernel(made, code)


@functools.cache
def _store() -> KernelStore | None:
    """None where there is no home, or no such thing as other users."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return None if sys.platform == "win32" else KernelStore(home / ".cache" / "radixlm" / "kernels")


def _key(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    what = (factory.__module__, factory.__qualname__, args, sorted(kwargs.items()))
    home = Path(sys.modules[factory.__module__].__file__ or "").parent
    made = hashlib.sha256(repr((what, _machine())).encode())
    for folder in sorted({home, Path(__file__).parent}):
        made.update(_sources(folder))
    return made.hexdigest()


@functools.cache
def _machine() -> tuple[object, ...]:
    processor = config.CPU_NAME, config.CPU_FEATURES
    found = binding.get_host_cpu_name(), get_host_cpu_features(), binding.get_process_triple()
    return numba.__version__, llvmlite.__version__, sys.version, config.OPT, *processor, *found


@functools.cache
def _sources(folder: Path) -> bytes:
    """A digest of a package's modules."""
    made = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        text = path.read_bytes()
        made.update(f"{path.name} {len(text)} ".encode() + text)
    return made.digest()


def _compile(function: Callable[[int], None]) -> tuple[str, bytes, bool]:
    """Its name in the object code, the code, and whether another process can use it: it must need
    nothing that numba alone brings, since an unknown function ends the process that loads it.
    """
    made = njit(types.void(types.int64), **FAST)(function)
    [result] = made.overloads.values()
    library = result.library
    _, _, (code, bitcode) = library.serialize_using_object_code()
    process = ctypes.CDLL(None)
    needed = [
        item.name
        for item in binding.parse_bitcode(bitcode).functions
        if item.is_declaration and not item.name.startswith("llvm.")
    ]
    movable = not library.has_dynamic_globals and all(hasattr(process, name) for name in needed)
    return result.fndesc.llvm_func_name, bytes(code), movable
