"""`radixlm bench shared-prefix` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from radixlm.assembly import AsyncEngine
from radixlm.bench import paper_run
from radixlm.bench.bench_commands import command
from radixlm.core.errors import ConfigError

ARGUMENTS = ["shared-prefix", "--shape", "tiny", "--requests", "4", "--shared", "40", "--own", "4"]


def run(*more: str) -> str:
    result = CliRunner().invoke(command, [*ARGUMENTS, "--out", "2", *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def watched(monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[str, list[tuple[str, list[int]]]]:
    """What is printed; and of each engine its mode, and its requests' prompt lengths in order."""
    engines: list[tuple[str, list[int]]] = []

    class Recorded(AsyncEngine):
        def __init__(self, parts):
            super().__init__(parts)
            mode = "off" if self.config.disable_radix_cache else "on"
            engines.append((mode, []))

        def stream(self, prompt, *args):
            engines[-1][1].append(len(prompt))
            return super().stream(prompt, *args)

    monkeypatch.setattr(paper_run, "AsyncEngine", Recorded)
    return run(*more), engines


@pytest.mark.slow
def test_both_modes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which goes first changes, so that neither pays for what the first one loads."""
    said, engines = watched(monkeypatch, "--rounds", "3")
    assert [mode for mode, _ in engines] == ["on", "off", "off", "on", "on", "off"]
    assert "in 3 rounds" in said
    assert "{" not in said


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_is_measured_finds_the_kernels_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine has run requests that share before, and forgotten them."""
    _, engines = watched(monkeypatch, "--rounds", "1")
    assert len(engines) == 2
    for _, asked in engines:
        assert len(asked) > 4
        assert asked[-4:] == [44] * 4


def test_more_requests_than_tokens_are_refused() -> None:
    many = ["shared-prefix", "--shape", "tiny", "--requests", "513"]
    with pytest.raises(ConfigError, match="513 requests need as many token ids, not 512"):
        CliRunner().invoke(command, many, catch_exceptions=False)
