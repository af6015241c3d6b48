"""Floor 4: one file per architecture."""

from radixlm.models.decoder import CausalLM
from radixlm.models.loader import load_model
from radixlm.models.model_config import ModelConfig, load_config

__all__ = ["CausalLM", "ModelConfig", "load_config", "load_model"]
