"""The deterministic mode: the same requests in every company, and whether any bit differs.

    python -m benchmarks.same_bits [--requests 1000] [--architecture llama ...] [--dtype bfloat16]
                                   [--setting "cold" ...] [--every 2 [--first 1]]
                                   [--kv-cache-dtype int8] [--drafts] [--without]

Requests in families share up to 1,500 tokens of their prompts; half of them are drawn with a seed.
Each is first run alone, without a cache. Then all run in each setting, and every token's
log-probability, and the five best ones, must have the same bits. --drafts: all but those that run
alone have drafts from the tree. --without: not in deterministic
mode, to see how often bits differ then. Models are small and random, one of each architecture,
among them one with the vocabulary of a large one; what the mode refuses is listed. Ends in one
JSON line; fails if a bit differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from radixlm import Engine, RequestOutput, SamplingParams
from radixlm.attention import backends
from radixlm.core.errors import ConfigError
from radixlm.testing.reference import ARCHITECTURES, make_checkpoint

DTYPES = ("float32", "bfloat16")
CONTEXT, TOKENS = 2048, 8
VOCAB, LARGE_VOCAB = 320, 40_000
# Of the demo's size: rows of a head that overlap the last panel, values that fill no whole vector.
SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}
SHAPES: dict[str, dict[str, Any]] = {  # of the others: as the tests have them
    "llama": SIZES | {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64},
    "mistral": SIZES | {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 80},
    "qwen2": SIZES | {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32},
    "qwen3": SIZES | {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128},
}


class Setting(NamedTuple):
    """again: the second of two runs. together: whatever can be is read once for several rows.
    retracts: it must run out of memory.
    """

    name: str
    flags: dict[str, Any]
    again: bool = False
    together: bool = False
    retracts: bool = False


TIGHT = {"kv_tokens": 4_500, "schedule_conservativeness": 0.0}
ALONE = Setting("alone", {"disable_radix_cache": True, "max_running_requests": 1})
SETTINGS = (
    Setting("cold", {}),
    Setting("warm", {}, again=True),
    Setting("chunks of 100", {"chunked_prefill_size": 100}),
    Setting("chunks of 512", {"chunked_prefill_size": 512}),
    *(Setting(f"batch of {rows}", {"max_running_requests": rows}) for rows in (1, 2, 4, 8, 16, 32)),
    Setting("no cache, batch of 32", {"disable_radix_cache": True, "max_running_requests": 32}),
    Setting("shared", {}, again=True, together=True),
    Setting("retracted", TIGHT, retracts=True),
    Setting("retracted, shared", TIGHT, together=True, retracts=True),
    Setting("pages of 16", {"page_size": 16}),
    Setting("pages of 16, warm", {"page_size": 16}, again=True),
)


class Outcome(NamedTuple):
    """different: requests with a token or a bit that is not that of the request alone."""

    setting: str
    requests: int
    tokens: int
    different: int
    cached: int
    retractions: int
    drafted: int
    accepted: int
    seconds: float


def make_prompts(count: int, vocab_size: int) -> list[list[int]]:
    """Families of 10: a prefix of 100 to 1,500 tokens, branches of it, a tail of up to 200."""
    prompts = []
    for index in range(count):
        draw = np.random.default_rng((1, index))
        of_family = np.random.default_rng((2, index // 10))
        of_branch = np.random.default_rng((3, index // 10, index % 3))
        family = of_family.integers(0, vocab_size, int(of_family.integers(100, 1_500)))
        branch = of_branch.integers(0, vocab_size, int(of_branch.integers(0, 250)))
        own = draw.integers(0, vocab_size, int(draw.integers(1, 200)))
        prompts.append([*family.tolist(), *branch.tolist(), *own.tolist()])
    return prompts


def make_params(count: int) -> list[SamplingParams]:
    greedy = SamplingParams(max_tokens=TOKENS, ignore_eos=True, logprobs=5, temperature=0)
    drawn = replace(greedy, temperature=0.8, top_p=0.9)
    return [replace(drawn if i % 2 else greedy, seed=i) for i in range(count)]


def run(
    folder: Path, setting: Setting, prompts: Sequence[list[int]], flags: dict[str, Any]
) -> tuple[list[RequestOutput], Any]:
    """The outputs, and the engine's figures."""
    usual = dict(backends.SHARING)
    if setting.together:
        backends.SHARING.update(dict.fromkeys(usual, (1, 0, 1)))
    params = make_params(len(prompts))
    try:
        with Engine(str(folder), **({"kv_tokens": 400_000} | setting.flags | flags)) as engine:
            outputs = engine.generate(list(prompts), params)
            if setting.again:
                outputs = engine.generate(list(prompts), params)
            return outputs, engine.stats()
    finally:
        backends.SHARING.update(usual)


