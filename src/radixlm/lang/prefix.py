"""What a program always begins with, whatever its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

from radixlm.lang.ir import Expr, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Text
from radixlm.lang.state import State
from radixlm.lang.stream import Stream
from radixlm.lang.transcript import Transcript


class _Unknown(BaseException):
    """The program came to something that is not always the same."""


def write_constant_prefix(
    function: Callable[..., Any],
    names: Sequence[str],
    bound: Mapping[str, Any],
    said: Transcript,
) -> None:
    """Write to `said` what the program appends before it uses an argument or a value.

    The function is called for that, with arguments that can not be used.
    """
    arguments = {name: _Argument() for name in names} | dict(bound)
    try:
        function(State(cast(Stream, _Recorder(said))), **arguments)
    except (_Unknown, Exception):
        return


class _Argument:
    """Stands for what is not known yet: whatever is done with it ends the recording."""

    def _use(self, *_: Any, **__: Any) -> NoReturn:
        raise _Unknown

    __str__ = __repr__ = __format__ = __bool__ = __len__ = __iter__ = _use
    __add__ = __radd__ = __getitem__ = __contains__ = __call__ = __index__ = _use
    __int__ = __float__ = __eq__ = __lt__ = __gt__ = __getattr__ = _use
    __hash__ = None  # type: ignore[assignment]


class _Recorder:
    """In place of a Stream."""

    def __init__(self, said: Transcript) -> None:
        self._said = said
        self.variables: dict[str, Any] = {}

    def submit(self, expr: Expr) -> None:
        match expr:
            case Text(text):
                self._said.write(text)
            case RoleBegin(role):
                self._said.begin(role)
            case RoleEnd(role):
                self._said.end(role)
            case ScopeBegin() | ScopeEnd():
                pass
            case _:
                raise _Unknown

    def __getattr__(self, name: str) -> NoReturn:
        raise _Unknown
