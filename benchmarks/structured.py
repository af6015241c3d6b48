"""What following a grammar costs, and what jump-forward saves.

    python -m benchmarks.structured [--vocab 151936] [--rows 32] [--requests 8]
    python -m benchmarks.structured --requests          # masks alone

*Masks*: a vocabulary of that size is made of what Python's own library is written in: its words
with and without a space before them, runs of signs, pieces of words. Rows follow JSON schemas along
answers as they might be, side by side as in a step, forced tokens left out. Per row and step:
filling the mask (as MaskFiller does, its thread included), laying it onto logits (the same rows
sampled greedily with and without it), both together, going on by a token, and looking for forced
ones. Filling stands beside the forward pass, the others stand in the way of a step.

*Jump-forward*: the demo model answers in JSON, with and without it, in turns; greedily, so that
both give the same answers. The ratio is of the medians. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rows import show_rows
from radixlm import Engine
from radixlm.core.batch import ScheduledRow
from radixlm.core.grammar import Grammar
from radixlm.core.keys import Key, as_key
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.runner.sampler import sample
from radixlm.structured_output import Compiled, Compiler, MaskFiller

_PIECE = re.compile(r" ?[A-Za-z]+|\d{1,3}| ?[^\sA-Za-z\d]+|\s+")
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "occupation": {"enum": ["farmer", "sailor", "teacher", "painter"]},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 24},
                "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
                "country": {"enum": ["France", "Norway", "Japan"]},
            },
            "required": ["street", "postal_code", "country"],
            "additionalProperties": False,
        },
        "married": {"type": "boolean"},
        "favourite_numbers": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["name", "age", "occupation", "address", "married", "favourite_numbers"],
    "additionalProperties": False,
}
_MARIA = {
    "name": "Maria Hansen",
    "age": 41,
    "occupation": "teacher",
    "address": {"street": "12 Harbour Road", "postal_code": "50123", "country": "Norway"},
    "married": True,
    "favourite_numbers": [7, 42],
}
_NOTE = "She moved to the coast in 1998 and has been repairing old boats since then."
# Each with an answer to follow.
SCHEMAS: Sequence[tuple[dict[str, Any], Any]] = (
    (_PERSON, _MARIA),
    ({"type": "object"}, {"note": _NOTE, "tags": ["boats", "coast"], "person": _MARIA}),
    (
        {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}, _PERSON]}},
        [_NOTE, 3.25, _MARIA, "done"],
    ),
    (
        {
            "type": "object",
            "properties": {"mail": {"type": "string", "pattern": "^[a-z]+@[a-z.]+$"}},
            "additionalProperties": {"type": "string"},
        },
        {"mail": "maria@example.org", "note": _NOTE},
    ),
)
PROMPTS = (
    "A sailor from Norway, as JSON:",
    "The teacher's file:",
    "Describe a painter.",
    "Who lives in Japan?",
)


class Vocabulary:
    """Of `size` tokens; the last one is the end. Text is cut greedily."""

    special_ids: frozenset[int]

    def __init__(self, size: int) -> None:
        counts: Counter[str] = Counter()
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
            counts.update(_PIECE.findall(path.read_text(errors="ignore")))
        seen = {bytes([byte]): None for byte in range(256)}
        for piece, _ in counts.most_common():
            data = piece.encode()
            seen.update(dict.fromkeys(data[:stop] for stop in range(2, min(len(data), 16) + 1)))
            if len(seen) >= size:
                break
        self._tokens = [*islice(seen, size - 1), b"<end>"]
        self.vocab_size = len(self._tokens)
        self.special_ids = frozenset({self.vocab_size - 1})
        self._ids = {data: token for token, data in enumerate(self._tokens)}

    @property
    def end(self) -> int:
        return self.vocab_size - 1

    def token_bytes(self, token: int) -> bytes:
        return self._tokens[token]

    def encode_plain(self, text: str) -> Key:
        data, ids = text.encode(), []
        while data:
            length = next(n for n in range(min(len(data), 16), 0, -1) if data[:n] in self._ids)
            ids.append(self._ids[data[:length]])
            data = data[length:]
        return as_key(ids)


class Walk:
    """A matcher on its way along an answer, and again from the beginning."""

    def __init__(self, constraint: Compiled, answer: Key) -> None:
        self._constraint = constraint
        self._answer = answer
        self._place = 0
        self.matcher = constraint.matcher()

    @property
    def token(self) -> int:
        """The next one."""
        return int(self._answer[self._place])

    def next(self) -> None:
        self.matcher.accept([self.token])
        self.passed(1)

    def passed(self, count: int) -> None:
        """The matcher has taken a token, and `count` less one are forced after it."""
        stop = self._place + count
        self.matcher.accept(self._answer[self._place + 1 : stop].tolist())
        self._place = stop
        if self.matcher.error is not None:
            raise AssertionError(self.matcher.error)
        if self._place >= self._answer.size:
            self.matcher, self._place = self._constraint.matcher(), 0


def measure_masks(vocab: int, rows: int, steps: int) -> dict[str, float | int]:
    """Microseconds per row and step."""
    vocabulary = Vocabulary(vocab)
    compiler = Compiler(vocabulary, vocab_size=vocabulary.vocab_size, eos_ids={vocabulary.end})
    kinds = [
        (compiler.compile(Grammar.json_schema(schema)), vocabulary.encode_plain(json.dumps(answer)))
        for schema, answer in SCHEMAS
    ]
    filler = MaskFiller(vocabulary.vocab_size)
    walks = [Walk(*kinds[i % len(kinds)]) for i in range(rows)]
    for walk in walks[:: len(kinds) + 1]:  # so that rows are at different places
        walk.next()
    fresh = torch.randn(rows, vocabulary.vocab_size)
    scheduled = [_row(vocabulary.end) for _ in range(rows)]
    times: dict[str, list[float]] = {
        name: [] for name in ("fill", "lay", "both", "accept", "forced")
    }
    for _ in range(steps):
        began = time.perf_counter()
        bits = filler.start([walk.matcher for walk in walks]).result()
        times["fill"].append(time.perf_counter() - began)
        without = _sampling(fresh.clone(), scheduled)
        masks = range(rows), bits
        times["lay"].append(_sampling(fresh.clone(), scheduled, masks) - without)
        times["both"].append(times["fill"][-1] + times["lay"][-1])
        began = time.perf_counter()
        for walk in walks:
            walk.matcher.accept([walk.token])
        times["accept"].append(time.perf_counter() - began)
        began = time.perf_counter()
        forced = [walk.matcher.forced() for walk in walks]
        times["forced"].append(time.perf_counter() - began)
        for walk, more in zip(walks, forced, strict=True):
            walk.passed(1 + len(more))
    compiler.close()
    found: dict[str, float | int] = {"vocab": vocabulary.vocab_size, "rows": rows}
    for name, seconds in times.items():
        each = np.array(seconds) * 1e6 / rows
        found[f"{name}_us_mean"] = round(float(each.mean()), 1)
        found[f"{name}_us_p50"] = round(float(np.median(each)), 1)
        found[f"{name}_us_p99"] = round(float(np.quantile(each, 0.99)), 1)
    return found


def _row(end: int) -> ScheduledRow:
    params = SamplingParams(temperature=0)
    request = GenerateRequest("r", as_key([1]), params, 10, 0, frozenset({end}))
    return ScheduledRow(request, 0, as_key([1]), 0, 1, as_key([0]), (), (), samples=True)


def _sampling(logits: torch.Tensor, rows: Sequence[ScheduledRow], masks: Any = None) -> float:
    began = time.perf_counter()
    sample(logits, rows, masks)
    return time.perf_counter() - began


def measure_jumps(requests: int, rounds: int) -> dict[str, float | int]:
    """Seconds for all answers, with and without jump-forward."""
    params = SamplingParams(max_tokens=400, temperature=0, grammar=Grammar.json_schema(_PERSON))
    prompts = [f"{i}. {PROMPTS[i % len(PROMPTS)]}" for i in range(requests)]
    times: dict[bool, list[float]] = {True: [], False: []}
    texts: dict[bool, list[str]] = {}
    steps: dict[bool, int] = {}
    tokens = 0
    flags: dict[str, Any] = {"kv_tokens": 50_000, "dtype": "float32"}
    with Engine(**flags) as jumping, Engine(**flags, disable_jump_forward=True) as asking:
        engines = {True: jumping, False: asking}
        for turn in range(2 * (rounds + 1)):
            jumps = turn % 2 == 0
            engine = engines[jumps]
            engine.flush_cache()
            before, began = engine.stats().steps, time.perf_counter()
            outputs = engine.generate(prompts, params)
            if turn >= 2:  # the first of each compiles and warms up
                times[jumps].append(time.perf_counter() - began)
            steps[jumps] = engine.stats().steps - before
            texts[jumps] = [output.text for output in outputs]
            tokens = sum(len(output.token_ids) for output in outputs)
    for text in texts[True]:
        json.loads(text)
    with_it, without = (float(np.median(times[jumps])) for jumps in (True, False))
    return {
        "requests": requests,
        "output_tokens": tokens,
        "same_answers": sum(a == b for a, b in zip(texts[True], texts[False], strict=True)),
        "steps_with": steps[True],
        "steps_without": steps[False],
        "seconds_with": round(with_it, 4),
        "seconds_without": round(without, 4),
        "times_as_fast": round(without / with_it, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    masks = [measure_masks(options.vocab, rows, options.steps) for rows in options.rows]
    show_rows("following a grammar, microseconds per row and step", masks)
    jumps = [measure_jumps(count, options.rounds) for count in options.requests]
    if jumps:
        show_rows("jump-forward, JSON by the demo model", jumps)
    print(json.dumps({"benchmark": "structured", "masks": masks, "jumps": jumps}))


if __name__ == "__main__":
    main()
