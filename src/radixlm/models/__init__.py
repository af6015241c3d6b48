"""Floor 4: the decoder, the architectures it serves, and the loader."""

from radixlm.models.decoder import CausalLM
from radixlm.models.gguf_checkpoint import GGUFCheckpoint
from radixlm.models.loader import load_model
from radixlm.models.model_config import ModelConfig, load_config
from radixlm.models.quantized_checkpoints import open_checkpoint
from radixlm.models.safetensors_files import PlainCheckpoint

__all__ = [
    "CausalLM",
    "GGUFCheckpoint",
    "ModelConfig",
    "PlainCheckpoint",
    "load_config",
    "load_model",
    "open_checkpoint",
]
