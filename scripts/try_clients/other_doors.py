"""Clients of what is beside chats: embeddings, rerankers, conversations, Ollama's API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.try_clients.drivers.asked import CITY, QUESTIONS, SYSTEM
from scripts.try_clients.environments import node_folder, python_of, version_of
from scripts.try_clients.outcome import Outcome
from scripts.try_clients.place import Place
from scripts.try_clients.server import KEY, MODEL, Served


@dataclass(frozen=True, slots=True)
class Door:
    """driver: a module of `drivers`, or a file for node. did: what it does."""

    driver: str
    did: str


DOORS: Mapping[str, Door] = {
    "llama-index": Door(
        "llama_index_retrieval", "documents into an index, the nearest found, a question answered"
    ),
    "cohere": Door("cohere_rerank", "rerank by Client and ClientV2, top_n, another model refused"),
    "openai-agents": Door(
        "agents_session",
        "sessions in conversations: turns, a stream, pop_item, 45 items added, clear_session; "
        "conversation_id, two answers at once of which one is tried again",
    ),
    "ollama-python": Door(
        "ollama_calls", "list, ps, show, chat, a stream, a form, a tool, generate, embed; refusals"
    ),
    "ollama-js": Door("ollama_calls.mjs", "list, show, chat, a stream, a form, embed; a refusal"),
}


def use_door(name: str, server: Served, work: Path) -> Outcome:
    """Raises RuntimeError with the end of the client's output."""
    door, place = DOORS[name], Place(server.url, work / name, server.folder)
    if not door.driver.endswith(".mjs"):
        place.drive(python_of(name), door.driver)
        return Outcome(name, version_of(name), door.did)
    script = Path(__file__).parent / "drivers" / door.driver
    asked = json.dumps({"system": SYSTEM, "questions": QUESTIONS, "schema": CITY})
    command = ["node", "--input-type=module", "-", server.url, KEY, MODEL, asked]
    place.run(command, node_folder(), text=script.read_text(encoding="utf-8"))
    return Outcome(name, version_of("ollama"), door.did)
