"""Granite 3 and 4: Llama with factors for embeddings, residuals, scores, logits; with experts."""

from __future__ import annotations

from radixlm.models.config_fields import Number, Size
from radixlm.models.families.llama import Llama
from radixlm.models.traits import Experts, Traits


class Granite(Llama):
    """Logits are divided by theirs, the others multiply."""

    embedding_multiplier: Number
    residual_multiplier: Number
    attention_multiplier: Number
    logits_scaling: Number

    def traits(self) -> Traits:
        return (
            super()
            .traits()
            ._replace(
                embedding=self.embedding_multiplier,
                residual=self.residual_multiplier,
                attention=self.attention_multiplier,
                logits=1 / self.logits_scaling,
            )
        )


class GraniteMoe(Granite):
    """All experts of a layer are one tensor."""

    num_experts_per_tok: Size

    def traits(self) -> Traits:
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.intermediate_size,
            renormalised=True,
            router="router.layer",
            gate_up=("input_linear.{}",),
            down="output_linear.{}",
            stacked="rows",
        )
        return super().traits()._replace(mlp="block_sparse_moe", experts=experts)
