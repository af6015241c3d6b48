"""Tools as clients describe them, and calls as they are sent back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from radixlm.core.errors import InvalidRequestError
from radixlm.parsers.tools import Calling, Tool, ToolUse
from radixlm.server.http.body import Body, ListOf
from radixlm.server.http.fields import CALL_ECHOES
from radixlm.server.pipeline.cache_fields import CacheControl

MAX_TOOLS = 128
# What OpenAI takes a tool without parameters to mean.
_NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}

# It stands in prompts, answers and grammars; servers of tools put dots and slashes of theirs in.
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_./:-]{1,128}$")]


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


def tools_for_template(tools: Sequence[ToolPart]) -> list[dict[str, Any]]:
    """The tools as chat templates take them, in their order and always alike.

    Raises InvalidRequestError that names the field.
    """
    _check_names(tools)
    return [
        {"type": "function", "function": _function(tool.function, f"tools[{place}].function")}
        for place, tool in enumerate(tools)
    ]


def tool_use(
    tools: Sequence[ToolPart], choice: ToolChoice | None, parallel: bool | None
) -> ToolUse:
    """What an answer may call. Raises InvalidRequestError that names the field."""
    known = tuple(
        Tool(
            tool.function.name,
            _parameters(tool.function),
            strict=bool(tool.function.strict),
        )
        for tool in tools
    )
    several = parallel is not False
    if choice in ("none", None) or (choice == "auto" and not known):
        calling = Calling.AUTO if known and choice is None else Calling.NONE
        return ToolUse(known, calling, several)
    if not known:
        raise InvalidRequestError(
            "tool_choice asks for a call, but there are no tools", param="tool_choice"
        )
    match choice:
        case NamedToolPart():
            named = _named(known, [choice], "tool_choice")
            return ToolUse(named, Calling.REQUIRED, parallel=False)
        case AllowedToolsPart(allowed_tools=allowed):
            named = _named(known, allowed.tools, "tool_choice.allowed_tools.tools[{}]")
            return ToolUse(named, Calling(allowed.mode), several, others=len(named) < len(known))
    return ToolUse(known, Calling(str(choice)), several)


def _named(known: Sequence[Tool], chosen: Sequence[NamedToolPart], path: str) -> tuple[Tool, ...]:
    """The tools that are chosen, in the order of `known`. path: of an entry, by its place."""
    names = [part.function.name for part in chosen]
    for place, name in enumerate(names):
        if all(tool.name != name for tool in known):
            raise InvalidRequestError(
                f"tool_choice names {name!r}, which is none of the tools",
                param=f"{path.format(place)}.function.name",
            )
    return tuple(tool for tool in known if tool.name in names)


def _check_names(tools: Sequence[ToolPart]) -> None:
    places: dict[str, int] = {}
    for place, tool in enumerate(tools):
        name = tool.function.name
        if name in places:
            raise InvalidRequestError(
                f"tools[{places[name]}] and tools[{place}] have the same name {name!r}",
                param=f"tools[{place}].function.name",
            )
        places[name] = place


def _function(part: FunctionPart, path: str) -> dict[str, Any]:
    parameters = _parameters(part)
    _check_schema(parameters, f"{path}.parameters")
    described = {} if part.description is None else {"description": part.description}
    return {"name": part.name, **described, "parameters": parameters}


def _parameters(part: FunctionPart) -> Mapping[str, Any]:
    return _NO_PARAMETERS if part.parameters is None else part.parameters


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
