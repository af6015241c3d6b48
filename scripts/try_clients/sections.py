"""Clients that are recorded: each talks for several turns and has to find its prompts cached."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from radixlm.assembly import DEMO_MODEL
from radixlm.testing.ports import free_port
from scripts.try_clients.ai_sdk import use_ai_sdk
from scripts.try_clients.coding_agents import use_claude_code, use_codex, use_qwen_code
from scripts.try_clients.constrained import use_guidance, use_outlines
from scripts.try_clients.environments import version_of
from scripts.try_clients.guidellm import use_guidellm
from scripts.try_clients.litellm_package import use_litellm, use_litellm_proxy
from scripts.try_clients.outcome import Outcome
from scripts.try_clients.place import Place
from scripts.try_clients.radixview import use_radixview
from scripts.try_clients.recorder import Change, Recorder, recording
from scripts.try_clients.recordings import Exchange, save
from scripts.try_clients.routers import use_sglang_router, use_vllm_router
from scripts.try_clients.server import KEY, Served, served

# What agents send is longer than the demo model learnt to read; what it writes then is rubbish.
_CONTEXT = 65_536
_FLAGS = ("--dtype", "float32", "--kv-tokens", "131072")


@dataclass(frozen=True, slots=True)
class Section:
    """package: what its version is that of. use: says what it did; raises where that fails."""

    package: str
    use: Callable[[Place], str]


SECTIONS: Mapping[str, Section] = {
    "codex": Section("@openai/codex", use_codex),
    "qwen-code": Section("@qwen-code/qwen-code", use_qwen_code),
    "claude-code": Section("@anthropic-ai/claude-agent-sdk", use_claude_code),
    "ai-sdk": Section("ai", use_ai_sdk),
    "litellm": Section("litellm", use_litellm),
    "litellm-proxy": Section("litellm", use_litellm_proxy),
    "guidellm": Section("guidellm", use_guidellm),
    "outlines": Section("outlines", use_outlines),
    "guidance": Section("guidance", use_guidance),
    "radixview": Section("radixview", use_radixview),
    "sglang-router": Section("sglang-router", use_sglang_router),
    "vllm-router": Section("vllm-router", use_vllm_router),
}


@contextmanager
def roomy(work: Path, *more: str) -> Iterator[Served]:
    """Serve the demo model with a context that agents have room in, until the block ends.

    more: flags of the server.
    """
    folder = work / "roomy"
    shutil.copytree(DEMO_MODEL, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = _CONTEXT
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    events = {"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{free_port()}", "bind": True}
    flags = (str(folder), *_FLAGS, *more, "--kv-events-config", json.dumps(events))
    with served(work, "roomy", flags) as server:
        yield server


@contextmanager
def watched(server: Served, folder: Path, change: Change | None = None) -> Iterator[Recorder]:
    """Record what is sent until the block ends, and keep it in a new folder, even if it fails."""
    folder.mkdir(parents=True)
    server.post("/flush_cache")  # nothing of another client's conversation is left
    with recording(server.url, change) as recorder:
        try:
            yield recorder
        finally:
            (folder / "sent.json").write_text(json.dumps([*map(asdict, recorder.exchanges)]))


def use_recorded(name: str, server: Served, work: Path, *, keep: bool) -> Outcome:
    """Run one of SECTIONS through a recorder. keep: write what it sent where the tests read it.

    Raises AssertionError where a request failed, or hardly any prompt was cached.
    """
    section = SECTIONS[name]
    folder = work / name
    with watched(server, folder) as recorder:
        did = section.use(Place(recorder.url, folder, server.folder))
    best = _check(recorder.exchanges)
    if keep:
        hidden = {
            recorder.url: "http://127.0.0.1:30000",
            KEY: "KEY",
            str(folder): "/work",
            re.sub(r"[^a-zA-Z0-9]", "-", str(folder)): "-work",  # as a name of a file
            socket.gethostname(): "host",
        }
        save(name, recorder.exchanges, hidden)
    return Outcome(
        client=name,
        version=version_of(section.package),
        did=did,
        numbers={"cached_percent_of_best_turn": round(100 * best, 1)},
    )


def _check(exchanges: Sequence[Exchange]) -> float:
    """The largest share of a prompt that was cached. Raises AssertionError."""
    asked = accepted(exchanges)
    best = max((each.cached or 0) / each.prompt for each in asked if each.prompt)
    assert best > 0.5, f"of no prompt more than {best:.0%} was cached"
    return best


def accepted(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """What the model was asked for. Raises AssertionError if that is nothing, or was refused."""
    asked = [exchange for exchange in exchanges if exchange.asks]
    assert asked, "nothing was asked"
    bad = [f"{each.path}: {each.status}" for each in asked if each.status != 200]
    assert not bad, f"refused: {'; '.join(bad)}"
    return asked
