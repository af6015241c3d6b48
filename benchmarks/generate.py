"""Ours beside transformers' own `generate` with its cache, for each family.

    python -m benchmarks.generate [--architecture llama ...] [--requests 8] [--prompt 500]
                                  [--answer 64] [--rounds 2] [--dtype bfloat16]

Models of random weights, one type in both, four layers of 512 numbers, so that products count and
not Python alone. Prompts of a length, so that transformers need not pad; no two rounds have the
same, so that nothing comes from the cache. The rounds take turns; the least time of each counts.
Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm import Engine, SamplingParams
from radixlm.bench.tables import processor
from radixlm.testing.reference import ARCHITECTURES, load_reference, make_checkpoint

_VOCAB = 4_096
SIZES: dict[str, Any] = {
    "vocab_size": _VOCAB,
    "hidden_size": 512,
    "intermediate_size": 1_536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "initializer_range": 0.05,
}
_EXPERTS = {"moe_intermediate_size": 384}
_WINDOWS = {"sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"] * 2}
_LATENTS = {
    **_EXPERTS,
    "num_key_value_heads": 8,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "head_dim": 32,
}
_SIZES_OF: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layers": [1, 0, 1, 1]},
    "mixtral": {"intermediate_size": 384},
    "olmoe": {"intermediate_size": 384},
    "granitemoe": {"intermediate_size": 384},
    "gpt_oss": {"intermediate_size": 384, **_WINDOWS},
    "gemma2": _WINDOWS,
    "gemma3_text": _WINDOWS,
    "cohere2": _WINDOWS,
    "olmo3": _WINDOWS,
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 768},
    "qwen3_moe": _EXPERTS,
    "deepseek_v2": _LATENTS,
    "deepseek_v3": _LATENTS,
}


def measure(
    folder: Path, requests: int, prompt: int, answer: int, rounds: int, dtype: str
) -> dict[str, float | int]:
    """Tokens of answers a second, prompts and all, of a batch; the better of some rounds."""
    draw = np.random.default_rng(0)
    reference = load_reference(folder).to(getattr(torch, dtype))
    params = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True)
    kv_tokens = requests * (prompt + answer) * (rounds + 2)
    ours, theirs = [], []
    with Engine(str(folder), dtype=dtype, kv_tokens=kv_tokens) as engine:
        # The first round warms both up.
        for _ in range(rounds + 1):
            prompts = draw.integers(3, _VOCAB, (requests, prompt))
            began = time.perf_counter()
            outputs = engine.generate(prompts.tolist(), params)
            ours.append(time.perf_counter() - began)
            assert sum(each.cached_tokens for each in outputs) < prompt
            began = time.perf_counter()
            found = _generate(reference, prompts, answer)
            theirs.append(time.perf_counter() - began)
            same = sum(
                list(output.token_ids) == tokens[prompt:].tolist()
                for output, tokens in zip(outputs, found, strict=True)
            )
    tokens = requests * answer
    fast, slow = min(ours[1:]), min(theirs[1:])
    return {
        "ours tokens/s": round(tokens / fast, 1),
        "transformers tokens/s": round(tokens / slow, 1),
        "ratio": round(slow / fast, 2),
        "same answers": same,
    }


@torch.inference_mode()
def _generate(model: transformers.PreTrainedModel, prompts: Any, answer: int) -> torch.Tensor:
    batch = torch.from_numpy(prompts)
    found: torch.Tensor = model.generate(
        batch,
        attention_mask=torch.ones_like(batch),
        max_new_tokens=answer,
        min_new_tokens=answer,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--architecture", nargs="+", choices=ARCHITECTURES)
    options.add_argument("--requests", type=int, default=8)
    options.add_argument("--prompt", type=int, default=500)
    options.add_argument("--answer", type=int, default=64)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = options.parse_args()
    rows = []
    for architecture in tqdm(args.architecture or list(ARCHITECTURES), leave=False):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / architecture
            make_checkpoint(folder, architecture, **(SIZES | _SIZES_OF.get(architecture, {})))
            sizes = args.requests, args.prompt, args.answer, args.rounds
            measured = measure(folder, *sizes, args.dtype)
        rows.append({"family": architecture} | measured)
        tqdm.write(json.dumps(rows[-1]))
    show_rows(
        f"{args.requests} x ({args.prompt} + {args.answer}) tokens, {args.dtype}, {processor()}",
        rows,
    )
    ratios = {row["family"]: row["ratio"] for row in rows}
    print(json.dumps({"benchmark": "generate", "least": min(ratios.values()), "ratios": ratios}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
