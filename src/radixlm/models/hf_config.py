"""config.json as Hugging Face writes it: the fields that all architectures share. What sets one
apart is in its class, see `families`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import (
    MOST,
    Count,
    Fields,
    Flag,
    Number,
    Share,
    Size,
    supported,
)
from radixlm.models.traits import Traits

_MOST_LAYERS = 1_000_000
_MOST_EOS = 1_000
_Layers = Annotated[
    int,
    Field(strict=True, ge=1, le=_MOST_LAYERS),
    supported(f"an integer from 1 to {_MOST_LAYERS}"),
]
_EXPERTS = AliasChoices("num_experts", "num_local_experts", "n_routed_experts")
_TokenId = Annotated[int, Field(strict=True, ge=-MOST, le=MOST)]
_Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"],
    BeforeValidator(lambda value: str(value).removeprefix("torch.")),
    supported("float32, bfloat16, float16"),
]


class EndTokens(Fields):
    """The tokens that end an answer, as config.json and generation_config.json both name them."""

    eos_token_id: Annotated[
        _TokenId | Annotated[list[_TokenId | None], Field(max_length=_MOST_EOS)] | None,
        supported(f"token ids, {_MOST_EOS} at most"),
    ] = None

    @property
    def ids(self) -> frozenset[int]:
        given = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        return frozenset(token for token in given if token is not None)


class RopeFields(Fields):
    """`rope_parameters` of transformers 5, `rope_scaling` of 4. All heads turn by one position,
    alike in all layers that turn. Each type has fields of its own, see `hf_rope`.
    """

    partial_rotary_factor: Share | None = None
    rope_type: Any = None
    type: Any = None
    rope_theta: Number | None = None
    original_max_position_embeddings: Size | None = None


class HFConfig(EndTokens):
    """The fields of config.json that all architectures share; each one's own are in its subclass.
    Those without a default here have one in `config_defaults`.

    activations: that `hidden_act` may name, the first if it does not.
    turns_part: it may say which share of a head's dimensions turns; else all do.
    long_ropes: names of rope types that mean LongRoPE.
    is_stretched: `max_position_embeddings` counts what a stretched rope brings.
    """

    activations: ClassVar[tuple[str, ...]] = ("silu",)
    turns_part: ClassVar[bool] = False
    long_ropes: ClassVar[frozenset[str]] = frozenset()
    is_stretched: ClassVar[bool] = False
    hidden_act: Any = None
    num_experts: Count = Field(0, validation_alias=_EXPERTS)
    architectures: Annotated[list[str], supported("a list of names, or null")] = Field([])
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: _Layers
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Size
    original_max_position_embeddings: Size | None = None
    rms_norm_eps: Number
    partial_rotary_factor: Share | None = None
    rope_theta: Number
    rope_scaling: RopeFields | None = None
    rope_parameters: RopeFields | None = None
    tie_word_embeddings: Flag = False
    dtype: _Dtype = Field("float32", validation_alias=AliasChoices("dtype", "torch_dtype"))
    bos_token_id: Annotated[_TokenId | None, supported("token ids")] = None

    def traits(self) -> Traits:
        """The traits that set the architecture apart."""
        raise NotImplementedError

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:  # noqa: ARG002
        """The rotation of each layer, None: it has none; empty: all as the config says, `rope`."""
        return ()
