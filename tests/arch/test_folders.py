"""Tests import no benchmarks, and nothing imports tests: what they share is `radixlm.testing`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.code_size import ROOT

FORBIDDEN = {
    "tests": "benchmarks",
    "benchmarks": "tests",
    "fuzz": "tests",
    "scripts": "tests",
    "examples": "tests",
    "src": "tests",
}


def imports(path: Path, package: str) -> Iterator[str]:
    """Where a file imports the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.split(".")[0] == package:
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
    assert len(list(imports(path, "tests"))) == 1
    assert not list(imports(path, "benchmarks"))
