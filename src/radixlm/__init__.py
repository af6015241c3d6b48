"""RadixLM: shared prefixes are computed once, read once, and never a mystery.

Public names are resolved when first used, so that `import radixlm` does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixlm.build import AsyncEngine, Engine
    from radixlm.core.config import EngineConfig
    from radixlm.core.grammar import Grammar
    from radixlm.core.request import FinishReason, Namespace, RequestOutput
    from radixlm.core.sampling import SamplingParams

_HOMES = {
    "AsyncEngine": "radixlm.build",
    "Engine": "radixlm.build",
    "EngineConfig": "radixlm.core.config",
    "FinishReason": "radixlm.core.request",
    "Grammar": "radixlm.core.grammar",
    "Namespace": "radixlm.core.request",
    "RequestOutput": "radixlm.core.request",
    "SamplingParams": "radixlm.core.sampling",
}

__all__ = [
    "AsyncEngine",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "Grammar",
    "Namespace",
    "RequestOutput",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version("radixlm")
    if name not in _HOMES:
        raise AttributeError(f"module 'radixlm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
