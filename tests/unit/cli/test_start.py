"""The command's first moment and its last."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import radixlm

SOURCE = str(Path(radixlm.__file__).parents[1])
# Interrupts the process when a module is first looked for, or in place of the whole command.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from radixlm.cli import start

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            interrupt()

if sys.argv[1] == "run":
    import radixlm.cli.commands
    radixlm.cli.commands.main = interrupt
sys.meta_path.insert(0, Finder())
start.main()
"""


def ran(program: str, *arguments: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
    done = subprocess.run(  # noqa: S603
        [sys.executable, *flags, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("moment", "status"),
    [("radixlm.cli.commands", -signal.SIGINT), ("click", -signal.SIGINT), ("run", 130)],
)
def test_ctrl_c_leaves_no_traceback(moment: str, status: int) -> None:
    assert ran(PROGRAM, moment) == (status, "", "")


def test_next_to_nothing_is_read_before_it_is_heeded() -> None:
    program = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); before = {{*sys.modules}}; "
        "import radixlm.cli.start; print(*sys.modules.keys() - before)"
    )
    status, read, _ = ran(program, flags=("-I", "-S"))  # without what an environment imports
    assert status == 0
    assert not {"typing", "re", "click", "pathlib"} & set(read.split())


@pytest.mark.parametrize(("arguments", "status"), [(["--version"], 0), (["serv"], 2)])
def test_what_is_done_is_not_taken_apart(arguments: list[str], status: int) -> None:
    program = (
        "import atexit; from radixlm.cli.start import main; atexit.register(print, 'apart'); main()"
    )
    code, told, _ = ran(program, *arguments)
    assert code == status
    assert "apart" not in told
    assert ("radixlm" in told) is (status == 0)
