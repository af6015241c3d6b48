"""Flags of other engines lead to ours, on the command line and in the file."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from radixlm.cli.model_commands import chat, generate, serve
from radixlm.cli.options import hints, read_flags
from radixlm.core.errors import ConfigError

OURS = {
    flag for command in (serve, chat, generate) for each in command.params for flag in each.opts
}


@pytest.mark.parametrize("command", [serve, chat, generate])
@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--max-model-len", "--context-length is ours"),
        ("--pp-size", "--tp-size ranks"),
        ("--tp=2", "--tp-size is ours"),
        ("--enable-lora", "--lora-paths NAME=FOLDER is ours"),
        ("--gpu-memory-utilization", "--kv-tokens"),
        ("--mem-fraction-static", "--kv-tokens"),
        ("--max-num-seqs", "--max-running-requests is ours"),
        ("--trust-remote-code", "is never run"),
        ("--ctx-size", "--context-length is ours"),
        ("-c", "--context-length is ours"),
        ("-m", "MODEL is the first argument"),
        ("-ngl", "all layers are on one device"),
        ("--n-gpu-layers", "all layers are on one device"),
        ("-t", "--threads is ours"),
        ("-n", "--max-tokens of `radixlm chat`"),
        ("--temp", "--temperature of `radixlm chat`"),
        ("-b", "--chunked-prefill-size is ours"),
        ("-fa", "always on"),
        ("-hf", "MODEL is the name: `radixlm serve OWNER/NAME:KIND`"),
        ("-v", "there is nothing to set"),
        ("--ssl-key-file", "--ssl-keyfile is ours"),
        ("-np", "--max-running-requests is ours"),
    ],
)
def test_a_flag_that_is_not_ours_is_answered_with_what_is(command, flag, hint):
    result = CliRunner().invoke(command, [flag, "1"])
    assert result.exit_code == 2
    assert f"There is no option {flag.partition('=')[0]!r}: " in result.output
    assert hint in " ".join(result.output.split())


def test_a_misspelt_flag_is_still_answered_with_the_nearest():
    result = CliRunner().invoke(serve, ["--max-stored-byte", "1", "--max-model-len", "2"])
    assert "--max-stored-bytes" in result.output


def test_the_file_knows_them_too(tmp_path):
    file = tmp_path / "flags.yaml"
    for key in ("max-model-len", "max_model_len", "--max-model-len"):
        file.write_text(f"{key}: 5\n")
        with pytest.raises(ConfigError, match="--context-length is ours"):
            read_flags(str(file), serve)


def test_hints_name_flags_that_there_are():
    assert len(hints()) > 100
    assert not hints().keys() & OURS
    named = {flag for hint in hints().values() for flag in re.findall(r"--[a-z-]+\b", hint)}
    assert named <= OURS
