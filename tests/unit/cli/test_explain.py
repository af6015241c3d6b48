"""`radixlm explain`: two requests compared, without a server and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from radixlm.cli_explain import command
from radixlm.core.errors import ConfigError


def write(folder: Path, name: str, body: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(body))
    return str(path)


def chat(day: str) -> dict[str, Any]:
    system = {"role": "system", "content": f"Today is {day}. You are a helper."}
    return {"messages": [system, {"role": "user", "content": "Hello"}], "max_tokens": 4}


def compared(folder: Path, first: Any, second: Any) -> dict[str, Any]:
    names = write(folder, "a.json", first), write(folder, "b.json", second)
    done = CliRunner().invoke(command, [*names, "--json"], catch_exceptions=False)
    told: dict[str, Any] = json.loads(done.output)
    return told


def test_where_two_chats_part(tmp_path: Path) -> None:
    told = compared(tmp_path, chat("2026-11-19"), chat("2026-11-20"))
    assert told["cause"] == "date_time"
    assert told["where"].startswith("message 0 (system), token ")
    assert "[2026-11-19.|2026-11-20.]" in told["context"]
    assert told["advice"] == "move it to the end of the system prompt"
    assert 0 < told["shared_tokens"] < told["prompt_tokens"]


def test_in_plain_words(tmp_path: Path) -> None:
    names = [
        write(tmp_path, name, chat(day)) for name, day in (("a", "2026-11-19"), ("b", "2026-11-20"))
    ]
    done = CliRunner().invoke(command, names, catch_exceptions=False)
    assert "advice   move it to the end of the system prompt" in done.output


def test_prompts_and_token_ids(tmp_path: Path) -> None:
    told = compared(tmp_path, {"prompt": [5, 6, 7]}, {"input_ids": [5, 6, 9]})
    assert (told["shared_tokens"], told["where"]) == (2, "token 2")
    told = compared(tmp_path, {"prompt": [5, 6]}, {"text": "Hello"})
    assert told["shared_tokens"] == 0
    assert compared(tmp_path, chat("x"), chat("x"))["what"] == "the same"
    longer = compared(tmp_path, {"prompt": [5, 6]}, {"prompt": [5, 6, 7]})
    assert longer["what"] == "one prompt begins with the other"


@pytest.mark.parametrize("body", [{}, [], {"prompt": []}, {"prompt": ""}])
def test_a_file_without_a_prompt(tmp_path: Path, body: Any) -> None:
    with pytest.raises(ConfigError, match=r"a\.json holds no messages"):
        compared(tmp_path, body, chat("x"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"system": "Be brief.", **chat("x")}, "/v1/messages are not read"),
        ({"input": "Hello"}, "/v1/responses are not read"),
        ({"messages": ["Hello", 3]}, "no body of /v1/chat/completions"),
        ({**chat("x"), "tools": [{"name": "now", "input_schema": {}}]}, "no body of /v1/chat"),
    ],
)
def test_a_body_of_another_route(tmp_path: Path, body: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compared(tmp_path, chat("x"), body)


def test_no_torch_is_loaded() -> None:
    code = "import sys, radixlm.cli_explain; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
