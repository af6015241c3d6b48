"""A class name alone says which class is meant: no two classes of the house have one name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from scripts.code_size import ROOT, House
from tests.arch.made_up_house import build


def double_names(house: House) -> dict[str, list[str]]:
    """Names of more than one class of ours, and where these are."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{module.path}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


def second_names(house: House) -> Iterator[str]:
    """Where a class of ours is imported by another name than its own."""
    classes = {
        f"{module.name}.{node.name}"
        for module in house.modules.values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    }
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            for each in node.names if isinstance(node, ast.ImportFrom) else ():
                other = each.asname not in (None, each.name)
                if other and f"{node.module}.{each.name}" in classes:
                    yield f"{module.path}:{node.lineno}: {each.name} as {each.asname}"


def test_no_two_classes_have_one_name() -> None:
    house = House.read(ROOT)
    assert double_names(house) == {}
    assert list(second_names(house)) == []


def test_a_double_name_is_found(tmp_path: Path) -> None:
    inner = "class A:\n    class Key:\n        pass\n"
    house = build(tmp_path, {"core/keys.py": "class Key:\n    pass\n", "cache/tree.py": inner})
    assert double_names(house) == {
        "Key": ["src/radixlm/cache/tree.py:2", "src/radixlm/core/keys.py:1"]
    }


def test_a_second_name_is_found(tmp_path: Path) -> None:
    files = {
        "core/keys.py": "class Key:\n    pass\n\n\ndef f():\n    pass\n",
        "cache/tree.py": "from radixlm.core.keys import Key as Word, f as g\n",
    }
    assert list(second_names(build(tmp_path, files))) == [
        "src/radixlm/cache/tree.py:1: Key as Word"
    ]
