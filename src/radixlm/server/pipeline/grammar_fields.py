"""Fields that say what an answer must look like, and the grammar they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import ANY_OBJECT, Grammar
from radixlm.server.http.body import Body, ListOf
from radixlm.server.http.fields import NotYet

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


class GrammarFields(Body):
    """What must be followed, as SGLang names it; one at most. A schema is an object, or its text.

    Source: https://docs.sglang.ai/advanced_features/structured_outputs.html.
    """

    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None

    def grammar(self) -> Grammar | None:
        """What the answer must follow, None for nothing. Raises InvalidRequestError."""
        return one_of(self.grammars())

    def grammars(self) -> dict[str, Grammar]:
        """By the fields that ask for one. Raises InvalidRequestError."""
        return {
            name: make(value, param=name)
            for name, make in _MAKERS.items()
            if (value := getattr(self, name, None)) is not None
        }


class StructuredOutputs(Body):
    """What must be followed, as vLLM names it. grammar: as `ebnf`.

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
        """As GrammarFields.grammars."""
        made = super().grammars() | self._structured()
        wanted = self.response_format
        if wanted is None:
            return made
        if (wanted.type == "json_schema") != (wanted.json_schema is not None):
            there = "is missing" if wanted.json_schema is None else f"is not of type {wanted.type}"
            field = "response_format.json_schema"
            raise InvalidRequestError(f"{field} {there}", param=field)
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
