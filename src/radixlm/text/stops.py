"""Stop strings in a stream of characters."""

from __future__ import annotations

from typing import NamedTuple


class StopHit(NamedTuple):
    """`stop` is complete after `end` characters of the text that was fed."""

    stop: str
    end: int


class StopScanner:
    """Finds the stop string that is complete first, whatever the pieces the text comes in.

    Each string has a Knuth-Morris-Pratt automaton: its state is how much of the string the text
    seen so far ends with. So the longest state is what must be held back, and a character costs
    amortised O(1) per stop string. Of several that end at the same character the longest wins.
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

    def feed(self, text: str, *, armed: bool = True) -> StopHit | None:
        """Read on; the first hit ends it. What ends while not `armed` is passed over.

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
