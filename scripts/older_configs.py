"""Configs as version 4 of transformers writes them, by a Python that has it and nothing of ours.

    ~/transformers-4/bin/python scripts/older_configs.py < NEWER.json

In: a config of version 5, all fields under all their names. Out: config.json, null where 4 has no
such class.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING

# Names of kinds of layers, where they were others.
_KINDS = {"granitemoehybrid": {"linear_attention": "mamba", "full_attention": "attention"}}
# What every class takes without saying so.
_COMMON = {"architectures", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"}


def older(config: Mapping[str, Any]) -> dict[str, Any] | None:
    parts = config, config.get("text_config") or config
    if any(each["model_type"] not in CONFIG_MAPPING for each in parts):
        return None
    made = _made(CONFIG_MAPPING[config["model_type"]], config)
    written: dict[str, Any] = json.loads(made.to_json_string(use_diff=True))
    return written | {"torch_dtype": "float32"}


def _made(kind: Any, config: Mapping[str, Any]) -> Any:
    fields = dict(config) | older_rope(config.get("rope_parameters") or {})
    for name, part in kind.sub_configs.items():
        if fields.get(name):
            own = CONFIG_MAPPING[fields[name]["model_type"]] if "Auto" in part.__name__ else part
            fields[name] = _made(own, fields[name]).to_dict()
    if (names := _KINDS.get(config["model_type"])) is not None:
        fields["layer_types"] = [names[each] for each in fields["layer_types"]]
    known = _COMMON | set(inspect.signature(kind).parameters)
    return kind(**{name: its for name, its in fields.items() if name in known})


def older_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in place of rope_parameters."""
    local = rope.get("sliding_attention", {}).get("rope_theta")
    left = dict(rope.get("full_attention", rope))
    names = ("rope_theta", "partial_rotary_factor")
    fields = {name: left.pop(name) for name in names if name in left}
    if local is not None:
        fields["rope_local_base_freq"] = local
    if left.get("rope_type") == "longrope":  # Phi's
        del left["original_max_position_embeddings"]
        left["type"] = left.pop("rope_type")
    plain = left.get("rope_type", "default") == "default" and len(left) <= 1
    return fields | {"rope_scaling": None if plain else left}


if __name__ == "__main__":
    json.dump(older(json.load(sys.stdin)), sys.stdout)
