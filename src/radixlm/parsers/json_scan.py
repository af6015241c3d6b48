"""JSON checked character by character."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

_SPACES = " \t\n\r"
_ESCAPED = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
# Parts of a number, and what leads on from each: 1 stands for the digits above 0 too.
_WHOLE, _ZERO, _FRACTION, _EXPONENT = "1", "0", ".0", "e0"
_NUMBER_PARTS = {
    "": {"-": "-", "0": _ZERO, "1": _WHOLE},
    "-": {"0": _ZERO, "1": _WHOLE},
    _ZERO: {".": ".", "e": "e"},
    _WHOLE: {"0": _WHOLE, "1": _WHOLE, ".": ".", "e": "e"},
    ".": {"0": _FRACTION, "1": _FRACTION},
    _FRACTION: {"0": _FRACTION, "1": _FRACTION, "e": "e"},
    "e": {"+": "e+", "-": "e+", "0": _EXPONENT, "1": _EXPONENT},
    "e+": {"0": _EXPONENT, "1": _EXPONENT},
    _EXPONENT: {"0": _EXPONENT, "1": _EXPONENT},
}
_NUMBER_ENDS = (_WHOLE, _ZERO, _FRACTION, _EXPONENT)
_AS_PART = {**dict.fromkeys("23456789", "1"), "E": "e"}
_INSIDE = re.compile(r'[^"\\\x00-\x1f]+')
_WORDS = {"t": "true", "f": "false", "n": "null"}
_CLOSES = {"{": "}", "[": "]"}


class At(Enum):
    """Where in the text a scanner stands: what comes next, or what it is inside of."""

    VALUE = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    FIRST_ITEM = auto()
    AFTER = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()
    NUMBER = auto()
    END = auto()


class JsonScanner:
    """Takes the characters of one object or array, and no other ones.

    at: where it stands. depth: how many objects and arrays are open.

    >>> scanner = JsonScanner()
    >>> [scanner.advance(character) for character in '{"a" 1']
    [True, True, True, True, True, False]
    """

    __slots__ = ("_in_key", "_open", "_word", "at")

    def __init__(self) -> None:
        self.at = At.VALUE
        self._open: list[str] = []
        self._in_key = False
        self._word = ""

    @property
    def depth(self) -> int:
        return len(self._open)

    def advance(self, character: str) -> bool:
        """Take the next character; False when no JSON goes on with it, or it has ended before."""
        return self.at is not At.END and _TAKE[self.at](self, character)

    def run(self, text: str, start: int) -> int:
        """How far text[start:] is the inside of a string, all of which `advance` would take."""
        found = _INSIDE.match(text, start) if self.at is At.STRING else None
        return start if found is None else found.end()

    def _value(self, character: str) -> bool:
        if character in _SPACES:
            return True
        if character == '"':
            return self._begin_string(in_key=False)
        if character in _CLOSES:
            self._open.append(character)
            self.at = At.FIRST_KEY if character == "{" else At.FIRST_ITEM
        elif self._open and (part := _number_part("", character)):
            self._word, self.at = part, At.NUMBER
        elif character in _WORDS and self._open:
            self._word, self.at = character, At.WORD
        else:
            return False
        return True

    def _first_key(self, character: str) -> bool:
        return self._close() if character == "}" else self._key(character)

    def _key(self, character: str) -> bool:
        if character == '"':
            return self._begin_string(in_key=True)
        return character in _SPACES

    def _colon(self, character: str) -> bool:
        if character == ":":
            self.at = At.VALUE
            return True
        return character in _SPACES

    def _first_item(self, character: str) -> bool:
        return self._close() if character == "]" else self._value(character)

    def _after(self, character: str) -> bool:
        opened = self._open[-1]
        if character == _CLOSES[opened]:
            return self._close()
        if character == ",":
            self.at = At.KEY if opened == "{" else At.VALUE
            return True
        return character in _SPACES

    def _string(self, character: str) -> bool:
        if character == '"':
            self.at = At.COLON if self._in_key else At.AFTER
        elif character == "\\":
            self.at = At.ESCAPE
        return character >= " "

    def _escape(self, character: str) -> bool:
        self._word, self.at = "", At.HEX if character == "u" else At.STRING
        return character == "u" or character in _ESCAPED

    def _hex(self, character: str) -> bool:
        self._word += character
        if len(self._word) == 4:
            self.at = At.STRING
        return character in _HEX

    def _letters(self, character: str) -> bool:
        self._word += character
        wanted = _WORDS[self._word[0]]
        if self._word == wanted:
            self.at = At.AFTER
        return wanted.startswith(self._word)

    def _number(self, character: str) -> bool:
        if (part := _number_part(self._word, character)) is not None:
            self._word = part
            return True
        self.at = At.AFTER
        return self._word in _NUMBER_ENDS and self._after(character)

    def _begin_string(self, *, in_key: bool) -> bool:
        self._in_key = in_key
        # On its own a string is no object or array, so none is taken.
        self.at = At.STRING
        return bool(self._open)

    def _close(self) -> bool:
        self._open.pop()
        self.at = At.AFTER if self._open else At.END
        return True


def _number_part(part: str, character: str) -> str | None:
    return _NUMBER_PARTS[part].get(_AS_PART.get(character, character))


_TAKE: Mapping[At, Callable[[JsonScanner, str], bool]] = {
    At.VALUE: JsonScanner._value,
    At.FIRST_KEY: JsonScanner._first_key,
    At.KEY: JsonScanner._key,
    At.COLON: JsonScanner._colon,
    At.FIRST_ITEM: JsonScanner._first_item,
    At.AFTER: JsonScanner._after,
    At.STRING: JsonScanner._string,
    At.ESCAPE: JsonScanner._escape,
    At.HEX: JsonScanner._hex,
    At.WORD: JsonScanner._letters,
    At.NUMBER: JsonScanner._number,
}


def is_object(text: str) -> bool:
    """Whether `text` is a JSON object, and nothing else."""
    scanner = JsonScanner()
    return text[:1] == "{" and all(map(scanner.advance, text)) and scanner.at is At.END
