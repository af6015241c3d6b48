"""RadixLM: shared prefixes are computed once, read once, and never a mystery.

Public names are resolved when first used, so that `import radixlm` does not load torch. Nothing is
imported but what that takes: the command heeds no Ctrl-C in good order before this has run.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing's own is one of twenty modules, which take longer than all the rest
if TYPE_CHECKING:
    from typing import Any

    from radixlm.build import AsyncEngine, Engine
    from radixlm.core.config import EngineConfig
    from radixlm.core.errors import ProgramError
    from radixlm.core.grammar import Grammar
    from radixlm.core.request import FinishReason, Namespace, RequestOutput
    from radixlm.core.sampling import SamplingParams
    from radixlm.lang.choices import (
        ChoicesDecision,
        ChoicesSamplingMethod,
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from radixlm.lang.defaults import flush_cache, set_default_backend
    from radixlm.lang.endpoint import RuntimeEndpoint
    from radixlm.lang.function import Function, function
    from radixlm.lang.ir import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_int,
        gen_string,
        select,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from radixlm.lang.openai_backend import OpenAI
    from radixlm.lang.state import State

_HOMES = {
    "AsyncEngine": "radixlm.build",
    "ChoicesDecision": "radixlm.lang.choices",
    "ChoicesSamplingMethod": "radixlm.lang.choices",
    "Engine": "radixlm.build",
    "EngineConfig": "radixlm.core.config",
    "FinishReason": "radixlm.core.request",
    "Function": "radixlm.lang.function",
    "Grammar": "radixlm.core.grammar",
    "Namespace": "radixlm.core.request",
    "OpenAI": "radixlm.lang.openai_backend",
    "ProgramError": "radixlm.core.errors",
    "RequestOutput": "radixlm.core.request",
    "RuntimeEndpoint": "radixlm.lang.endpoint",
    "SamplingParams": "radixlm.core.sampling",
    "State": "radixlm.lang.state",
    "assistant": "radixlm.lang.ir",
    "assistant_begin": "radixlm.lang.ir",
    "assistant_end": "radixlm.lang.ir",
    "flush_cache": "radixlm.lang.defaults",
    "function": "radixlm.lang.function",
    "gen": "radixlm.lang.ir",
    "gen_int": "radixlm.lang.ir",
    "gen_string": "radixlm.lang.ir",
    "greedy_token_selection": "radixlm.lang.choices",
    "select": "radixlm.lang.ir",
    "set_default_backend": "radixlm.lang.defaults",
    "system": "radixlm.lang.ir",
    "system_begin": "radixlm.lang.ir",
    "system_end": "radixlm.lang.ir",
    "token_length_normalized": "radixlm.lang.choices",
    "unconditional_likelihood_normalized": "radixlm.lang.choices",
    "user": "radixlm.lang.ir",
    "user_begin": "radixlm.lang.ir",
    "user_end": "radixlm.lang.ir",
}

__all__ = [
    "AsyncEngine",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "Function",
    "Grammar",
    "Namespace",
    "OpenAI",
    "ProgramError",
    "RequestOutput",
    "RuntimeEndpoint",
    "SamplingParams",
    "State",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "greedy_token_selection",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("radixlm")  # it takes a while itself
    if name not in _HOMES:
        raise AttributeError(f"module 'radixlm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
