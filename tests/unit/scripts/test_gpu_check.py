"""A GPU's checks are processes with deadlines: what each says is kept, whatever becomes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts.gpu_check.running import NO_GPU, Check, Report, run_all

FAST = 60.0


def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "gpu.jsonl", show=lambda _: None)


def python(name: str, code: str, seconds: float = FAST) -> Check:
    return Check(name, seconds, [sys.executable, "-S", "-c", code])


def test_rows_are_kept_in_order_and_what_is_no_row_too(tmp_path: Path) -> None:
    made = report(tmp_path)
    code = "print('{\"what\": \"copy\", \"ok\": true}'); print('a warning'); print('[1]')"
    run_all([python("a", code), python("b", "")], made, FAST)
    kept = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert kept == made.rows
    assert kept[0] == {"check": "a", "what": "copy", "ok": True}
    assert [row.get("text") for row in kept[1:3]] == ["a warning", "[1]"]
    assert [(row["check"], row["what"]) for row in kept[3:]] == [("a", "took"), ("b", "took")]
    assert made.status(on_gpu=True) == 0
    assert made.status(on_gpu=False) == NO_GPU


def test_a_check_that_fails_keeps_its_rows_and_says_why(tmp_path: Path) -> None:
    made = report(tmp_path)
    code = "print('{\"what\": \"first\"}', flush=True); raise SystemError('the GPU fell off')"
    run_all([python("bad", code), python("next", 'print(\'{"what": "on"}\')')], made, FAST)
    [failed] = made.failed
    assert failed["what"] == "status 1"
    assert "the GPU fell off" in failed["said"]
    assert [row["what"] for row in made.rows] == ["first", "status 1", "took", "on", "took"]
    assert made.status(on_gpu=True) == made.status(on_gpu=False) == 1


def test_a_check_ends_at_its_deadline_with_all_that_it_began(tmp_path: Path) -> None:
    made = report(tmp_path)
    child = "import time; time.sleep(600)"
    code = (
        'import subprocess, sys; print(\'{"what": "here"}\', flush=True);'
        f"subprocess.run([sys.executable, '-S', '-c', {child!r}])"
    )
    run_all([python("slow", code, seconds=1.5)], made, FAST)  # returns: the child held the pipe
    assert "ended at its deadline" in made.failed[0]["what"]


def test_what_no_time_is_left_for_is_not_begun(tmp_path: Path) -> None:
    made = report(tmp_path)
    run_all([python("late", "")], made, 0.0)
    assert made.rows == [{"check": "late", "what": "not begun: no time is left", "ok": False}]


@pytest.mark.parametrize(("ok", "said"), [(False, 1), (None, 0)])
def test_only_what_is_wrong_is_a_failure(tmp_path: Path, ok: bool | None, said: int) -> None:
    made = report(tmp_path)
    made.add("tokens", {"what": "GPTQ", "ok": ok})
    assert made.status(on_gpu=True) == said
