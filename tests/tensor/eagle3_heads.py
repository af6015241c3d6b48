"""EAGLE-3 heads with random weights, as files; and what one drafts, computed plainly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

HEADS, KV_HEADS, HEAD_DIM, SIZE, EPS, THETA = 4, 2, 16, 96, 1e-5, 10_000.0
TAKEN = [0, 1, 2]


def make_head(folder: Path, model: Path, vocabulary: int = 200, **fields: Any) -> Path:
    """Write a head for the model in a folder, in the format of SpecForge."""
    its = json.loads((model / "config.json").read_text())
    its = {**its, **its.get("text_config", {})}
    hidden, vocab = its["hidden_size"], its["vocab_size"]
    sizes = {
        "fc": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj": (HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.k_proj": (KV_HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.v_proj": (KV_HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, HEADS * HEAD_DIM),
        "midlayer.mlp.gate_proj": (SIZE, hidden),
        "midlayer.mlp.up_proj": (SIZE, hidden),
        "midlayer.mlp.down_proj": (hidden, SIZE),
        "lm_head": (vocabulary, hidden),
        **{
            f"midlayer.{name}": (hidden,)
            for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        },
        "norm": (hidden,),
    }
    draw = torch.Generator().manual_seed(1)
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=draw) * (0.4 if len(shape) > 1 else 1)
        for name, shape in sizes.items()
    }
    tokens = torch.randperm(vocab, generator=draw)[:vocabulary].sort().values
    tensors["d2t"] = tokens - torch.arange(vocabulary)
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, tokens, True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": vocab,
        "draft_vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": SIZE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 256,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": TAKEN},
        **fields,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


class PlainHead:
    """The head in a folder, computed as EAGLE-3's authors do, over a whole text each time."""

    def __init__(self, folder: Path, embedding: Tensor) -> None:
        self._w = {
            name: its.float() for name, its in load_file(folder / "model.safetensors").items()
        }
        self._embedding = embedding

    def drafts(self, tokens: Sequence[int], states: Sequence[Tensor], most: int) -> list[int]:
        """states: of all tokens but the last, after each of the layers that are taken."""
        hidden = self._times("fc", torch.cat([*states], -1))
        inputs, drafted = list(tokens[1:]), []
        for _ in range(most):
            made = self._layer(self._embedding[torch.tensor(inputs)], hidden)
            scores = self._times("lm_head", self._norm("norm", made[-1]))
            best = int(scores.argmax())
            drafted.append(best + int(self._w["d2t"][best]))
            inputs.append(drafted[-1])
            hidden = torch.cat((hidden, made[-1:]))
        return drafted

    def _layer(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        place, count = "midlayer.self_attn", len(hidden)
        both = self._norm("midlayer.input_layernorm", embedded)
        both = torch.cat((both, self._norm("midlayer.hidden_norm", hidden)), -1)
        q, k, v = (
            self._times(f"{place}.{name}_proj", both).view(count, -1, HEAD_DIM).transpose(0, 1)
            for name in "qkv"
        )
        angles = torch.outer(
            torch.arange(count).float(), THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        ).repeat(1, 2)

        def turned(x: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

        groups = HEADS // KV_HEADS
        read = functional.scaled_dot_product_attention(
            turned(q)[None],
            turned(k).repeat_interleave(groups, 0)[None],
            v.repeat_interleave(groups, 0)[None],
            is_causal=True,
        )[0]
        hidden = hidden + self._times(f"{place}.o_proj", read.transpose(0, 1).flatten(1))
        normed = self._norm("midlayer.post_attention_layernorm", hidden)
        gate, up = (self._times(f"midlayer.mlp.{name}_proj", normed) for name in ("gate", "up"))
        return hidden + self._times("midlayer.mlp.down_proj", functional.silu(gate) * up)

    def _times(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._w[f"{name}.weight"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._w[f"{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, EPS)
