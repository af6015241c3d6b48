"""Files that others wrote, of bounded size and depth; tables that come with this package."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from importlib.resources import files
from io import BufferedReader
from pathlib import Path
from typing import Any

from radixlm.core.errors import CheckpointError, ConfigError, reason_of

MOST_BYTES = 64 * 2**20
# What quantizes the checkpoints that are read, by config.json's `quant_method`.
QUANTIZERS = (
    *("compressed-tensors", "gptq", "awq", "mxfp4"),
    *("fp8", "fbgemm_fp8", "modelopt", "modelopt_fp4", "bitsandbytes"),
)
# Where older versions of ModelOpt say how a checkpoint is quantized.
MODELOPT_FILE = "hf_quant_config.json"


def given_path(text: str) -> Path:
    """A path as somebody wrote it, ~ for a user's folder. Raises ConfigError for a text that can be
    none.
    """
    try:
        path = Path(text).expanduser()
        os.stat(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, no such user
        raise ConfigError(f"{text!r:.80} is no path that can be used: {reason_of(error)}") from None
    return path


def open_regular(path: Path) -> BufferedReader:
    """A file to be read. Raises OSError, ValueError for what is no file of bytes: a pipe would be
    waited for, a device has no end.
    """
    _check_regular(path.stat())  # before it is opened, which acts on some devices
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _check_regular(os.fstat(file.fileno()))  # another one may have taken its place
    except ValueError:
        file.close()
        raise
    return file


def _check_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a regular file")


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """A file's text. Raises OSError, and ValueError for what is no file, too long, or not UTF-8."""
    return read_bytes(path, most).decode()


def read_bytes(path: Path, most: int | None = MOST_BYTES) -> bytes:
    """A file's content. most: None for any size. Raises OSError, and ValueError for what is no
    file, or too long.
    """
    with open_regular(path) as file:
        content = file.read(-1 if most is None else most + 1)
    if most is not None and len(content) > most:
        raise ValueError(f"it is longer than {most} bytes")
    return content


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that holds an object; anything else is a CheckpointError."""
    try:
        content = read_bytes(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None
    return parsed_object(path, content)


def parsed_object(path: Path, content: bytes) -> dict[str, Any]:
    """The same of a file that was read. path: for messages."""
    try:
        value = json.loads(content.decode())
    except RecursionError:
        raise CheckpointError(f"{path} is too deeply nested") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, not a JSON object")
    return value


def read_table(package: str, name: str) -> Mapping[str, str]:
    """A package's file of lines like `KEY KEY | TEXT`: the text of each key. # begins a comment."""
    lines = (files(package) / name).read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if not line.startswith("#")]
    return {key: text for keys, text in rows for key in keys.split()}
