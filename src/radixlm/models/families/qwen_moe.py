"""Qwen 2 and 3 with experts, in all layers or some."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from radixlm.models.config_fields import Count, Flag, Size, read, supported, unsupported
from radixlm.models.families.qwen import Qwen2, Qwen3, QwenWindow
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Traits

_Layers = Annotated[list[Count], supported("numbers of layers, from 0")]


class Qwen2Moe(Qwen2):
    """Qwen 1.5 and 2 MoE: one more expert is for all tokens. With a window and no `layer_types`,
    every other layer below `max_window_layers` has it, from the first.
    """

    num_experts_per_tok: Size
    moe_intermediate_size: Size
    shared_expert_intermediate_size: Size
    norm_topk_prob: Flag
    decoder_sparse_step: Size
    mlp_only_layers: _Layers = Field([])
    qkv_bias: Flag
    max_window_layers: Count

    def traits(self) -> Traits:
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            renormalised=self.norm_topk_prob,
            shared=self.shared_expert_intermediate_size,
            layers=sparse_layers(self, self.decoder_sparse_step, self.mlp_only_layers),
        )
        return super().traits()._replace(qkv_bias=self.qkv_bias, experts=experts)

    def windows(self) -> tuple[int | None, ...]:
        if self.layer_types is not None or not self.use_sliding_window:
            return super().windows()
        window = read(QwenWindow, self.model_dump()).sliding_window
        last = self.max_window_layers
        return tuple(
            window if layer % 2 == 0 and layer < last else None
            for layer in range(self.num_hidden_layers)
        )


class Qwen3Moe(Qwen3):
    """Qwen3-30B-A3B and its like. A window is for all layers."""

    num_experts_per_tok: Size
    moe_intermediate_size: Size
    norm_topk_prob: Flag
    decoder_sparse_step: Size
    mlp_only_layers: _Layers = Field([])

    def traits(self) -> Traits:
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            renormalised=self.norm_topk_prob,
            layers=sparse_layers(self, self.decoder_sparse_step, self.mlp_only_layers),
        )
        return super().traits()._replace(experts=experts)

    def windows(self) -> tuple[int | None, ...]:
        if not self.use_sliding_window or self.sliding_window is None:
            return ()
        return (read(QwenWindow, self.model_dump()).sliding_window,) * self.num_hidden_layers


class Qwen3VLMoe(Qwen3Moe):
    """Qwen3-VL's text with experts: one tensor has those of all."""

    norm_topk_prob: Flag = True

    def traits(self) -> Traits:
        traits = super().traits()
        if traits.experts is None:
            return traits
        experts = traits.experts._replace(
            gate_up=("experts.gate_up_proj.{}",), down="experts.down_proj.{}", stacked="either"
        )
        return traits._replace(experts=experts)


def sparse_layers(config: HFConfig, step: int, dense: list[int]) -> tuple[bool, ...]:
    """See `Experts.layers`: every `step`th layer, but for those that are `dense`."""
    layers = config.num_hidden_layers
    if any(layer >= layers for layer in dense):
        raise unsupported("mlp_only_layers", dense, f"numbers of layers below {layers}")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))
