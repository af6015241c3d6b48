"""Images, sound and files in a request get a 400 that says so, in every API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server_support import refused

SAID = "this model is served for text alone"
_URL = "data:image/png;base64,iVBORw0KGgo="
_BASE64 = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
_RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}
_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *parts]}]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_url", "image_url": {"url": _URL}}, "image_url"),
        ({"type": "image_url"}, "type"),
        ({"type": "video_url", "video_url": {"url": _URL}}, "type"),
        ({"type": "audio_url", "audio_url": {"url": _URL}}, "type"),
        ({"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}, "input_audio"),
        ({"type": "file", "file": {"file_id": "f"}}, "file"),
    ],
)
def test_in_a_chat(fake, part, field):
    error = refused(fake.post("/v1/chat/completions", messages=user(part)))
    assert error["param"] == f"messages[0].content[1].{field}"
    assert SAID in error["message"]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "input_image", "image_url": _URL, "detail": "auto"}, "image_url"),
        ({"type": "input_image", "file_id": "f"}, "file_id"),
        ({"type": "input_image"}, "type"),
        ({"type": "input_file", "file_data": "x", "filename": "a.pdf"}, "file_data"),
    ],
)
def test_in_responses(fake, part, field):
    said = {"role": "user", "content": [part]}
    error = refused(fake.post("/v1/responses", input=[said]))
    assert error["param"] == f"input[0].content[0].{field}"
    assert SAID in error["message"]
    result = {"type": "function_call_output", "call_id": "c", "output": [part]}
    error = refused(fake.post("/v1/responses", input=[_CALL, result]))
    assert error["param"] == f"input[1].output[0].{field}"
    assert SAID in error["message"]


@pytest.mark.parametrize(
    ("block", "place"),
    [
        ({"type": "image", "source": _BASE64}, ""),
        ({"type": "document", "source": {**_BASE64, "media_type": "application/pdf"}}, ".source"),
        ({"type": "document", "source": {"type": "url", "url": _URL}}, ".source"),
        ({"type": "document", "source": {"type": "file", "file_id": "f"}}, ".source"),
        (_RESULT, ".content[0]"),
    ],
)
def test_in_messages(fake, block, place):
    error = refused(fake.post("/v1/messages", max_tokens=4, messages=user(block)))
    assert error["message"].startswith(f"messages[0].content[1]{place}")
    assert SAID in error["message"]


@pytest.mark.parametrize("field", ["image_data", "audio_data", "video_data"])
@pytest.mark.parametrize("none", [None, [], ""])
def test_none_of_them_is_none(fake, field, none):
    assert fake.post("/generate", text="xyzab", **{field: none}).status_code == 200


@pytest.mark.parametrize("field", ["image_data", "audio_data", "video_data"])
def test_in_sglang_s_own_route(fake, field):
    error = refused(fake.post("/generate", text="xyzab", **{field: [_URL]}))
    assert error["param"] == field
    assert SAID in error["message"]
