"""Fields that say what an answer must look like, and the grammar they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import ANY_OBJECT, Grammar
from radixlm.server.http.body import Body, ListOf
from radixlm.server.http.fields import NotYet

# By vLLM's names.
_GUIDED: Mapping[str, Callable[..., Grammar]] = {
    "json": Grammar.json_schema,
    "json_object": Grammar.json_schema,
    "regex": Grammar.regex,
    "choice": Grammar.choice,
    "grammar": Grammar.lark,
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
        made = {}
        if self.json_schema is not None:
            made["json_schema"] = Grammar.json_schema(self.json_schema, param="json_schema")
        if self.regex is not None:
            made["regex"] = Grammar.regex(self.regex, param="regex")
        if self.ebnf is not None:
            made["ebnf"] = Grammar.lark(self.ebnf, param="ebnf")
        return made


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
        made = super().grammars() | self._guided()
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

    def _guided(self) -> dict[str, Grammar]:
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        }
        if self.structured_outputs is not None:
            inside = self.structured_outputs.model_dump(by_alias=True)
            if inside.pop("json_object"):
                inside["json_object"] = ANY_OBJECT
            # guidance says the same by both names, for older and newer servers.
            given |= {
                f"structured_outputs.{name}": value
                for name, value in inside.items()
                if value != given.get(f"guided_{name}")
            }
        return {
            name: _GUIDED[name.removeprefix("guided_").rpartition(".")[2]](value, param=name)
            for name, value in given.items()
            if value is not None
        }


def one_of(grammars: Mapping[str, Grammar]) -> Grammar | None:
    """The only one, None where there is none. Raises InvalidRequestError for more."""
    first, *others = [*grammars, None]
    if len(others) > 1:
        raise InvalidRequestError(f"give {first} or {others[0]}, not both", param=others[0])
    return grammars[first] if first is not None else None
