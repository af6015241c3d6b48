"""Tiny random models of text and images as transformers has them, of which the text is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from radixlm.testing.checkpoints import EOS_TOKEN_ID, write_byte_tokenizer
from radixlm.testing.reference import fill, sizes_of

# What of the other parts is small, where a class has it.
_ONE = frozenset(
    ("num_hidden_layers", "depth", "num_layers", "encoder_layers", "layers", "num_global_layers")
)
_NARROW = frozenset(("intermediate_size", "encoder_ffn_dim", "mlp_dim"))
_TEXT = "text_config"


def make_whole(folder: Path, name: str, family: str, **fields: Any) -> Any:
    """Write a folder; returns the model. name: the model_type of the whole. family: that its text
    is like, whose tiny sizes it has. fields: of its text, too.
    """
    kind: Any = type(transformers.AutoConfig.for_model(name))
    usual = kind()
    parts = {
        part: _shortened((getattr(usual, part, None) or its()).to_dict())
        for part, its in kind.sub_configs.items()
        if part != _TEXT
    }
    text = sizes_of(family) | {"initializer_range": 0.2} | fields
    config: Any = kind(**parts, **({_TEXT: text} if _TEXT in kind.sub_configs else text))
    config.eos_token_id = EOS_TOKEN_ID
    if not hasattr(config, "vision_start_token_id"):
        config.vision_start_token_id = None
    for part in (config, *(getattr(config, its, config) for its in kind.sub_configs)):
        part.initializer_range = 0.2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        fill(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    write_byte_tokenizer(folder, text["vocab_size"], text["max_position_embeddings"])
    return model


def _shortened(fields: dict[str, Any]) -> dict[str, Any]:
    """Configs of other parts, with a narrow layer each."""
    small = dict.fromkeys(_ONE, 1) | dict.fromkeys(_NARROW, 64)
    return fields | {name: small[name] for name, its in fields.items() if name in small and its}
