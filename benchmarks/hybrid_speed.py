"""A hybrid's speed beside llama.cpp's and transformers', in turns.

    python -m benchmarks.hybrid_speed --llama-python PATH [--shape qwen3.5-0.8b] [--formats bf16]
        [--scratch DIR] [--rounds 3] [--threads N] [--json FILE]

Random weights of a published shape: one stream, 16 streams (of llama.cpp sequences of one batch),
and prompts of 512 and 2,048 tokens of which nothing is cached. Ours answer requests, greedily; the
others only compute. Each side takes its turn in each round, and the best round counts; a round
before the others is not counted. Quantized weights are compared with llama.cpp's of as many bits;
transformers has bfloat16 alone. Ends in one JSON line. What llama.cpp needs: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm.bench.quantized_run import PEERS, LlamaSide, OurSide, flags, gguf_file, random_tokens
from radixlm.bench.tables import append_json, processor
from radixlm.kernels.openmp import team
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

STREAMS, PROMPT, CONTEXT = 16, 16, 2_304
PROMPTS = (512, 2_048)
Tokens = list[int]


class Side(Protocol):
    def decode_streams(self, prompts: list[Tokens], out: int) -> float: ...

    def prefill(self, prompt: Tokens) -> float: ...


class Llama:
    """llama.cpp with a context for each stream."""

    def __init__(self, python: str, path: Path, threads: int) -> None:
        self._one, self._many = LlamaSide(python), LlamaSide(python)
        for side, context, streams in ((self._one, CONTEXT, 1), (self._many, 320, STREAMS)):
            its = {"path": str(path), "threads": threads, "context": context, "streams": streams}
            side.ask(do="open", **its)
        self.prefill = self._one.prefill

    def decode_streams(self, prompts: list[Tokens], out: int) -> float:
        if len(prompts) == 1:
            return self._one.decode(prompts[0], out)
        asked = {"prompt": prompts[0], "out": out, "streams": len(prompts)}
        return float(self._many.ask(do="decode_streams", **asked)["seconds"])

    def close(self) -> None:
        self._one.close()
        self._many.close()


class Transformers:
    """transformers in a process of its own, bfloat16."""

    def __init__(self, folder: Path, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_compute, args=(theirs, folder, threads))
        self._process.start()

    def decode_streams(self, prompts: list[Tokens], out: int) -> float:
        self._pipe.send((prompts, out))
        return float(self._pipe.recv())

    def prefill(self, prompt: Tokens) -> float:
        return self.decode_streams([prompt], 0)

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _compute(asked: Connection, folder: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    while True:
        asked.send(_seconds(model, *asked.recv()))


@torch.inference_mode()
def _seconds(model: Any, prompts: list[Tokens], out: int) -> float:
    """Of a token of each, of `out` after the prompts; without them of the prompts."""
    began = time.perf_counter()
    made = model(input_ids=torch.tensor(prompts), use_cache=True, logits_to_keep=1)
    if not out:
        return time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(out):
        best = made.logits[:, -1:].argmax(-1)
        made = model(input_ids=best, past_key_values=made.past_key_values, use_cache=True)
    return (time.perf_counter() - began) / out


def works(draw: Callable[[int], Tokens]) -> dict[str, Callable[[Side], float]]:
    """What is measured: milliseconds of a token of each stream, or of a prompt."""
    found: dict[str, Callable[[Side], float]] = {}
    for streams, out in ((1, 32), (STREAMS, 16)):
        found[f"{streams} streams"] = partial(_decoded, draw, streams, out)
    for length in PROMPTS:
        found[f"prompt of {length:,}"] = partial(_prefilled, draw, length)
    return found


def _decoded(draw: Callable[[int], Tokens], streams: int, out: int, side: Side) -> float:
    return 1e3 * side.decode_streams([draw(PROMPT) for _ in range(streams)], out)


def _prefilled(draw: Callable[[int], Tokens], length: int, side: Side) -> float:
    return 1e3 * side.prefill(draw(length))


def measured(
    folder: Path, name: str, scratch: Path, python: str | None, threads: int, rounds: int
) -> list[dict[str, object]]:
    """A row for each of `works`; ratios are others' times over ours."""
    words = SHAPES[folder.name]["vocab_size"]
    draw = functools.partial(random_tokens, np.random.default_rng(0), words)
    times: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        if python is not None:
            for kind, pure in PEERS[name].items():
                path = gguf_file(folder, scratch, python, kind, pure=pure)
                sides[kind] = stack.enter_context(closing(Llama(python, path, threads)))
        if name == "bf16":
            sides["transformers"] = stack.enter_context(closing(Transformers(folder, threads)))
        ours = OurSide(folder, flags(name), threads, 4 * CONTEXT)
        sides["ours"] = stack.enter_context(closing(ours))
        team().leave()  # this thread's, beside the engine's
        for _ in tqdm(range(rounds + 1), desc=name):
            for work, of in works(draw).items():
                for side, its in sides.items():
                    times.setdefault(work, {}).setdefault(side, []).append(of(its))
    rows = []
    for work, found in times.items():
        best = {side: min(seconds[1:]) for side, seconds in found.items()}
        row: dict[str, object] = {"format": name, "work": work}
        for side, least in best.items():
            row[side] = round(least, 1)
            if side != "ours":
                row[f"{side} / ours"] = round(least / best["ours"], 2)
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--llama-python", help="a Python that has llama_cpp")
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3.5-0.8b")
    parser.add_argument("--formats", nargs="+", choices=list(PEERS), default=["bf16"])
    parser.add_argument("--scratch", type=Path, help="where models are, or are written and stay")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line for each row there")
    options = parser.parse_args(arguments)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as made:
        scratch = options.scratch or Path(made)
        folder = scratch / options.shape
        if not folder.exists():
            write_random_checkpoint(options.shape, folder)
        for name in options.formats:
            given = folder, name, scratch, options.llama_python, options.threads, options.rounds
            found = measured(*given)
            show_rows(options.shape, found)
            rows += found
    for row in rows if options.json else ():
        append_json(options.json, {"processor": processor(), "shape": options.shape} | row)
    print(json.dumps({"benchmark": "hybrid_speed", "threads": options.threads, "rows": rows}))


if __name__ == "__main__":
    main()
