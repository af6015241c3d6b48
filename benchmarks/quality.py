"""What weights, keys and values in fewer bits cost in answers: the demo model, through an Engine.

    python -m benchmarks.quality [--formats none,int8,int4,none/int8] [--model FOLDER] [--json FILE]

A format is that of the weights; behind a slash stands that of keys and values.

Asks the 1,740 questions of the demo model's card, which were kept out of its training, greedily;
an answer counts when every word is right. Prints a row for each format, by kind of question, and
ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.rows import show_rows
from radixlm import Engine, SamplingParams
from radixlm.assembly import DEMO_MODEL
from scripts.demo_model.corpus import Messages
from scripts.demo_model.evaluation import Report, evaluate, render

_FULL = "none"
_UNASKED = "readable"  # a share of the other answers, no questions of its own


class Asked:
    """An engine as the evaluation asks it, see `Answerer`."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._engine = engine

    def render(self, prompt: Messages | str) -> str:
        return render(self.tokenizer, prompt)

    def answers(self, prompts: list[Messages | str], most: int = 160) -> list[str]:
        engine, longest = self._engine, self._engine.limits.longest
        keys = [engine.tokenizer.encode(self.render(prompt)) for prompt in prompts]
        params = [
            SamplingParams(max_tokens=min(most, longest - len(key)), temperature=0) for key in keys
        ]
        outputs = engine.generate(keys, params, progress=True)
        return [out.text + "<|cut|>" * (out.finish_reason == "length") for out in outputs]


def measure(folder: Path, name: str, dtype: str, seed: int) -> dict[str, Any]:
    """Right answers in all, and the share by kind of question."""
    weights, _, kv = name.partition("/")
    flag = None if weights == _FULL else weights
    with Engine(str(folder), dtype=dtype, quantization=flag, kv_cache_dtype=kv or "auto") as engine:
        report = evaluate(Asked(engine, folder), seed)
    asked = {name: count for name, count in report.counts.items() if _UNASKED not in name}
    right = sum(round(report.accuracy[name] * count) for name, count in asked.items())
    return {
        "format": name,
        "dtype": dtype,
        "right": right,
        "questions": sum(asked.values()),
        "share": round(right / sum(asked.values()), 4),
        "by_kind": _shares(report),
    }


def _shares(report: Report) -> dict[str, float]:
    return {name: round(share, 4) for name, share in report.accuracy.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--formats", default=f"{_FULL},int8,int4,{_FULL}/int8")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--dtype", default="bfloat16")
    seed = json.loads((DEMO_MODEL / "training.json").read_text())["seed"]
    parser.add_argument(
        "--seed", type=int, default=seed, help="of the questions; default: the card's"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line there, too")
    options = parser.parse_args()
    rows = []
    for name in options.formats.split(","):
        rows.append(measure(options.model, name, options.dtype, options.seed))
        print(f"{name}: {rows[-1]['right']:,} of {rows[-1]['questions']:,}", flush=True)
    kinds = rows[0]["by_kind"]
    table = [
        {"kind": kind, **{row["format"]: f"{row['by_kind'][kind]:.1%}" for row in rows}}
        for kind in kinds
    ]
    table.append({"kind": "all", **{row["format"]: f"{row['share']:.2%}" for row in rows}})
    show_rows("right answers by weights / keys and values", table)
    line = json.dumps({"benchmark": "quality", "results": rows})
    if options.json is not None:
        options.json.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
