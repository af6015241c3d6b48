"""One answer, followed token by token."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from radixlm.constraints.source import reason_of


class Weight:
    """What it took to follow a grammar by the last token, in seconds.

    step: to go on by it and find what is forced. mask: to fill the mask after it.
    """

    __slots__ = ("mask", "step")

    def __init__(self) -> None:
        self.step = self.mask = 0.0

    @property
    def seconds(self) -> float:
        return self.step + self.mask


class Matcher:
    """Where in its grammar an answer is. Used by one thread at a time.

    state: llguidance's, for a MaskFiller. weight: it grows with the answer where a grammar is
    ambiguous.
    """

    __slots__ = ("_broken", "state", "weight")

    def __init__(self, state: LLMatcher) -> None:
        self.state = state
        self.weight = Weight()
        self._broken: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer is whole and nothing can follow."""
        return self.state.is_stopped() and not self.state.is_error()

    @property
    def error(self) -> str | None:
        """Why the grammar can not be followed any further, None when it can."""
        return self._broken or reason_of(self.state)

    def give_up(self, error: BaseException) -> None:
        """It broke: from now on it can not be followed."""
        self._broken = f"{type(error).__name__}: {error}"

    def accept(self, tokens: Sequence[int]) -> bool:
        """Go on by `tokens`; False when the grammar does not allow them."""
        return self.state.consume_tokens(list(tokens))

    def forced(self) -> list[int]:
        """The tokens that must come next, cut as the tokenizer cuts them; `accept` takes them.

        Where what must come may be cut in several ways, hanging on what follows it, it ends before.
        """
        return self.state.compute_ff_tokens()
