"""The command: help without torch, errors in one line, answers, a chat that can be stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import httpx
import pytest
from click.testing import CliRunner

from radixlm.cli import commands as cli
from radixlm.cli.model_commands import chat, generate, serve
from radixlm.cli.options import engine_options, sampling_options, take_sampling
from radixlm.cli.start import named
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, InvalidRequestError, ModelError
from radixlm.core.sampling import SamplingParams
from radixlm.testing.checkpoints import write_random_checkpoint
from tests.aside import started

PROGRAM = [sys.executable, "-c", "from radixlm.cli.start import main; main()"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cli") / "tiny"
    write_random_checkpoint("tiny", folder)
    return str(folder)


# Ray has it.
@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")
def test_what_commands_import_when_they_run_is_there():
    places = [
        place
        for file in Path(cli.__file__).parent.glob("*.py")
        for place in re.findall(r'= later\("([\w.:]+)"\)', file.read_text(encoding="utf-8"))
    ]
    assert places
    assert all(callable(named(place)) for place in places)


def invoke(command, *arguments: str, **options):
    result = CliRunner().invoke(command, arguments, catch_exceptions=False, **options)
    assert result.exit_code == 0, result.output
    return result


def help_without_torch(*arguments: str) -> str:
    """What --help prints, in a process that has not imported torch by then."""
    program = (
        "import sys\nfrom radixlm.cli.commands import cli\n"
        "try: cli([*sys.argv[1:], '--help'])\n"
        "finally: assert not {'torch', 'fastapi', 'pydantic'} & sys.modules.keys()"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_names_every_command_and_imports_no_torch():
    text = help_without_torch()
    for name, (_, line) in cli.SUBCOMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", text, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serve", "chat", "generate", "explain", "top"])
def test_a_command_s_help_imports_no_torch(name):
    assert re.match(rf"Usage: \S+ {name} ", help_without_torch(name))


@pytest.mark.parametrize("command", [serve, chat, generate])
def test_every_flag_is_in_the_help(command):
    text = invoke(command, "--help", terminal_width=200).output
    flags = EngineConfig.__dataclass_fields__.keys() - {"model"}
    for name in flags:
        assert "--" + name.replace("_", "-") in text


def test_options_fill_the_dataclasses():
    seen: list[tuple[EngineConfig, SamplingParams]] = []

    @click.command()
    @sampling_options(max_tokens=7)
    @engine_options
    def command(**options):
        params = take_sampling(options)
        seen.append((EngineConfig.from_flags(**options), params))

    invoke(command)
    invoke(
        command,
        *["--page-size", "16", "--disable-radix-cache", "--dtype", "float32", "--kv-tokens", "9"],
    )
    invoke(
        command,
        *["--stop", "a", "--stop", "b", "--temperature", "0", "--seed", "3", "--max-tokens", "2"],
    )
    assert seen[0] == (EngineConfig(), SamplingParams(max_tokens=7))
    assert seen[1][0] == EngineConfig(
        page_size=16, disable_radix_cache=True, dtype="float32", kv_tokens=9
    )
    assert seen[2][1] == SamplingParams(max_tokens=2, temperature=0.0, seed=3, stop=("a", "b"))


@pytest.mark.parametrize(
    ("error", "code"),
    [(ModelError("no\nsuch"), 1), (InvalidRequestError("no such"), 1), (ConfigError("no such"), 2)],
)
def test_our_errors_are_one_line_without_traceback(monkeypatch, capsys, error, code):
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # taken back, which main sets

    def fail(**_options):
        raise error

    monkeypatch.setattr(cli, "cli", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == code
    assert capsys.readouterr().err == "radixlm: no such\n"


def test_commands_that_help_stand_alone_on_their_lines(monkeypatch, capsys):
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # taken back, which main sets

    def fail(**_options):
        raise ModelError("no\nsuch", commands=("fetch it", "try it"))

    monkeypatch.setattr(cli, "cli", fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "radixlm: no such:\n  fetch it\n  try it\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["generate", "/no/where", "hi"], 1, "there is no folder '/no/where'"),
        (["chat", "/models/typo"], 1, "radixlm serve OWNER/NAME\n"),
        (["serve", "--port", "0", "--model-path", "/no/where"], 1, "there is no folder"),
        (["serve", "--port", "99999"], 2, "--port is a number from 0 to 65535, got 99999"),
        (["serve", "--host", "1.2.3.4"], 2, "cannot listen on 1.2.3.4 port 30000"),
        (["serv"], 2, "there is no command serv; did you mean serve?"),
        (["xyzzy"], 2, "there is no command xyzzy; there are serve, deploy"),
    ],
)
def test_errors_from_the_shell_come_before_torch(arguments, code, text):
    program = (
        "import sys\nfrom radixlm.cli.commands import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'fastapi'} & sys.modules.keys()"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_flags_are_checked_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="--page-size must be a power of two, got 3"):
        CliRunner().invoke(serve, ["--page-size", "3"], catch_exceptions=False)
    result = CliRunner().invoke(serve, ["--dtype", "int3"])
    assert result.exit_code == 2
    assert "'int3' is not one of" in result.output


def test_generate_prints_answers(folder: str):
    options = ["--max-tokens", "4", "--temperature", "0", "--kv-tokens", "500"]
    alone = invoke(generate, folder, "hello", *options)
    assert alone.stderr.startswith(f"Loading {folder} ...\n")
    assert "[5 prompt tokens, 0 of them cached; 4 new, ended by length]" in alone.stderr
    one = invoke(generate, folder, "h", *options)
    assert "[1 prompt token, 0 of them cached;" in one.stderr
    piped = invoke(generate, folder, *options, input="hello\n")
    assert piped.stdout == alone.stdout
    both = invoke(generate, folder, "hello", "-", *options, input="you")
    assert both.stdout.startswith(alone.stdout)
    assert "--- 'you'" in both.stderr


def test_generate_takes_a_first_argument_that_is_no_folder_as_prompt(monkeypatch):
    asked = []

    class FakeEngine:
        def __init__(self, model, **flags):
            asked.append(model)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def generate(self, prompts, params, progress):
            asked.append(prompts)
            return []

    monkeypatch.setattr("radixlm.cli.model_commands.Engine", FakeEngine)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for first in ("hello you", "/ is a slash", "x" * 5000):
        CliRunner().invoke(generate, [first, "two"])
        assert asked[-2:] == [None, [first, "two"]]
    for alone in ("hello", "and/or?", "-"):
        CliRunner().invoke(generate, [alone], input="hello")
        assert asked[-2:] == [None, ["hello" if alone == "-" else alone]]
    CliRunner().invoke(generate, ["radixlm-demo", "hello", "two"])
    assert asked[-2:] == ["radixlm-demo", ["hello", "two"]]
    told = len(asked)
    for typo in (["qwen3-0.6b", "Hi"], ["./nowhere", "two"], ["A/B"], ["x.gguf"], ["~/typo"]):
        result = CliRunner().invoke(generate, typo)
        assert isinstance(result.exception, ModelError)
        kind = "file" if typo[0].endswith(".gguf") else "folder"
        assert f"there is no {kind} {typo[0]!r}" in str(result.exception)
    assert len(asked) == told


def test_chat_remembers_and_shows_what_was_cached(folder: str):
    lines = "hello\n\n/clear\nhello\nmore\n"
    options = ["--max-tokens", "3", "--temperature", "0", "--system", "Be kind."]
    done = invoke(chat, folder, *options, input=lines)
    assert done.stderr.startswith(f"Loading {folder} ...\n")
    turns = re.findall(r"\[(\d+) prompt tokens, (\d+) of them cached; 3 new", done.output)
    prompts, cached = zip(*((int(a), int(b)) for a, b in turns), strict=True)
    assert prompts[0] == prompts[1] < prompts[2]
    assert cached[:2] == (0, prompts[0] - 1)
    assert cached[2] >= prompts[1]


def test_chat_goes_on_after_a_question_that_is_too_long(folder: str):
    lines = "x" * 300 + "\nhi\n"
    options = ["--max-tokens", "3", "--temperature", "0", "--kv-tokens", "200"]
    done = invoke(chat, folder, *options, input=lines)
    assert "/clear starts anew" in done.stderr
    assert "3 new" in done.output


def test_an_answer_in_a_chat_ends_where_there_is_no_more_room(folder: str):
    done = invoke(chat, folder, "--kv-tokens", "100", "--temperature", "0", input="hi\n")
    assert "starts anew" not in done.stderr
    assert "ended by" in done.output


def wait_for(path: Path, text: str) -> str:
    deadline = time.monotonic() + 300  # it may compile its kernels first
    while text not in (seen := path.read_text(errors="replace")):
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
    return seen


def heed_interrupts() -> None:
    """In a child before it becomes a program: Ctrl-C does what it does in a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_not_the_chat(folder: str, tmp_path: Path):
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # Greedy: a random model soon goes round in circles, where sampling may end the answer.
    arguments = [*PROGRAM, "chat", folder, "--max-tokens", "8000", "--temperature", "0"]
    with (
        out.open("wb") as sink,
        started(
            arguments,
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            env=environment,
            # Whoever runs the tests may ignore it, and a child inherits that.
            preexec_fn=heed_interrupts,
        ) as process,
    ):
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        before = wait_for(out, "> ")
        deadline = time.monotonic() + 60
        while out.stat().st_size < len(before) + 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        wait_for(out, "[stopped]")
        process.stdin.close()
        assert process.wait(60) == 0, out.read_text(errors="replace")


