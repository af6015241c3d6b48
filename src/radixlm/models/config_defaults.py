"""Defaults of fields that a config leaves out: those of transformers' class of its model_type. The
table is made by `python -m scripts.config_defaults`.

Versions 4 and 5 of transformers differ in few: `transformers_version` says which of them wrote a
config, and where it is missing, whether the config has fields that only version 4 writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import AliasChoices

from radixlm.models.config_fields import Fields

TABLE_PATH = Path(__file__).with_name("config_defaults.json")
_TABLE = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
_NEW, _OLD = {"rope_parameters"}, {"rope_theta", "rope_scaling", "torch_dtype"}
# What ends an answer, and the type of the weights, a model's files say, or nobody does.
_OF_FILES = frozenset({"eos_token_id", "bos_token_id", "dtype", "torch_dtype", "architectures"})


def with_defaults(kind: type[Fields], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with what it leaves out. A null is a value for fields that may be null."""
    model_type = str(config.get("model_type"))
    known = dict(_TABLE["5"].get(model_type, {}))
    if _by_version_4(config):
        known |= _TABLE["4"].get(model_type, {})
    made = dict(config)
    for names, nullable in _fields(kind):
        if not any(name in config and (nullable or config[name] is not None) for name in names):
            made |= {name: known[name] for name in names & known.keys()}
    return made


def fields_read(kind: type[Fields]) -> frozenset[str]:
    """The names in config.json of what a family reads and transformers' class may have."""
    return frozenset[str]().union(*(names for names, _ in _fields(kind))) - _OF_FILES


def _fields(kind: type[Fields]) -> list[tuple[frozenset[str], bool]]:
    """The names of each field, and whether it may be null."""
    found = []
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        given = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
        found.append((frozenset(map(str, given)), field.default is None))
    rope = frozenset({"rope_scaling", "rope_parameters"})
    return [(rope if names <= rope else names, nullable) for names, nullable in found]


def _by_version_4(config: Mapping[str, Any]) -> bool:
    version = config.get("transformers_version")
    if isinstance(version, str):
        return version.startswith("4.")
    return bool(_OLD & config.keys()) and not _NEW & config.keys()
