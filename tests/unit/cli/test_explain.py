"""`radixlm explain`: two requests compared, without a server and without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from radixlm.cli.model_commands import explain as command
from radixlm.core.errors import ConfigError
from radixlm.text.model_folder import DEMO_MODEL


def write(folder: Path, name: str, body: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(body))
    return str(path)


def chat(day: str) -> dict[str, Any]:
    system = {"role": "system", "content": f"Today is {day}. You are a helper."}
    return {"messages": [system, {"role": "user", "content": "Hello"}], "max_tokens": 4}


def compared(folder: Path, first: Any, second: Any, *flags: str) -> dict[str, Any]:
    names = write(folder, "a.json", first), write(folder, "b.json", second)
    done = CliRunner().invoke(command, [*names, *flags, "--json"], catch_exceptions=False)
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


@pytest.mark.parametrize(
    ("first", "second", "advice"),
    [
        (chat("x"), chat("x"), "nothing to do: all of the second prompt is cached"),
        ({"prompt": "Once upon"}, {"prompt": "Once upon a time"}, "nothing to do: the second"),
        ({"prompt": "Once upon a time"}, {"prompt": "Once upon"}, "nothing to do: all of"),
        ({"prompt": "Once upon a time"}, {"prompt": "The cat"}, "what both need belongs in front"),
        ({"prompt": [5, 6, 7]}, {"prompt": [9, 6, 7]}, "what both need belongs in front"),
        (chat("x"), {"prompt": "Hello"}, "what both need belongs in front"),
        (
            {"messages": [{"role": "user", "content": "How tall is it?"}]},
            {"messages": [{"role": "user", "content": "Who was that?"}]},
            "what both need belongs in front",
        ),
    ],
)
def test_there_is_always_advice(tmp_path: Path, first: Any, second: Any, advice: str) -> None:
    assert advice in compared(tmp_path, first, second)["advice"]


SYSTEM = "Today is {}. You are a helper."
LOOK = {"description": "Looks it up.", "name": "look"}
SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}}


def response(day: str) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "Found."}
    return {
        "instructions": SYSTEM.format(day),
        "input": [{"role": "user", "content": "Hello"}, call, result],
        "tools": [{"type": "function", **LOOK, "parameters": SCHEMA}],
        "text": {"format": {"type": "text"}},
    }


def messages(day: str) -> dict[str, Any]:
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "Found."}
    return {
        "route": "/v1/messages",
        "system": SYSTEM.format(day),
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{**LOOK, "input_schema": SCHEMA}],
        "max_tokens": 4,
    }


def chat_with_tools(day: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "system", "content": SYSTEM.format(day)},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "Found."},
        ],
        "tools": [{"type": "function", "function": {**LOOK, "parameters": SCHEMA}}],
    }


@pytest.mark.parametrize("body", [response, messages])
def test_bodies_of_the_other_routes(tmp_path: Path, body: Any) -> None:
    told = compared(tmp_path, body("2026-11-19"), body("2026-11-20"))
    assert told["cause"] == "date_time"
    assert told["where"].startswith("message 0 (system), token ")
    same = compared(tmp_path, chat_with_tools("2026-11-19"), body("2026-11-19"))
    assert same["what"] == "the same"


def test_what_the_server_leaves_out_is_no_difference(tmp_path: Path) -> None:
    first, second = (
        {
            "type": "text",
            "text": f"x-anthropic-billing-header: cc_version=2.1.177.{cch}; cch={cch};",
        }
        for cch in ("01c", "02d")
    )
    asked = messages("x")
    told = compared(
        tmp_path,
        {**asked, "system": [first, {"type": "text", "text": "Be brief."}]},
        {**asked, "system": [second, {"type": "text", "text": "Be brief."}]},
    )
    assert told["what"] == "the same"


def test_thinking_reaches_the_template_as_it_does_in_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if thinking %}<think>{% endif %}"
    )
    off, on = ({**chat("x"), "thinking": {"type": kind}} for kind in ("disabled", "enabled"))
    told = compared(tmp_path, off, on, "--model", str(folder))
    assert told["what"] == "one prompt begins with the other"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "the body holds no prompt: give one of messages, prompt, "),
        ([], "the body must be a JSON object"),
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": ""}, "the prompt has no tokens"),
        ({"prompt": [-1]}, "must not be negative"),
        ({"text": ["a", "b"]}, "there are 2 prompts; give each a file of its own"),
        ({"system": "Be brief.", **chat("x")}, "if it is another's, name that in route"),
        ({"messages": ["Hello", 3]}, r"messages\[0\]: Input should be an object"),
        ({**messages("x"), "tools": [{"name": "now"}]}, r"tools\[0\].input_schema: Field required"),
        ({"previous_response_id": "resp_1"}, "write what it continues into input"),
    ],
)
def test_a_file_without_a_prompt(tmp_path: Path, body: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"b\.json: .*{message}"):
        compared(tmp_path, chat("x"), body)


@pytest.mark.slow
def test_no_torch_is_loaded(tmp_path: Path) -> None:
    names = write(tmp_path, "a.json", messages("x")), write(tmp_path, "b.json", response("x"))
    code = (
        "import sys; from radixlm.cli.model_commands import explain as command; "
        "command(sys.argv[1:], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *names], check=False)  # noqa: S603
    assert done.returncode == 0
