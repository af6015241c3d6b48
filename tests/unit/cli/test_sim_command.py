"""`radixlm sim`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from radixlm.cli.sim_command import command
from radixlm.core.errors import ConfigError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 500 * n,
            "input_length": 1_100,
            "output_length": 20,
            "hash_ids": [1, 2 + n % 3, 9 + n],
        }
        for n in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "torn\n")
    return path


def run(*arguments: object) -> str:
    done = CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_setting_with_each(jobs, trace, tmp_path):
    path = tmp_path / "rows.jsonl"
    flags = ["--eviction-policy", "lru", "--eviction-policy", "mru"]
    pools = ["--kv-tokens", "1500", "--kv-tokens", "20000"]
    out = run(trace, *flags, *pools, "--jobs", jobs, "--json", path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["kv_tokens"], row["eviction_policy"]) for row in rows] == [
        (1_500, "lru"),
        (1_500, "mru"),
        (20_000, "lru"),
        (20_000, "mru"),
    ]
    assert {row["calls"] for row in rows} == {12}
    # Nothing is evicted: 512 tokens of all but the first, and 512 more of all but three.
    assert rows[2]["cached_tokens"] == rows[3]["cached_tokens"] == 11 * 512 + 9 * 512
    assert rows[0]["cached_tokens"] < rows[2]["cached_tokens"]
    assert "trace.jsonl:13: the line is no JSON" in out
    assert json.loads(out.splitlines()[-1])["settings"] == 4


def test_a_token_for_a_block(trace):
    out = run(
        trace, "--tokens-per-block", "1", "--kv-tokens", "100000", "--costs", "none", "--limit", 6
    )
    assert "6 calls, 9,216 prompt tokens" in out


def test_what_is_made_up_and_what_is_the_same_in_all():
    out = run("few-shot", "--limit", 20, "--schedule-policy", "fcfs", "--schedule-policy", "lpm")
    assert "few-shot: 20 calls" in out
    assert "page 1, eviction lru" in out
    assert "order" in out


def test_a_trace_is_written_and_read(tmp_path):
    path = tmp_path / "chats.jsonl"
    assert "wrote" in run("chats", "--limit", 5, "--write", path)
    assert path.stat().st_mode & 0o077 == 0
    run("chats", "--limit", 5, "--write", path)  # what was there is replaced
    rows = []
    for place in ("chats", path):
        run(place, "--limit", 5, "--json", tmp_path / "rows.jsonl")
        rows.append(json.loads((tmp_path / "rows.jsonl").read_text()))
    assert rows[0]["cached_tokens"] == rows[1]["cached_tokens"] > 0
    assert rows[0]["calls"] == rows[1]["calls"]


@pytest.mark.slow
def test_advice_names_what_pays_and_what_does_not():
    out = run("agents", "--limit", 8, "--kv-tokens", 15000, "--advise")
    pays, _, not_ = out.partition("what does not:")
    assert "a pool of 60,000 tokens, 4 times as large: hit rate" in pays
    assert "a pool of 7,500 tokens, 0.5 times as large: hit rate" in not_
    assert "--eviction-policy mru: hit rate" in out
    assert "a disk of 120,000 tokens" in out


def test_a_picture(trace, tmp_path):
    run(trace, "--picture", tmp_path / "sim.png")
    assert (tmp_path / "sim.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--eviction-policy", "best"], "--eviction-policy 'best' is not one of"),
        (["--costs", "cheap"], "--costs 'cheap' is not node, none"),
        (["--kv-tokens", "1"], "--kv-tokens is an integer of at least 2"),
        (["--picture", "a.svg"], "--picture writes a .png"),
        (["--advise", "--page-size", "1", "--page-size", "2"], "--advise begins with one setting"),
    ],
)
def test_what_can_not_be_is_refused(flags, reason, trace):
    with pytest.raises(ConfigError, match=reason):
        run(trace, *flags)


def test_a_file_that_others_may_read_is_not_written(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("theirs")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"--write .*: others may read or write it"):
        run("chats", "--limit", 1, "--write", path)
    assert path.read_text() == "theirs"


def test_a_trace_of_which_no_call_fits_is_an_error(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"token_ids": [1] * 900, "output_length": 3}) + "\n")
    done = CliRunner().invoke(command, [str(path), "--kv-tokens", "100"])
    assert done.exit_code == 1
    assert "long.jsonl:1: the engine refuses it" in done.output
    assert "no call could be played; 1 left out" in done.output


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no trace"):
        run(tmp_path / "absent")
