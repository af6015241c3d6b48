"""Tokens as tokenizer_config.json names them, which may be more than tokenizer.json has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from radixlm.core.errors import ModelError

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that have a name, such as eos_token: chat templates may use it."""
    extra = config.get("extra_special_tokens")
    named = {**config, **(extra if isinstance(extra, Mapping) else {})}
    texts = {name: _text(entry) for name, entry in named.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def add_named(backend: Tokenizer, config: Mapping[str, Any]) -> None:
    """Add the tokens that the config names and the tokenizer lacks, or has in another way, as
    transformers does; but none without an id, neither there nor in the vocabulary: the model would
    have none either. Raises ModelError for tokens that are none.
    """
    known = backend.get_added_tokens_decoder()
    for place, token in _decoder(config):
        if (its := known.get(place)) is None or its.__getstate__() != token.__getstate__():
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    there = {token.content for token in backend.get_added_tokens_decoder().values()}
    others = [*special_texts(config).values()]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        entries = config.get(name)
        others += (
            [text for each in entries if (text := _text(each))] if isinstance(entries, list) else []
        )
    missing = [text for text in dict.fromkeys(others) if text not in there]
    backend.add_special_tokens([text for text in missing if backend.token_to_id(text) is not None])


def _decoder(config: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    entries = config.get("added_tokens_decoder") or {}
    try:
        for place, entry in sorted((int(place), entry) for place, entry in entries.items()):
            flags = {name: bool(entry[name]) for name in _FLAGS if name in entry}
            yield place, AddedToken(entry["content"], **flags)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise ModelError(
            f"added_tokens_decoder of tokenizer_config.json holds what is no token: {error}"
        ) from None


def _text(entry: Any) -> str | None:
    """A token's text: files give it as a string or as an object with `content`."""
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return text if isinstance(text, str) and text else None
