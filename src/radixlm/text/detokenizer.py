"""Output tokens to text, and stop strings in it, as they come."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from radixlm.core.sampling import ThoughtMarks
from radixlm.text.tokenizer import Tokenizer

# This many of a prompt's last ids are enough to know what a first space or half a character after
# it belongs to.
PROMPT_TAIL = 8


class StopHit(NamedTuple):
    """`stop` is complete after `end` characters of the text that was fed."""

    stop: str
    end: int


class StopScanner:
    """Finds the stop string that is complete first, whatever the pieces the text comes in.

    Each string has a Knuth-Morris-Pratt automaton: its state is how much of the string the text
    ends with so far. So the longest state must be held back, and a character costs amortised O(1)
    per stop string. Of several that end at the same character the longest wins.
    """

    __slots__ = ("_borders", "_states", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._borders = [_borders(stop) for stop in stops]
        self._states = [0] * len(stops)

    @property
    def pending(self) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        return max(self._states, default=0)

    def restart(self) -> None:
        """Forget what was read."""
        self._states = [0] * len(self._stops)

    def feed(self, text: str, *, armed: bool = True) -> StopHit | None:
        """Read on, up to the first hit. Strings that end while it is not `armed` are passed over.

        >>> StopScanner(("lo w", "wor")).feed("hello world")
        StopHit(stop='lo w', end=7)
        """
        for end, character in enumerate(text, start=1):
            hit = self._advance(character)
            if armed and hit:
                return StopHit(hit, end)
        return None

    def _advance(self, character: str) -> str:
        longest = ""
        for place, stop in enumerate(self._stops):
            borders, state = self._borders[place], self._states[place]
            while state and stop[state] != character:
                state = borders[state - 1]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                longest = max(longest, stop, key=len)
                state = borders[state - 1]
            self._states[place] = state
        return longest


class ThoughtScanner:
    """Tells which of an answer's text is thought, whatever the pieces the text comes in."""

    __slots__ = ("_begin", "_ends", "_head")

    def __init__(self, thoughts: ThoughtMarks) -> None:
        self._begin = thoughts.begin
        self._ends = [StopScanner((end,)) for end in thoughts.ends]
        self._head = ""  # what the begin may have begun with

    def feed(self, text: str) -> int | None:
        """Read on: how many of these characters are thought, markers too; the rest, if any, is the
        answer. None where they may be the begin, as those before may.

        >>> ThoughtScanner(ThoughtMarks("<t>", ("</t>",))).feed("<t>so</t>it is")
        9
        """
        rest = text
        if self._begin:
            self._head = (self._head + text).lstrip()
            if self._begin.startswith(self._head) and self._begin != self._head:
                return None
            self._ends = self._ends if self._head.startswith(self._begin) else []
            rest, self._begin = self._head[len(self._begin) :] if self._ends else text, ""
        while self._ends:
            hit = self._ends[0].feed(rest)
            if hit is None:
                return len(text)
            rest = rest[hit.end :]
            del self._ends[0]
        return len(text) - len(rest)


def _borders(text: str) -> list[int]:
    """borders[i]: the longest proper prefix of text[: i + 1] that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for place in range(1, len(text)):
        while length and text[place] != text[length]:
            length = borders[length - 1]
        if text[place] == text[length]:
            length += 1
        borders[place] = length
    return borders


def continues(half: bytes, data: bytes) -> bool:
    """Whether `data` goes on with the character that `half` begins.

    >>> continues("é".encode()[:1], b"z")
    False
    """
    try:
        codecs.getincrementaldecoder("utf-8")().decode(half + data[:1])
    except UnicodeDecodeError:
        return False
    return True


class DecodedText(NamedTuple):
    """The text that one token made certain. `stop`: the stop string that ends the request here."""

    text: str
    stop: str | None = None


class NoText:
    """A stand-in for a Detokenizer where nobody wants text."""

    def push(self, token: int) -> DecodedText:  # noqa: ARG002
        return DecodedText("")

    def flush(self) -> DecodedText:
        return DecodedText("")


class Detokenizer:
    """One request's output text, token by token.

    All pieces and the flush, joined, are `tokenizer.decode` of all pushed ids (given no prompt and
    no stop). A token costs time in proportion to its own bytes, however long the text is.

        bytes of the token -> UTF-8 decoder (keeps half a character) -> stop scanner (keeps what
        may become a stop string) -> piece

    stop: the output ends in front of the first of these to be complete.
    thoughts: where none of them counts.
    min_tokens: a stop string that is complete with an earlier token than this one is plain text.
    shown: ids of special tokens that are never skipped.
    prompt_tail: the last PROMPT_TAIL prompt ids, where the output continues a prompt: then a first
        space is kept, and a character that begins in the prompt is completed. It is left
        out where the output does not complete it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: tuple[str, ...] = (),
        thoughts: ThoughtMarks | None = None,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
        prompt_tail: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = tokenizer.drops_first_space
        self._half = b""
        for token in prompt_tail:
            self._decode(int(token))
        self._half = self.half
        self._scanner = StopScanner(stop) if stop else None
        self._thoughts = None if thoughts is None else ThoughtScanner(thoughts)
        # Text that may be the begin of thoughts, each with whether a stop string counted then.
        self._unread: list[tuple[str, bool]] = []
        self._min_tokens = min_tokens
        self._pushed = 0
        self._held = ""
        self._ended = False

    @property
    def half(self) -> bytes:
        """The bytes so far of a character that is not whole yet."""
        return self._decoder.getstate()[0]

    def push(self, token: int) -> DecodedText:
        """Take the next output token; give the text that is certain now, nothing after a stop."""
        if self._ended:
            return DecodedText("")
        self._pushed += 1
        return self._scanned(self._decode(token))

    def flush(self) -> DecodedText:
        """The text that was held back, when the request ends without a stop string; half a
        character that is left may complete one.
        """
        if self._ended:
            return DecodedText("")
        last = "" if self._half else self._decoder.decode(b"", final=True)
        if self._unread:
            self._thoughts = None  # it is no begin of any
        piece = self._scanned(last)
        self._ended = True
        return piece if piece.stop is not None else DecodedText(piece.text + self._held)

    def _scanned(self, fresh: str) -> DecodedText:
        """The text that is certain with `fresh`, which comes next."""
        if self._scanner is None:
            return DecodedText(fresh)
        self._unread.append((fresh, self._pushed >= self._min_tokens))
        thought = 0 if self._thoughts is None else self._thoughts.feed(fresh)
        if thought is None:
            return DecodedText("")
        unread, self._unread = self._unread, []
        text = ""
        if thought:
            *before, (_, armed) = unread
            text = self._held + "".join(part for part, _ in before) + fresh[:thought]
            self._held = ""
            self._scanner.restart()
            unread = [(fresh[thought:], armed)]
        for part, armed in unread:
            piece = self._stopped(self._scanner, part, armed=armed)
            text += piece.text
            if piece.stop is not None:
                return DecodedText(text, piece.stop)
        return DecodedText(text)

    def _stopped(self, scanner: StopScanner, fresh: str, *, armed: bool) -> DecodedText:
        hit = scanner.feed(fresh, armed=armed)
        text = self._held + fresh
        if hit:
            self._ended = True
            end = len(self._held) + hit.end
            return DecodedText(text[: end - len(hit.stop)], hit.stop)
        certain = len(text) - scanner.pending
        self._held = text[certain:]
        return DecodedText(text[:certain])

    def _decode(self, token: int) -> str:
        if token in self._skipped:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        if self._half and data:
            if not continues(self._half, data):
                self._decoder.reset()
            self._half = b""
        return self._decoder.decode(data)
