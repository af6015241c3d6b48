"""Which line of the program is at work: the nearest caller that is not part of the language."""

from __future__ import annotations

import inspect
import linecache
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_OURS = f"{Path(__file__).parent}/"
_CONTEXTLIB = sys.modules["contextlib"].__file__


class Line(NamedTuple):
    """A place in a program, told as `tips.py:14 in advise: s += gen("tip", regex="(")`."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.number).strip()
        place = f"{Path(self.file).name}:{self.number} in {self.function}"
        return f"{place}: {code}" if code else place


def caller_line() -> Line:
    """O(frames of ours above the program's), about a microsecond."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def function_line(function: Callable[..., Any]) -> Line:
    """Where it is defined; the caller's where that is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return caller_line()
    return Line(code.co_filename, code.co_firstlineno, code.co_name)


def error_line(error: BaseException) -> Line | None:
    """The program's line that it was raised from; None when it was not raised in a program."""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if not _is_ours(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, number, frame.f_code.co_name)
    return None


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) or file == _CONTEXTLIB
