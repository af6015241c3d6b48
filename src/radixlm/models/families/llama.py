"""Llama and Mistral, which all others are compared with."""

from __future__ import annotations

from radixlm.models.config_fields import Flag, Size
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Traits


class Llama(HFConfig):
    """Llama 1 to 3.3, and what took over their shape (SmolLM, Yi, TinyLlama, ...). One flag gives
    all four attention projections a bias, another the three of the MLP.
    """

    attention_bias: Flag = False
    mlp_bias: Flag = False

    def traits(self) -> Traits:
        return Traits(self.attention_bias, self.attention_bias, self.mlp_bias)


class Mistral(HFConfig):
    """Mistral 7B and its dense successors: Llama without biases, the first version with a window
    of transformers' default: only an explicit null means none.
    """

    sliding_window: Size | None = None

    def traits(self) -> Traits:
        return Traits(windows=(self.sliding_window,) * self.num_hidden_layers)
