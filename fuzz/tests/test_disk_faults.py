"""fuzz/disk_kills.py, disk_faults.py: what they count, and that they run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peer_client import Reply
from fuzz import disk_faults, disk_kills
from fuzz.disk_lab import Score


def test_a_score_tells_wrong_from_lost():
    expected = [Reply([number], token_ids=[number, 7]) for number in range(4)]
    score = Score()
    score.add([expected[0], Reply([1], token_ids=[1, 8])], expected, 4)
    assert (score.right, score.wrong, score.lost) == (1, 1, 2)


@pytest.mark.slow
def test_a_fault(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        disk_faults.main(["--faults", "full"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ended.value.code == 0, report


@pytest.mark.slow
def test_kills_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    counts = tmp_path / "counts"
    for kills in (2, 3):
        with pytest.raises(SystemExit):
            disk_kills.main(["--kills", str(kills), "--so-far", str(counts)])
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert report["kills"] == kills
        assert report["answers_wrong"] == report["answers_lost"] == 0
    assert (report["runs"], report["checked_rounds"]) == (2, 1)
    assert report["answers_right"] == 24
