"""What is imported by name, so that a command starts without it, stands in this list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.code_size import ROOT, House, Module
from tests.arch.made_up_house import build

# File below src/radixlm -> what it imports by name. The table of imports holds for each that names
# a place (`rules.imports_follow_the_table`); a call whose place is known only when it runs has its
# reason here.
LAZY = {
    # The public names, at their first use; `__init__.pyi` has their places.
    "__init__.py": ["import_module(homes[name])"],
    # Imports Triton, which is where torch is for CUDA.
    "attention/backends.py": ["radixlm.attention.gpu_backend"],
    "kernels/gpu_launch.py": ["radixlm.kernels.gpu_rows"],
    "products/gpu_products.py": ["radixlm.kernels.gpu_multiply"],
    "assembly/rank_setup.py": ["radixlm.assembly.rank_process.main"],
    "cli/batch_command.py": [
        "radixlm.ray.batch_replicas.over_replicas",
        "radixlm.server.offline.answer_file",
    ],
    "cli/cache_command.py": [
        "radixlm.memory.store_care.contents",
        "radixlm.memory.store_care.delete_identity",
        "radixlm.memory.store_care.repair",
        "radixlm.memory.store_care.shrink",
        "radixlm.memory.store_care.verify",
    ],
    "cli/check_command.py": ["radixlm.assembly.appraisal.appraise"],
    # The command that was typed, one of the places beside it.
    "cli/commands.py": [
        "named(place)",
        "radixlm.bench.bench_commands.command",
        "radixlm.cli.batch_command.command",
        "radixlm.cli.cache_command.command",
        "radixlm.cli.check_command.command",
        "radixlm.cli.model_commands.chat",
        "radixlm.cli.model_commands.deploy",
        "radixlm.cli.model_commands.explain",
        "radixlm.cli.model_commands.generate",
        "radixlm.cli.model_commands.pull",
        "radixlm.cli.model_commands.serve",
        "radixlm.cli.sim_command.command",
        "radixlm.cli.top_command.command",
    ],
    "cli/model_commands.py": [
        "radixlm.assembly.Engine",
        "radixlm.cli.comparison.compared",
        "radixlm.cli.terminal_chat.talk",
        "radixlm.ray.deploy.deploy",
        "radixlm.server.serve.serve",
    ],
    "cli/sim_command.py": ["radixlm.sim.calibration.measured", "radixlm.sim.live.played"],
    # `named` and `later` themselves.
    "cli/start.py": ["import_module(module)", "radixlm.cli.commands.main"],
}


def lazy_imports(house: House) -> dict[str, list[str]]:
    found = {
        str(module.path.relative_to("src/radixlm")): sorted(
            item.target for item in module.lazy_imports
        )
        for module in house.modules.values()
    }
    return {path: targets for path, targets in found.items() if targets}


def missing_places(house: House) -> Iterator[str]:
    """Names of ours that are imported later from modules that do not define them."""
    for module in house.modules.values():
        for item in module.lazy_imports:
            home, _, name = item.target.rpartition(".")
            if item.target in house.modules or home not in house.modules:
                continue
            if name not in defined(house.modules[home]):
                yield f"{module.path}:{item.line}: {item.target} does not exist"


def defined(module: Module) -> set[str]:
    """The names that a module's own statements give."""
    names = set()
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        else:
            names.add(getattr(node, "name", ""))
    return names


def test_the_list_is_true() -> None:
    house = House.read(ROOT)
    assert lazy_imports(house) == LAZY, "list what is imported by name, with its reason, in LAZY"
    assert list(missing_places(house)) == []


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("import importlib\n\nimportlib.import_module('radixlm.engine')\n", "radixlm.engine"),
        ("from importlib import import_module\n\nimport_module('.x', 'a')\n", ".x"),
        (
            "def f(name):\n    return __import__(f'radixlm.{name}')\n",
            "__import__(f'radixlm.{name}')",
        ),
        ("MAIN = 'radixlm.core.keys:f'\n", "radixlm.core.keys.f"),
        ("from radixlm.cli.start import later\n\nf = later(MAIN)\n", "later(MAIN)"),
    ],
)
def test_an_import_by_name_is_found(text: str, target: str, tmp_path: Path) -> None:
    house = build(tmp_path, {"cache/bad.py": text})
    assert lazy_imports(house)["cache/bad.py"] == [target]


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\n\nimportlib.import_module('readline')\n",
        "logger = getLogger('radixlm.core')\n\n\ndef later(x):\n    return x\n\n\nlater(logger)\n",
    ],
)
def test_what_imports_nothing_of_ours_is_not_listed(text: str, tmp_path: Path) -> None:
    assert "cache/good.py" not in lazy_imports(build(tmp_path, {"cache/good.py": text}))


def test_a_name_that_is_gone_is_found(tmp_path: Path) -> None:
    files = {"cli/run.py": "A = 'radixlm.core.keys:f'\nB = 'radixlm.core.keys:gone'\n"}
    [found] = missing_places(build(tmp_path, files))
    assert found == "src/radixlm/cli/run.py:2: radixlm.core.keys.gone does not exist"
