"""Each script of benchmarks/ and fuzz/ stands for a claim: one table has them all."""

from __future__ import annotations

import re

from scripts.code_size import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
FOLDERS = ("benchmarks", "fuzz")
ROW = re.compile(r"^\| `((?:benchmarks|fuzz)\.\w+)` \| \S.* \| \[.+\]\(.+\).* \|$", re.M)


def scripts() -> list[str]:
    """The modules that can be run, as `benchmarks.soak`."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]
    return [f"{path.parent.name}.{path.stem}" for path in paths if "__main__" in path.read_text()]


def test_each_script_has_its_row_and_each_row_its_script() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == len(set(rows))
    assert sorted(rows) == sorted(scripts())
