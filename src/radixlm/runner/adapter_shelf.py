"""The weights of adapters that are loaded, by id, and which rows of a step have which."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from radixlm.core.batch import ScheduledRow
from radixlm.core.errors import ConfigError
from radixlm.layers.few_tokens import MOST_TOKENS
from radixlm.layers.lora import Adapted, AdaptedRows, Additions
from radixlm.models.adapters import load_adapter
from radixlm.models.decoder import CausalLM

# Steps that decode have the same rows many times over; each is 100 KB with eight adapters. Those of
# more tokens seldom come again, and are larger.
_MOST_STEPS = 16


class AdapterShelf:
    """Filled and emptied from any thread; the engine's thread reads it.

    model: adapters are for a CausalLM. deterministic: there may be none, for in a step with
    adapters gates take numbers that were rounded first, of all its rows. ranks: of several each
    would need its part of one, which none has yet.
    """

    def __init__(self, model: object, *, deterministic: bool = False, ranks: int = 1) -> None:
        self._model = model
        self._ranks = ranks
        self._deterministic = deterministic
        self._additions: dict[str, Additions] = {}
        self._steps: dict[tuple[object, ...], Adapted] = {}

    def read(self, name: str, folder: Path) -> tuple[str, Additions]:
        """An adapter's id, which begins with its name and is another one for other weights, and
        what it adds. Raises ConfigError, and what `load_adapter` does.
        """
        if not isinstance(self._model, CausalLM):
            raise ConfigError(
                f"the adapter {name!r} cannot be used: transformers computes this model, and "
                "adapters are for those with a file here"
            )
        if self._ranks > 1:
            raise ConfigError(f"the adapter {name!r} cannot be used with --tp-size {self._ranks}")
        if self._deterministic:
            raise ConfigError(
                f"the adapter {name!r} cannot be used with --deterministic: the bits of "
                "requests would depend on whether others in a step have adapters"
            )
        adapter = load_adapter(folder, self._model)
        return f"{name}@{adapter.digest}", adapter.additions

    def put(self, adapter_id: str, additions: Additions) -> None:
        """Rows may have it from now on."""
        self._additions[adapter_id] = additions

    def drop(self, adapter_id: str) -> None:
        """No row has it any more."""
        del self._additions[adapter_id]
        self._steps = {}  # not emptied: the engine's thread may be in it

    def of_step(self, rows: Iterable[ScheduledRow]) -> Adapted | None:
        """The products of a step with these rows; None where no row has an adapter."""
        runs, start = [], 0
        for adapter_id, group in groupby(rows, key=lambda row: row.request.namespace.adapter_id):
            stop = start + sum(row.n_new for row in group)
            if adapter_id:
                runs.append((adapter_id, start, stop))
            start = stop
        if not runs:
            return None
        key = (start, *runs)  # all rows count: the same calls are made again
        steps = self._steps
        made = steps.get(key)
        if made is None:
            made = Adapted([AdaptedRows(self._additions[name], *place) for name, *place in runs])
            if start <= MOST_TOKENS:
                if len(steps) >= _MOST_STEPS:
                    del steps[next(iter(steps))]
                steps[key] = made
        return made
