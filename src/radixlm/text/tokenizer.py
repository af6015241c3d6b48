"""Text to token ids and back, on the `tokenizers` library."""

from __future__ import annotations

import functools
import importlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from radixlm.core.errors import InvalidRequestError, ModelError
from radixlm.core.keys import Key
from radixlm.formats.model_files import ModelFile, ModelFiles, files_of
from radixlm.text.gguf_tokenizer import tokenizer_of
from radixlm.text.named_tokens import add_named, special_texts
from radixlm.text.token_bytes import read_decoder

# Characters without a meaning; the last two of their plane are not characters.
_PRIVATE_USE = 0xF0000
_PRIVATE_USE_SIZE = 0xFFFE
# Texts that few tokens reach across.
_GUARDS = ("\n", ".", "0")
# Sixty times the largest vocabulary there is; tables have a row for each id.
_MOST_TOKENS = 2**24


class _Piece(NamedTuple):
    """A part of a text, tokenized after a guard. guards: how many of its first tokens are that."""

    encoding: tokenizers.Encoding
    guards: int


class _Spellings(dict[int, bytes]):
    """The bytes of tokens, each made at its first use. Half the time of functools.cache."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, token: int) -> bytes:
        made = self[token] = self._make(token)
        return made


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    config: tokenizer_config.json.
    vocab_size: one more than the highest id, added tokens included. The model's own vocabulary may
        be larger (padded); ids beyond are decoded to nothing.
    eos_token_id, bos_token_id: as tokenizer_config.json names them, None where it does not.
    special_ids: ids that `skip_special_tokens` leaves out. added_ids: these, and all others that
        are looked for in a text first (`<tool_call>` in many models). added_texts: the spellings of
        these others.
    longest_token: characters of the longest spelling; no token stands for more of a text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.config = config
        added = backend.get_added_tokens_decoder()
        self._added = {token: entry.content for token, entry in added.items()}
        self._bytes_of = read_decoder(_decoder_state(backend))
        self._known_bytes = _Spellings(self._make_bytes)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max([*vocabulary.values(), *added, -1]) + 1
        if self.vocab_size > _MOST_TOKENS:
            raise ModelError(f"the tokenizer has an id of {self.vocab_size - 1}, far too large")
        self._lengths = np.full(self.vocab_size + 1, -1, dtype=np.int32)
        self.longest_token = max(map(len, vocabulary), default=1)
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.added_ids = frozenset(added)
        special = frozenset(added[token].content for token in self.special_ids)
        self.added_texts = frozenset(self._added.values()) - special
        self._special_texts, self._special = special, _spellings(special)
        self._spelled = _spellings(self._added.values())
        self._breaks: dict[frozenset[str], tuple[re.Pattern[str], re.Pattern[str]] | None] = {}
        self._guards = self._find_guards() if self.drops_first_space else ()
        self.eos_token_id = self._named(config, "eos_token")
        self.bos_token_id = self._named(config, "bos_token")

    @classmethod
    def load(cls, model: Path | ModelFiles) -> Tokenizer:
        """Load a folder's tokenizer.json; without one, ask `transformers` to read the folder. Or
        make what a GGUF file describes.

        Raises ModelError that says what is missing or broken.
        """
        files = files_of(model)
        config, folder = files.tokenizer_config(), files.path
        if isinstance(files, ModelFile):
            return cls(tokenizer_of(files.gguf), config)
        path = folder / "tokenizer.json"
        if not path.is_file():
            return cls(_through_transformers(folder), config)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{path} cannot be read: {error}") from error
        add_named(backend, config)
        return cls(backend, config)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of all that a text's ids depend on: the same for tokenizers that are the
        same.
        """
        return blake2b(self._backend.to_str().encode(), digest_size=8).hexdigest()

    @property
    def drops_first_space(self) -> bool:
        """Whether one space at the very beginning of a text is the tokenizer's own."""
        return self._bytes_of.drops_first_space

    def encode(
        self, text: str, *, add_special_tokens: bool = True, break_mark: str | None = None
    ) -> Key:
        """(n,) int32 ids of `text`, which may be empty; the post-processor adds special tokens.

        break_mark: is left out wherever it stands, and no token reaches across such a place.
        Raises InvalidRequestError for text that is not valid Unicode.
        """
        first, *others = _pieces(text, break_mark)
        if not others:
            whole = self._backend.encode(first, add_special_tokens=add_special_tokens)
            return np.array(whole.ids, dtype=np.int32)
        start = _Piece(self._backend.encode(first, add_special_tokens=False), 0)
        return self._joined([start, *map(self._behind, others)], add_special_tokens)

    def encode_pair(self, first: str, second: str) -> Key:
        """(n,) int32 ids of two texts, joined as the post-processor joins a pair. Raises
        InvalidRequestError for text that is not valid Unicode.
        """
        [first], [second] = _pieces(first, None), _pieces(second, None)
        return np.array(self._backend.encode(first, second).ids, dtype=np.int32)

    def encode_after(
        self, text: str, *, last: int | None = None, break_mark: str | None = None
    ) -> Key:
        """(n,) int32 ids of `text` as it continues another one, with no token across the seam:
        nothing is put in front of it, neither special tokens nor a space.

        last: the token before; after a special one some tokenizers begin a text with a space, as in
            a whole text. break_mark: as for `encode`.
        Raises InvalidRequestError for text that is not valid Unicode.
        """
        first, *others = _pieces(text, break_mark)
        parts = [self._behind(first, last), *map(self._behind, others)]
        return self._joined(parts, add_special_tokens=False)

    def _behind(self, text: str, last: int | None = None) -> _Piece:
        guards = self._guards
        if guards and last in self.special_ids:
            guards = ((self._added[last], [last]), *guards)
        for guard, tokens in guards:
            found = self._backend.encode(guard + text, add_special_tokens=False)
            if found.ids[: len(tokens)] == tokens:
                return _Piece(found, len(tokens))
        return _Piece(self._backend.encode(text, add_special_tokens=False), 0)

    def _joined(self, pieces: Sequence[_Piece], add_special_tokens: bool) -> Key:
        merged = tokenizers.Encoding.merge([piece.encoding for piece in pieces])
        whole = self._backend.post_process(merged, None, add_special_tokens)
        of_text = np.flatnonzero(np.array(whole.special_tokens_mask) == 0)
        guards: list[int] = []
        start = 0
        for piece in pieces:
            guards += range(start, start + piece.guards)
            start += len(piece.encoding)
        return np.delete(np.array(whole.ids, dtype=np.int32), of_text[guards])

    def encode_plain(self, text: str) -> Key:
        """(n,) int32 ids of `text` alone: no special token is added, or found in it."""
        mark = new_mark()
        return self.encode(self.broken_up(text, mark), add_special_tokens=False, break_mark=mark)

    def broken_up(self, text: str, mark: str, more: frozenset[str] = frozenset()) -> str:
        """`text` with `mark` inside of everything that spells a special token, or is in `more`:
        with that as its `break_mark`, `encode` finds none of them. O(length).
        """
        if more not in self._breaks:
            one = _spellings(self._special_texts | more)
            # Each place where one begins, within another one too.
            every = one and re.compile(f"(?=({one.pattern}))(.)", re.DOTALL)
            self._breaks[more] = one and every and (one, every)
        patterns = self._breaks[more]
        if patterns is None or not patterns[0].search(text):
            return text
        return patterns[1].sub(lambda found: found[2] + mark, text)

    def special_in(self, text: str) -> dict[str, int]:
        """The special tokens that `text` spells, by their spellings. O(length)."""
        spelled = set(self._special.findall(text)) if self._special is not None else set()
        found = {spelling: self.token_id(spelling) for spelling in spelled}
        return {spelling: token for spelling, token in found.items() if token is not None}

    def spells_added(self, ids: Sequence[int]) -> bool:
        """Whether some of `ids` spell an added token without being it. O(length)."""
        if self._spelled is None:
            return False
        others = (run for added, run in groupby(ids, self.added_ids.__contains__) if not added)
        return any(self._spelled.search(self.decode(run)) for run in others)

    def within_added(self, text: str, place: int) -> bool:
        """Whether an added token that `text` spells begins before `place` and ends after it."""
        if self._spelled is None:
            return False
        start, stop = max(place - self.longest_token, 0), place + self.longest_token
        while (found := self._spelled.search(text, start, stop)) and found.start() < place:
            if found.end() > place:
                return True
            start = found.start() + 1
        return False

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; each invalid byte sequence becomes U+FFFD.

        As the library decodes, except where one byte of a run of byte tokens is not valid: the
        library gives up the valid characters, too, which no decoding step by step could know.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes(int(token)) for token in ids if token not in skipped)
        if self.drops_first_space:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; empty for an id that the vocabulary lacks."""
        return self._known_bytes[token]

    def spelled(self, ids: Iterable[int]) -> bytes:
        """The bytes that tokens add to a text together."""
        return b"".join(map(self._known_bytes.__getitem__, ids))

    def byte_length(self, ids: Key) -> int:
        """How many bytes `ids` add to a text together. O(length), without spelling them."""
        lengths = self._lengths.take(ids, mode="clip")  # ids beyond are spelled as nothing
        if ids.size and lengths.min() < 0:
            known = np.minimum(ids, self.vocab_size)
            for token in np.unique(known[lengths < 0]).tolist():
                self._lengths[token] = len(self.token_bytes(token))
            lengths = self._lengths[known]
        return int(lengths.sum())

    def token_text(self, token: int) -> str:
        """`token` alone as text; bytes that are no whole character become U+FFFD."""
        return self.token_bytes(token).decode(errors="replace")

    def token_id(self, spelling: str) -> int | None:
        """The id of a token by its spelling in the vocabulary, None where there is none."""
        return self._backend.token_to_id(spelling)

    def spelling(self, token: int) -> str | None:
        """How the vocabulary spells `token`; None for an id that it lacks."""
        return self._backend.id_to_token(token) if 0 <= token < self.vocab_size else None

    def _find_guards(self) -> tuple[tuple[str, list[int]], ...]:
        """Texts with their tokens that take the first space when they stand in front of another.

        Several, since one may be merged with the text after it.
        """
        found = []
        for guard in _GUARDS:
            try:
                tokens = self._backend.encode(guard, add_special_tokens=False).ids
            except Exception:  # noqa: S112 - where the vocabulary lacks it and has no <unk>
                continue
            if self.decode(tokens) == guard:
                found.append((guard, tokens))
        return tuple(found)

    def _make_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._bytes_of.of(self._added[token], added=True)
        spelling = self.spelling(token)
        return b"" if spelling is None else self._bytes_of.of(spelling, added=False)

    def _named(self, config: Mapping[str, Any], name: str) -> int | None:
        text = special_texts(config).get(name)
        return None if text is None else self.token_id(text)


def new_mark() -> str:
    """A mark for `Tokenizer.broken_up` that cannot be guessed, and that no template changes."""
    return "".join(chr(_PRIVATE_USE + secrets.randbelow(_PRIVATE_USE_SIZE)) for _ in range(5))


def _pieces(text: str, break_mark: str | None) -> list[str]:
    """One at least. Raises InvalidRequestError for text that is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is not valid Unicode: {error}") from None
    return [text] if break_mark is None else text.split(break_mark)


def _spellings(spelled: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for any of them, the longest first; None where there is none.

    One of a single character cannot be broken up, so it is left out.
    """
    found = sorted((text for text in spelled if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, found))) if found else None


def _decoder_state(backend: tokenizers.Tokenizer) -> dict[str, Any] | None:
    """The `decoder` of tokenizer.json, without serializing the whole vocabulary."""
    if backend.decoder is None:
        return None
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return state


def _through_transformers(folder: Path) -> tokenizers.Tokenizer:
    if not folder.is_dir():
        raise ModelError(f"tokenizer folder {folder} does not exist")
    try:
        # Only now: importing it costs seconds, and few folders need it.
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise ModelError(
            f"{folder} has no tokenizer.json; put one there, name a folder that has one with "
            "--tokenizer, or `pip install transformers` so that other formats can be read"
        ) from None
    try:
        # Without False, a folder with code of its own would ask the terminal whether to run it.
        loaded = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # it may raise anything
        raise ModelError(
            f"{folder} has no tokenizer.json, and transformers cannot read its tokenizer: {error}"
        ) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelError(
            f"{folder}: {type(loaded).__name__} has no fast form; save it as tokenizer.json"
        )
    return backend
