"""What model families and features ask of a GPU, counted on the pretended one.

python -m tests.gpu_table      writes the table of docs/gpu.md
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.config import HEADS
from radixlm.core.grammar import Grammar
from radixlm.core.request import GenerateRequest, Namespace, Pooled
from radixlm.models.families import ARCHITECTURES, TEXTS
from radixlm.runner.step_graphs import why_eager
from radixlm.testing.float_folders import FloatRecipe, write_floats
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.peft_adapters import make_adapter
from radixlm.testing.quantized_folders import Recipe, quantize_folder
from radixlm.testing.reference import make_checkpoint
from radixlm.text.model_folder import DEMO_MODEL
from tests.engines import constraint
from tests.pretend_gpu import Counts, PretendGpu, on_pretend_gpu
from tests.pretend_ranks import two_ranks
from tests.tensor.draft_steps import draft_always
from tests.tensor.mtp_layers import make_mtp_checkpoint
from tests.tensor.test_pretend_gpu import PROMPTS, SHARED, Served, asked, serve, steps_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gpu.md"
PART = re.compile(
    r"(?<=<!-- asked: made by python -m tests\.gpu_table -->\n).*?(?=<!-- /asked)", re.S
)
# `kimi_k2` is deepseek_v3 by another name.
FAMILIES = [name for name in ARCHITECTURES if name not in TEXTS and name != "kimi_k2"]
RECORDED = "recorded"
# Sizes that the CPU's products of bytes know.
_WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}


class Row(NamedTuple):
    """What steps ask for. how: recorded, or what keeps them from being that. copies: to the GPU, of
    the steps. waits: of those that wait.
    """

    how: str
    copies: str
    waits: str


def family(name: str, folder: Path, gpu: PretendGpu) -> Row:
    """Serve a tiny model of it to two requests that share a prefix."""
    served = serve(make_checkpoint(folder / "m", name), gpu.device)
    some = [asked("a", SHARED[:20]), asked("b", [*SHARED[:20], 3])]
    return row_of(served, steps_of(served, gpu, some))


def row_of(served: Served, steps: Sequence[Counts], eager: str = "") -> Row:
    """eager: what keeps these steps from being recorded, besides the model."""
    reasons = [*why_eager(served.model, served.pool), *filter(None, [eager])]
    how = f"eager: {', '.join(reasons)}" if reasons else RECORDED
    waits = {step.waits for step in steps if step.waits}
    return Row(how, _said({step.copies for step in steps}), _said(waits))


def _said(numbers: set[int]) -> str:
    least, *others = sorted(numbers)
    if len(others) > 1:
        return f"{least} to {others[-1]}"
    return " or ".join(map(str, (least, *others)))


def _weights(write: Callable[[Path, Path], object], name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        plain = make_checkpoint(folder / "plain", "qwen3", **_WIDE, tie_word_embeddings=True)
        write(plain, folder / name)
        return folder / name

    return make


def _quantized(recipe: Recipe) -> Callable[[Path], Path]:
    return _weights(lambda plain, made: quantize_folder(plain, made, recipe), "q")


def _plain(folder: Path) -> Path:
    return make_checkpoint(folder / "m", "llama")


LETTERS = Grammar.regex("[a-f]{1,20}")
# Of requests: changes of each.
OF_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "sampling": {
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
    },
    "log-probabilities": {"logprobs": 3},
    "log-probabilities of prompts": {"prompt_logprobs": 2},
    "penalties and bias": {
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "logit_bias": {5: 4.0},
    },
}
# Of the engine: its flags, and what makes its model.
OF_ENGINES: Mapping[str, tuple[Mapping[str, object], Callable[[Path], Path]]] = {
    "drafts from the tree": ({"speculative_algorithm": "tree"}, _plain),
    "keys and values in int8": ({"kv_cache_dtype": "int8"}, _plain),
    "`--model-impl transformers`": ({"model_impl": "transformers"}, _plain),
    "GPTQ in 4 bits": ({}, _quantized(Recipe("gptq", symmetric=False))),
    "compressed-tensors in 8 bits": ({}, _quantized(Recipe("int-quantized", bits=8, group=0))),
    "FP8": ({}, _weights(lambda a, b: write_floats(a, b, FloatRecipe("fp8", (32, 32))), "f")),
    "GGUF files": ({}, _weights(lambda a, b: write_gguf(a, b, "Q8_0"), "m.gguf")),
    "EAGLE-3": ({"speculative_algorithm": "eagle3"}, lambda _: DEMO_MODEL),
    "MTP": (
        {"speculative_algorithm": "mtp"},
        lambda folder: make_mtp_checkpoint(folder / "m", "glm4_moe"),
    ),
    "`--host-kv-tokens`": (
        {"host_kv_tokens": 1_024, "kv_tokens": 192, "disk_block_tokens": 8, "dtype": "float32"},
        _plain,
    ),
}
RANKS = "`--tp-size 2`"
FEATURES = [*OF_REQUESTS, "structured output", "embeddings", "LoRA", *OF_ENGINES, RANKS]


def feature(name: str, folder: Path, gpu: PretendGpu, patch: pytest.MonkeyPatch) -> Row:
    """Serve a tiny model with it."""
    flags, make = OF_ENGINES.get(name, ({}, _plain))
    model = make(folder)
    if flags.get("speculative_algorithm") in HEADS:
        draft_always(patch)
    if name == RANKS:
        with two_ranks(model, gpu) as ranks:
            return row_of(ranks, steps_of(ranks, gpu, [asked("a", PROMPTS[0])]))
    served = serve(model, gpu.device, **flags)
    some = [asked(f"{n}", prompt, **OF_REQUESTS.get(name, {})) for n, prompt in enumerate(PROMPTS)]
    if name == "structured output":
        some = [replace(each, constraint=constraint(LETTERS, 320)) for each in some]
    if name == "embeddings":
        some = [replace(each, pooled=Pooled.LAST) for each in some]
    if name == "LoRA":
        some = adapted(served, make_adapter(folder / "a", model), some)
    recordable, execute = set[bool](), served.runner.execute

    def noted(batch: ScheduledBatch) -> StepResult:
        recordable.add(served.runner.is_recordable(batch))
        return execute(batch)

    served.runner.execute = noted  # type: ignore[method-assign]
    steps = steps_of(served, gpu, some)
    if served.core.tiering is not None:
        steps += copied(served, gpu, some)
    assert len(recordable) == 1, "all steps are of a kind"
    return row_of(served, steps, "" if recordable == {True} else name)


def adapted(
    served: Served, adapter: Path, some: Sequence[GenerateRequest]
) -> list[GenerateRequest]:
    """The requests with an adapter."""
    name, weights = served.shelf.read("own", adapter)
    served.shelf.put(name, weights)
    return [replace(each, namespace=Namespace(adapter_id=name)) for each in some]


def copied(served: Served, gpu: PretendGpu, some: Sequence[GenerateRequest]) -> list[Counts]:
    """Steps of requests again, whose tokens have gone to host memory and come back."""
    others = [asked(f"other {n}", range(n, n + 150)) for n in range(2)]
    again = [replace(each, request_id="again") for each in some[:1]]
    steps = [step for each in (*others, *again) for step in steps_of(served, gpu, [each])]
    assert served.core.stats().host_cached_tokens > 0
    served.places.stop()
    return steps


def table_of(rows: Mapping[str, Row]) -> str:
    """Those that are alike are one row."""
    alike: dict[Row, list[str]] = {}
    for name, row in rows.items():
        alike.setdefault(row, []).append(f"`{name}`" if name in FAMILIES else name)
    lines = ["| what | steps | copies in | waits |", "|---|---|---|---|"]
    for row, names in sorted(alike.items(), key=lambda item: item[0].how != RECORDED):
        lines.append(f"| {', '.join(names)} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def rows_of(table: str) -> dict[str, Row]:
    """What was written by `table_of`."""
    found = {}
    for line in table.splitlines()[2:]:
        names, *row = line.strip("| ").split(" | ")
        known = {f"`{name}`": name for name in FAMILIES}
        found |= {known.get(name, name): Row(*row) for name in names.split(", ")}
    return found


def main() -> None:
    """Count all, and write the table."""
    rows: dict[str, Row] = {}
    for name in (*FAMILIES, *FEATURES):
        at = tempfile.TemporaryDirectory()
        with at as folder, on_pretend_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
            given = name, Path(folder), gpu
            rows[name] = family(*given) if name in FAMILIES else feature(*given, patch)
    made, found = PART.subn(lambda _: table_of(rows), PAGE.read_text(encoding="utf-8"))
    assert found == 1, f"{PAGE} has a place for the table"
    PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
