"""Tools as clients describe them, for chat templates and for what reads the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from radixlm.core.errors import InvalidRequestError
from radixlm.parsers.tools import Calling, Tool, ToolUse
from radixlm.server.http.body import Body, ListOf
from radixlm.server.http.fields import CALL_ECHOES
from radixlm.server.pipeline.cache_control import CacheControl

MAX_TOOLS = 128
MAX_NAME = 128
# What OpenAI takes a tool without parameters to mean.
_NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}

# It stands in prompts, answers and grammars; servers of tools put dots and slashes of theirs in.
Name = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_./:-]{{1,{MAX_NAME}}}$")]


class FunctionPart(Body):
    """parameters: a JSON schema of an object; none, when there are no parameters.

    cache_control: LiteLLM takes it here as well as in the tool itself.
    """

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolPart(Body):
    type: Literal["function"]
    function: FunctionPart
    cache_control: CacheControl | None = None


class NamePart(Body):
    name: Name


class NamedToolPart(Body):
    type: Literal["function"]
    function: NamePart


class AllowedPart(Body):
    """mode: as tool_choice, for these tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[ListOf[NamedToolPart], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsPart(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedPart


class CalledPart(Body):
    """arguments: a JSON object, as text."""

    echoes = CALL_ECHOES

    name: str
    arguments: str


class ToolCallPart(Body):
    """index: as a stream gave it."""

    echoes = CALL_ECHOES

    id: str
    type: Literal["function"] | None = None
    function: CalledPart
    index: int | None = None


Tools = Annotated[ListOf[ToolPart], Field(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedToolPart | AllowedToolsPart


class ToolSpec(NamedTuple):
    """A tool, whichever API describes it.

    parameters: none mean that there are none. path, fields: of the tool and of its fields in the
    request. schema: the field that holds the parameters.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool | None
    path: str
    fields: str
    schema: str = "parameters"

    @property
    def given(self) -> Mapping[str, Any]:
        """The parameters, also where there are none."""
        return _NO_PARAMETERS if self.parameters is None else self.parameters


def tools_for_template(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """The tools as chat templates take them, in their order and always alike.

    Raises InvalidRequestError that names the field.
    """
    paths: dict[str, str] = {}
    for tool in tools:
        if tool.name in paths:
            raise InvalidRequestError(
                f"{paths[tool.name]} and {tool.path} have the same name {tool.name!r}",
                param=f"{tool.fields}.name",
            )
        paths[tool.name] = tool.path
        _check_schema(tool.given, f"{tool.fields}.{tool.schema}")
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: ToolSpec) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "parameters": tool.given}


def tool_use(
    tools: Sequence[ToolSpec],
    calling: Calling | None,
    chosen: Mapping[str, str] | None = None,
    *,
    parallel: bool,
) -> ToolUse:
    """What an answer may call. Raises InvalidRequestError that names the field.

    chosen: the names of the only tools that may be called, by the fields that name them.
    """
    known = tuple(Tool(tool.name, tool.given, strict=bool(tool.strict)) for tool in tools)
    if not known:
        if calling is Calling.REQUIRED or chosen is not None:
            raise InvalidRequestError(
                "tool_choice asks for a call, but there are no tools", param="tool_choice"
            )
        return ToolUse(parallel=parallel)
    if calling is None:
        calling = Calling.AUTO
    if chosen is None:
        return ToolUse(known, calling, parallel)
    for path, name in chosen.items():
        if all(tool.name != name for tool in known):
            raise InvalidRequestError(
                f"tool_choice names {name!r}, which is not one of the tools", param=path
            )
    named = tuple(tool for tool in known if tool.name in chosen.values())
    return ToolUse(named, calling, parallel, others=len(named) < len(known))


def _check_schema(schema: Mapping[str, Any], path: str) -> None:
    """Whether it may be the schema of an object. What is inside it is seen when it is needed."""
    if schema.get("type", "object") != "object":
        raise InvalidRequestError(
            f"{path}.type must be 'object', got {schema['type']!r:.80}", param=f"{path}.type"
        )
    for name, kind in (("properties", dict), ("required", list)):
        value = schema.get(name, kind())
        if not isinstance(value, kind):
            wanted = "an object" if kind is dict else "an array"
            raise InvalidRequestError(
                f"{path}.{name} must be {wanted}, got {value!r:.80}", param=f"{path}.{name}"
            )
