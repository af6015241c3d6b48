"""Granite 3 and 4, dense: Llama with factors for embeddings, residuals, scores and logits."""

from __future__ import annotations

from radixlm.models.config_fields import Number
from radixlm.models.families.llama import Llama
from radixlm.models.traits import Traits


class Granite(Llama):
    """Logits are divided by theirs, the others multiply."""

    embedding_multiplier: Number = 1.0
    residual_multiplier: Number = 1.0
    attention_multiplier: Number = 1.0
    logits_scaling: Number = 1.0

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
