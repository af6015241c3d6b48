"""What several clients ask, and what the demo model learnt to answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
ASKED: Any = [{"role": "user", "content": QUESTION}]
WEATHER = "12 degrees"
# The model learnt no calls: a strict schema and tool_choice leave it only the choice of a city.
CITY_SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class City(BaseModel):
    """What an answer must be."""

    name: Literal["Paris", "Oslo"]
    rank: Literal[1, 2]
