"""`radixlm bench shared-prefix` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from radixlm.bench import shared_prefix
from radixlm.bench.bench_commands import command

ARGUMENTS = ["shared-prefix", "--shape", "tiny", "--requests", "4", "--shared", "40", "--own", "4"]


def run(*more: str) -> str:
    result = CliRunner().invoke(command, [*ARGUMENTS, "--out", "2", *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_both_modes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which goes first changes, so that neither pays for what the first one loads."""
    order = []

    class Recorded(shared_prefix.Engine):
        def __init__(self, *args, **flags):
            order.append("off" if flags["disable_radix_cache"] else "on")
            super().__init__(*args, **flags)

    monkeypatch.setattr(shared_prefix, "Engine", Recorded)
    said = run("--rounds", "3")
    assert order == ["on", "off", "off", "on", "on", "off"]
    assert "in 3 rounds" in said
    assert "{" not in said


def test_rows_and_a_summary_are_json_where_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    last = json.loads(run("--rounds", "2", "--json", str(file)).splitlines()[-1])
    on, off = (json.loads(line) for line in file.read_text().splitlines())
    assert (on["mode"], on["cached_tokens"], on["computed_tokens"]) == ("on", 120, 60)
    assert (off["mode"], off["cached_tokens"], off["computed_tokens"]) == ("off", 0, 180)
    for row in (on, off):
        assert len(row["walls_s"]) == 2
        assert min(row["walls_s"]) <= row["wall_s"] <= max(row["walls_s"])
    assert last["off_over_on"] > 0
    assert last["on"]["hit_rate"] == on["hit_rate"]


def test_what_is_measured_finds_the_kernels_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine has run the workload's own kind of request before, and forgotten it."""
    said = []

    class Recorded(shared_prefix.Engine):
        def generate(self, prompts, *args, **kwargs):
            said.append((len(prompts), len(prompts[0]), self.stats().cached_tokens))
            return super().generate(prompts, *args, **kwargs)

    monkeypatch.setattr(shared_prefix, "Engine", Recorded)
    run("--rounds", "1")
    (_, warm, _), (requests, measured, _) = said[:2]
    assert warm == measured == 44
    assert requests == 4
    assert len(said) == 4
