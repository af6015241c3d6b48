"""The layer that checkpoints bring to predict a further token (DeepSeek-V3, 2024), as a draft head:
DeepSeek's and GLM's, which stands behind the model's last one and is of the same kind.

    the model's state, normed -> hnorm    token -> embedding -> enorm
                                  |  side by side, eh_proj  |
    normed state, and to the next token <- shared_head.norm <- layer

Tokens come first, and states are normed by the model's last norm, as DeepSeek's own files have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.core.errors import ConfigError
from radixlm.layers.expansion import Expansion
from radixlm.layers.linear import Linear, Quantize, TokenEmbedding
from radixlm.layers.rotary import Rotary
from radixlm.memory.pools import LayerShape
from radixlm.models.decoder import EMBEDDING, HEAD, CausalLM, described
from radixlm.models.decoder_layer import DecoderLayer, under
from radixlm.models.folds import Folded
from radixlm.models.layer_norms import make_norm
from radixlm.models.loader import filled, matching
from radixlm.models.model_config import ModelConfig
from radixlm.models.safetensors_files import Checkpoint
from radixlm.products.compiled import TensorOptions
from radixlm.products.gemm_choice import Choose

_NORMS = ("enorm", "hnorm", "shared_head.norm")
# Copies of the model's, and what these are called.
_COPIES = {"embed_tokens": EMBEDDING, "shared_head.head": HEAD}


class MtpLayer:
    """The layer and what is around it; the memory of its weights is filled by a loader.

    config: of a model of this layer alone. place: where names begin. own: of what may be the
    model's, what it has itself.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        place: str,
        own: Collection[str],
    ) -> None:
        self.config, self._place = config, place
        options, sizes = TensorOptions(dtype, device), (config.vocab_size, config.hidden_size)
        size = config.hidden_size
        self.joined = Linear(2 * size, {"eh_proj": size}, options, bias=False)
        self.norms = {name: make_norm(config, options) for name in _NORMS}
        self.layer = DecoderLayer(config, 0, options)
        self.rotary = Rotary(config.rope, config.turning_dim, config.context_length, options)
        self.embedding = TokenEmbedding(*sizes, options) if "embed_tokens" in own else None
        self.head: Linear | None = None
        if "shared_head.head" in own:
            self.head = Linear(size, {"head": config.vocab_size}, options, bias=False)
            self.head.result = torch.float32

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `CausalLM`."""
        yield f"{self._place}.", self.joined
        for place, linear in self.layer.linears():
            yield f"{self._place}.{place}", linear
        if self.head is not None:
            yield f"{self._place}.shared_head.", self.head

    def tables(self) -> Iterator[tuple[str, TokenEmbedding]]:
        """See `CausalLM`."""
        if self.embedding is not None:
            yield f"{self._place}.embed_tokens.weight", self.embedding

    def weights(self) -> dict[str, Tensor]:
        """See `CausalLM`."""
        own = chain(
            self.joined.named_weights(),
            *(under(name, norm.named_weights()) for name, norm in self.norms.items()),
            self.layer.named_weights(),
            () if self.head is None else under("shared_head", self.head.named_weights()),
        )
        return dict(under(self._place, own)) | {name: its.weight for name, its in self.tables()}

    def pack(self, choose: Choose, quantize: Quantize | None = None) -> None:
        """See `CausalLM`."""
        for _, linear in self.linears():
            linear.pack(choose, quantize)


class MtpHead:
    """The layer on a model, see `DraftHead`; it is chained over itself for further tokens."""

    source = "mtp"

    def __init__(self, layer: MtpLayer, model: CausalLM) -> None:
        self._taken, self._norm = model.take((model.config.n_layers - 1,)), model.norm
        self.layer = layer
        self._embedding, self._head = layer.embedding or model.embedding, layer.head or model.head

    @property
    def n_heads(self) -> int:
        return self.layer.config.n_heads

    @property
    def expansions(self) -> list[Expansion]:
        """See `CausalLM`."""
        attention = self.layer.layer.attention
        return [] if attention is None or attention.expansion is None else [attention.expansion]

    @property
    def shape(self) -> LayerShape:
        """See `HeadRows`."""
        its = self.layer.config
        return LayerShape(its.n_kv_heads, its.head_dim, None, its.hidden_size)

    def given(self) -> Tensor:
        """See `DraftHead`."""
        return self._norm(self._taken.rows)

    def state(
        self, tokens: Tensor, given: Tensor, positions: Tensor, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """See `DraftHead`."""
        its, norms = self.layer, self.layer.norms
        both = norms["enorm"](self._embedding(tokens)), norms["hnorm"](given)
        hidden = its.joined(torch.cat(both, dim=1))
        part = its.layer(hidden, hidden, None, its.rotary.at(positions, None), attend)
        normed = norms["shared_head.norm"](hidden, part)
        return normed, normed

    def likeliest(self, normed: Tensor) -> Tensor:
        """See `DraftHead`."""
        return self._head(normed).argmax(-1)


class MtpWeights:
    """The layer's weights in a checkpoint, of several such layers the first's."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        """config: of the model. Raises ConfigError where there is no such layer, CheckpointError
        that names the tensor where it is not as the model's others.
        """
        traits, experts = config.traits, config.traits.experts
        self._place = place = f"model.layers.{config.n_layers}"
        deeper = traits._replace(spare_layers=traits.spare_layers - 1)
        more = replace(config, n_layers=config.n_layers + 1, traits=deeper)
        self._folded = Folded(checkpoint, more)
        names = [name for name in self._folded.shapes if name.startswith(f"{place}.")]
        if not names:
            raise ConfigError(
                "--speculative-algorithm mtp needs the layer that predicts a further token, but "
                f"{checkpoint.where!r} holds no tensor {place}.*"
            )
        alone = traits._replace(experts=experts and experts._replace(layers=()), spare_layers=0)
        self._config = replace(config, n_layers=1, traits=alone)
        self._own = [name for name in _COPIES if f"{place}.{name}.weight" in names]
        described_as = partial(MtpLayer, place=place, own=self._own)
        self._names = matching(
            self._folded, names, described(self._config, len(names), described_as)
        )

    def load(
        self,
        model: CausalLM,
        *,
        dtype: torch.dtype,
        device: torch.device,
        choose: Choose | None = None,
        quantize: Quantize | None = None,
    ) -> MtpHead:
        """The layer on its model, which is loaded. Raises CheckpointError."""
        own = [name for name in self._own if not self._is_copy(name)]
        copies = {f"{self._place}.{name}.weight" for name in self._own if name not in own}
        names = [name for name in self._names if name not in copies]
        kinds: dict[str, Any] = {"dtype": dtype, "device": device}
        make = partial(MtpLayer, self._config, **kinds, place=self._place, own=own)
        layer = filled(make, self._folded, names, choose, quantize, progress=False)
        return MtpHead(layer, model)

    def _is_copy(self, name: str) -> bool:
        """Whether it is the same as the model's, bit by bit, as published ones are."""
        theirs = f"{_COPIES[name]}.weight"
        if theirs not in self._folded.shapes:  # of a tied model
            theirs = f"{EMBEDDING}.weight"
        one, other = (self._folded.read(each) for each in (f"{self._place}.{name}.weight", theirs))
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
            return False
        return one.dtype == other.dtype and torch.equal(one, other)
