"""A GGUF file's entries by the keys of the `gguf` package, and the fields that they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from radixlm.core.errors import UnsupportedModelError
from radixlm.formats import gguf_fields as fields
from radixlm.formats.gguf_fields import ATTENTION, LLM, ROPE
from radixlm.formats.gguf_file import GGUFFile

SLIDING = "sliding_attention"
_MOST = 2**31 - 1


class Entries:
    """An architecture's entries, by the keys of the `gguf` package."""

    def __init__(self, file: GGUFFile, *, layered: bool) -> None:
        self.file, self._layered = file, layered
        self._architecture = file.get("general.architecture", str)

    def key(self, template: str) -> str:
        return template.format(arch=self._architecture)

    def get(self, template: str, kind: type) -> Any:
        return self.file.get(self.key(template), kind)

    def counts(self, template: str) -> list[int]:
        """Integers from 0: of each layer, or one for all; none where there is no such entry."""
        key = self.key(template)
        value = self.file.metadata.get(key)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
            values: list[int] = value.tolist()
        else:
            values = [] if value is None else [self.file.get(key, int)]
        for each in values:
            if not 0 <= each <= _MOST:
                raise self.file.wrong(key, f"{each}, no size from 1 to {_MOST}")
        return values

    def count(self, template: str) -> int | None:
        """An integer from 0; of a list, with one for each layer, the one that all are, or where
        layers may differ the first.
        """
        values = self.counts(template)
        if len(set(values)) > 1 and not (self._layered and template in fields.OF_LAYERS):
            raise UnsupportedModelError(
                f"{self.file.path}: {self.key(template)} is {values!r:.200}, which is not "
                "supported; supported: the same for all layers"
            )
        return next(filter(None, values), values[0]) if values else None

    def size(self, template: str) -> int | None:
        return self.count(template) or None

    def needed(self, template: str) -> int:
        value = self.count(template)
        if not value:
            said = "missing" if value is None else f"{value}, no size from 1 to {_MOST}"
            raise self.file.wrong(self.key(template), said)
        return value

    def each(self, template: str, *, least: int = 1) -> list[int]:
        """Sizes of each layer."""
        layers, values = self.needed(LLM.BLOCK_COUNT), self.counts(template)
        values = values * layers if len(values) == 1 else values
        if len(values) != layers or min(values) < least:
            raise self.file.wrong(self.key(template), f"no list of {layers} sizes from {least}")
        return values

    def number(self, template: str) -> float | None:
        return self.file.number(self.key(template))

    def fields(self) -> dict[str, Any]:
        """The fields that entries are, without those that are not there."""
        read = (
            (self.needed, fields.NEEDED),
            (self.size, fields.SIZES),
            (self.count, fields.COUNTS),
            (self.number, fields.NUMBERS),
            (lambda key: self.get(key, bool), fields.FLAGS),
        )
        found = {
            name: value
            for get, table in read
            for key, names in table.items()
            if (value := get(key)) is not None
            for name in names
        }
        scores = self.count(LLM.EXPERT_GATING_FUNC)
        if scores:
            found["scoring_func"] = fields.SCORES.get(scores, str(scores))
        windowed = self.file.metadata.get(self.key(ATTENTION.SLIDING_WINDOW_PATTERN))
        if isinstance(windowed, np.ndarray):
            kinds = ("full_attention", SLIDING)
            found["layer_types"] = [kinds[int(its != 0)] for its in windowed]
        elif windowed is not None:
            found["sliding_window_pattern"] = windowed
        if self.key(ROPE.DIMENSION_SECTIONS) in self.file.metadata:
            found["mrope_section"] = True
        return found
