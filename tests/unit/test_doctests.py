"""The examples in docstrings and in the guides are true."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in (SOURCE / "radixlm").rglob("*.py")
    if ">>> " in path.read_text()
)
GUIDES = sorted(path for path in SOURCE.rglob("*.md") if ">>> " in path.read_text())


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_of_a_module(module: str) -> None:
    failed, tried = doctest.testmod(import_module(module))
    assert tried
    assert not failed


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.parent.name)
def test_examples_of_a_guide(guide: Path) -> None:
    failed, tried = doctest.testfile(str(guide), module_relative=False)
    assert tried
    assert not failed
