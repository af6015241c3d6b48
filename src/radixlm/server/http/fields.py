"""Fields of the published APIs that this server does not act on: the one place where they stand.

And the rule for all that a request model does not have. What a table knows to ask for what can not
be done is refused by its name, and so is what is mistyped; what nobody here knows is passed over,
which the log and `cache_report` say: clients send what their newest servers read. With
--strict-fields it is refused, only what a table holds may ask for nothing, and what came with an
answer may not come back.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from radixlm.core import sampling
from radixlm.core.grammar import MAX_GRAMMAR_LENGTH

# Taken with any value, because there is nothing to do for them here: who asks (`user`,
# `safety_identifier`, `metadata`), which of many servers may have the prompt cached
# (`prompt_cache_key`: it divides nothing, as `cache_salt` does), which of vLLM's libraries is to
# follow a grammar (there is one here).
REQUEST_NO_OPS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "safety_identifier",
        "user",
        "guided_decoding_backend",
    }
)
# What came with an answer, when it is sent back as a message.
MESSAGE_NO_OPS = frozenset({"annotations"})
# The same from answers that a client's own libraries put together, or that another server gave:
# what they say of the text stands in the message's own fields, too.
MESSAGE_ECHOES = frozenset(
    {
        "extra_content",
        "id",
        "parsed",
        "provider_specific_fields",
        "reasoning_details",
        "reasoning_items",
        "thinking_blocks",
    }
)
CALL_ECHOES = frozenset({"extra_content", "parsed_arguments", "provider_specific_fields"})

NotYet = Mapping[str, tuple[object, ...]]


def _with(names: str, *values: object) -> NotYet:
    return dict.fromkeys(names.split(), values)


# Known but not supported yet, by the values that ask for nothing; null always does, and so does
# false, where true is not among them. Of OpenAI's chat and completions, and of SGLang's and vLLM's
# routes.
NOT_YET: NotYet = {
    **_with("tools tool_calls functions bad_words documents", []),
    **_with("tool_choice function_call", "none", "auto"),
    # Chats are never stored; there is no route that would give one again.
    **_with("store parallel_tool_calls log_metrics", True, False),
    # Thoughts come apart from the answer, and in streams, and are always given.
    **_with("separate_reasoning stream_reasoning include_reasoning", True),
    **_with("cache_prompt spaces_between_special_tokens detokenize", True),
    **_with("use_beam_search no_stop_trim include_stop_str_in_output background", False),
    **_with("return_hidden_states return_routed_experts return_entropy include_obfuscation", False),
    **_with("refusal suffix", ""),
    **_with("custom_params vllm_xargs session_params", {}),
    **_with("stream_interval best_of", 1),
    **_with("length_penalty", 1.0),
    **_with("modalities", ["text"]),
    # How long an answer should be is the model's to know, and templates have no word for it.
    **_with("verbosity", "low", "medium", "high"),
    # In prompts without messages there is no place to mark; every prefix of them is cached.
    **_with("prompt_cache_options", {}, {"mode": "implicit"}),
    **_with("stop_regex", [], ""),
    **_with("chat_template_content_format", "auto"),
    **_with("tool_call_id moderation audio web_search_options prompt_cache_breakpoint"),
    **_with("guided_whitespace_pattern image_url input_audio file structural_tag"),
    **_with("custom_logit_processor prompt_logprobs allowed_token_ids truncate_prompt_tokens"),
    **_with("thinking_token_budget token_ids_logprob input_embeds chat_template"),
    **_with("image_data audio_data video_data", [], ""),
}
# Fields of images, sound and files, which no model here is given.
OF_OTHER_KINDS = frozenset(
    {
        *("image_url", "input_audio", "file", "file_id", "file_data", "file_url"),
        *("image_data", "audio_data", "video_data", "images"),
    }
)
TEXT_ALONE = "this model is served for text alone"
# What would make another answer, by names of other APIs and servers: left out it would be missed.
# Where a body has such a field it is that.
ELSEWHERE = frozenset(
    {
        *sampling.RANGES,
        *("messages", "prompt", "input", "input_ids", "instructions", "system", "sampling_params"),
        *("max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict"),
        *("num_predict", "stop", "stop_sequences", "n", "options", "logit_bias"),
        *("repeat_penalty", "typical_p", "top_a", "tfs_z", "mirostat", "dry_multiplier"),
        "xtc_probability",
        *("response_format", "output_format", "format", "grammar", "json_schema", "regex", "ebnf"),
        *("tools", "functions", "tool_choice", "function_call", "tool_config"),
        *("reasoning_effort", "effort", "think", "enable_thinking", "chat_template_kwargs"),
        *("continue_final_message", "prefix", "partial", "echo", "extra_body"),
    }
)
# What OpenAI once called what has another name here.
INSTEAD: Mapping[str, str] = {
    "functions": "tools",
    "function_call": "tool_choice, or tool_calls in a message,",
}


def asks_for_nothing(name: str, value: object, not_yet: NotYet, *, strict: bool) -> bool:
    """Whether a field that no model has holds a value that changes nothing.

    strict: only what is in `not_yet` may.
    """
    if strict and name not in not_yet:
        return False
    return any(_same(value, each) for each in neutral_values(not_yet.get(name, ()), strict=strict))


def neutral_values(known: tuple[object, ...], *, strict: bool) -> list[object]:
    """All values that ask for nothing, of a field whose table has `known`."""
    off = [] if strict or any(_same(True, each) for each in known) else [False]
    return [*known, *off, None]


def _same(value: object, other: object) -> bool:
    """Compare as JSON does: to Python 0 is False too, while 1.0 is one way to write 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