def refusal(folder: Path, flags: dict[str, Any]) -> str | None:
    """What the deterministic mode says of a model that it does not know."""
    try:
        with Engine(str(folder), kv_tokens=CONTEXT, **flags):
            return None
    except ConfigError as error:
        return str(error)


def bits_of(output: RequestOutput) -> tuple[Any, ...]:
    """All that is to be equal: floats compare by their bits, for none of them is NaN or zero."""
    return output.token_ids, output.logprobs, output.finish_reason


def compare(
    folder: Path,
    settings: Sequence[Setting],
    count: int,
    vocab: int,
    flags: dict[str, Any],
    drafts: str = "off",
) -> Iterator[Outcome]:
    prompts = make_prompts(count, vocab)
    wanted = [bits_of(output) for output in run(folder, ALONE, prompts, flags)[0]]
    for setting in settings:
        began = time.monotonic()
        outputs, stats = run(folder, setting, prompts, flags | {"speculative_algorithm": drafts})
        different = sum(bits_of(o) != w for o, w in zip(outputs, wanted, strict=True))
        if setting.retracts and not stats.retractions:
            raise ConfigError(f"{setting.name}: nothing was retracted; use more --requests")
        tokens = sum(len(output.token_ids) for output in outputs)
        seconds = round(time.monotonic() - began, 1)
        counts = stats.cached_tokens, stats.retractions, stats.draft_tokens, stats.accepted_tokens
        yield Outcome(setting.name, len(outputs), tokens, different, *counts, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--architecture", nargs="+", choices=ARCHITECTURES)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--setting", nargs="+", choices=[each.name for each in SETTINGS])
    parser.add_argument("--every", type=int, default=1, help="so many'th setting; default: 1")
    parser.add_argument("--first", type=int, default=0, help="of them; default: 0")
    parser.add_argument("--kv-cache-dtype", choices=("auto", "int8"), default="auto")
    parser.add_argument("--drafts", action="store_true", help="with drafts from the tree")
    parser.add_argument("--without", action="store_true")
    args = parser.parse_args(arguments)
    if args.requests < 1:
        parser.error("--requests must be at least 1")
    settings = [each for each in SETTINGS if args.setting is None or each.name in args.setting]
    settings = settings[args.first :: args.every]
    cases = [(each, dtype) for each in args.architecture or ARCHITECTURES for dtype in args.dtype]
    results: dict[str, list[dict[str, Any]]] = {}
    refused: dict[str, str] = {}
    console, different = Console(stderr=True), 0
    with (
        tempfile.TemporaryDirectory() as scratch,
        tqdm(total=len(cases) * len(settings), dynamic_ncols=True) as bar,
    ):
        for architecture, dtype in cases:
            folder = Path(scratch) / architecture
            vocab = LARGE_VOCAB if architecture == "qwen3" else VOCAB
            if not folder.exists():
                shape = SHAPES.get(architecture, {}) | {"vocab_size": vocab}
                make_checkpoint(folder, architecture, max_position_embeddings=CONTEXT, **shape)
            flags = {"dtype": dtype, "deterministic": not args.without}
            flags |= {"kv_cache_dtype": args.kv_cache_dtype}
            if said := refusal(folder, flags):
                refused[architecture] = said
                bar.update(len(settings))
                continue
            outcomes = []
            drafts = "tree" if args.drafts else "off"
            for outcome in compare(folder, settings, args.requests, vocab, flags, drafts):
                outcomes.append(outcome)
                different += outcome.different
                bar.set_postfix_str(f"{architecture} {dtype}, {different} different")
                bar.update()
            console.print(_table(f"{architecture}, {dtype}", outcomes))
            results[f"{architecture}, {dtype}"] = [each._asdict() for each in outcomes]
    report = {"deterministic": not args.without, "different": different, "refused": refused}
    print(json.dumps(report | {"results": results}))
    return 1 if different else 0


def _table(title: str, outcomes: Sequence[Outcome]) -> Table:
    table = Table(title=title)
    for name in Outcome._fields:
        table.add_column(name, justify="left" if name == "setting" else "right")
    for outcome in outcomes:
        table.add_row(*(str(value) for value in outcome))
    return table


if __name__ == "__main__":
    sys.exit(main())
