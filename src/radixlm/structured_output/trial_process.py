"""The process behind Trial: reads grammars, compiles each, says what was wrong with it."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import threading
from contextlib import suppress

from radixlm.core.grammar import Grammar
from radixlm.structured_output.grammar_source import (
    GrammarError,
    compile_source,
    source_of,
    try_first_tokens,
)
from radixlm.structured_output.token_table import Table
from radixlm.structured_output.trial import receive, send

# Less than the thread has that will compile the same later: what overflows that one does it here.
_STACK = 1 << 20


def main() -> None:
    """Serve until the other side is gone."""
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def _serve() -> None:
    with suppress(EOFError):
        _answer_all()


def _answer_all() -> None:
    table: Table
    table, seconds = receive(sys.stdin.buffer)
    tokenizer = table.tokenizer()
    send(sys.stdout.buffer, None)  # ready
    with open(os.devnull, "w") as nowhere:
        while True:
            grammar: Grammar = receive(sys.stdin.buffer)
            # Its watchdog needs neither the interpreter nor a signal to end the process.
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            answer: str | tuple[str, int]
            try:
                source = source_of(grammar)
                before = _resident()
                matcher = compile_source(source, tokenizer)
                answer = source, max(_resident() - before, 0)
                try_first_tokens(matcher)
            except GrammarError as error:
                answer = str(error)
            faulthandler.cancel_dump_traceback_later()
            send(sys.stdout.buffer, answer)


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
