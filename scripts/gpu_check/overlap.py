"""Tokens a second of an engine, with the next step launched while one computes, and without."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from radixlm import Engine, SamplingParams
from radixlm.testing.checkpoints import write_random_checkpoint
from scripts.gpu_check.place import Finding, Place, rounded


def overlap(place: Place) -> Iterator[Finding]:
    """The same requests, twice each: the first time steps are recorded."""
    shape, rows, count = ("tiny", 4, 8) if place.small else ("qwen3-0.6b", 256, 128)
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
    with tempfile.TemporaryDirectory() as scratch:
        model = write_random_checkpoint(shape, Path(scratch) / shape)
        for name, off in (("one step after another", True), ("the next one launched", False)):
            flags = {"max_running_requests": rows, "kv_tokens": 2 * rows * (count + 8)}
            with Engine(
                str(model), device=place.device, disable_overlap_schedule=off, **flags
            ) as engine:
                for turn in range(2):
                    prompts = [[turn, *divmod(row, 100)] for row in range(rows)]
                    began = time.perf_counter()
                    made = engine.generate(prompts, params)
                    seconds = time.perf_counter() - began
            whole = all(len(output.token_ids) == count for output in made)
            rate = rounded(rows * count / seconds)
            yield {"what": f"{rows} rows, {name}", "tokens a second": rate, "ok": whole}
