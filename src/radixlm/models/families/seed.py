"""Seed-OSS: Llama whose biases have a flag more."""

from __future__ import annotations

from radixlm.models.config_fields import Flag
from radixlm.models.families.llama import Llama
from radixlm.models.traits import Traits


class SeedOss(Llama):
    attention_bias: Flag
    attention_out_bias: Flag

    def traits(self) -> Traits:
        return Traits(self.attention_bias, self.attention_out_bias, self.mlp_bias)
