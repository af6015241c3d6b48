"""Tests, benchmarks and scripts use what users have: no name that begins with an underscore."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.code_size import ROOT
from tests.arch.private_names import private_names

FOLDERS = ("tests", "benchmarks", "fuzz", "scripts", "examples")
# Files that still have to be freed of them. None may be added.
TO_DO: frozenset[str] = frozenset(
    {
        "tests/property/cache/faults.py",
        "tests/property/cache/faults_of_use.py",
        "tests/tensor/kernels/test_kernels.py",
        "tests/unit/cache/radix/test_allocator.py",
        "tests/unit/cache/test_cache_errors.py",
        "tests/unit/cache/test_pins.py",
        "tests/unit/cache/test_reuse.py",
        "tests/unit/cache/test_why.py",
        "tests/unit/scheduler/test_fairness.py",
    }
)


def test_nobody_touches_a_private_name() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{place}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if str(path.relative_to(ROOT)) not in TO_DO
        for place in private_names(path)
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    "text",
    [
        "cache._tree.nodes()\n",
        "def test(self, other):\n    return other._name\n",
        "from radixlm.cache.radix.tree import _Node\n",
        "setattr(cache, '_tree', None)\n",
        "monkeypatch.setattr(tree, '_tree', None)\n",
        "monkeypatch.setattr('radixlm.cache.radix.tree._tree', None)\n",
        "from radixlm.cache import tree\ntree._LIMIT\n",
    ],
)
def test_the_rule_bites(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(text)
    assert len(list(private_names(tmp_path / "bad.py"))) == 1


def test_what_is_one_s_own_may_be_touched(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(
        "import torch\nfrom __future__ import annotations\n\n\nclass A(B):\n"
        "    def _f(self):\n        self._a = super()._f()\n        return self.__dict__\n\n\n"
        "torch.ops.mkldnn._pack(row._replace(a=1))\nsetattr(_, 'b', _)\n"
    )
    assert list(private_names(tmp_path / "good.py")) == []
