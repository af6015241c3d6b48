"""`radixlm serve`: flags from a file, help under headings, what reaches the server."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from radixlm.cli import model_commands
from radixlm.cli.options import read_flags
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.core.flags import flags_of
from radixlm.server.config.server_config import ServerConfig


@pytest.fixture
def served(monkeypatch):
    """What `serve` was called with."""
    calls: list[tuple[EngineConfig, ServerConfig]] = []
    monkeypatch.setattr(model_commands, "run_server", lambda *configs: calls.append(configs[:2]))
    monkeypatch.setattr(model_commands, "checked", lambda config, _: nullcontext((config, None)))
    return calls


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "flags.yaml"

    def write(text: str | bytes) -> str:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def run(*arguments: str) -> click.testing.Result:
    return CliRunner().invoke(model_commands.serve, arguments, catch_exceptions=False)


def test_paths_in_a_file_may_begin_at_home(served, file, monkeypatch):
    config = file("model-path: ~/model\ndisk-cache: ~/kv\nlora-paths: [a=~/a]\nuds: ~/socket")
    monkeypatch.setenv("HOME", str(Path(config).parent))
    assert run("--config", f"~/{Path(config).name}").exit_code == 0
    [(engine, server)] = served
    home = str(Path(config).parent)
    assert (engine.model, engine.disk_cache) == (f"{home}/model", f"{home}/kv")
    assert (engine.lora_paths, server.uds) == ((f"a={home}/a",), f"{home}/socket")
    with pytest.raises(ConfigError, match="--config '~nosuch': user 'nosuch' has no home"):
        run("--config", "~nosuch")


def test_flags_reach_their_configs(served):
    options = ["--api-key", "a", "--api-key", "b", "--isolate-by-key", "--request-timeout", "1.5"]
    more = ["--port", "1", "--kv-tokens", "9", "--log-format", "json", "--uds", "/x"]
    assert run("folder", *options, *more).exit_code == 0
    [(engine, server)] = served
    assert engine == EngineConfig(model="folder", kv_tokens=9)
    assert server == ServerConfig(
        api_key=("a", "b"),
        isolate_by_key=True,
        request_timeout=1.5,
        port=1,
        log_format="json",
        uds="/x",
    )
    assert run().exit_code == 0
    assert served[1] == (EngineConfig(), ServerConfig())


@pytest.mark.parametrize(
    "arguments",
    [
        ["folder", "--served-model-name", "a", "b", "--port", "2"],
        ["folder", "--port", "2", "--served-model-name", "a", "--served-model-name", "b"],
        ["folder", "--served-model-name=a", "--port", "2", "--served-model-name", "b"],
        ["--served-model-name", "a", "folder", "--served-model-name", "b", "--port", "2"],
    ],
)
def test_names_may_follow_each_other_after_the_model(served, arguments):
    assert run(*arguments).exit_code == 0
    [(engine, server)] = served
    assert (engine.model, server.served_model_name, server.port) == ("folder", ("a", "b"), 2)


def test_a_file_may_hold_every_flag(served, file):
    path = file(
        "model: folder\nkv-tokens: 9\ndisable_radix_cache: true\nschedule-conservativeness: 0.5\n"
        "dtype: float32\nport: 1\napi-key: [a, b]\nisolate-by-key: true\nbody-timeout: 3\n"
        "host: '::1'\nuds:\ndisable-access-log: false\n"
    )
    assert run("--config", path).exit_code == 0
    [(engine, server)] = served
    assert engine == EngineConfig(
        model="folder",
        kv_tokens=9,
        disable_radix_cache=True,
        schedule_conservativeness=0.5,
        dtype="float32",
    )
    assert server == ServerConfig(
        port=1,
        api_key=("a", "b"),
        isolate_by_key=True,
        body_timeout=3.0,
        host="::1",
    )


def test_every_flag_is_known_to_the_file(file):
    names = [item.name for config in (EngineConfig, ServerConfig) for item, _ in flags_of(config)]
    path = file("".join(f"{name.replace('_', '-')}: null\n" for name in names))
    assert read_flags(path, model_commands.serve) == {}


def test_the_command_line_wins(served, file):
    path = file("model: theirs\nport: 1\nkv-tokens: 9\napi-key: [a, b]\nmax-request-bytes: 5\n")
    assert run("mine", "--port", "2", "--config", path, "--api-key", "c").exit_code == 0
    [(engine, server)] = served
    assert engine == EngineConfig(model="mine", kv_tokens=9)
    assert server == ServerConfig(port=2, api_key=("c",), max_request_bytes=5)
    # The default's own value is a value as well.
    run("--port", "30000", "--config", path, "--model-path", "other")
    assert served[1][1].port == 30000
    assert served[1][0].model == "other"


def test_one_key_needs_no_list_and_an_empty_file_says_nothing(served, file):
    run("--config", file("api-key: secret\n"))
    assert served[0][1].api_key == ("secret",)
    run("--config", file("# nothing\n"))
    assert served[1] == (EngineConfig(), ServerConfig())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv_token: 9", "no flag 'kv_token'; did you mean 'kv-tokens'?"),
        ("Prot: 9", "no flag 'Prot'; did you mean 'port'?"),
        ("--port: 9", "no flag '--port'; did you mean 'port'?"),
        ("zzzzzzzz: 9", "no flag 'zzzzzzzz'; --help lists the flags"),
        ("config: other.yaml", "no flag 'config'"),
        ("help: true", "no flag 'help'"),
        ("1: 2", "no flag '1'"),
        ("kv-tokens: 1\nkv_tokens: 2", "kv_tokens is given twice"),
        ("model: a\nmodel-path: b", "model-path is given twice"),
        ("- port", "must hold `flag: value` lines, not a list"),
        ("port 1", "must hold `flag: value` lines, not a str"),
        ("port: [1, 2]", "port must be a number, got a list"),
        ("port: {a: 1}", "port must be a number, got a dict"),
        ("port: true", "port must be a number, got a bool"),
        ("api-key: 0123", "api-key must be text, got a int; put it in quotes"),
        ("api-key: [a, 1.5]", "api-key must be text, got a float; put it in quotes"),
        ("served-model-name: no", "served-model-name must be text, got a bool"),
        ("dtype: 32", "dtype must be text"),
        ("disable-radix-cache: 1", "disable-radix-cache must be true or false"),
        ("disable-radix-cache: 'yes'", "disable-radix-cache must be true or false"),
        ("a: [", "cannot read --config"),
        ("a: !!python/object/apply:os.getcwd []", "cannot read --config"),
        (b"\xff\xfe\xff", "cannot read --config"),
        (b"a: \x01", "cannot read --config"),
    ],
)
def test_wrong_files_are_refused(served, file, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        run("--config", file(text))
    assert served == []


def test_a_file_that_is_not_there_is_refused(served, tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read --config"):
            run("--config", str(path))
    assert served == []


def test_wrong_values_are_told_as_on_the_command_line(served, file):
    for text in ("port: soon", "port: 1.5", "dtype: int3", "body-timeout: x"):
        result = run("--config", file(text))
        assert result.exit_code == 2
        assert "Invalid value for '--" in result.output
    with pytest.raises(ConfigError, match="--page-size must be a power of two, got 3"):
        run("--config", file("page-size: 3"))
    with pytest.raises(ConfigError, match="--isolate-by-key needs --api-key"):
        run("--config", file("isolate-by-key: true"))
    assert served == []


def test_the_help_stands_under_headings():
    text = CliRunner().invoke(model_commands.serve, ["--help"], terminal_width=200).output
    headings = re.findall(r"^([A-Z][\w ]+):$", text, re.M)
    assert headings == [
        *["Model", "Cache", "Scheduler", "Server", "API keys", "Limits", "Stored responses"],
        *["Batches", "Routers", "Traces", "Logs", "Config file", "Other"],
    ]
    under = {}
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][\w ]+:", line):
            heading = line[:-1]
        elif flag := re.match(r"  (--[\w-]+)", line):
            under[flag[1]] = heading
    for flag, heading in {
        "--dtype": "Model",
        "--model-path": "Model",
        "--context-length": "Model",
        "--kv-tokens": "Cache",
        "--eviction-policy": "Cache",
        "--schedule-policy": "Scheduler",
        "--max-queued-requests": "Scheduler",
        "--ssl-certfile": "Server",
        "--isolate-by-key": "API keys",
        "--response-store": "Stored responses",
        "--body-timeout": "Limits",
        "--disable-access-log": "Logs",
        "--config": "Config file",
    }.items():
        assert under[flag] == heading
    for item, _ in flags_of(ServerConfig):
        assert "--" + item.name.replace("_", "-") in under
