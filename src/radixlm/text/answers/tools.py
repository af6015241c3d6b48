"""Tools that an answer may call, and whether it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """parameters: the JSON schema of its arguments, an object's. strict: they must follow it."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


class Calling(StrEnum):
    """Whether tools are called: never, as the model likes, or once at least."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools: those that may be called, by different names. parallel: more than once.

    others: the model sees tools that may not be called.
    """

    tools: tuple[Tool, ...] = ()
    calling: Calling = Calling.NONE
    parallel: bool = True
    others: bool = False

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.calling is not Calling.NONE

    @property
    def constrained(self) -> bool:
        """Whether the answer has to be held to it, token by token: even without calls, since a
        model that sees tools may call them.
        """
        if self.calling is Calling.AUTO:
            held = self.others or not self.parallel
            return held or any(tool.strict for tool in self.tools)
        return bool(self.tools)
