"""Which folders import which: scripts only src; benchmarks and tests also scripts; nothing tests.
What tests and benchmarks share is `radixlm.testing`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from scripts.code_size import ROOT

FORBIDDEN = {
    "tests": {"benchmarks", "fuzz", "examples"},
    "benchmarks": {"tests", "fuzz", "examples"},
    "fuzz": {"tests", "examples"},
    "scripts": {"tests", "benchmarks", "fuzz", "examples"},
    "examples": {"tests", "benchmarks", "fuzz", "scripts"},
    "src": {"tests", "benchmarks", "fuzz", "scripts", "examples"},
}


def imports(path: Path, packages: Collection[str]) -> Iterator[str]:
    """Where a file imports one of the packages."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.split(".")[0] in packages:
                yield f"{path}:{node.lineno}: {name}"


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_folder_does_not_import(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [found for path in files for found in imports(path, FORBIDDEN[folder])] == []


@pytest.mark.parametrize("line", ["import tests.a", "def f():\n    from tests.a import b\n"])
def test_an_import_is_found(line: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(line)
    assert len(list(imports(path, {"benchmarks", "tests"}))) == 1
    assert not list(imports(path, {"benchmarks"}))
