"""Layers that predict a further token, added to checkpoints with random weights; and what one
drafts, computed plainly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from radixlm.testing.reference import make_checkpoint

FAMILIES = ("deepseek_v3", "glm4_moe", "glm4_moe_lite")
# The layer behind three others.
PLACE = "model.layers.3"
_KINDS = ["sparse", "dense", "sparse", "sparse"]
Tensors = dict[str, Tensor]


def make_mtp_checkpoint(folder: Path, family: str, **fields: Any) -> Path:
    """Write a model of one of FAMILIES whose files bring such a layer, with the model's embedding
    and head again, as published ones do.
    """
    kinds = {"mlp_layer_types": _KINDS} if family == "glm4_moe_lite" else {}
    make_checkpoint(folder, family, num_hidden_layers=4, **kinds, **fields)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "num_nextn_predict_layers": 1, **fields}
    config |= {name: its[:3] for name, its in kinds.items()}
    (folder / "config.json").write_text(json.dumps(config))
    size, draw = config["hidden_size"], torch.Generator().manual_seed(1)
    tensors = stored(folder)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{PLACE}.{name}.weight"] = 1 + 0.3 * torch.randn(size, generator=draw)
    tensors[f"{PLACE}.eh_proj.weight"] = torch.randn(size, 2 * size, generator=draw) * 0.4
    tensors[f"{PLACE}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{PLACE}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    store(folder, tensors)
    return folder


def stored(folder: Path) -> Tensors:
    """The tensors of a folder, by name."""
    return load_file(folder / "model.safetensors")


def store(folder: Path, tensors: Tensors) -> None:
    """Write them in place of what it has."""
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


class PlainMtp:
    """The layer in a folder, over a whole text each time; decoder layers are transformers'."""

    def __init__(self, folder: Path) -> None:
        config: Any = transformers.AutoConfig.from_pretrained(folder)
        config.num_hidden_layers = 4
        if getattr(config, "mlp_layer_types", None):
            config.mlp_layer_types = _KINDS
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.float32
        )
        self._layer = self._model.model.layers.pop(3)
        self._eps, self._w = config.rms_norm_eps, stored(folder)

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], most: int) -> list[int]:
        """List what follows on these, by the model's states of all but the last one."""
        states = self._model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        inputs, drafted = list(tokens[1:]), []
        head = self._w.get(f"{PLACE}.shared_head.head.weight", self._w["lm_head.weight"])
        for _ in range(most):
            made = self._states(torch.tensor([inputs]), states)
            drafted.append(int(functional.linear(made[0, -1], head).argmax()))
            inputs.append(drafted[-1])
            states = torch.cat((states, made[:, -1:]), dim=1)
        return drafted

    def _states(self, tokens: Tensor, given: Tensor) -> Tensor:
        """(1, n), (1, n, size) -> (1, n, size): of tokens and the states before them, normed."""
        table = self._w.get(f"{PLACE}.embed_tokens.weight", self._w["model.embed_tokens.weight"])
        both = self._norm("enorm", table[tokens]), self._norm("hnorm", given)
        hidden = functional.linear(torch.cat(both, dim=-1), self._w[f"{PLACE}.eh_proj.weight"])
        count = tokens.shape[1]
        places = torch.arange(count)[None]
        made = self._layer(
            hidden,
            attention_mask=torch.full((1, 1, count, count), -torch.inf).triu(1),
            position_ids=places,
            position_embeddings=self._model.model.rotary_emb(hidden, places),
        )
        return self._norm("shared_head.norm", made)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._w[f"{PLACE}.{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, self._eps)
