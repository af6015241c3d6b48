"""A GGUF file's perplexity of a text, and its speed: ours beside llama.cpp's, in turns.

    python -m benchmarks.perplexity FILE.gguf TEXT --llama-python PATH [--json FILE]

As llama.cpp's tool of that name: the text's tokens in chunks, each after the file's BOS if it has
one, of which the second half is scored. Both are given our tokens, and no other text comes before a
chunk. Ends in one JSON line. A Python that has llama_cpp: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm import Engine, SamplingParams
from radixlm.bench.quantized_run import (
    CONTEXT,
    LlamaSide,
    OurSide,
    QuantizedTimes,
    Sizes,
    random_tokens,
)
from radixlm.bench.tables import processor
from radixlm.kernels.openmp import team

Chunks = list[list[int]]


def chunks_of(tokens: list[int], size: int, bos: list[int]) -> Chunks:
    """Whole chunks only.

    >>> chunks_of([1, 2, 3, 4, 5, 6, 7], 3, [0])
    [[0, 1, 2], [0, 3, 4], [0, 5, 6]]
    """
    step = size - len(bos)
    starts = range(0, len(tokens) - step + 1, step)
    return [[*bos, *tokens[start : start + step]] for start in starts]


def perplexity(logprobs: list[float]) -> float:
    """Of tokens with these log-probabilities.

    >>> perplexity([math.log(1 / 2), math.log(1 / 8)])
    4.0
    """
    return math.exp(-math.fsum(logprobs) / len(logprobs))


def scored_by_us(
    path: Path, text: str, count: int, size: int, **flags: Any
) -> tuple[Chunks, list[float]]:
    """The chunks of the text's first tokens, and log-probabilities of their second halves."""
    first = size // 2 + 1
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, logprob_start_len=first)
    with Engine(str(path), **flags) as engine:
        bos, tokens = (list(map(int, engine.tokenizer.encode(part))) for part in ("", text))
        tokens = tokens[len(bos) :][:count]
        chunks = chunks_of(tokens, size, bos)
        outputs = engine.generate(chunks, params, progress=True)
    return chunks, [entry.logprob for each in outputs for entry in each.prompt_logprobs]


def timed(
    path: Path, llama: LlamaSide, vocab: int, threads: int, rounds: int
) -> list[QuantizedTimes]:
    """Ours and theirs; one more round, before the others, is not counted."""
    prompt = functools.partial(random_tokens, np.random.default_rng(0), vocab)
    with closing(OurSide(path, {"dtype": "bfloat16"}, threads)) as ours:
        made = [QuantizedTimes("gguf", name, 0) for name in ("gguf", "llama.cpp")]
        team().leave()  # see quantized_run.measure
        for _ in range(rounds + 1):
            made[0].add(ours, prompt, Sizes())
            made[1].add(llama, prompt, Sizes())
    for each in made:
        del each.decode[0], each.prefill[0]
    return made


def compare(path: Path, text: Path, options: argparse.Namespace) -> dict[str, Any]:
    with closing(LlamaSide(options.llama_python)) as llama:
        llama.ask(do="open", path=str(path), threads=options.threads, context=CONTEXT)
        chunks, ours = scored_by_us(
            path,
            text.read_text(encoding="utf-8"),
            options.tokens,
            options.chunk,
            threads=options.threads,
            dtype=options.dtype,
            kv_tokens=4 * CONTEXT,
        )
        first = options.chunk // 2 + 1
        asked = [llama.ask(do="score", prompt=chunk, first=first) for chunk in tqdm(chunks)]
        theirs = [logprob for answer in asked for logprob in answer["logprobs"]]
        vocab = max(map(max, chunks))
        times = timed(path, llama, vocab, options.threads, options.rounds)
    apart = np.abs(np.subtract(ours, theirs))
    figures = [perplexity(ours), perplexity(theirs)]
    decode = [1 / min(made.decode) for made in times]
    prefill = [Sizes().prefill / min(made.prefill) for made in times]
    return {
        "file": path.name,
        "text": text.name,
        "tokens": sum(map(len, chunks)),
        "scored": len(ours),
        "perplexity": [round(each, 4) for each in figures],
        "perplexity_ratio": round(figures[0] / figures[1], 4),
        "logprobs_apart": [round(float(apart.mean()), 4), round(float(apart.max()), 3)],
        "decode_per_s": [round(each, 1) for each in decode],
        "decode_ratio": round(decode[0] / decode[1], 2),
        "prefill_per_s": [round(each, 1) for each in prefill],
        "prefill_ratio": round(prefill[0] / prefill[1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--llama-python", required=True, help="a Python that has llama_cpp")
    parser.add_argument("--tokens", type=int, default=20_000, help="of the text")
    parser.add_argument("--chunk", type=int, default=512, help="tokens")
    parser.add_argument("--dtype", default="bfloat16", help="ours, for the perplexity")
    parser.add_argument("--threads", type=int, default=2, help="of both")
    parser.add_argument("--rounds", type=int, default=5, help="of speed, in turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line there, too")
    options = parser.parse_args()
    row = compare(options.file, options.text, options)
    show_rows("ours, llama.cpp's", [row])
    line = json.dumps({"benchmark": "perplexity", "processor": processor(), **row})
    if options.json is not None:
        options.json.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
