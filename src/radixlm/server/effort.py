"""How hard a model is asked to think, in the variables that chat templates know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Templates have three steps.
_STEPS = {"minimal": "low", "xhigh": "high", "max": "high"}


def effort_variables(effort: Effort | None) -> Mapping[str, Any]:
    """What a template is told; one that knows none of it writes the same prompt."""
    match effort:
        case None:
            return {}
        case "none":
            return {"enable_thinking": False}
        case _:
            return {"reasoning_effort": _STEPS.get(effort, effort)}
