"""Writes the defaults of fields that configs leave out: `radixlm.models.config_defaults`'s table,
from transformers' classes in version 5 (this Python's) and version 4.

    python -m venv /tmp/tf4 && /tmp/tf4/bin/pip install 'transformers==4.57.*'
    python -m scripts.config_defaults --version-4 ~/transformers-4/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radixlm.models.config_defaults import TABLE_PATH, fields_read
from radixlm.models.families import ARCHITECTURES

# Of Kimi K2 transformers has no class; its files are read by remote code that inherits this one.
_LIKE = {"kimi_k2": "deepseek_v3"}
_DUMP = Path(__file__).with_name("class_defaults.py")

Defaults = Mapping[str, Mapping[str, Any]]


def table_of(newer: Defaults, older: Defaults) -> dict[str, Defaults]:
    """The fields that families read, and of version 4 those that differ."""
    made: dict[str, dict[str, dict[str, Any]]] = {"5": {}, "4": {}}
    for kind, family in ARCHITECTURES.items():
        new, old = (
            _chosen(given.get(_LIKE.get(kind, kind), {}), fields_read(family))
            for given in (newer, older)
        )
        made["5"][kind] = new
        if changed := {name: its for name, its in old.items() if new.get(name) != its}:
            made["4"][kind] = changed
    return {version: dict(made[version]) for version in made}


def _chosen(defaults: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: its for name, its in sorted(defaults.items()) if name in names}


def written(table: Mapping[str, Any]) -> str:
    """The table with a line for each family."""
    parts = []
    for version, families in table.items():
        if not isinstance(families, Mapping):
            parts.append(f"{json.dumps(version)}: {json.dumps(families)}")
            continue
        lines = [f"{json.dumps(kind)}: {json.dumps(its)}" for kind, its in families.items()]
        parts.append(f"{json.dumps(version)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _dumped(python: str) -> dict[str, Any]:
    run = [python, str(_DUMP), *ARCHITECTURES]
    found = subprocess.run(run, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--version-4", required=True, help="a Python that has transformers 4")
    old = _dumped(parser.parse_args().version_4)
    new = _dumped(sys.executable)
    made_with = f"transformers {new['version']}, {old['version']}"
    table = {"made_with": made_with, **table_of(new["defaults"], old["defaults"])}
    TABLE_PATH.write_text(written(table), encoding="utf-8")


if __name__ == "__main__":
    main()
