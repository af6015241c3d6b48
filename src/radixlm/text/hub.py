"""Names on the Hugging Face Hub, and the commands that fetch what they name."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w", re.ASCII)


def hub_name(text: str) -> str | None:
    """`text` if it could be a model's name on the Hub, OWNER/NAME.

    >>> hub_name("Qwen/Qwen3-0.6B"), hub_name("./models/x"), hub_name("/models/x")
    ('Qwen/Qwen3-0.6B', None, None)
    """
    return text if _NAME.fullmatch(text) else None


def fetching(name: str) -> tuple[str, str]:
    """The two commands with which a model of the Hub is served."""
    folder = f"~/models/{name.rpartition('/')[2]}"
    return f"{_tool('hf')} download {name} --local-dir {folder}", serving(folder)


def serving(folder: str) -> str:
    """The command that serves a folder."""
    return f"{_tool('radixlm')} serve {folder}"


def _tool(name: str) -> str:
    """How this shell can call a command that comes with RadixLM, hf of huggingface_hub included."""
    beside = Path(sys.executable).with_name(name)
    if shutil.which(name) is not None or not beside.is_file():
        return name
    with contextlib.suppress(ValueError, OSError):
        return str(beside.relative_to(Path.cwd()))
    return str(beside)
