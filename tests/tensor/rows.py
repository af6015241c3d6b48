"""Scheduled rows for tensor tests, made without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixlm.core.batch import Extent, Remap, ScheduledRow, Segment
from radixlm.core.keys import as_key
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams


def make_row(
    tokens: Sequence[int],
    *,
    params: SamplingParams | None = None,
    slots: Sequence[int] | None = None,
    start: int | None = None,
    table_row: int = 0,
    prompt: Sequence[int] | None = None,
    seed: int = 0,
    stop_token_ids: frozenset[int] = frozenset(),
    samples: bool = True,
) -> ScheduledRow:
    """A row that computes tokens[start:]; what lies before comes as one remap.

    prompt: the request's whole prompt, by default all the tokens.
    slots: where each token lies, by default 0, 1, 2, ...
    """
    key = as_key(tokens if prompt is None else prompt)
    everything = as_key(tokens)
    start = everything.size - 1 if start is None else start
    places = np.asarray(range(everything.size) if slots is None else slots, dtype=np.int32)
    request = GenerateRequest(
        request_id=f"row-{table_row}",
        key=key,
        params=params or SamplingParams(),
        max_tokens=64,
        seed=seed,
        stop_token_ids=stop_token_ids,
    )
    return ScheduledRow(
        request=request,
        row=table_row,
        tokens=everything,
        start=start,
        prompt_length=key.size,
        new_slots=places[start:],
        remaps=(Remap(0, places[:start]),) if start else (),
        segments=segments_of(places, start),
        samples=samples,
    )


def segments_of(places: np.ndarray, start: int) -> tuple[Segment, ...]:
    """Two segments, cut at `start`, with the extents that the slots form."""
    cuts = [(0, start), (start, places.size)]
    return tuple(
        Segment(None, low, high, extents_of(places[low:high])) for low, high in cuts if high > low
    )


def extents_of(places: np.ndarray) -> tuple[Extent, ...]:
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    return tuple(Extent(int(run[0]), int(run[-1]) + 1) for run in runs)
