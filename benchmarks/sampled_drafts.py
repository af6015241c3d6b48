"""Sampled answers with seeds, with drafts and without: whether any token differs.

    python -m benchmarks.sampled_drafts [--tokens 100000] [--architecture llama ...]
                                        [--dtype float32]

Every kind of drawing takes its turn: temperatures, top-k, top-p, min-p, penalties, bias, stops,
log-probabilities. Each architecture answers all prompts without drafts, and twice with drafts from
the tree, which the second time knows all answers. Models are small and random. Ends in one JSON
line; fails if a token differs, or if no draft was right.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.parity_settings import make_prompts
from benchmarks.rows import show_rows
from radixlm import Engine, RequestOutput, SamplingParams
from radixlm.testing.reference import ARCHITECTURES, make_checkpoint

FAMILIES = ("llama", "gemma3_text", "mixtral", "deepseek_v3")
VOCAB, ANSWER = 320, 100
_DRAWN = SamplingParams(max_tokens=ANSWER, temperature=0.8, ignore_eos=True)
KINDS = (
    _DRAWN,
    replace(_DRAWN, temperature=0.2),
    replace(_DRAWN, top_k=20),
    replace(_DRAWN, top_p=0.8),
    replace(_DRAWN, min_p=0.05, temperature=1.5),
    replace(_DRAWN, frequency_penalty=-0.5, presence_penalty=0.3, repetition_penalty=1.1),
    replace(_DRAWN, logit_bias={7: 3.0, 9: -3.0}, min_tokens=20, stop_token_ids=frozenset({11})),
    replace(_DRAWN, logprobs=3),
)


def answers(folder: Path, count: int, runs: int, **flags: Any) -> Iterator[tuple[Any, Any]]:
    """The outputs of each run, and the engine's figures after it."""
    prompts = make_prompts(count, VOCAB)
    params = [replace(KINDS[i % len(KINDS)], seed=i) for i in range(count)]
    with Engine(str(folder), kv_tokens=2 * count * ANSWER + 20_000, **flags) as engine:
        for _ in range(runs):
            yield engine.generate(prompts, params), engine.stats()


def drawn(outputs: Sequence[RequestOutput]) -> list[tuple[Any, ...]]:
    """What must be equal of each answer."""
    return [(o.token_ids, o.text, o.finish_reason, o.matched_stop) for o in outputs]


def compare(name: str, tokens: int, dtype: str) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_checkpoint(Path(scratch), name)
        count = -(-tokens // ANSWER)
        [(plain, _)] = answers(folder, count, 1, dtype=dtype)
        before, flags = (0, 0), {"dtype": dtype, "speculative_algorithm": "tree"}
        runs = answers(folder, count, 2, **flags)
        for run, (outputs, stats) in zip(("new", "known"), runs, strict=True):
            pairs = zip(drawn(outputs), drawn(plain), strict=True)
            made = stats.draft_tokens, stats.accepted_tokens
            yield {
                "model": name,
                "answers": run,
                "tokens": sum(len(output.token_ids) for output in outputs),
                "drafted": made[0] - before[0],
                "accepted": made[1] - before[1],
                "different": sum(ours != theirs for ours, theirs in pairs),
            }
            before = made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000, help="of all models together")
    parser.add_argument("--architecture", nargs="+", choices=ARCHITECTURES, default=FAMILIES)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args(arguments)
    each = args.tokens // len(args.architecture)
    rows = [row for name in args.architecture for row in compare(name, each, args.dtype)]
    show_rows("sampled answers, drafts on and off", rows)
    good = all(row["accepted"] and not row["different"] for row in rows)
    print(json.dumps({"benchmark": "sampled_drafts", "rows": rows, "passed": good}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
