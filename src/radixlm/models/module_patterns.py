"""Regular expressions of a model's files, matched with the names of its modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from radixlm.core.errors import UnsupportedModelError

SECONDS = 10.0
_LONGER = 1.0
# One after the other: name those that each matches, or say which one is wrong, and why. It ends
# itself, too, for this process may be gone by then.
_MATCH = """
import faulthandler, json, os, re, sys
faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True, file=open(os.devnull, "w"))
patterns, names = json.load(sys.stdin)
found, wrong = [], None
for pattern, whole in patterns:
    try:
        re.compile(pattern)
        if whole:
            fits = re.compile(pattern).fullmatch
        else:
            fits = re.compile(rf"(.*\\.)?({pattern})$").match
    except (re.error, RecursionError, OverflowError) as error:
        wrong = pattern, str(error)
        break
    found.append([name for name in names if fits(name)])
json.dump([found, wrong], sys.stdout)
"""


class ModulePattern(NamedTuple):
    """whole: it is for all of a name; else for its end, from the beginning or a dot on."""

    pattern: str
    whole: bool


def matching(
    patterns: Sequence[ModulePattern], names: Sequence[str], seconds: float = SECONDS
) -> list[frozenset[str]]:
    """List for each pattern the names that it matches, as peft does it by Python's `re`.

    That may take for ever: `(\\w+\\.?)+x` tries all ways to cut a name, and lets no other thread
    run meanwhile. So another process does it, which can be ended. Raises UnsupportedModelError for
    a pattern that is wrong, and where all take more than `seconds`.
    """
    if not patterns:
        return []
    try:
        done = subprocess.run(  # noqa: S603 - our own
            [sys.executable, "-I", "-S", "-c", _MATCH, str(seconds + _LONGER)],
            input=json.dumps([patterns, names]),
            cwd=os.sep,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
            start_new_session=True,  # Ctrl-C is for this process
        )
    except subprocess.TimeoutExpired:
        shown = ", ".join(repr(each.pattern) for each in patterns)
        raise UnsupportedModelError(
            f"matching {len(names)} names of modules with the patterns {shown:.300} takes more "
            f"than {seconds:g} s; repeat nothing that is repeated in itself, or list the names"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnsupportedModelError(
            f"patterns can not be matched now, the process for that did not work: {error}"
        ) from None
    found, wrong = json.loads(done.stdout)
    if wrong is not None:
        pattern, reason = wrong
        raise UnsupportedModelError(f"the pattern {pattern!r:.200} is none: {reason}")
    return [frozenset(each) for each in found]
