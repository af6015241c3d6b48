"""Floor 5: the loop and its thread. No torch.

EngineCore is one step, EngineThread runs it, EngineClient is what the rest of the house talks to.
"""

from radixlm.engine.client import EngineClient, collect
from radixlm.engine.core import EngineCore
from radixlm.engine.fake_runner import FakeRunner
from radixlm.engine.intake import Intake
from radixlm.engine.runner import Runner
from radixlm.engine.stats import EngineStats

__all__ = [
    "EngineClient",
    "EngineCore",
    "EngineStats",
    "FakeRunner",
    "Intake",
    "Runner",
    "collect",
]
