"""The sandbox that chat templates run in, and what bounds them there."""

from __future__ import annotations

import json
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from radixlm.core.errors import ModelError

MAX_RENDERED = 32 * 2**20  # characters
_MAX_STEPS = _MAX_REPEAT = 1_000_000
_MAX_POWER = 10_000


class Settable(dict[str, Any], Namespace):
    """A message whose fields a template may set, as some do."""


class GivenList(list[Settable]):
    """A list of given values, which no template may add to."""


class Budget:
    """The limits of one rendering: characters of output, and steps of `range` loops in all.

    A template has no other endless loop: the rest run over values that are there already. Text that
    is doubled again and again is not bounded; templates come with the model, not the request.
    """

    def __init__(self) -> None:
        self._characters = MAX_RENDERED
        self._steps = _MAX_STEPS

    def spend_text(self, text: str) -> str:
        self._characters -= len(text)
        if self._characters < 0:
            raise OverflowError("it writes too much text")
        return text

    def range(self, *bounds: int) -> range:
        steps = range(*bounds)
        self._steps -= len(steps)
        if self._steps < 0:
            raise OverflowError("it loops too often")
        return steps


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with `*` and `**` bounded: they make large values out of small ones."""

    intercepted_binops = frozenset({"*", "**"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """A template may append to a list of its own."""
        own = type(obj) is list and attr == "append"
        return own or super().is_safe_attribute(obj, attr, value)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**" and max(abs(left), abs(right)) > _MAX_POWER:
            raise OverflowError(f"{left} ** {right} is too large")
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and len(value) * times > _MAX_REPEAT:
                    raise OverflowError(f"a value repeated {times} times is too large")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}`, which marks the assistant's text for training: its body as it is."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def parsed(source: str) -> nodes.Template:
    """The tree of a template that can be compiled."""
    return _environment().parse(source)


def compiled(source: str) -> jinja2.Template:
    """A template that can be rendered. Raises ModelError when it is not valid."""
    try:
        return _environment().from_string(source)
    except Exception as error:  # Python compiles it, too, and may raise anything
        reason = str(error) or type(error).__name__
        raise ModelError(f"the chat template is not valid Jinja: {reason:.500}") from error


def _environment() -> jinja2.Environment:
    """The one that chat templates are written for.

    Source: https://huggingface.co/docs/transformers/chat_templating_writing
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    del environment.globals["lipsum"]  # as much filler as its arguments ask for, all at once
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
