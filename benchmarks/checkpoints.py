"""Models as hubs have them: folders beside transformers, GGUF files beside the same weights.

    python -m benchmarks.checkpoints [--version-4 /tmp/tf4/bin/python] [--family llama ...]
    python -m benchmarks.checkpoints --gguf [--llama-python PATH] [--family llama ...]

A shrunk model of every family, random weights, float32; greedy tokens and log-probabilities are
those of transformers 5, or the status is 1. Folders: config.json as version 5 writes it, and as 4,
of which --version-4 is a Python. GGUF: first with products of what codes stand for, then as it is
served, rows rounded to bytes; and llama.cpp's log-probabilities, which rounds, too: where they
differ, the median of a file with the same numbers in floats (of single tokens an expert that is as
good may be chosen, by what llama.cpp's gelu rounds). Its Python: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import AutoConfig

from benchmarks.parity_settings import compared, make_prompts
from benchmarks.published import ALIASES, FIELDS, RUN_BY_LLAMA, WHOLE
from benchmarks.rows import show_rows
from radixlm import Engine, RequestOutput, SamplingParams
from radixlm.bench.quantized_run import LlamaSide
from radixlm.bench.tables import append_json
from radixlm.core.errors import ConfigError
from radixlm.layers.linear import Linear
from radixlm.models.families import ARCHITECTURES, TEXTS
from radixlm.testing.gguf_models import Q4_K_M, UNREAD, of_256, write_pair
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.reference import (
    Greedy,
    greedy,
    load_reference,
    make_checkpoint,
    reference_logits,
)
from radixlm.testing.whole_models import make_whole

NEAR, NEAR_LLAMA, NEAR_FLOATS = 2e-3, 0.1, 0.005
WAYS: Mapping[str, Mapping[str, Any]] = {
    "cold": {},
    "warm": {"warm": True},
    "chunked": {"chunked_prefill_size": 16},
}
KINDS = ("F16", "Q8_0", "Q4_K_M", "IQ4_NL")
_OLDER = Path(__file__).parents[1] / "scripts" / "older_configs.py"
_FLAGS: Mapping[str, Any] = {"kv_tokens": 4_000, "dtype": "float32", "threads": 1}
# llama.cpp reads no tokenizer by bytes that has no merges.
_SCORES = [-float(at) for at in range(320)]
_PIECES = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": _SCORES}

Row = dict[str, Any]


@dataclass(frozen=True)
class Right:
    """transformers' answers, and (tokens, vocabulary) log-probabilities of each whole sequence."""

    prompts: list[list[int]]
    greedy: Greedy
    logprobs: list[Tensor]

    @property
    def all(self) -> str:
        return f"{len(self.prompts)} of {len(self.prompts)}"

    @staticmethod
    def of(model: Any, prompts: list[list[int]], steps: int) -> Right:
        found = greedy(model, prompts, steps)
        whole = [one + other for one, other in zip(prompts, found.tokens, strict=True)]
        return Right(
            prompts, found, [reference_logits(model, its).log_softmax(-1) for its in whole]
        )

    def asked(self, path: Path, *, warm: bool = False, **flags: Any) -> tuple[str, float]:
        """How many answers of an engine are equal, and the largest difference of a log-probability.
        warm: of a second turn; else of prompts' tokens, too.
        """
        steps = len(self.greedy.tokens[0])
        params = SamplingParams(max_tokens=steps, temperature=0, ignore_eos=True, logprobs=20)
        with Engine(str(path), **_FLAGS, **flags) as engine:
            if warm:
                engine.generate(self.prompts, params)
            else:
                params = replace(params, prompt_logprobs=20)
            outputs = engine.generate(self.prompts, params)
        assert not warm or all(each.cached_tokens for each in outputs)
        equal, ties, _ = compared(outputs, self.greedy)
        apart = max(map(self._apart, outputs, range(len(outputs))))
        return f"{equal + ties} of {len(outputs)}", apart

    def _apart(self, output: RequestOutput, number: int) -> float:
        """Up to the first token that is another one."""
        pairs = zip(output.token_ids, self.greedy.tokens[number], strict=True)
        same = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
        stop = None if same is None else same + 1
        answer = enumerate(output.logprobs[:stop], len(self.prompts[number]) - 1)
        return max(
            abs(float(self.logprobs[number][row, token]) - value)
            for row, entry in (*enumerate(output.prompt_logprobs), *answer)
            for token, value in ((entry.token, entry.logprob), *entry.top)
        )

    def beside(self, python: str, path: Path) -> Tensor | None:
        """How far llama.cpp's log-probability of each token is; None where it has no such model."""
        apart = []
        with closing(LlamaSide(python)) as llama:
            try:
                llama.ask(do="open", path=str(path), threads=1, context=512, floats=True)
            except ConfigError:
                return None
            for at, right in enumerate(self.logprobs):
                tokens = self.prompts[at] + self.greedy.tokens[at]
                found = llama.ask(do="score", prompt=tokens, first=1)["logprobs"]
                ours = right[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
                apart.append((ours - torch.tensor(found)).abs())
        return torch.cat(apart)


Asked = Callable[[Any], Right]


def folder_rows(family: str, root: Path, right: Asked, python: str | None) -> Iterator[Row]:
    if family in WHOLE:
        like, fields = WHOLE[family]
        model = make_whole(root, family.partition(" ")[0], like, **deepcopy(dict(fields)))
    else:
        fields = deepcopy(dict(FIELDS.get(family, {})))
        model = load_reference(make_checkpoint(root, ALIASES.get(family, family), **fields))
    answers, path = right(model), root / "config.json"
    configs = {"5": json.loads(path.read_text(encoding="utf-8"))}
    if python is not None:
        newer = json.dumps(_all_names(AutoConfig.from_pretrained(root)))
        done = subprocess.run([python, str(_OLDER)], input=newer, stdout=-1, text=True, check=True)
        configs["4"] = json.loads(done.stdout)
    for version, its in configs.items():
        row: Row = {"family": family, "config": version}
        if its is None:
            yield row | dict.fromkeys(WAYS, "not in 4") | {"apart": 0.0, "good": True}
            continue
        own = {"model_type": family} if family in ALIASES else {}
        path.write_text(json.dumps(its | own), encoding="utf-8")
        found = {way: answers.asked(root, **flags) for way, flags in WAYS.items()}
        apart = max(each for _, each in found.values())
        cells = {way: tokens for way, (tokens, _) in found.items()}
        good = apart <= NEAR and set(cells.values()) == {answers.all}
        yield row | cells | {"apart": apart, "good": good}


def _all_names(config: Any) -> dict[str, Any]:
    """A config's fields by all names that they have, its parts' too."""
    fields: dict[str, Any] = config.to_dict()
    fields |= {it: getattr(config, it, None) for it in config.attribute_map}
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    return fields | {name: _all_names(its) for name, its in parts.items() if its is not None}


@contextmanager
def dequantized() -> Iterator[None]:
    """Products take what codes stand for, so that rows are not rounded to bytes."""
    before = Linear.takes_codes
    setattr(Linear, "takes_codes", property(lambda _: False))  # noqa: B010
    try:
        yield
    finally:
        setattr(Linear, "takes_codes", before)  # noqa: B010


def gguf_rows(family: str, root: Path, right: Asked, python: str | None) -> Iterator[Row]:
    for kind in KINDS:
        # Sizes of weights with which all that rounds differs little.
        options: Row = {"further": _PIECES, "initializer_range": 0.06}
        options |= RUN_BY_LLAMA.get(family, {})
        if kind == "Q4_K_M":
            options |= of_256(family) | {"kinds": Q4_K_M, "initializer_range": 0.03}
        folder, path = write_pair(root / kind, family, kind.removesuffix("_M"), **options)
        answers = right(load_reference(folder))
        with dequantized():
            tokens, apart = answers.asked(path)
        served, rounded = answers.asked(path)
        row: Row = {"family": family, "type": kind, "tokens": tokens, "apart": apart}
        row |= {"served": served, "served apart": rounded}
        good = tokens == answers.all and apart <= NEAR
        if python is not None:
            beside = answers.beside(python, path)
            row["llama.cpp"] = "not loaded" if beside is None else float(beside.max())
            row["in floats"] = "–"
            if beside is not None and beside.max() > NEAR_LLAMA:
                write_gguf(folder, root / "floats.gguf", "F32", further=_PIECES)
                floats = answers.beside(python, root / "floats.gguf")
                assert floats is not None
                row["in floats"] = median = float(floats.median())
                good &= median <= NEAR_FLOATS
        yield row | {"good": good}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version-4", help="a Python that has transformers 4")
    parser.add_argument("--gguf", action="store_true")
    parser.add_argument("--llama-python", help="a Python that has llama_cpp")
    known = [*(each for each in ARCHITECTURES if each not in TEXTS), *WHOLE]
    parser.add_argument("--family", nargs="+", choices=known, default=known)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line for each row there")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # models are that small
    # Longer than two windows.
    drawn = make_prompts(options.prompts, 256)
    prompts = [one + other for one, other in zip(drawn, reversed(drawn), strict=True)]
    right = partial(Right.of, prompts=prompts, steps=options.tokens)
    rows_of, python = folder_rows, options.version_4
    if options.gguf:
        rows_of, python = gguf_rows, options.llama_python
    rows: list[Row] = []
    failed: list[str] = []
    for family in tqdm(options.family):
        if options.gguf and family in UNREAD | ALIASES.keys() | WHOLE.keys():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                for row in rows_of(family, Path(scratch), right, python):
                    rows.append(row)
                    if options.json is not None:
                        append_json(options.json, row)
            except Exception:
                failed.append(family)
                traceback.print_exc()
    shown = [
        {name: f"{its:.1e}" if isinstance(its, float) else str(its) for name, its in row.items()}
        for row in rows
    ]
    show_rows("GGUF" if options.gguf else "folders", shown)
    bad = [row for row in rows if not row["good"]]
    print(json.dumps({"benchmark": "checkpoints", "rows": len(rows), "bad": bad, "failed": failed}))
    return 1 if bad or failed else 0


if __name__ == "__main__":
    sys.exit(main())
