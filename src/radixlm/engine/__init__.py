"""Floor 5: the loop and its thread. No torch.

EngineCore is one step, EngineThread runs it, EngineClient is what the rest of the house talks to.
"""

from radixlm.engine.client import EngineClient, collect
from radixlm.engine.engine_core import EngineCore, Runner
from radixlm.engine.engine_stats import EngineStats
from radixlm.engine.input_processor import InputProcessor, Limits

__all__ = [
    "EngineClient",
    "EngineCore",
    "EngineStats",
    "InputProcessor",
    "Limits",
    "Runner",
    "collect",
]
