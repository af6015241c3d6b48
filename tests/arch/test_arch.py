"""The house keeps its rules, and each rule is shown to bite on a made-up house."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.code_size import ROOT, House, arch_rows, longest, size_table
from tests.arch import rules
from tests.arch.made_up_house import TABLE, build

Rule = Callable[[House], Iterator[str]]
LIGHT = ("core", "text", "parsers", "structured_output", "cache", "scheduler", "engine")
HEAVY = ("torch", "transformers", "zmq", "msgspec")


@pytest.fixture(scope="module")
def house() -> House:
    return House.read(ROOT)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule: Rule, house: House) -> None:
    assert list(rule(house)) == []


def test_the_house_is_read(house: House) -> None:
    assert {"core", "cache"} <= set(house.packages())
    assert "radixlm.cache.radix.tree" in house.modules
    assert house.does_import("cache.radix") == {"core"}


@pytest.mark.parametrize("package", LIGHT)
def test_the_lower_floors_load_no_torch(package: str, house: House) -> None:
    if package not in house.packages():
        pytest.skip(f"{package} does not exist yet")
    assert loaded(f"radixlm.{package}", ROOT / "src") == []


def loaded(module: str, path: Path) -> list[str]:
    """Which heavy modules a fresh interpreter has after importing `module` and all below it."""
    code = (
        "import importlib, json, pkgutil, sys\n"
        f"top = importlib.import_module({module!r})\n"
        "for item in pkgutil.walk_packages(top.__path__, top.__name__ + '.'):\n"
        "    importlib.import_module(item.name)\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_good_house_breaks_nothing(tmp_path: Path) -> None:
    house = build(tmp_path, {})
    assert [line for rule in rules.RULES for line in rule(house)] == []


LONG = "def f():\n" + "    x = 1\n" * 60
BITES: list[tuple[Rule, dict[str, str], str]] = [
    (
        rules.imports_follow_the_table,
        {"core/bad.py": "from radixlm.cache.tree import f\n"},
        "core/bad.py:1: core may not import cache",
    ),
    (
        rules.imports_follow_the_table,
        {"core/bad.py": "from ..cache import tree\n"},
        "core may not import cache",
    ),
    (
        rules.imports_follow_the_table,
        {"core/bad.py": "import radixlm.cache.tree as t\n"},
        "core may not import cache",
    ),
    (
        rules.imports_follow_the_table,
        {"core/bad.py": "def f():\n    from radixlm import cache\n"},
        "core may not import cache",
    ),
    (
        rules.imports_follow_the_table,
        {"cache/bad.py": "from radixlm import Engine\n"},
        "cache imports the top package",
    ),
    (
        rules.imports_follow_the_table,
        {"cache/bad.py": "import radixlm\n"},
        "cache imports the top package",
    ),
    (
        rules.imports_follow_the_table,
        {"cache/bad.py": "from radixlm.core.gone import f\n"},
        "radixlm.core.gone.f does not exist",
    ),
    (
        rules.imports_follow_the_table,
        {"cli/chat.py": "from radixlm.cache.tree import f\n"},
        "cli may not import cache",
    ),
    (
        rules.imports_follow_the_table,
        {"cache/bad.py": "run = later('radixlm.cli.start:main')\n"},
        "cache/bad.py:1: cache may not import cli",
    ),
    (
        rules.imports_follow_the_table,
        {"cache/bad.py": "import importlib\n\nimportlib.import_module('radixlm.engine')\n"},
        "cache/bad.py:3: cache may not import engine",
    ),
    (
        rules.imports_follow_the_table,
        {"cli/bad.py": "START = 'radixlm.engine.gone:main'\n"},
        "radixlm.engine.gone.main does not exist",
    ),
    (rules.every_package_is_in_the_table, {"tools/x.py": ""}, "tools has no row"),
    (rules.every_package_is_in_the_table, {"helpers.py": ""}, "helpers has no row"),
    (
        rules.allowances_are_used,
        {"cache/tree.py": ""},
        "row cache allows core, which it does not import: remove core",
    ),
    (
        rules.own_imports_stand_at_the_top,
        {"cache/bad.py": "def f():\n    from radixlm.core import keys\n    return keys\n"},
        "cache/bad.py:2: radixlm.core.keys is not imported at the top",
    ),
    (
        rules.own_imports_stand_at_the_top,
        {
            "cache/bad.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
            "    from radixlm.core import keys\n"
        },
        "is not imported at the top",
    ),
    (
        rules.own_imports_stand_at_the_top,
        {"cache/bad.py": "class A:\n    from . import tree\n"},
        "radixlm.cache.tree is not imported at the top",
    ),
    (
        rules.own_imports_stand_at_the_top,
        {"cli/main.py": "def f():\n    from radixlm.engine import loop\n    return loop\n"},
        "radixlm.engine.loop is not imported at the top",
    ),
    (
        rules.modules_form_no_cycle,
        {"cache/a.py": "from radixlm.cache import b\n", "cache/b.py": "from . import a\n"},
        "cycle: ",
    ),
    (
        rules.modules_form_no_cycle,
        {"cache/a.py": "def f():\n    from . import b\n", "cache/b.py": "from . import a\n"},
        "cycle: ",
    ),
    (rules.modules_form_no_cycle, {"cache/a.py": "from . import a\n"}, "cycle: radixlm.cache.a"),
    (
        rules.names_say_one_thing,
        {"engine/tree.py": ""},
        "engine/tree.py has the name of src/radixlm/cache/tree.py",
    ),
    (rules.words_are_plain, {"core/bad.py": "# as it was told\n"}, "core/bad.py:1: 'told'"),
    (
        rules.docstrings_name_what_they_describe,
        {"core/bad.py": 'def f():\n    """Of a tree, the nodes."""\n'},
        "core/bad.py:2: a docstring begins with 'Of'",
    ),
    (
        rules.nothing_is_global,
        {"core/bad.py": "x = 1\n\n\ndef f():\n    global x\n    x = 2\n"},
        "core/bad.py:5: global x",
    ),
    (
        rules.the_tree_sets_its_own_fields,
        {"core/bad.py": "def f(cache):\n    cache.tree.version += 1\n"},
        "core/bad.py:2: cache.tree.version is the tree's own",
    ),
    (
        rules.futures_are_completed_in_one_file,
        {
            "core/futures.py": "def settle(future, value):\n    future.set_result(value)\n",
            "core/bad.py": "def f(future):\n    future.set_exception(ValueError())\n",
        },
        "core/bad.py:2: set_exception raises once a future is cancelled",
    ),
    (rules.files_are_short, {"core/bad.py": "x = 1\n" * 401}, "401 lines, 400 are allowed"),
    (rules.functions_are_short, {"core/bad.py": LONG}, "f has 61 lines, 60 are allowed"),
    (
        rules.functions_are_short,
        {"core/bad.py": "class A:\n" + "".join(f"    {x}\n" for x in LONG.splitlines())},
        "f has 61 lines",
    ),
    (
        rules.packages_stay_below_their_ceilings,
        {"core/bad.py": "# no code\n\n" + "x = 1\n" * 9},
        "core has 11 lines of code, 10 are allowed: take lines away, or raise its row",
    ),
    (
        rules.packages_stay_below_their_ceilings,
        {"__init__.py": "x = 1\n" * 11},
        "__init__ has 11 lines of code, 10 are allowed",
    ),
    (
        rules.packages_stay_below_their_ceilings,
        {"tools/x.py": "x = 1\n"},
        "tools has no row in [tool.radixlm.line_ceilings]: it has 1 lines of code",
    ),
]


@pytest.mark.parametrize(
    ("rule", "files", "message"), BITES, ids=[f"{i}-{b[0].__name__}" for i, b in enumerate(BITES)]
)
def test_rule_bites(rule: Rule, files: dict[str, str], message: str, tmp_path: Path) -> None:
    found = list(rule(build(tmp_path, files)))
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({**TABLE, "core": ["cli"]}, "cycle: "),
        ({**TABLE, "core": ["core"]}, "cycle: core -> core"),
        ({**TABLE, "core": ["attic"]}, "row core names attic"),
    ],
)
def test_the_table_rule_bites(table: dict[str, list[str]], message: str, tmp_path: Path) -> None:
    found = list(rules.the_table_points_down(build(tmp_path, {}, table)))
    assert len(found) == 1
    assert message in found[0]


def test_a_row_without_a_package_is_found(tmp_path: Path) -> None:
    house = build(tmp_path, {}, {**TABLE, "attic": []})
    found = [*rules.allowances_are_used(house), *rules.packages_stay_below_their_ceilings(house)]
    assert found == [
        f"row attic of [tool.radixlm.{name}] has no package: remove it"
        for name in ("may_import", "line_ceilings")
    ]


def test_every_rule_has_been_shown_to_bite() -> None:
    shown = {rule for rule, _, _ in BITES} | {rules.the_table_points_down}
    assert shown == set(rules.RULES)


@pytest.mark.parametrize(
    "text",
    ["import torch\n", "def f():\n    pass\n\n\nfrom fake import torch\n"],
)
def test_the_torch_check_bites(text: str, tmp_path: Path) -> None:
    """Found also in a module that the package's own `__init__` does not import."""
    build(tmp_path, {"cache/tree.py": text})
    source = tmp_path / "src"
    (source / "torch.py").write_text("")
    (source / "fake.py").write_text("import torch\n")
    assert loaded("radixlm.cache", source) == ["torch"]
    assert loaded("radixlm.core", source) == []


def test_the_report(tmp_path: Path) -> None:
    text = '"""Doc."""\n\n# comment\n\n\ndef f():\n    return (1,\n\n            2)  # end\n'
    house = build(tmp_path, {"core/keys.py": text, "core/bad.py": "from radixlm.cache import x\n"})
    rows = {line.split()[0]: line.split()[1:] for line in size_table(house).splitlines()}
    assert rows["core"] == ["3", "5", "10", "5", "9", "4"]
    assert rows["total"][:4] == ["10", "13", "50", "37"]
    assert "keys.py: 9 lines" in longest(house)
    assert ["core", "cache (!)"] in arch_rows(house)
    assert ["cache", "core"] in arch_rows(house)
