"""Fields that say what an answer may call and must look like: tools as clients describe them, and
grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.core.grammar import ANY_OBJECT, Grammar
from radixlm.parsers.tools import Calling, Tool, ToolUse
from radixlm.server.bodies.cache_control import CacheControl
from radixlm.server.http.body import Body, ListOf
from radixlm.server.http.fields import CALL_ECHOES, NotYet

# Templates write them all, and a grammar that must have a call knows each.
MAX_TOOLS = 1_024
MAX_NAME = 128
# What OpenAI takes a tool without parameters to mean.
_NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}

# It stands in prompts, answers and grammars; servers of tools put dots and slashes of theirs in.
Name = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_./:-]{{1,{MAX_NAME}}}$")]
# What a field's value is made of.
_MAKERS: Mapping[str, Callable[..., Grammar]] = {
    "json_schema": Grammar.json_schema,
    "regex": Grammar.regex,
    "ebnf": Grammar.lark,
    "guided_json": Grammar.json_schema,
    "guided_regex": Grammar.regex,
    "guided_choice": Grammar.choice,
    "guided_grammar": Grammar.lark,
}


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
    made = []
    for tool in tools:
        if tool.name in paths:
            raise InvalidRequestError(
                f"{paths[tool.name]} and {tool.path} have the same name {tool.name!r}",
                param=f"{tool.fields}.name",
            )
        paths[tool.name] = tool.path
        _check_schema(tool.given, f"{tool.fields}.{tool.schema}")
        described = {} if tool.description is None else {"description": tool.description}
        function = {"name": tool.name, **described, "parameters": tool.given}
        made.append({"type": "function", "function": function})
    return made


def tool_use(
    tools: Sequence[ToolSpec],
    calling: Calling | None,
    chosen: Mapping[str, str] | None = None,
    *,
    parallel: bool,
) -> ToolUse:
    """The tools that an answer may call. Raises InvalidRequestError that names the field.

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
        raise wrong(f"{path}.type", f"must be 'object', got {schema['type']!r:.80}")
    for name, kind in (("properties", dict), ("required", list)):
        value = schema.get(name, kind())
        if not isinstance(value, kind):
            wanted = "an object" if kind is dict else "an array"
            raise wrong(f"{path}.{name}", f"must be {wanted}, got {value!r:.80}")


class GrammarFields(Body):
    """The grammar that must be followed, as SGLang names it; one at most. A schema is an object, or
    its text.

    Source: https://docs.sglang.ai/advanced_features/structured_outputs.html.
    """

    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None

    def grammars(self) -> dict[str, Grammar]:
        """The grammars by the fields that ask for one. Raises InvalidRequestError."""
        return {
            name: make(value, param=name)
            for name, make in _MAKERS.items()
            if (value := getattr(self, name, None)) is not None
        }


class StructuredOutputs(Body):
    """The grammar that must be followed, as vLLM names it. grammar: as `ebnf`.

    Source: https://docs.vllm.ai/en/latest/features/structured_outputs.
    """

    not_yet: ClassVar[NotYet] = {
        "structural_tag": (),
        # There is nothing to fall back to, and no white space but what `json.dumps` writes.
        "disable_fallback": (True, False),
        "disable_any_whitespace": (True, False),
    }

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None
    regex: str | None = None
    choice: ListOf[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


# What OpenAI calls a schema by.
Label = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class SchemaFormat(Body):
    """name and description are labels. strict: the schema is followed whatever it says."""

    name: Label
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class ResponseFormatField(GrammarFields):
    """OpenAI's name for it, and vLLM's, the older ones too.

    Source: https://platform.openai.com/docs/guides/structured-outputs.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: ListOf[str] | None = None
    guided_grammar: str | None = None

    def grammars(self) -> dict[str, Grammar]:
        """The grammars, as in GrammarFields."""
        made = super().grammars() | self._structured()
        wanted = self.response_format
        if wanted is None:
            return made
        if (wanted.type == "json_schema") != (wanted.json_schema is not None):
            there = "is missing" if wanted.json_schema is None else f"is not of type {wanted.type}"
            raise wrong("response_format.json_schema", there)
        if wanted.type != "text":
            schema = None if wanted.json_schema is None else wanted.json_schema.schema_
            made["response_format"] = Grammar.json_schema(
                ANY_OBJECT if schema is None else schema, param="response_format"
            )
        return made

    def _structured(self) -> dict[str, Grammar]:
        """guidance says the same by both of vLLM's names, for older and newer servers."""
        if self.structured_outputs is None:
            return {}
        given = self.structured_outputs.model_dump(by_alias=True)
        if given.pop("json_object"):
            given["json_object"] = ANY_OBJECT
        made = {}
        for name, value in given.items():
            older, param = f"guided_{name}", f"structured_outputs.{name}"
            if value is not None and value != getattr(self, older, None):
                make = _MAKERS[older if older in _MAKERS else "guided_json"]
                made[param] = make(value, param=param)
        return made


def one_of(grammars: Mapping[str, Grammar]) -> Grammar | None:
    """The only one, None where there is none. Raises InvalidRequestError for more."""
    first, *others = [*grammars, None]
    if len(others) > 1:
        raise InvalidRequestError(f"give {first} or {others[0]}, not both", param=others[0])
    return grammars[first] if first is not None else None
