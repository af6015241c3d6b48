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

from radixlm.testing.reference import make_checkpoint, sizes_of

LATENTS = ("deepseek_v3", "glm4_moe_lite")
HYBRID = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
FAMILIES = (*LATENTS, "glm4_moe", *HYBRID)
# DeepSeek's and GLM's layer behind three others.
PLACE = "model.layers.3"
# Fields with an entry for each layer, and that of this one.
_LISTS = {"mlp_layer_types": "sparse", "layer_types": "full_attention"}
Tensors = dict[str, Tensor]


def make_mtp_checkpoint(folder: Path, family: str, **fields: Any) -> Path:
    """Write a model of one of FAMILIES whose files bring such a layer; with the model's embedding
    and head again, as DeepSeek's and GLM's are published.
    """
    lists = {name: [*its, _LISTS[name]] for name, its in sizes_of(family).items() if name in _LISTS}
    make_checkpoint(folder, family, num_hidden_layers=4, **lists, **fields)
    config, names = json.loads((folder / "config.json").read_text()), names_in(family)
    config |= {"num_hidden_layers": 3, "num_nextn_predict_layers": 1, **fields}
    config |= {name: its[:3] for name, its in lists.items()}
    (folder / "config.json").write_text(json.dumps(config))
    size, draw = config["hidden_size"], torch.Generator().manual_seed(1)
    tensors = {_renamed(name, PLACE, names["layer"]): its for name, its in stored(folder).items()}
    for name in ("tokens", "states", "last"):
        weight = 0.3 * torch.randn(size, generator=draw)
        tensors[f"{names[name]}.weight"] = weight + (family not in HYBRID)
    tensors[f"{names['joined']}.weight"] = torch.randn(size, 2 * size, generator=draw) * 0.4
    if family not in HYBRID:
        for name, theirs in (
            ("embed_tokens", "model.embed_tokens"),
            ("shared_head.head", "lm_head"),
        ):
            tensors[f"{PLACE}.{name}.weight"] = tensors[f"{theirs}.weight"].clone()
    store(folder, tensors)
    return folder


def names_in(family: str) -> dict[str, str]:
    """Names of what the layer consists of."""
    kinds = "layer", "joined", "tokens", "states", "last"
    if family in HYBRID:
        norms = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"
        return dict(
            zip(kinds, ("mtp.layers.0", *(f"mtp.{n}" for n in ("fc", *norms))), strict=True)
        )
    own = "eh_proj", "enorm", "hnorm", "shared_head.norm"
    return dict(zip(kinds, (PLACE, *(f"{PLACE}.{n}" for n in own)), strict=True))


def _renamed(name: str, place: str, other: str) -> str:
    return f"{other}{name.removeprefix(place)}" if name.startswith(f"{place}.") else name


def stored(folder: Path) -> Tensors:
    """The tensors of a folder, by name."""
    return load_file(folder / "model.safetensors")


def store(folder: Path, tensors: Tensors) -> None:
    """Write them in place of what it has."""
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


class PlainMtp:
    """The layer in a folder, over a whole text each time; decoder layers are transformers'."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        family, self._w = config["model_type"], stored(folder)
        self._names, self._base = names_in(family), float(family in HYBRID)
        config |= {"num_hidden_layers": 4}
        config |= {name: [*config[name], its] for name, its in _LISTS.items() if name in config}
        deeper = folder / "deeper"
        deeper.mkdir()
        (deeper / "config.json").write_text(json.dumps(config))
        place = self._names["layer"]
        store(deeper, {_renamed(name, place, PLACE): its for name, its in self._w.items()})
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            deeper, dtype=torch.float32
        )
        self._layer = self._model.model.layers.pop(3)
        self._model.config.num_hidden_layers = 3
        self._eps = config["rms_norm_eps"]

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], most: int) -> list[int]:
        """List what follows on these, by the model's states of all but the last one."""
        states = self._model.model(torch.tensor([tokens[:-1]]), use_cache=False).last_hidden_state
        inputs, drafted = list(tokens[1:]), []
        head = self._w.get(f"{PLACE}.shared_head.head.weight", self._model.lm_head.weight)
        for _ in range(most):
            made = self._states(torch.tensor([inputs]), states)
            drafted.append(int(functional.linear(made[0, -1], head).argmax()))
            inputs.append(drafted[-1])
            states = torch.cat((states, made[:, -1:]), dim=1)
        return drafted

    def _states(self, tokens: Tensor, given: Tensor) -> Tensor:
        """(1, n), (1, n, size) -> (1, n, size): of tokens and the states before them, normed."""
        table = self._w.get(f"{PLACE}.embed_tokens.weight", self._w["model.embed_tokens.weight"])
        both = self._norm("tokens", table[tokens]), self._norm("states", given)
        joined = self._w[f"{self._names['joined']}.weight"]
        hidden = functional.linear(torch.cat(both, dim=-1), joined)
        count = tokens.shape[1]
        places = torch.arange(count)[None]
        made = self._layer(
            hidden,
            attention_mask=torch.full((1, 1, count, count), -torch.inf).triu(1),
            position_ids=places,
            position_embeddings=self._model.model.rotary_emb(hidden, places),
        )
        return self._norm("last", made)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._w[f"{self._names[name]}.weight"] + self._base
        return functional.rms_norm(x, weight.shape, weight, self._eps)
