"""The conversation that most clients have: a few turns under one system prompt, one with a call."""

from __future__ import annotations

import sys
from typing import Any

SYSTEM = (
    "You are a helpful guide for travellers in Europe. Answer in one short sentence. "
    "When you do not know something, say so, and name a place where one could ask."
)
QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Spain?",
    "And what is 12 + 17?",
)
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": CITY,
        "strict": True,
    },
}
WEATHER = "12 degrees"
DOCUMENTS = (
    "The capital of France is Paris.",
    "There was a little cat who lived in a house near the forest.",
    "The sum of 12 and 17 is 29.",
    "It is cold in the north in winter, and dark.",
)
FOUND = 2  # the one that is looked for


def check(cached: list[int]) -> None:
    """Every turn but the first must have found cached tokens. Raises AssertionError."""
    assert len(cached) > 1, cached
    assert all(count > 0 for count in cached[1:]), f"cached tokens by turn: {cached}"


def arguments() -> tuple[str, str, str]:
    """The server's address without /v1, the key and the model's name."""
    url, key, model = sys.argv[1:4]
    return url, key, model
