"""A draft head, as the runner calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.layers.expansion import Expansion
from radixlm.memory.pools import LayerShape


class DraftHead(Protocol):
    """One layer over a model's states. Of each token it makes a state of two things: what the model
    has made of all tokens before it, and the token; so a token's row of keys and values depends on
    nothing that comes after it, as the model's own. What is likely to come next is read off the
    state, which also takes the place of the model's for the next token.

    source: see `Draft`. n_heads: of queries. expansions: of its layer, where that has latents, as
    the model's have then; else empty.
    """

    @property
    def source(self) -> str: ...

    @property
    def n_heads(self) -> int: ...

    @property
    def expansions(self) -> Sequence[Expansion]: ...

    @property
    def shape(self) -> LayerShape:
        """See `HeadRows`."""
        ...

    def given(self) -> Tensor:
        """The part of the model's states in its last step that is kept: (tokens, size)."""
        ...

    def state(
        self, tokens: Tensor, given: Tensor, positions: Tensor, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """(tokens,), (tokens, size) -> (tokens, size) states, and what `likeliest` takes of them;
        both may be in memory that the next call uses. given: of the token before each, or its
        state. positions: of the token before.
        """
        ...

    def likeliest(self, normed: Tensor) -> Tensor:
        """(tokens, size) -> (tokens,) the token that comes next."""
        ...
