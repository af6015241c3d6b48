"""RecurrentGemma: gated linear recurrences in two of three layers, windows in the others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from radixlm.layers.rg_lru import LruSizes
from radixlm.models.config_fields import Flag, Number, Share, Size, supported, unsupported
from radixlm.models.families.mamba_hybrids import ConvWidth
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Mixer, Norms, Traits

_Kinds = Annotated[
    list[Literal["recurrent", "attention"]],
    Field(min_length=1),
    supported("recurrent and attention"),
]


class RecurrentGemma(HFConfig):
    """Kinds of layers are repeated; `intermediate_size` counts gates and what they multiply."""

    turns_part = True
    activations = ("gelu_pytorch_tanh", "gelu")
    hidden_act: Any = Field("gelu_pytorch_tanh", validation_alias="hidden_activation")
    max_position_embeddings: Size = 8192  # configs do not say it
    tie_word_embeddings: Flag = True
    partial_rotary_factor: Share = 0.5
    attention_bias: Flag
    attention_window_size: Size
    block_types: _Kinds = Field(["recurrent", "recurrent", "attention"])
    conv1d_width: ConvWidth
    logits_soft_cap: Number
    lru_width: Size | None = None

    def traits(self) -> Traits:
        layers, heads = self.num_hidden_layers, self.num_attention_heads
        width = self.lru_width or self.hidden_size
        if width % heads:
            raise unsupported("lru_width", width, f"a multiple of {heads} attention heads")
        kinds = self.block_types
        mixers: list[Mixer] = [
            "attention" if kinds[n % len(kinds)] == "attention" else "state" for n in range(layers)
        ]
        names = Norms("temporal_pre_norm", mlp="channel_pre_norm", base=1.0, last="final_norm")
        return Traits(
            self.attention_bias,
            output_bias=True,
            mlp_bias=True,
            windows=(self.attention_window_size,) * layers,
            norms=names,
            mlp="mlp_block",
            mlp_sizes=(self.intermediate_size // 2,) * layers,
            activation="gelu_tanh",
            # The model was trained with its rounded root.
            embedding=float(torch.tensor(self.hidden_size**0.5, dtype=torch.bfloat16)),
            logits_cap=self.logits_soft_cap,
            state=LruSizes(width, heads, self.conv1d_width),
            mixers=tuple(mixers),
            renamed=((r"\.temporal_block\.([qkvo]_proj\.)", r".self_attn.\1"),),
        )
