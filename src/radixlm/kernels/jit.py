"""Machine code on disk, so that only a machine's first start has to compile it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, cast

import llvmlite
import numba
from llvmlite import binding
from numba import njit, types
from numba.core import config
from numba.core.codegen import get_host_cpu_features

from radixlm.kernels.vectors import FAST

# A model of one type has about ten, of 20 KB each; the tests need some hundreds.
_MOST_FILES = 1024
_DIGEST_BYTES = hashlib.sha256().digest_size
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class KernelStore:
    """Files by key in a folder of this user's. Each is the digest of its content, then the content.

    What is read is run, so a folder or a file that anybody else could have written counts as
    absent; so does a file that is damaged or cannot be read. What cannot be written is compiled
    again the next time. most: files; beyond that the least recently used go.
    compiling, timing: seconds that each kernel and each product took, which was not there.
    """

    def __init__(self, folder: Path, *, most: int = _MOST_FILES) -> None:
        self._folder = folder
        self._most = most
        self.compiling: list[float] = []
        self.timing: list[float] = []

    def news(self) -> str:
        """Say what was made since the last call because it was not there; empty: nothing."""
        made = [
            f"{what} {len(took)} in {sum(took):.1f} s"
            for what, took in (
                ("kernels compiled:", self.compiling),
                ("products timed:", self.timing),
            )
            if took
        ]
        self.compiling.clear()
        self.timing.clear()
        return f"{'; '.join(made)}; kept in {self._folder}" if made else ""

    def get(self, key: str) -> bytes | None:
        """The bytes that were put under this key, which is a file's name."""
        try:
            if not _is_private(self._folder.stat()):
                return None
            with (self._folder / key).open("rb") as file:
                if not _is_private(os.fstat(file.fileno())):
                    return None
                found = file.read()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(self._folder / key)
        digest, content = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
        return content if digest == hashlib.sha256(content).digest() else None

    def put(self, key: str, content: bytes) -> None:
        """Write it under this key. Readers see all of a file or none of it."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(self._folder.stat()):
                self._write(key, hashlib.sha256(content).digest() + content)
                self._drop_oldest()

    def _write(self, key: str, content: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).replace(self._folder / key)
        except OSError:
            Path(name).unlink()
            raise

    def _drop_oldest(self) -> None:
        files = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files[: -self._most]:
            path.unlink()


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS


_P = ParamSpec("_P")
# Numba's functions have two places for results before their arguments.
_ENTRY = """
declare i32 @"{name}"(ptr, ptr{types})
define void @worker(ptr %arguments) {{
  %result = alloca ptr
  %error = alloca ptr
  %counters = ptrtoint ptr %arguments to i64
{loads}
  call i32 @"{name}"(ptr %result, ptr %error{values})
  ret void
}}
"""
_LOAD = """  %at{place} = getelementptr i64, ptr %arguments, i64 {place}
  %value{place} = load i64, ptr %at{place}"""
COUNTERS = ("units_taken", "threads_seen")


class Kernel:
    """A compiled worker, and the structure of its arguments.

    fields: the first one is the address of the structure, which begins with `COUNTERS`; the others
    follow there, int64 each. address: of its code, which goes with this object.
    """

    def __init__(self, name: str, fields: Sequence[str], code: bytes) -> None:
        places = range(len(COUNTERS), len(COUNTERS) + len(fields) - 1)
        values = ["%counters", *(f"%value{place}" for place in places)]
        text = _ENTRY.format(
            name=name,
            types=", i64" * len(values),
            loads="\n".join(_LOAD.format(place=place) for place in places),
            values="".join(f", i64 {value}" for value in values),
        )
        binding.initialize_native_target()  # numba does both only when it compiles
        binding.initialize_native_asmprinter()
        target = binding.Target.from_default_triple()
        machine = target.create_target_machine(codemodel="jitdefault", jit=True)
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(text), machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.address: int = self._engine.get_function_address("worker")
        numbers = [(field, ctypes.c_int64) for field in (*COUNTERS, *fields[1:])]
        # Without a dictionary, so that a wrong name is an error.
        members = {"__slots__": (), "_fields_": numbers}
        self.arguments: type[Any] = type("Arguments", (ctypes.Structure,), members)


def compiled(
    arguments: type[Any],
) -> Callable[[Callable[_P, Callable[[Any], None]]], Callable[_P, Kernel]]:
    """Make a factory of Python functions one of kernels, each compiled once.

    arguments: the named tuple that the functions take, of int64, see `Kernel`. What the factory
    returns depends only on its arguments, by their `repr`, on `kernels` and on its own package.
    """

    def decorated(factory: Callable[_P, Callable[[Any], None]]) -> Callable[_P, Kernel]:
        @functools.cache
        def make(*args: Any, **kwargs: Any) -> Kernel:
            return fetch_kernel(user_store(), arguments, factory, args, kwargs)

        return cast("Callable[_P, Kernel]", make)

    return decorated


def fetch_kernel(
    store: KernelStore | None,
    arguments: type[Any],
    factory: Callable[..., Callable[[Any], None]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Kernel:
    """Take the kernel from the store, or compile it and put it there."""
    key = key_of(factory, args, kwargs)
    kept = store.get(key) if store else None
    if kept is not None:
        name, code = kept.split(b"\n", 1)
        return Kernel(name.decode(), arguments._fields, code)
    began = time.perf_counter()
    made, code, movable = compile_kernel(arguments, factory(*args, **kwargs))
    if store and movable:
        store.put(key, made.encode() + b"\n" + code)
        store.compiling.append(time.perf_counter() - began)
    return Kernel(made, arguments._fields, code)


@functools.cache
def user_store() -> KernelStore | None:
    """None where there is no home folder, or no owners of files."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return None if sys.platform == "win32" else KernelStore(home / ".cache" / "radixlm" / "kernels")


def key_of(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The key of a function's result for these arguments on this machine, by these sources."""
    what = (factory.__module__, factory.__qualname__, args, sorted(kwargs.items()))
    home = Path(sys.modules[factory.__module__].__file__ or "").parent
    made = hashlib.sha256(repr((what, machine_id())).encode())
    for folder in sorted({home, Path(__file__).parent}):
        made.update(digest_of(folder))
    return made.hexdigest()


@functools.cache
def machine_id() -> tuple[object, ...]:
    processor = config.CPU_NAME, config.CPU_FEATURES
    found = binding.get_host_cpu_name(), get_host_cpu_features(), binding.get_process_triple()
    return numba.__version__, llvmlite.__version__, sys.version, config.OPT, *processor, *found


@functools.cache
def digest_of(folder: Path) -> bytes:
    """A digest of a package's modules."""
    made = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        text = path.read_bytes()
        made.update(f"{path.name} {len(text)} ".encode() + text)
    return made.digest()


def compile_kernel(
    arguments: type[Any], function: Callable[[Any], None]
) -> tuple[str, bytes, bool]:
    """Compile a kernel: its name in the object code, the code, and whether another process can use
    it: it must need nothing that numba alone brings, since an unknown function ends the process
    that loads it.
    """
    numbers = types.NamedUniTuple(types.int64, len(arguments._fields), arguments)
    made = njit(types.void(numbers), **FAST)(function)
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
