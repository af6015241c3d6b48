"""Vercel's AI SDK for Node.js: its providers openai (responses), openai-compatible, anthropic."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.try_clients.drivers.asked import CITY, QUESTIONS, SYSTEM, WEATHER
from scripts.try_clients.environments import node_folder
from scripts.try_clients.place import Place
from scripts.try_clients.server import KEY, MODEL

_DRIVER = Path(__file__).parent / "drivers" / "ai_sdk.mjs"


def use_ai_sdk(place: Place) -> str:
    asked = {"system": SYSTEM, "questions": QUESTIONS, "schema": CITY, "weather": WEATHER}
    command = ["node", "--input-type=module", "-", place.url, KEY, MODEL, json.dumps(asked)]
    place.run(command, node_folder(), text=_DRIVER.read_text(encoding="utf-8"))
    return "openai (responses), openai-compatible and anthropic: turns, a call, a stream each"
