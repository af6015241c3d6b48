"""Arcee's AFM: Llama with squares of relu and no gate."""

from __future__ import annotations

from radixlm.models.families.llama import Llama
from radixlm.models.traits import Traits


class Arcee(Llama):
    activations = ("relu2",)

    def traits(self) -> Traits:
        return super().traits()._replace(gate_up=("up_proj",), gated=False, activation="relu2")
