"""`radixlm check`: what would be served, said without serving."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from radixlm.cli.check_command import command
from radixlm.testing.reference import make_checkpoint

PROGRAM = [sys.executable, "-c", "from radixlm.cli.start import main; main()"]


def checked(*arguments: str) -> str:
    return CliRunner().invoke(command, arguments, catch_exceptions=False).output


def test_in_plain_words() -> None:
    said = dict(line.split(maxsplit=1) for line in checked().splitlines())
    assert said["model"] == "demo_model, llama"
    assert said["files"] == "safetensors: BF16 7.94 MB"
    assert said["context"] == "4,096 tokens"
    assert said["weights"] == "about 8.98 MB of memory"  # with a tied head's copy
    assert said["1,000"] == "tokens   2.56 MB of keys and values"
    assert said["tool"].split() == ["calls", "json"]
    assert said["not"] == "read       no tensor"


def test_what_a_checkpoint_of_states_takes(tmp_path: Path) -> None:
    said = checked(str(make_checkpoint(tmp_path, "qwen3_5_text")))
    assert "a checkpoint of states 0.01 MB, as much as 42 tokens" in said


def test_as_json_by_flags() -> None:
    found: dict[str, Any] = json.loads(
        checked("--json", "--dtype", "float32", "--context-length", "100")
    )
    assert found["computed_by"] == "radixlm"
    assert found["weight_bytes"] == 2 * 8_984_064
    assert (found["dtype"], found["context_length"]) == ("float32", 100)
    assert (found["tool_call_parser"], found["reasoning_parser"]) == ("json", "none")


def test_refused_in_the_words_of_serve(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "zaya"}))
    said = [
        subprocess.run([*PROGRAM, name, str(tmp_path)], capture_output=True, text=True, check=False)  # noqa: S603
        for name in ("check", "serve")
    ]
    assert said[0].returncode == said[1].returncode == 1
    assert said[0].stderr == said[1].stderr
    assert "'zaya', which is not served" in said[0].stderr
    assert not said[0].stdout
