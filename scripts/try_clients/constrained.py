"""outlines and guidance: the clients that hold an answer to a form, as they ask vLLM for it."""

from __future__ import annotations

from scripts.try_clients.environments import python_of
from scripts.try_clients.place import Place


def use_outlines(place: Place) -> str:
    place.drive(python_of("outlines"), "outlines_vllm")
    return "from_vllm: text, a choice, a schema, an expression, a grammar, a stream, in one chat"


def use_guidance(place: Place) -> str:
    place.drive(python_of("guidance"), "guidance_vllm")
    return "VLLMModel: a choice, an expression, free text and a schema, in one chat"
