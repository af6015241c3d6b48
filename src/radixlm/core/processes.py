"""How a process of our own is started: with this one's modules, none of the working directory."""

from __future__ import annotations

import sys
from pathlib import Path

# `python -m` would look for modules in the working directory first, which may be a stranger's.
# Arguments: `module:function`, two handles, then where modules are found.
START = """
import sys
main, first, second, *sys.path[:] = sys.argv[1:]
from importlib import import_module
module, _, name = main.partition(":")
getattr(import_module(module), name)(int(first), int(second))
"""


def import_path() -> list[str]:
    """The path on which this process finds its modules, without entries relative to the working
    directory.
    """
    absolute = [entry for entry in sys.path if Path(entry).is_absolute()]
    ours = str(Path(__file__).parents[2])
    return absolute if ours in absolute else [*absolute, ours]
