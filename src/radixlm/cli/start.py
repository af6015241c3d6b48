"""The command's first moment and its last, and what it imports by name in between.

Ctrl-C while Python still reads the command from disk leaves no traceback; help does not wait for
torch; and what is done is not taken apart first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from importlib import import_module

TYPE_CHECKING = False  # see radixlm/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line, and end the process; see `radixlm.cli.commands`."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = named("radixlm.cli.commands:main")
    status: object = 0
    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except SystemExit as end:
        status = end.code or 0
        if isinstance(status, str):
            print(status, file=sys.stderr)
    _leave(status if isinstance(status, int) else 1)


def _leave(status: int) -> None:
    """Leave at once: commands have closed what they opened. To take torch apart takes two seconds
    more, and on a busy machine more than the ten that `docker stop` waits.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(status)


def named(place: str) -> Any:
    """The object at `module:name`, imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def later(place: str) -> Callable[..., Any]:
    """A function that stands for the one at `module:name`; imported at the first call."""

    def call(*arguments: Any, **options: Any) -> Any:
        return named(place)(*arguments, **options)

    return call