# The JSON schemas of bodies, with what is checked beyond their fields' types.
Schema = dict[str, Any]

# A key of `logit_bias`.
TOKEN_KEY = re.compile(r"[0-9]{1,10}")

_PROMPTS = frozenset({"prompt", "input_ids", "tokens"})
_STOPS = frozenset({"stop_token_ids"})
_LENGTHS = frozenset({"max_tokens", "max_completion_tokens", "max_new_tokens"})
# Under this a body's schema holds, until `fit_schema`, what depends on flags.
_BODY = "x-body"
# What the engine calls otherwise.
_RANGES: Mapping[str, sampling.Range] = {
    **sampling.RANGES,
    "max_completion_tokens": sampling.RANGES["max_tokens"],
    "max_new_tokens": sampling.RANGES["max_tokens"]._replace(low=0),
    "min_new_tokens": sampling.RANGES["min_tokens"],
    "sampling_seed": sampling.RANGES["seed"],
    "top_logprobs": sampling.RANGES["logprobs"],
    "top_logprobs_num": sampling.RANGES["logprobs"],
    "logprob_start_len": sampling.RANGES["logprob_start_len"]._replace(low=-1),
    **dict.fromkeys(_PROMPTS | _STOPS, sampling.TOKEN_IDS),
    "logit_bias": sampling.BIASES,
}
_GRAMMARS = ("json_schema", "regex", "ebnf", "json", "grammar")
_GUIDED = ("guided_json", "guided_regex", "guided_grammar")
_GRAMMAR: Schema = {"minLength": 1, "maxLength": MAX_GRAMMAR_LENGTH}
_LISTS = ["choice", "guided_choice", "prompt", "text", "input_ids"]
_KEYS = {"pattern": f"^{TOKEN_KEY.pattern}$"}
# Of a field's strings, arrays and objects.
_LIMITS: Mapping[tuple[str, str], Schema] = {
    **{(name, "string"): _GRAMMAR for name in (*_GRAMMARS, *_GUIDED)},
    **{(name, "array"): {"minItems": 1} for name in _LISTS},
    ("stop", "string"): {"minLength": 1, "maxLength": sampling.MAX_STOP_LENGTH},
    ("stop", "array"): {"maxItems": sampling.MAX_STOP_STRINGS},
    ("stop_token_ids", "array"): {"maxItems": sampling.MAX_STOP_TOKENS},
    ("logit_bias", "object"): {"maxProperties": sampling.MAX_LOGIT_BIAS, "propertyNames": _KEYS},
}


def describe_body(schema: Schema, model: type[BaseModel]) -> None:
    """Complete `schema`, which pydantic made of a model that `parse_body` reads."""
    schema["additionalProperties"] = True
    schema["patternProperties"] = _ignored(model, strict=False)
    strict = {"additionalProperties": False, "patternProperties": _ignored(model, strict=True)}
    schema[_BODY] = {"strict": strict, "answered": getattr(model, "answered", True)}


def fit_schema(
    schema: Schema, names: Sequence[str], vocab_size: int, longest: int, *, strict: bool
) -> None:
    """Narrow a body's `schema` to a model: its names, its token ids, prompts and answers that fit.

    names: the model's, then those of its adapters. longest: tokens that prompt and answer may have
    together. strict: --strict-fields.
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
        fields["model"] = {"enum": [*names, None], "default": None}
    if "lora_path" in fields and "lora_name" not in fields:
        fields["lora_path"] = {"enum": [*names[1:], None], "default": None}
    limits = {_PROMPTS: vocab_size - 1}
    if body["answered"]:
        limits |= {_STOPS: vocab_size - 1, **({_LENGTHS: longest - 1} if strict else {})}
    for kinds, most in limits.items():
        for field in kinds & fields.keys():
            for part in _parts(fields[field]):
                # One of another width says of itself how much it takes.
                if part.get("maximum") == _RANGES[field].high:
                    part["maximum"] = most


def _narrow(name: str, part: Schema) -> None:
    kind = part.get("type", "")
    part.update(_LIMITS.get((name, kind), {}))
    if kind in ("integer", "number") and name in _RANGES:
        low, high, open_below = _RANGES[name]
        # What a field says of itself goes before what the engine takes.
        part.setdefault("exclusiveMinimum" if open_below else "minimum", low)
        part.setdefault("maximum", high)


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
        not_yet = {**dict.fromkeys(ELSEWHERE - no_ops, ()), **not_yet}
    names: dict[str, list[str]] = defaultdict(list)
    for name in sorted(not_yet.keys() - model.model_fields.keys() - no_ops):
        names[json.dumps(neutral_values(not_yet[name], strict=strict))].append(name)
    patterns: Schema = {_pattern(no_ops): {}} if no_ops else {}
    for values_json, group in names.items():
        patterns[_pattern(group)] = {"enum": json.loads(values_json)}
    return patterns


def _pattern(names: Iterable[str]) -> str:
    return f"^({'|'.join(map(re.escape, sorted(names)))})$"
