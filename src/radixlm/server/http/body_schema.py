"""The JSON schema of a request's body, with what is checked beyond its fields' types."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from radixlm.core.grammar import MAX_GRAMMAR_LENGTH
from radixlm.core.sampling import (
    BIASES,
    MAX_LOGIT_BIAS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    RANGES,
    TOKEN_IDS,
    Range,
)
from radixlm.server.http.fields import NOT_YET, NotYet, neutral_values

Schema = dict[str, Any]

# A key of `logit_bias`.
TOKEN_KEY = re.compile(r"[0-9]{1,10}")

_PROMPTS = frozenset({"prompt", "input_ids", "tokens"})
_STOPS = frozenset({"stop_token_ids"})
_LENGTHS = frozenset({"max_tokens", "max_completion_tokens", "max_new_tokens"})
# Under this a body's schema holds, until `fit_schema`, what depends on flags.
_BODY = "x-body"
# What the engine calls otherwise.
_RANGES: Mapping[str, Range] = {
    **RANGES,
    "max_completion_tokens": RANGES["max_tokens"],
    "max_new_tokens": RANGES["max_tokens"]._replace(low=0),
    "min_new_tokens": RANGES["min_tokens"],
    "sampling_seed": RANGES["seed"],
    "top_logprobs": RANGES["logprobs"],
    "top_logprobs_num": RANGES["logprobs"],
    "logprob_start_len": RANGES["logprob_start_len"]._replace(low=-1),
    **dict.fromkeys(_PROMPTS | _STOPS, TOKEN_IDS),
    "logit_bias": BIASES,
}
_GRAMMARS = (
    *("json_schema", "regex", "ebnf", "json", "grammar"),
    *("guided_json", "guided_regex", "guided_grammar"),
)
_GRAMMAR: Schema = {"minLength": 1, "maxLength": MAX_GRAMMAR_LENGTH}
_STRINGS: Mapping[str, Schema] = {
    "stop": {"minLength": 1, "maxLength": MAX_STOP_LENGTH},
    **dict.fromkeys(_GRAMMARS, _GRAMMAR),
}
_ARRAYS: Mapping[str, Schema] = {
    "stop": {"maxItems": MAX_STOP_STRINGS},
    "stop_token_ids": {"maxItems": MAX_STOP_TOKENS},
    "choice": {"minItems": 1},
    "guided_choice": {"minItems": 1},
    "prompt": {"minItems": 1},
    "text": {"minItems": 1},
    "input_ids": {"minItems": 1},
}
_OBJECTS: Mapping[str, Schema] = {
    "logit_bias": {
        "maxProperties": MAX_LOGIT_BIAS,
        "propertyNames": {"pattern": f"^{TOKEN_KEY.pattern}$"},
    }
}


def describe_body(schema: Schema, model: type[BaseModel]) -> None:
    """Complete `schema`, which pydantic made of a model that `parse_body` reads."""
    schema["additionalProperties"] = {"enum": neutral_values((), strict=False)}
    schema["patternProperties"] = _ignored(model, strict=False)
    strict = {"additionalProperties": False, "patternProperties": _ignored(model, strict=True)}
    schema[_BODY] = {"strict": strict, "answered": getattr(model, "answered", True)}


def fit_schema(schema: Schema, name: str, vocab_size: int, longest: int, *, strict: bool) -> None:
    """Narrow a body's `schema` to a model: its name, its token ids, prompts and answers that fit.

    longest: tokens that prompt and answer may have together. strict: --strict-fields.
    """
    body = schema.pop(_BODY, None)
    if body is None:
        return
    if strict:
        schema.update(body["strict"])
    fields = schema.get("properties", {})
    for field, described in fields.items():
        for part in _parts(described):
            _narrow(field, part)
    if "model" in fields:
        fields["model"] = {"enum": [name, None], "default": None}
    limits = {_PROMPTS: vocab_size - 1}
    if body["answered"]:
        limits |= {_STOPS: vocab_size - 1, _LENGTHS: longest - 1}
    for names, most in limits.items():
        for field in names & fields.keys():
            for part in _parts(fields[field]):
                # One of another width says of itself how much it takes.
                if part.get("maximum") == _RANGES[field].high:
                    part["maximum"] = most


def _narrow(name: str, part: Schema) -> None:
    match part.get("type"):
        case "integer" | "number" if name in _RANGES:
            low, high, open_below = _RANGES[name]
            # What a field says of itself goes before what the engine takes.
            part.setdefault("exclusiveMinimum" if open_below else "minimum", low)
            part.setdefault("maximum", high)
        case "string":
            part.update(_STRINGS.get(name, {}))
        case "array":
            part.update(_ARRAYS.get(name, {}))
        case "object":
            part.update(_OBJECTS.get(name, {}))


def _parts(schema: Schema) -> Iterable[Schema]:
    """A field's schema and those inside it: of its alternatives, its entries, its values."""
    yield schema
    inside = [*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")]
    for part in inside:
        if isinstance(part, dict):
            yield from _parts(part)


def _ignored(model: type[BaseModel], *, strict: bool) -> Schema:
    """Fields that are taken: those without effect, others with the values that ask for nothing.

    Not as properties: they should not be offered to those who read the schema.
    """
    no_ops: frozenset[str] = getattr(model, "no_ops", frozenset())
    not_yet: NotYet = getattr(model, "not_yet", NOT_YET)
    if not strict:
        no_ops |= getattr(model, "echoes", frozenset())
    names: dict[str, list[str]] = defaultdict(list)
    for name in sorted(not_yet.keys() - model.model_fields.keys()):
        names[json.dumps(neutral_values(not_yet[name], strict=strict))].append(name)
    patterns: Schema = {_pattern(no_ops): {}} if no_ops else {}
    for values_json, group in names.items():
        patterns[_pattern(group)] = {"enum": json.loads(values_json)}
    return patterns


def _pattern(names: Iterable[str]) -> str:
    return f"^({'|'.join(map(re.escape, sorted(names)))})$"
