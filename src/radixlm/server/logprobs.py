"""Log-probabilities in OpenAI's two shapes and in SGLang's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from radixlm.core.request import TokenLogprob
from radixlm.server.wire import (
    ChatLogprobs,
    ChatToken,
    NativeLists,
    NativeToken,
    TextLogprobs,
    TokenEntry,
)
from radixlm.text.detokenizer import Detokenizer
from radixlm.text.tokenizer import Tokenizer

# JSON has no infinity; OpenAI writes this for tokens that cannot be.
_LOWEST = -9999.0


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """`choices[].logprobs` of chat: one object per token, with its bytes."""
    content: list[ChatToken] = [
        {
            **_token(tokenizer, entry.token, entry.logprob),
            "top_logprobs": [_token(tokenizer, token, logprob) for token, logprob in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """`choices[].logprobs` of text completions: parallel lists, with offsets into the text.

    One per choice: it remembers how long the text is so far. An offset is where the token's text
    begins; tokens that make one character together share theirs.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool, prompt_tail: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._text = Detokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, prompt_tail=prompt_tail
        )
        self._offset = 0

    def of_prompt(
        self, first: int, entries: Sequence[TokenLogprob], known: TextLogprobs | None = None
    ) -> TextLogprobs:
        """For an echoed prompt: nothing is known of its first token. known: the same of another
        choice, which is not written again.
        """
        if known is not None:
            offsets = [*map(self._next_offset, [first, *(entry.token for entry in entries)])]
            return {**known, "text_offset": offsets}
        shape = self._shape([first, *(entry.token for entry in entries)], entries)
        shape["token_logprobs"].insert(0, None)
        shape["top_logprobs"].insert(0, None)
        return shape

    def of_output(self, entries: Sequence[TokenLogprob]) -> TextLogprobs:
        """For generated tokens."""
        return self._shape([entry.token for entry in entries], entries)

    def _shape(self, tokens: Sequence[int], entries: Sequence[TokenLogprob]) -> TextLogprobs:
        return {
            "tokens": [self._tokenizer.token_text(token) for token in tokens],
            "token_logprobs": [max(entry.logprob, _LOWEST) for entry in entries],
            "top_logprobs": [self._best(entry) for entry in entries],
            "text_offset": [self._next_offset(token) for token in tokens],
        }

    def _best(self, entry: TokenLogprob) -> dict[str, float]:
        # Best first, so of several tokens with one text the most likely is kept. The chosen token
        # is always there, as in OpenAI's API, where it makes them one more than asked for.
        best: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            best.setdefault(self._tokenizer.token_text(token), max(logprob, _LOWEST))
        return best

    def _next_offset(self, token: int) -> int:
        offset = self._offset
        self._offset += len(self._text.push(token).text)
        return offset


class NativeLogprobs:
    """SGLang's lists in `meta_info`: [logprob, token id, text or null] for each token, and for each
    the same of the best ones.

    One per choice: it adds up what it is given. with_text: write the tokens' text too. with_top:
    whether any best ones were asked for.
    """

    def __init__(self, tokenizer: Tokenizer, *, with_text: bool, with_top: bool) -> None:
        self._tokenizer = tokenizer
        self._with_text = with_text
        sides = ("input", "output")
        self._lists: dict[str, list[Any]] = {f"{side}_token_logprobs": [] for side in sides}
        if with_top:
            self._lists |= {f"{side}_top_logprobs": [] for side in sides}

    def add_first(self, token: int) -> None:
        """The prompt's first token: nothing comes before it that could predict it."""
        self._add("input", [token], [None], [None])

    def add_prompt(self, entries: Sequence[TokenLogprob]) -> None:
        """Further tokens of the prompt."""
        self._add_all("input", entries)

    def add_output(self, entries: Sequence[TokenLogprob]) -> None:
        """Generated tokens."""
        self._add_all("output", entries)

    def as_json(self) -> NativeLists:
        """Everything so far; the lists go on growing."""
        return cast(NativeLists, dict(self._lists))

    def _add_all(self, side: str, entries: Sequence[TokenLogprob]) -> None:
        tops = [[self._triple(*best) for best in entry.top] for entry in entries]
        tokens = [entry.token for entry in entries]
        self._add(side, tokens, [entry.logprob for entry in entries], tops)

    def _add(
        self,
        side: str,
        tokens: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Sequence[list[NativeToken] | None],
    ) -> None:
        triples = map(self._triple, tokens, logprobs)
        self._lists[f"{side}_token_logprobs"].extend(triples)
        if f"{side}_top_logprobs" in self._lists:
            # Null, not an empty list, for a token of which no best ones were asked for.
            self._lists[f"{side}_top_logprobs"].extend(top or None for top in tops)

    def _triple(self, token: int, logprob: float | None) -> NativeToken:
        text = self._tokenizer.token_text(token) if self._with_text else None
        return None if logprob is None else max(logprob, _LOWEST), token, text


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> TokenEntry:
    return {
        "token": tokenizer.token_text(token),
        "logprob": max(logprob, _LOWEST),
        "bytes": list(tokenizer.token_bytes(token)),
    }


def joined(left: TextLogprobs, right: TextLogprobs) -> TextLogprobs:
    """Two stretches of completion log-probabilities, one after the other."""
    return {
        "tokens": left["tokens"] + right["tokens"],
        "token_logprobs": left["token_logprobs"] + right["token_logprobs"],
        "top_logprobs": left["top_logprobs"] + right["top_logprobs"],
        "text_offset": left["text_offset"] + right["text_offset"],
    }
