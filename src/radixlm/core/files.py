"""Files that others wrote, of bounded size and depth; tables that come with this package."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from radixlm.core.errors import CheckpointError

MOST_BYTES = 64 * 2**20
# What quantizes the checkpoints that are read, by config.json's `quant_method`.
QUANTIZERS = ("compressed-tensors", "gptq", "awq", "mxfp4")


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """A file's text. Raises OSError, and ValueError for what is no file, too long, or not UTF-8."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is longer than {most} bytes")
    return content.decode()


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that holds an object; anything else is a CheckpointError."""
    try:
        value = json.loads(read_text(path))
    except RecursionError:
        raise CheckpointError(f"{path} is too deeply nested") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, not a JSON object")
    return value


def read_table(package: str, name: str) -> Mapping[str, str]:
    """A package's file of lines like `KEY KEY | TEXT`: the text of each key. # begins a comment."""
    lines = (files(package) / name).read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if not line.startswith("#")]
    return {key: text for keys, text in rows for key in keys.split()}
