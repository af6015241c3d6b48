"""One answer, followed token by token."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from radixlm.constraints.source import reason_of


class Matcher:
    """Where in its grammar an answer is. Used by one thread at a time.

    state: llguidance's, for a MaskFiller.
    """

    __slots__ = ("state",)

    def __init__(self, state: LLMatcher) -> None:
        self.state = state

    @property
    def complete(self) -> bool:
        """Whether the answer is whole and nothing can follow."""
        return self.state.is_stopped() and not self.state.is_error()

    @property
    def error(self) -> str | None:
        """Why the grammar can not be followed any further, None when it can."""
        return reason_of(self.state)

    def accept(self, tokens: Sequence[int]) -> bool:
        """Go on by `tokens`; False when the grammar does not allow them."""
        return self.state.consume_tokens(list(tokens))

    def forced(self) -> list[int]:
        """The tokens that must come next, cut as the tokenizer cuts them; `accept` takes them.

        Where what must come may be cut in several ways, hanging on what follows it, it ends before.
        """
        return self.state.compute_ff_tokens()
