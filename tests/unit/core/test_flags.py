"""A flag is declared once: its field gives the check, and the error that names the flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.core.flags import (
    SECONDS,
    check_flags,
    flag,
    integer,
    number,
    one_of,
    option_name,
    written,
)
from radixlm.server.config.server_config import ServerConfig


@dataclass(frozen=True, kw_only=True)
class Config:
    any_text: str = flag("", "Whatever it is.")
    most_tokens: int | None = flag(None, "", integer(1, 9))
    least: int = flag(2, "", integer(2))
    share: float = flag(0.5, "", number(0, 1))
    wait: float = flag(0.0, "", SECONDS)
    kind: str = flag("a", "", one_of(("a", "b")))
    quiet: bool = flag(False, "Say less.")
    origins: tuple[str, ...] = flag((), "", written("[a-z]+", "is a word"))
    keys: tuple[str, ...] = flag((), "", written("[a-z]+", "is no word"), secret=True)

    def __post_init__(self) -> None:
        check_flags(self)


def test_what_holds_is_taken():
    Config(most_tokens=9, share=1, wait=2.5, kind="b", origins=("x", "y"), keys=("z",))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"most_tokens": 10}, "--most-tokens is an integer from 1 to 9, got 10"),
        ({"most_tokens": True}, "--most-tokens is an integer from 1 to 9, got True"),
        ({"least": None}, "--least is an integer of at least 2, got None"),
        ({"share": 1.1}, "--share is a number from 0 to 1, got 1.1"),
        ({"share": 10**400}, f"--share is a number from 0 to 1, got {10**400!r:.200}"),
        (
            {"least": -(10**5000)},
            "--least is an integer of at least 2, got one of too many digits to be written",
        ),
        ({"wait": float("inf")}, "--wait is a number of seconds, 0 for no limit, got inf"),
        ({"kind": "c"}, "--kind is one of ('a', 'b'), got 'c'"),
        ({"quiet": "no"}, "--quiet is True or False, got 'no'"),
        ({"quiet": None}, "--quiet is True or False, got None"),
        ({"origins": ("x", "1")}, "--origins is a word, got '1'"),
        ({"origins": "x"}, "origins is a tuple, got str"),
        ({"keys": ("x", "sk-1")}, "--keys number 2 is no word"),
    ],
)
def test_what_does_not_is_refused_by_the_flags_name(fields: dict[str, Any], text: str):
    with pytest.raises(ConfigError) as error:
        Config(**fields)
    assert str(error.value) == text


def test_deterministic_is_for_cpus():
    assert EngineConfig(deterministic=True, device="cpu").deterministic
    with pytest.raises(ConfigError, match="--deterministic is for CPUs"):
        EngineConfig(deterministic=True, device="cuda:1")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"disk_cache_gb": 50}, "--disk-cache-gb has no use without --disk-cache"),
        ({"disk_write_policy": "all"}, "--disk-write-policy has no use without --disk-cache"),
        ({"disk_block_tokens": 64}, "--disk-block-tokens has no use without --disk-cache"),
        ({"disk_cache": ""}, "--disk-cache names a folder, got ''"),
    ],
)
def test_flags_of_the_disk_want_a_folder(fields: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        EngineConfig(**fields)
    assert EngineConfig(**{**fields, "disk_cache": "here"}).disk_cache == "here"


PATHS = {
    EngineConfig: ("model", "tokenizer", "chat_template", "disk_cache"),
    ServerConfig: ("uds", "ssl_keyfile", "ssl_certfile", "response_store", "record_trace"),
}


@pytest.mark.parametrize(
    ("config", "name"), [(config, name) for config, names in PATHS.items() for name in names]
)
def test_a_path_may_begin_at_home(config: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/of-mine")
    with_it = {"ssl_certfile": "c"} if name == "ssl_keyfile" else {}
    made = config(**{**with_it, name: "~/some where"})
    assert getattr(made, name) == "/of-mine/some where"
    assert getattr(config(**{**with_it, name: "a/~"}), name) == "a/~"
    with pytest.raises(
        ConfigError, match=rf"{option_name(name)} '~nosuch/x': user 'nosuch' has no home; write ./~"
    ):
        config(**{**with_it, name: "~nosuch/x"})


def test_adapters_may_lie_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/of-mine")
    made = EngineConfig(lora_paths=("a=~/fr", "~/de", "b=x~"))
    assert made.lora_paths == ("a=/of-mine/fr", "/of-mine/de", "b=x~")
    with pytest.raises(ConfigError, match="--lora-paths '~nosuch'"):
        EngineConfig(lora_paths=("a=~nosuch",))


def test_a_key_is_not_shown():
    assert "secret" not in repr(Config(keys=("secret",)))
