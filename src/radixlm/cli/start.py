"""The command's first moment and its last: Ctrl-C while Python still reads it from disk leaves no
traceback, and what is done is not taken apart first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from radixlm.cli.later import named

_INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line, and end the process; see `radixlm.cli.main`."""
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
    """At once: commands have closed what they opened. To take torch apart takes two seconds more,
    and on a busy machine more than the ten that `docker stop` waits.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(status)
