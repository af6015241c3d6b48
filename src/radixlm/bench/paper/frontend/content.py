"""The same content as tokens and as text."""

from __future__ import annotations

from typing import Any

from radixlm.bench.paper.programs import Arguments
from radixlm.core.errors import ConfigError
from radixlm.text.tokenizer import Tokenizer


def round_trip_tokens(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Tokens that come out of tokenizing what they say, also when they stand side by side: words
    with a space before them, where there are any. Raises ConfigError where there are none.
    """
    usual = set(range(vocab_size)) - tokenizer.special_ids
    texts = {token: tokenizer.token_text(token) for token in usual}
    alone = [
        token
        for token, text in texts.items()
        if text.isascii()
        and text.isprintable()
        and tokenizer.encode_behind(text + text).tolist() == [token, token]
    ]
    words = [token for token in alone if len(texts[token]) > 1 and texts[token][0] == " "]
    if not alone:
        raise ConfigError("this tokenizer has no token that is tokenized as itself")
    return words or alone


def as_text(content: Arguments, tokenizer: Tokenizer) -> dict[str, Any]:
    """With text in place of each list of tokens, however deep."""
    return {name: _as_text(value, tokenizer) for name, value in content.items()}


def _as_text(value: Any, tokenizer: Tokenizer) -> Any:
    if isinstance(value, list) and all(isinstance(entry, int) for entry in value):
        return tokenizer.decode(value)
    if isinstance(value, list | tuple):
        return type(value)(_as_text(entry, tokenizer) for entry in value)
    return value


def retold(token_ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """An answer's tokens once a program has read it as text and said it again."""
    said: list[int] = tokenizer.encode_behind(tokenizer.decode(token_ids)).tolist()
    return said
