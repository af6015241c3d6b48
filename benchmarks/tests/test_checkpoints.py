"""benchmarks/checkpoints.py: rows of folders and of GGUF files, and its status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import checkpoints
from benchmarks.checkpoints import KINDS, WAYS, main
from benchmarks.published import ALIASES, FIELDS
from radixlm.models.families import ARCHITECTURES

FEW = ("--prompts", "2", "--tokens", "4", "--family", "qwen3", "--json")


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([*FEW, str(tmp_path / "right")]) == 0
    [row] = rows(tmp_path / "right")
    assert [row[way] for way in WAYS] == ["2 of 2"] * len(WAYS)
    monkeypatch.setattr(checkpoints, "NEAR", -1)
    assert main([*FEW, str(tmp_path / "wrong")]) == 1


@pytest.mark.slow
def test_gguf_files(tmp_path: Path) -> None:
    assert main(["--gguf", *FEW, str(tmp_path / "rows")]) == 0
    found = rows(tmp_path / "rows")
    assert [row["type"] for row in found] == list(KINDS)
    assert {row["tokens"] for row in found} == {"2 of 2"}
    # Rows of bytes.
    assert [row["served apart"] == row["apart"] for row in found] == [True, False, False, False]


def test_families_are_known() -> None:
    assert FIELDS.keys() | ALIASES.keys() <= ARCHITECTURES.keys()
