"""A small house that keeps the rules, until a test puts into it what breaks one."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.code_size import House

TABLE = {"core": [], "cache": ["core"], "engine": ["cache"], "cli": ["engine"]}


def build(root: Path, files: dict[str, str], table: dict[str, list[str]] | None = None) -> House:
    """Write a house with these files below src/radixlm; every folder gets an empty `__init__`, and
    every package of the table may have ten lines.
    """
    table = table or TABLE
    rows = "".join(f"{name} = {json.dumps(row)}\n" for name, row in table.items())
    ceilings = "".join(f"{name} = 10\n" for name in [*table, "__init__"])
    (root / "pyproject.toml").write_text(
        f"[tool.radixlm.may_import]\n{rows}[tool.radixlm.line_ceilings]\n{ceilings}"
    )
    good = {
        "core/keys.py": "def f():\n    return 1\n",
        "cache/tree.py": "from radixlm.core.keys import f\n",
        "cli/start.py": "import importlib\n\nimportlib.import_module('radixlm.engine')\n",
        "__init__.py": "def g():\n    from radixlm.engine import loop\n    return loop\n",
        "engine/loop.py": "import json\n\nfrom radixlm.cache.tree import f\n",
    }
    for name, text in {**good, **files}.items():
        path = root / "src" / "radixlm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return House.read(root)
