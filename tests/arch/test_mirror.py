"""Where tests lie: in the folder of the package that they test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scripts.code_size import ROOT

TIERS = ("unit", "property", "tensor")
BESIDE_THE_PACKAGES = {"scripts", "deploy"}


def strays(tests: Path, packages: Path) -> Iterator[str]:
    """Yield folders of tests that are named after no package."""
    known = {path.name for path in packages.iterdir() if path.is_dir()} | BESIDE_THE_PACKAGES
    for tier in TIERS:
        for path in sorted((tests / tier).iterdir()):
            if any(path.glob("test_*.py")) and path.name not in known:
                yield f"{tier}/{path.name}"


def test_tests_lie_in_their_package_s_folder() -> None:
    assert list(strays(ROOT / "tests", ROOT / "src/radixlm")) == []


def test_a_stray_is_found(tmp_path: Path) -> None:
    (tmp_path / "src/cache").mkdir(parents=True)
    for folder in ("unit/cache", "unit/deploy", "property/line", "tensor/none"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    for folder in ("unit/cache", "unit/deploy", "property/line"):
        (tmp_path / "tests" / folder / "test_a.py").touch()
    assert list(strays(tmp_path / "tests", tmp_path / "src")) == ["property/line"]
