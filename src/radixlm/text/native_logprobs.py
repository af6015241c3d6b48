"""Log-probabilities in SGLang's shape, as its `meta_info` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from radixlm.core.request import TokenLogprob
from radixlm.text.tokenizer import Tokenizer

# JSON has no infinity; OpenAI writes this for tokens that cannot be.
LOWEST = -9999.0
# [log-probability, token id, text]
NativeToken = tuple[float | None, int, str | None]


class NativeLists:
    """The items of SGLang's lists, by kind: `token`, and `top` where best ones were asked for.

    with_text: give the tokens' text too.
    """

    def __init__(self, tokenizer: Tokenizer, *, with_text: bool, with_top: bool) -> None:
        self._tokenizer = tokenizer
        self._with_text = with_text
        self.kinds = ("token", "top") if with_top else ("token",)

    def items(
        self, entries: Sequence[TokenLogprob], first: int | None = None
    ) -> dict[str, Iterator[object]]:
        """first: the prompt's first token, where that is asked for; nothing predicts it."""
        unpredicted = [] if first is None else [self._triple(first, None)]
        chosen = (self._triple(entry.token, entry.logprob) for entry in entries)
        # Null, not an empty list, for a token of which no best ones were asked for.
        tops = ([self._triple(*best) for best in entry.top] or None for entry in entries)
        found: dict[str, Iterator[object]] = {
            "token": chain(unpredicted, chosen),
            "top": chain([None] * len(unpredicted), tops),
        }
        return {kind: found[kind] for kind in self.kinds}

    def _triple(self, token: int, logprob: float | None) -> NativeToken:
        text = self._tokenizer.token_text(token) if self._with_text else None
        return None if logprob is None else max(logprob, LOWEST), token, text
