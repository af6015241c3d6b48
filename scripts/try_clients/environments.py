"""An environment of its own for each client whose pins are not ours, made when it is first used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = {
    "aiperf": ("aiperf==0.13.0",),
    "litellm": ("litellm[proxy]==1.106.2",),
    "guidellm": ("guidellm==0.8.1",),
    "outlines": ("outlines==1.3.3", "openai==3.54.0"),
    "guidance": ("guidance==0.3.1", "openai==3.54.0"),
    "sglang-router": ("sglang-router==0.3.2",),
    "vllm-router": ("vllm-router==0.1.17",),
    "radixview": ("radixview==0.1.0",),
    "llama-index": ("llama-index-core==0.14.25", "llama-index-embeddings-openai-like==0.4.0"),
    "cohere": ("cohere==7.3.1",),
    "openai-agents": ("openai-agents==0.24.0", "openai==3.57.0"),
    "ollama-python": ("ollama==0.6.3",),
}
NODE = (
    "ai@6.0.326",
    "@ai-sdk/openai@3.0.139",
    "@ai-sdk/openai-compatible@2.0.91",
    "@ai-sdk/anthropic@3.0.139",
    "@openai/codex@0.169.0",
    "@qwen-code/qwen-code@0.15.10",
    "@anthropic-ai/claude-agent-sdk@0.3.332",
    "ollama@0.6.4",
)


def python_of(name: str) -> Path:
    """The interpreter of `.venv-NAME` with what PYTHON lists, installed unless it is there."""
    folder = ROOT / f".venv-{name}"
    python = folder / "bin" / "python"
    if _is_new(folder, PYTHON[name]):
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PYTHON[name]], check=True)
        _remember(folder, PYTHON[name])
    return python


def node_folder() -> Path:
    """The folder whose node_modules hold NODE, installed unless they are there.

    Raises RuntimeError without npm.
    """
    folder = ROOT / ".venv-node"
    if _is_new(folder, NODE):
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError("no npm: this client needs Node.js 20 or newer")
        folder.mkdir(exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run([npm, "install", *quiet, *NODE], cwd=folder, check=True)
        _remember(folder, NODE)
    return folder


def version_of(name: str) -> str:
    """The pinned version of an environment's client, or of a package of NODE."""
    pins = {pin.rpartition("@")[0]: pin.rpartition("@")[2] for pin in NODE}
    return pins[name] if name in pins else PYTHON[name][0].partition("==")[2]


def _is_new(folder: Path, packages: tuple[str, ...]) -> bool:
    """Whether other packages than these, or none, were installed there."""
    ready = folder / ".ready"
    return not ready.exists() or ready.read_text(encoding="utf-8").split() != list(packages)


def _remember(folder: Path, packages: tuple[str, ...]) -> None:
    (folder / ".ready").write_text("\n".join(packages) + "\n", encoding="utf-8")
