"""What the tree saves where texts are embedded and ranked.

    python -m benchmarks.embeddings [--shape 10m] [--texts 1000] [--queries 20] [--documents 100]

Embeds texts of 20 to 60 tokens under one instruction of 300, with the tree and without it, in turn:
the time of each. Then ranks documents of 30 to 80 words for each query over HTTP's application,
with Qwen3-Reranker's prompt and a small model: the tokens that are computed, and those of all
prompts, which a server without the tree computes. Weights are random. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from radixlm import Engine
from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.server.app import create_app
from radixlm.testing.checkpoints import FIRST_WORD_ID, write_random_checkpoint
from radixlm.text.tokenizer import Tokenizer

_INSTRUCTION = 300
_MOST_TOKENS = 60_000


def prompts_of(texts: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Texts of 20 to 60 tokens behind one instruction."""
    draw = np.random.default_rng(seed)
    instruction = draw.integers(FIRST_WORD_ID, vocab_size, _INSTRUCTION).tolist()
    sizes = draw.integers(20, 61, texts)
    return [[*instruction, *draw.integers(FIRST_WORD_ID, vocab_size, n).tolist()] for n in sizes]


def embed(folder: Path, texts: int, *, rounds: int) -> dict[str, Any]:
    """The seconds of each, with the tree and without it, the best of some rounds in turn."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    cached = 0
    cosine = 1.0
    for place in range(rounds):
        made = {}
        for tree in taken:
            with Engine(
                str(folder), dtype="float32", kv_tokens=_MOST_TOKENS, disable_radix_cache=not tree
            ) as engine:
                prompts = prompts_of(texts, engine.info.vocab_size, place)
                engine.embed(prompts_of(8, engine.info.vocab_size, 1000 + place))  # warm
                begun = time.perf_counter()
                made[tree] = engine.embed(prompts)
                taken[tree].append(time.perf_counter() - begun)
        cached = sum(each.cached_tokens for each in made[True])
        pairs = zip(made[True], made[False], strict=True)
        cosine = min(cosine, *(float(one.embedding @ other.embedding) for one, other in pairs))
        print({"with": taken[True][-1], "without": taken[False][-1]}, flush=True)
    with_tree, without = min(taken[True]), min(taken[False])
    return {
        "texts": texts,
        "with_s": round(with_tree, 3),
        "without_s": round(without, 3),
        "ratio": round(with_tree / without, 4),
        "cached_tokens": cached,
        "least_cosine": cosine,
    }


def make_judge(folder: Path) -> Path:
    """A small model that says yes or no by two of its words."""
    write_random_checkpoint("tiny", folder, dtype="float32")
    tokenizer = Tokenizer.load(folder)
    path = folder / "config.json"
    said = {
        "architectures": ["LlamaForSequenceClassification"],
        "classifier_from_token": [tokenizer.spelling(FIRST_WORD_ID + n) for n in (1, 2)],
        "is_original_qwen3_reranker": True,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    return folder


def words(draw: random.Random, low: int, high: int) -> str:
    letters = "etaoinshrdlu"
    count = draw.randint(low, high)
    return " ".join("".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(count))


async def rank(folder: Path, queries: int, documents: int) -> dict[str, Any]:
    """The tokens that are computed, of all that the prompts have."""
    engine = AsyncEngine.from_config(
        EngineConfig(model=str(folder), dtype="float32", kv_tokens=_MOST_TOKENS)
    )
    app = create_app(engine, served_model_name="judge")
    draw = random.Random(0)
    texts = [words(draw, 30, 80) for _ in range(documents)]
    prompt_tokens = cached = 0
    begun = time.perf_counter()
    try:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://local", timeout=600
        ) as client:
            for _ in range(queries):
                body = {"query": words(draw, 5, 12), "documents": texts}
                answer = await client.post("/v1/rerank", json=body)
                usage = answer.raise_for_status().json()["usage"]
                prompt_tokens += usage["prompt_tokens"]
                cached += usage["prompt_tokens_details"]["cached_tokens"]
    finally:
        await engine.close()
    return {
        "queries": queries,
        "documents": documents,
        "prompt_tokens": prompt_tokens,
        "computed_tokens": prompt_tokens - cached,
        "ratio": round(1 - cached / prompt_tokens, 4),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", default="10m")
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = write_random_checkpoint(options.shape, Path(place) / "model", dtype="float32")
        embedded = embed(folder, options.texts, rounds=options.rounds)
        print(embedded, flush=True)
        judge = make_judge(Path(place) / "judge")
        ranked = asyncio.run(rank(judge, options.queries, options.documents))
        print(ranked)
    row = {"benchmark": "embeddings", "shape": options.shape, "embed": embedded, "rerank": ranked}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
