"""Whether a model is served, by its config.json alone: before torch is imported, and before its
weights are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from radixlm.core.errors import UnsupportedModelError
from radixlm.formats.model_types import FOREIGN, MODEL_TYPES, NATIVE, VERSION, ModelType
from radixlm.formats.text_part import text_config

INSTALL = "pip install 'radixlm[transformers]'"
_LIST = "docs/model-types.md has all that are"


def served_by(config: Mapping[str, Any]) -> str:
    """The name of what computes a model's text: `NATIVE` or `FOREIGN`. config: config.json. Raises
    UnsupportedModelError that says what the model is, why it is not served, and what to do.
    """
    name, text = config.get("model_type"), text_config(config).get("model_type")
    if not isinstance(name, str) or not isinstance(text, str):
        wrong = text if isinstance(name, str) else name
        raise UnsupportedModelError(
            f"config field 'model_type' is {wrong!r:.80}: it has to say which model this is"
        )
    outer, inner = (MODEL_TYPES.get(each, ModelType()) for each in (name, text))
    if inner.by == NATIVE and not outer.why:
        return NATIVE
    # Some texts are computed by the class of the whole alone.
    own = "" if outer.by == FOREIGN and text == outer.text else inner.why
    why = outer.why or own or (_unknown(config) if name not in MODEL_TYPES else "")
    if why:
        whose = name if text == name else f"{name} (its text: {text})"
        raise UnsupportedModelError(
            f"this is a model of model_type {whose!r:.160}, which is not served: {why}; {_LIST}"
        )
    if find_spec(FOREIGN) is None:
        raise UnsupportedModelError(
            f"this is a model of model_type {name!r:.80}, which transformers would compute, and "
            "that is not installed",
            commands=(INSTALL,),
        )
    return FOREIGN


def _unknown(config: Mapping[str, Any]) -> str:
    """The reason why a type that is not in the table is not served; empty: a newer transformers may
    know it.
    """
    if config.get("auto_map"):
        return "its code is its own (auto_map), which is not run"
    try:
        newer = _numbers(version(FOREIGN)) > _numbers(VERSION)
    except PackageNotFoundError:
        newer = False
    return "" if newer else f"transformers {VERSION} has no causal language model of that type"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part.isdecimal()]
