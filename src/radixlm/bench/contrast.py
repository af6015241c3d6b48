"""Two ways of doing the same work, timed in turns: which is faster, or is it noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Contrast:
    """Wall times of both ways in seconds, round by round.

    >>> Contrast(off=(8.0, 8.2, 8.8), on=(2.0, 2.0, 2.2)).ratio
    4.0
    >>> Contrast(off=(1.0, 1.3, 1.1), on=(1.2, 1.1, 1.0)).is_noise
    True
    """

    off: Sequence[float]
    on: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """Off over on, of each round."""
        return [off / on for off, on in zip(self.off, self.on, strict=True)]

    @property
    def ratio(self) -> float:
        """Off over on, the median round."""
        return median(self.ratios)

    @property
    def is_noise(self) -> bool:
        """Whether the rounds differ from each other by as much as both ways do."""
        return abs(self.ratio - 1) <= max(self.ratios) - min(self.ratios)

    def sentence(self) -> str:
        """What the rounds say, for people."""
        said = f"With the cache off it takes {self.ratio:.2f} times as long"
        if len(self.on) == 1:
            return f"{said}, in one round: --rounds 3 says whether that is noise."
        rounds = f"{min(self.ratios):.2f} to {max(self.ratios):.2f} in {len(self.on)} rounds"
        if self.is_noise:
            return (
                f"{said}, but the rounds differ as much ({rounds}): noise. Ask for more requests."
            )
        return f"{said} ({rounds})."
