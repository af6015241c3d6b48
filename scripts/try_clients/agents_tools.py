"""Agents that call tools under chat templates of other models: three turns, a call in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from scripts.try_clients.coding_agents import FILE, PROJECT
from scripts.try_clients.drivers.asked import QUESTIONS
from scripts.try_clients.environments import version_of
from scripts.try_clients.forced_calls import ForcedCalls, calls_and_results, unforced
from scripts.try_clients.outcome import Outcome
from scripts.try_clients.place import Place
from scripts.try_clients.recordings import Exchange
from scripts.try_clients.report import Report
from scripts.try_clients.sections import SECTIONS, accepted, roomy, watched
from scripts.try_clients.server import KEY, Served

# Of the prompt before: a template may write the last turn in another way once it has ended.
LEAST_CACHED = 0.95
# Of another session's first prompt: the instructions and tools, not what follows the question.
LEAST_SHARED = 0.75
_OTHER_QUESTION = "Which file is in this folder?"
# The tool, its one argument, and the value of that, made from the file that the project has.
AGENTS: Mapping[str, tuple[str, str, Callable[[Path], str]]] = {
    "claude-code": ("Read", "file_path", str),
    "qwen-code": ("read_file", "file_path", str),
    "codex": ("exec_command", "cmd", lambda file: f"cat {file.name}"),
}


def run_agents_with_tools(report: Report, work: Path, templates: Sequence[Path]) -> None:
    """Add a row for each agent under each template; under the demo model's own without any."""
    for template in templates or (None,):
        name = template.stem if template else "its own template"
        flags = ("--chat-template", str(template)) if template else ()
        folder = work / "agents-tools" / name
        folder.mkdir(parents=True)
        with roomy(folder, *flags) as server:
            for agent in AGENTS:
                client = f"{agent}: {name}"
                report.add(client, server, partial(_use, client, agent, server, folder / agent))


def _use(client: str, agent: str, server: Served, folder: Path) -> Outcome:
    """Let an agent have its turns. Raises AssertionError where one is not as it should be."""
    section = SECTIONS[agent]
    tool, argument, value = AGENTS[agent]
    forced = ForcedCalls(tool, argument, value(folder / PROJECT / FILE))
    with watched(server, folder, forced) as recorder:
        place = Place(recorder.url, folder, server.folder)
        did = section.use(place)
        turns, last = len(recorder.exchanges), forced.sent[-1]
        section.use(replace(place, questions=(_OTHER_QUESTION,)))
    asked, others = accepted(recorder.exchanges[:turns]), accepted(recorder.exchanges[turns:])
    calls, results = calls_and_results(asked[-1].body)
    assert min(calls, results) >= len(QUESTIONS), f"{calls} calls, {results} results"
    _check_as_sent(server, *last)
    return Outcome(
        client=client,
        version=version_of(section.package),
        did=f"{did}; {tool} called in each",
        numbers={
            "calls": calls,
            "results": results,
            **_cached(asked),
            "other_session_percent": _shared(others[0]),
        },
    )


def _cached(asked: Sequence[Exchange]) -> dict[str, float]:
    """How much of each prompt was found by the next request: the worst turn's, and all.

    Raises AssertionError below LEAST_CACHED.
    """
    found = [(before.prompt or 0, after.cached or 0) for before, after in pairwise(asked)]
    worst = min(cached / prompt for prompt, cached in found)
    assert worst >= LEAST_CACHED, f"of prompts of the turns before, cached: {found}"
    lost = max(prompt - cached for prompt, cached in found)
    return {"worst_turn_percent": round(100 * min(worst, 1), 2), "most_lost_tokens": max(lost, 0)}


def _shared(first: Exchange) -> float:
    """How much another session finds of its first prompt.

    Raises AssertionError below LEAST_SHARED.
    """
    share = (first.cached or 0) / (first.prompt or 1)
    assert share >= LEAST_SHARED, f"another session: {first.cached} of {first.prompt} cached"
    return round(100 * share, 2)


def _check_as_sent(server: Served, path: str, body: Any) -> None:
    """Send a request as the agent wrote it, thoughts and all. Raises AssertionError."""
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(server.url + path, json=unforced(path, body), headers=headers, timeout=300)
    assert answer.status_code == 200, f"as sent: {answer.status_code} {answer.text[:500]}"
