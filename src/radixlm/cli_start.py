"""The command's first moment: Ctrl-C while Python still reads it from disk leaves no traceback."""

from __future__ import annotations

import signal

from radixlm.cli_later import named


def main() -> None:
    """Run the command line; see `radixlm.cli.main`."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = named("radixlm.cli:main")
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
