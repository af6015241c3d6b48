"""Floor 4: one file per architecture."""

from radixlm.models.config import ModelConfig, load_config
from radixlm.models.decoder import CausalLM
from radixlm.models.loader import load_model

__all__ = ["CausalLM", "ModelConfig", "load_config", "load_model"]
