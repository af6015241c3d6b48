"""Nemotron 3 and 4, Minitron: LayerNorm that stores its weight less 1, squares of relu and no gate,
half of each head turns.
"""

from __future__ import annotations

from pydantic import Field

from radixlm.models.config_fields import Number
from radixlm.models.families.llama import Llama
from radixlm.models.traits import Norms, Traits


class Nemotron(Llama):
    turns_part = True
    activations = ("relu2",)
    rms_norm_eps: Number = Field(validation_alias="norm_eps")

    def traits(self) -> Traits:
        norms = Norms(kind="layer", bias=True, base=1.0)
        own = super().traits()
        return own._replace(norms=norms, gate_up=("up_proj",), gated=False, activation="relu2")
