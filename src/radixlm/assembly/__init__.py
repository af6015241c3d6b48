"""Floor 6, the composition root: from an EngineConfig to the public Engine and AsyncEngine."""

from radixlm.assembly.chosen import chosen
from radixlm.assembly.engines import AsyncEngine, Engine
from radixlm.assembly.loading import Loaded, ModelInfo, load
from radixlm.text.model_folder import DEMO_MODEL

__all__ = ["DEMO_MODEL", "AsyncEngine", "Engine", "Loaded", "ModelInfo", "chosen", "load"]
