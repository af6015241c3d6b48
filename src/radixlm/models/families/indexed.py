"""Families that choose by an index which latents they read: DeepSeek V3.2, GLM-5, A.X K2."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.layers.index_keys import IndexSizes
from radixlm.models.config_fields import Count, Flag, Size, supported, unsupported
from radixlm.models.families.glm_moe import Glm4MoeLite
from radixlm.models.families.grouped_experts import SIGMOIDS
from radixlm.models.traits import Traits


class DeepseekV32(Glm4MoeLite):
    """DeepSeek V3.2. Its index turns halves of a head together, its attention neighbours."""

    indexer_rope_interleave: Flag = False
    rope_interleave: Annotated[Literal[True], supported("true")] = True
    attention_bias: Annotated[Literal[False], supported("false")] = False
    index_topk: Size
    index_head_dim: Size
    index_n_heads: Size

    def index_layers(self) -> tuple[bool, ...]:
        """See `IndexSizes.layers`."""
        return (True,) * self.num_hidden_layers

    def traits(self) -> Traits:
        if self.q_lora_rank is None:
            raise unsupported("q_lora_rank", None, "a size: the index has its queries of it")
        if self.index_head_dim < self.qk_rope_head_dim:
            at_least = f"at least qk_rope_head_dim, {self.qk_rope_head_dim}"
            raise unsupported("index_head_dim", self.index_head_dim, at_least)
        if self.index_head_dim % 2:
            raise unsupported("index_head_dim", self.index_head_dim, "an even number")
        sizes = self.index_n_heads, self.index_head_dim, self.index_topk
        index = IndexSizes(*sizes, self.indexer_rope_interleave, self.index_layers())
        return super().traits()._replace(indexer=index)


class GlmMoeDsa(DeepseekV32):
    """GLM-5; from 5.2 on most layers read what one before them chose."""

    indexer_rope_interleave: Flag = True
    indexer_types: Annotated[
        list[Literal["full", "shared"]] | None, supported("full and shared")
    ] = None
    index_topk_pattern: Annotated[
        str | list[Literal["full", "shared"]] | None, supported("F and S, or full and shared")
    ] = None
    index_topk_freq: Count = 1
    index_skip_topk_offset: int = Field(2, strict=True)

    def index_layers(self) -> tuple[bool, ...]:
        layers = self.num_hidden_layers
        name, kinds = "indexer_types", self.indexer_types
        if kinds is None:
            name, given = "index_topk_pattern", self.index_topk_pattern
            if given is None:
                every, first = max(self.index_topk_freq, 1), self.index_skip_topk_offset
                made = tuple(max(n - first + 1, 0) % every == 0 for n in range(layers))
                if not made[0]:
                    raise unsupported("index_skip_topk_offset", first, "at least 1")
                return made
            words: dict[str, Literal["full", "shared"]] = {"F": "full", "S": "shared"}
            if isinstance(given, str):
                kinds = [words[its] for its in given if its in words]
            else:
                kinds = given
        if len(kinds) != layers or kinds[0] != "full":
            each = f"full or shared for each of {layers} layers, the first full"
            raise unsupported(name, kinds, each)
        return tuple(kind == "full" for kind in kinds)


class AXK2(DeepseekV32):
    """A.X K2: gates of answers come with queries, norms have gates, experts perhaps no groups."""

    first_k_dense_replace: Count = 1
    gated_norm_rank: Size

    def routing(self) -> GroupedRouting:
        return SIGMOIDS if self.n_group is None else super().routing()

    def traits(self) -> Traits:
        made = super().traits()
        if made.latents is None:
            return made
        norms = made.norms._replace(gates=self.gated_norm_rank)
        return made._replace(norms=norms, latents=made.latents._replace(gated=True), spare_layers=0)
