"""Floor 6, the composition root: from an EngineConfig to the public Engine and AsyncEngine."""

from radixlm.build.async_engine import AsyncEngine
from radixlm.build.loading import Loaded, ModelInfo, load
from radixlm.build.offline_engine import Engine
from radixlm.text.model_folder import DEMO_MODEL

__all__ = ["DEMO_MODEL", "AsyncEngine", "Engine", "Loaded", "ModelInfo", "load"]
