"""The time of a step on some machine, by measured tables. Those that were measured here are kept
beside the compiled kernels: a file for each model and way of running it.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from radixlm.bench.tables import processor
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, reason_of
from radixlm.formats.files import read_text
from radixlm.formats.private_files import replace_private
from radixlm.text.model_folder import DEMO_NAME

Points = Sequence[tuple[int, float]]


class Timed(NamedTuple):
    """A step that was measured. size: new tokens of one prompt, or rows that decode. context:
    tokens before them, of each.
    """

    size: int
    context: int
    seconds: float


@dataclass(frozen=True)
class Costs:
    """Seconds of steps, from what was measured of a model on a machine.

        step = products(new tokens) + sampling(rows) + new tokens * tokens before them * a rate

    The rate is that of the size: one token reads what is before it, many do so together.

    prefill: a prompt's part, sizes ascending, each with a context of 0 first. decode: one token for
    each of some rows, rows ascending, the least context first. overhead: of a step that ends
    idleness. about: where they come from. Raises ConfigError for tables that make no sense.
    """

    name: str
    prefill: tuple[Timed, ...]
    decode: tuple[Timed, ...]
    overhead: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tables = (*self.prefill, *self.decode)
        sane = all(t.size > 0 and t.context >= 0 and 0 <= t.seconds < inf for t in tables)
        if not sane or not self._bare or not self.decode or not 0 <= self.overhead < inf:
            raise ConfigError(
                f"costs {self.name!r}: tables hold sizes above 0, contexts and seconds of at least "
                "0, and begin with a prefill without context and a step of decoding"
            )

    def step(
        self, parts: Sequence[tuple[int, int]], sampled: int, rows: int, context: float
    ) -> float:
        """Seconds of a step. parts: of prompts, new tokens and those before them; sampled: how many
        of these get their first token; rows: those that decode; context: tokens that these read, in
        all.
        """
        read = _between(self._read_rates, rows, grows=False) * context if rows else 0.0
        if not parts:
            return _between(self._rows, rows) + read
        drawn, new = sampled + rows, rows
        for size, before in parts:
            new += size
            read += _between(self._rates, size, grows=False) * size * (before + size / 2)
        more = _between(self._rows, drawn) - _between(self._products, drawn) if drawn else 0.0
        return _between(self._products, new) + max(more, 0.0) + read

    def written(self) -> str:
        """The tables as JSON, for `read_costs`."""
        return json.dumps(asdict(self), indent=1)

    @cached_property
    def _bare(self) -> list[Timed]:
        return [each for each in self.prefill if not each.context]

    @cached_property
    def _nearest(self) -> list[Timed]:
        least = min(each.context for each in self.decode)
        return [each for each in self.decode if each.context == least]

    @cached_property
    def _rates(self) -> Points:
        return _rates(self.prefill, self._bare)

    @cached_property
    def _read_rates(self) -> Points:
        return _rates(self.decode, self._nearest)

    @cached_property
    def _products(self) -> Points:
        """A prompt's part without its attention."""
        return [(t.size, _without_reads(t, self._rates, t.size / 2)) for t in self._bare]

    @cached_property
    def _rows(self) -> Points:
        """A step of decoding without what it reads."""
        return [(t.size, _without_reads(t, self._read_rates, t.context)) for t in self._nearest]


def _without_reads(timed: Timed, rates: Points, context: float) -> float:
    """The seconds of a step but for those in which each new token reads `context` tokens."""
    rate = _between(rates, timed.size, grows=False)
    return max(timed.seconds - rate * timed.size * context, 0.0)


def _rates(timed: Sequence[Timed], nearest: Sequence[Timed]) -> Points:
    """The seconds by size, for a new token and one before it: the line through what was measured
    with more context than the nearest of that size.
    """
    found = []
    for near in nearest:
        further = [
            (t.context - near.context, t.seconds - near.seconds)
            for t in timed
            if t.size == near.size
        ]
        square = sum(context**2 for context, _ in further)
        if square:
            rate = sum(context * seconds for context, seconds in further) / square / near.size
            found.append((near.size, max(rate, 0.0)))
    return found or [(1, 0.0)]


def _between(points: Points, size: float, *, grows: bool = True) -> float:
    """The value on the lines between them; below the first it is that one, beyond the last in
    proportion, or as the last where it does not grow.
    """
    (first, least), (last, most) = points[0], points[-1]
    if size <= first:
        return least
    if size >= last:
        return most * size / last if grows else most
    place = bisect_left(points, size, key=lambda point: point[0])
    (low, before), (high, after) = points[place - 1], points[place]
    return before + (after - before) * (size - low) / (high - low)


def read_costs(path: Path) -> Costs:
    """Read what `written` gave. Raises ConfigError for anything else."""
    try:
        fields = json.loads(read_text(path))
        prefill, decode = (
            tuple(Timed(int(size), int(context), float(seconds)) for size, context, seconds in rows)
            for rows in (fields["prefill"], fields["decode"])
        )
        overhead, about = float(fields["overhead"]), dict(fields["about"])
        return Costs(str(fields["name"]), prefill, decode, overhead, about)
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path} holds no costs as `radixlm sim --calibrate` writes them: {error}"
        ) from None


def made_up(name: str) -> Costs:
    """Costs that nobody measured. "node": of a server with several accelerators, some 100,000
    tokens of prompts a second, 10 ms for a step of decoding. "none": nothing takes time, so that
    only the cache matters. Raises ConfigError.
    """
    if name == "none":
        return Costs(name, (Timed(1, 0, 0.0),), (Timed(1, 0, 0.0),))
    if name != "node":
        raise ConfigError(f"--costs {name!r} is not node, none, or a file of costs")
    prefill = [
        Timed(n, c, 0.002 + max(n, 800) * 1e-5 + n * c * 4e-10)
        for n in (1, 800, 8_000)
        for c in (0, 8_000)
    ]
    decode = [Timed(n, c, 0.01 + n * 2e-5 + n * c * 1e-9) for n in (1, 64, 256) for c in (1, 8_000)]
    return Costs(name, tuple(prefill), tuple(decode), overhead=5e-4)


FOLDER = Path("~/.cache/radixlm/costs")
# Flags that change what a step takes.
FLAGS = (
    "device",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "threads",
    "deterministic",
    "model_impl",
)


def costs_path(config: EngineConfig, folder: Path = FOLDER) -> Path:
    """The path where this model's costs are kept, as it would be run on this machine."""
    model = "" if config.model is None else str(Path(config.model).resolve())
    flags = [str(getattr(config, name)) for name in FLAGS]
    parts = (model, *flags, processor(), str(os.cpu_count()))
    digest = blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()
    return folder.expanduser() / f"{Path(model).name or DEMO_NAME}-{digest}.json"


def kept_costs(config: EngineConfig, folder: Path = FOLDER) -> Costs:
    """Raises ConfigError where nothing was measured, or what is kept is damaged."""
    path = costs_path(config, folder)
    if not path.is_file():
        model = config.model or DEMO_NAME
        raise ConfigError(
            f"nobody has measured what steps of {model} take on this machine, with these flags: "
            "run radixlm sim --calibrate first, with the same --model and flags"
        )
    return read_costs(path)


def keep_costs(costs: Costs, config: EngineConfig, folder: Path = FOLDER) -> Path:
    """Readers see all of the file or none of it. Raises ConfigError where it can not be written."""
    path = costs_path(config, folder)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private(path, costs.written().encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {reason_of(error)}") from None
    return path