@pytest.mark.slow
def test_serve_answers_and_ends_in_good_order(folder: str, tmp_path: Path):
    """By Ctrl-C; the next test ends one as a service manager does."""
    out = tmp_path / "out"
    arguments = [*PROGRAM, "serve", folder, "--port", "0", "--kv-tokens", "500"]
    with (
        out.open("wb") as sink,
        started(arguments, stdout=sink, stderr=sink) as process,
    ):
        seen = wait_for(out, "try:")
        url = re.search(r"RadixLM serves tiny on (http://127\.0\.0\.1:\d+)", seen)[1]
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert code == 0, out.read_text()
    assert "Traceback" not in out.read_text()


@pytest.mark.slow
def test_a_unix_socket_is_taken_away_and_a_json_log_is_json_to_the_end(folder: str, tmp_path: Path):
    welcome, log, uds = (tmp_path / name for name in ("welcome", "log", "radixlm.sock"))
    arguments = [*PROGRAM, "serve", folder, "--uds", str(uds), "--kv-tokens", "500"]
    with (
        welcome.open("wb") as out,
        log.open("wb") as sink,
        started([*arguments, "--log-format", "json"], stdout=out, stderr=sink) as process,
    ):
        wait_for(welcome, "try:")
        assert uds.is_socket()
        process.terminate()
        code = process.wait(60)
    assert code == 0, log.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0]["message"] == f"Loading {folder} ..."
    assert "Traceback" not in log.read_text()
    assert not uds.exists()


def test_the_model_may_be_an_option(folder):
    result = invoke(
        *[generate, "--model-path", folder, "hi", "--temperature", "0"],
        *["--max-tokens", "2", "--kv-tokens", "99"],
    )
    assert "2 new" in result.stderr


def test_chat_knows_its_commands(folder):
    lines = "/help\n/exit\nnever read\n"
    result = invoke(chat, folder, "--kv-tokens", "99", "--max-tokens", "2", input=lines)
    assert "/exit leaves" in result.output
    assert "prompt tokens" not in result.output
