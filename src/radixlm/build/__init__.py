"""Floor 6, the composition root: from an EngineConfig to the public Engine and AsyncEngine."""

from radixlm.build.chosen import chosen
from radixlm.build.engines import AsyncEngine, Engine
from radixlm.build.loading import Loaded, ModelInfo, load
from radixlm.text.model_folder import DEMO_MODEL

__all__ = ["DEMO_MODEL", "AsyncEngine", "Engine", "Loaded", "ModelInfo", "chosen", "load"]
