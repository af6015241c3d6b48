"""Agents that write code, each without anybody beside it: a question, then two more turns of it."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.try_clients.environments import node_folder
from scripts.try_clients.place import Place
from scripts.try_clients.server import KEY, MODEL

PROJECT = "project"
FILE = "hello.py"
_CLAUDE_CODE = Path(__file__).parent / "drivers" / "claude_code.mjs"
# As docs/agents.md says.
_CODEX = """model = "{model}"
model_provider = "radixlm"
web_search = "disabled"

[model_providers.radixlm]
name = "RadixLM"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""


def use_codex(place: Place) -> str:
    home = place.work / "me" / ".codex"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(_CODEX.format(model=MODEL, url=place.url), encoding="utf-8")
    codex = str(node_folder() / "node_modules" / ".bin" / "codex")
    flags = ["--skip-git-repo-check", "--json"]
    project = _project(place)
    first, *others = place.questions
    place.run([codex, "exec", *flags, "--sandbox", "read-only", first], project)
    for question in others:
        place.run([codex, "exec", "resume", "--last", *flags, question], project)
    return "codex exec, and twice codex exec resume, with the config of docs/agents.md"


def use_qwen_code(place: Place) -> str:
    qwen = str(node_folder() / "node_modules" / ".bin" / "qwen")
    flags = ["--auth-type", "openai", "--openai-base-url", f"{place.url}/v1", "--model", MODEL]
    flags += ["--openai-api-key", KEY, "--output-format", "json"]
    project = _project(place)
    first, *others = place.questions
    for question, more in ((first, []), *((each, ["--continue"]) for each in others)):
        told = json.loads(place.run([qwen, *flags, *more, question], project))
        assert not told[-1]["is_error"], told[-1]
    return "qwen, and twice qwen --continue, without anybody beside it"


def use_claude_code(place: Place) -> str:
    asked = [place.url, KEY, MODEL, str(_project(place)), json.dumps(place.questions)]
    command = ["node", "--input-type=module", "-", *asked]
    place.run(command, node_folder(), text=_CLAUDE_CODE.read_text(encoding="utf-8"))
    return "the SDK's query, and twice with resume, allowed to read"


def _project(place: Place) -> Path:
    folder = place.work / PROJECT
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text('print("Hello")\n', encoding="utf-8")
    return folder
