"""Floor 5: the loop and its thread. No torch.

EngineCore is one step, EngineThread runs it, EngineClient is what the rest of the house talks to.
"""

from radixlm.engine.client import EngineClient as EngineClient
from radixlm.engine.client import collect as collect
from radixlm.engine.engine_core import EngineCore as EngineCore
from radixlm.engine.engine_core import Runner as Runner
from radixlm.engine.engine_stats import EngineStats as EngineStats
from radixlm.engine.input_processor import InputProcessor as InputProcessor
from radixlm.engine.limits import Limits as Limits
