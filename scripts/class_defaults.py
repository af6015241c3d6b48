"""Defaults of transformers' config classes, as JSON by model_type, with whichever version of it the
Python that runs this has; nothing of ours is imported.

    python scripts/class_defaults.py llama gemma3_text ...
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import transformers
from transformers import AutoConfig

_KINDS = "full_attention", "sliding_attention"


def class_defaults(model_types: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What a config is that says nothing, in the names of version 4's files. Fields that a class
    derives from others when it is made are left out, as are model_types that this version lacks.
    """
    known = transformers.CONFIG_MAPPING
    return {kind: _of(AutoConfig.for_model(kind)) for kind in model_types if kind in known}


def _of(made: Any) -> dict[str, Any]:
    values = made.to_dict()
    # What all classes have is declared in none of version 4.
    common = {name: values.get(name) for name in ("tie_word_embeddings", "partial_rotary_factor")}
    defaults, rope = common | _declared(type(made)), values.get("rope_parameters") or values
    full, windowed = (rope.get(kind, rope) for kind in _KINDS)
    own = {name: full.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    if windowed is not full:
        own["rope_local_base_freq"] = windowed.get("rope_theta")
    if full.get("rope_type", "default") != "default":
        own["rope_scaling"] = {name: its for name, its in full.items() if name not in own}
    own = {name: its for name, its in own.items() if its is not None}
    return {name: its for name, its in (defaults | own).items() if its is not None}


def _declared(kind: type) -> dict[str, Any]:
    """The defaults as they are written: what is None there is derived."""
    if is_dataclass(kind):
        simple = {field.name: field.default for field in fields(kind) if field.init}
        return {name: its for name, its in simple.items() if _is_plain(its)}
    given = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in given if _is_plain(each.default)}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | dict)


if __name__ == "__main__":
    versioned = {"version": transformers.__version__, "defaults": class_defaults(sys.argv[1:])}
    json.dump(versioned, sys.stdout)
