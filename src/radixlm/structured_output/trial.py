"""A grammar is compiled in a process of its own first, which may take too long, or crash."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, Any, NamedTuple

from radixlm.core.errors import NoTrialError
from radixlm.core.grammar import Grammar
from radixlm.core.processes import import_path
from radixlm.structured_output.grammar_source import GrammarError, is_lenient, source_of
from radixlm.structured_output.matcher import Table, compile_source, try_first_tokens

SECONDS = 3.0

# `python -m` would look for modules in the working directory first, which may be a stranger's.
_START = """
import sys
sys.path[:] = sys.argv[1:]
from radixlm.structured_output.trial import main
main()
"""
# Less than the thread has that will compile the same later: what overflows that one does it here.
_STACK = 1 << 20


class Tried(NamedTuple):
    """A grammar that llguidance compiles, and the bytes that it then holds, as far as the system
    says.
    """

    source: str
    size: int


class Trial:
    """Says of a grammar that it compiles, and quickly, without a risk to this process.

    llguidance bounds what a mask costs, but not what compiling does: 40 characters of a schema
    (`multipleOf`) keep it for seconds, a chain of rules overflows its stack. No thread that is in
    there can be ended, but a process can. It ends itself when a grammar takes more than `seconds`,
    or when this process is gone, and the next grammar gets a new one.

    It is no process pool: those of the standard library and of pebble run the user's program again
    in each process, in its working directory.

    Used by one thread.
    """

    def __init__(self, table: Table, seconds: float = SECONDS) -> None:
        self._table = table
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: Grammar) -> Tried:
        """Raises GrammarError, NoTrialError. Schemas that need not be followed whole are so where
        that can be done in time.
        """
        try:
            return self._tried(grammar)
        except GrammarError:
            if not is_lenient(grammar):
                raise
            return self._tried(grammar, outlines=True)

    def _tried(self, grammar: Grammar, *, outlines: bool = False) -> Tried:
        process = self._process or self._start()
        try:
            _send(process.stdin, (grammar, outlines))
            answer = _receive(process.stdout)
        except (EOFError, OSError):
            self.close()
            raise GrammarError(
                f"it took more than {self._seconds:g} s to compile, or was too deeply nested; "
                "make it simpler"
            ) from None
        if isinstance(answer, str):
            raise GrammarError(answer)
        return Tried(*answer)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(BrokenPipeError), process:  # closes the pipes and waits
                pass

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            process = self._process = subprocess.Popen(  # noqa: S603 - our own
                [sys.executable, "-P", "-c", _START, *import_path()],
                cwd=os.sep,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process
            )
            _send(process.stdin, (self._table, self._seconds))
            _receive(process.stdout)  # it is ready: if it ends later, a grammar did it
        except (EOFError, OSError) as error:
            self.close()
            reason = str(error) or "it ended at once"
            raise NoTrialError(
                f"grammars can not be compiled now: the process for that did not start ({reason}); "
                "look for what the system is out of, memory or processes, and try again"
            ) from error
        return process


def _send(pipe: IO[bytes] | None, message: object) -> None:
    if pipe is None:
        raise EOFError
    pickle.dump(message, pipe)
    pipe.flush()


def _receive(pipe: IO[bytes] | None) -> Any:
    """One message. Raises EOFError when the other side is gone."""
    if pipe is None:
        raise EOFError
    try:
        return pickle.load(pipe)  # noqa: S301 - from our own process
    except pickle.UnpicklingError:
        raise EOFError from None


def main() -> None:
    """The process: compile grammars until the other side is gone."""
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def _serve() -> None:
    with suppress(EOFError), open(os.devnull, "w") as nowhere:
        table, seconds = _receive(sys.stdin.buffer)
        tokenizer = table.tokenizer()
        _send(sys.stdout.buffer, None)  # ready
        while True:
            grammar, outlines = _receive(sys.stdin.buffer)
            # Its watchdog needs neither the interpreter nor a signal to end the process.
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            answer: str | tuple[str, int]
            try:
                source = source_of(grammar, outlines=outlines)
                before = _resident()
                matcher = compile_source(source, tokenizer)
                answer = source, max(_resident() - before, 0)
                try_first_tokens(matcher)
            except GrammarError as error:
                answer = str(error)
            faulthandler.cancel_dump_traceback_later()
            _send(sys.stdout.buffer, answer)


def _resident() -> int:
    """Bytes of memory that this process holds, what it has freed given back; 0 where the system
    does not say.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):
        return 0
