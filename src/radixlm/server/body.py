"""From bytes on the wire to a checked request model: validation begins here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from radixlm.core.errors import InvalidRequestError
from radixlm.server.errors import BodyTimeoutError, BodyTooLargeError
from radixlm.server.service import service_of

_UNION_MEMBER = re.compile(r"(str|int|float|bool|list\[.*\]|\w+Part|\w+Params)\Z")

# Fields that ask for nothing which changes the answer here.
HARMLESS = frozenset(
    {
        "annotations",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "refusal",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Fields that are known but not supported yet, and the values that ask for nothing.
NOT_YET: Mapping[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "tool_calls": ([],),
    "tool_call_id": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "lora_path": (),
    "image_url": (),
    "input_audio": (),
    "file": (),
    "spaces_between_special_tokens": (True,),
    "no_stop_trim": (False,),
    "stop_regex": (),
    "structural_tag": (),
    "custom_params": (),
    "custom_logit_processor": (),
    "stream_interval": (1,),
    "log_metrics": (True,),
    "background": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "token_ids_logprob": (),
    "input_embeds": (),
    "image_data": (),
    "audio_data": (),
    "video_data": (),
    "session_params": (),
    "chat_template": (),
    "continuous_usage_stats": (False,),
    "include_obfuscation": (False,),
}

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request) -> bytes:
    """The request's body.

    Raises BodyTooLargeError as soon as it is longer than --max-request-bytes, BodyTimeoutError when
    it has not come whole within --body-timeout.
    """
    config = service_of(request).config
    try:
        async with asyncio.timeout(config.body_timeout or None):
            return await _read(request, config.max_request_bytes)
    except TimeoutError:
        raise BodyTimeoutError(
            f"the request's body took longer than --body-timeout {config.body_timeout:g} s"
        ) from None


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    body = bytearray()
    if not declared.isdecimal() or int(declared) <= limit:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                break
        else:
            return bytes(body)
    raise BodyTooLargeError(f"the request's body is longer than {limit} bytes")


def parse_body(model: type[M], body: bytes) -> M:
    """Make a `model` from JSON. Raises InvalidRequestError that names the first wrong field.

    Fields that are unknown, or known and not supported yet, are errors too: nothing that a client
    asks for is left out in silence.
    """
    try:
        parsed = model.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False)) from None
    check_extras(parsed, "")
    return parsed


def check_extras(model: BaseModel, path: str) -> None:
    """Refuse what a model, or a model inside it, was given beyond its fields."""
    for name, value in (model.model_extra or {}).items():
        _check_extra(path + name, name, value)
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            check_extras(value, f"{path}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for place, item in enumerate(value):
                check_extras(item, f"{path}{name}[{place}].")


def _check_extra(path: str, name: str, value: object) -> None:
    if name in HARMLESS or (name in NOT_YET and (value is None or _among(value, NOT_YET[name]))):
        return
    known = "is not supported yet" if name in NOT_YET else "is not a field of this request"
    raise InvalidRequestError(f"{path} {known}; leave it out", param=path)


def _among(value: object, values: Sequence[object]) -> bool:
    """Whether JSON holds them for the same: to Python 0 is False too."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )


def _explain(errors: Sequence[ErrorDetails]) -> InvalidRequestError:
    """One error about the first wrong field, as far into it as any of its types could read."""
    if errors[0]["type"] == "json_invalid":
        return InvalidRequestError(f"the body is not valid JSON: {errors[0]['ctx']['error']}")
    field = [entry for entry in errors if entry["loc"][:1] == errors[0]["loc"][:1]]
    worst = max(field, key=lambda entry: _places(entry["loc"]))
    param = _field_path(worst["loc"])
    wishes = [entry["msg"] for entry in field if _field_path(entry["loc"]) == param]
    got = "" if worst["type"] == "missing" else f" (got {worst['input']!r:.80})"
    text = ", or ".join(dict.fromkeys(wishes))
    return InvalidRequestError(f"{param or 'the body'}: {text}{got}", param=param or None)


def _places(location: tuple[int | str, ...]) -> tuple[int, ...]:
    return tuple(part for part in location if isinstance(part, int))


def _field_path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content` for ("messages", 0, "content", "str"): without the union's member."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_MEMBER.match(part):
            path += f".{part}" if path else part
    return path


def named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given: null means the default."""
    return {name: value for name, value in values.items() if value is not None}
