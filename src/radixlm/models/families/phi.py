"""Phi-3, 3.5 and 4: Llama with one tensor for q, k and v and one for gate and up; some
have LongRoPE, some turn a part of each head.
"""

from __future__ import annotations

from typing import ClassVar

from radixlm.models.config_fields import Size
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Traits


class Phi3(HFConfig):
    """LongRoPE was called `su` and `yarn` in the first versions."""

    turns_part = True
    long_ropes: ClassVar[frozenset[str]] = frozenset({"longrope", "su", "yarn"})
    sliding_window: Size | None = None

    def traits(self) -> Traits:
        windows = (self.sliding_window,) * self.num_hidden_layers
        return Traits(windows=windows, qkv=("qkv_proj",), gate_up=("gate_up_proj",))
