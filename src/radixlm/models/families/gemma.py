"""Gemma 1: norms store their weight less 1, the gate is a gelu, embeddings are multiplied."""

from __future__ import annotations

from typing import Annotated, Literal

from radixlm.models.config_fields import Flag, Size, supported
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, Traits


class Gemma(HFConfig):
    """Old configs say gelu; the models were trained with its approximation by tanh."""

    activations = ("gelu_pytorch_tanh", "gelu")
    attention_bias: Flag = False
    head_dim: Size = 256
    tie_word_embeddings: Flag = True
    use_bidirectional_attention: Annotated[
        Literal[False] | None, supported("false: an answer has no tokens to come")
    ] = None

    def traits(self) -> Traits:
        return Traits(
            self.attention_bias,
            self.attention_bias,
            norms=Norms(base=1.0),
            activation="gelu_tanh",
            embedding=self.hidden_size**0.5,
        )
