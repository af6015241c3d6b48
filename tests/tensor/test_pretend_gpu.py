"""The code paths of GPUs, on a device that pretends to be one: the CPU's tokens, and how much a GPU
would be asked to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import pytest
import torch

from radixlm.assembly.chosen import chosen, reached_of
from radixlm.assembly.heads import ProductPacking, load_head
from radixlm.assembly.host import Host
from radixlm.assembly.loading import make_model
from radixlm.assembly.places import Places
from radixlm.assembly.pool_sizes import make_memory
from radixlm.assembly.state_slots import States
from radixlm.assembly.windows import Windows
from radixlm.cache import make_policy
from radixlm.core.config import EngineConfig
from radixlm.core.grammar import Grammar
from radixlm.core.keys import as_key
from radixlm.core.moves import Report
from radixlm.core.request import GenerateRequest, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore
from radixlm.engine.wiring import make_cache, make_core
from radixlm.formats.model_files import ModelFile, files_of
from radixlm.layers.split import Split
from radixlm.memory.pools import KVPool
from radixlm.models import CausalLM, load_model, open_checkpoint
from radixlm.models.gguf_checkpoint import GGUFCheckpoint
from radixlm.products.product_table import ProductTable
from radixlm.runner import ModelRunner
from radixlm.runner.adapter_shelf import AdapterShelf
from radixlm.runner.step_graphs import Record
from radixlm.structured_output import MaskFiller
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.peft_adapters import make_adapter
from radixlm.testing.quantized_folders import Recipe, quantize_folder, write_mxfp4
from radixlm.testing.reference import make_checkpoint
from tests.engines import byte_tokenizer, constraint
from tests.pretend_gpu import Counts, PretendGpu
from tests.tensor.attention_cases import (
    Heads,
)
from tests.tensor.test_drafts import Oracle

CPU = torch.device("cpu")
HEADS = Heads(6, 2, 16)
COUNT = 6
CAPACITY = 2_000
SHARED = np.random.default_rng(0).integers(0, 256, 90).tolist()
PROMPTS = [[*SHARED, 1, 2], [*SHARED, 3], SHARED[:33], [*SHARED, 3, 4, 5]]


class Served(NamedTuple):
    """An engine without its threads, on either device."""

    model: object
    core: EngineCore
    shelf: AdapterShelf
    runner: ModelRunner
    pool: KVPool
    reports: SimpleQueue[Report]
    places: Places

    def step(self) -> list[RequestOutput]:
        """A step, after what host memory reports."""
        if (tiering := self.core.tiering) is not None:
            while self.core.stuck or not self.reports.empty():
                self.core.stuck = False
                tiering.take(self.reports.get(timeout=60))
            tiering.turn()
        return self.core.step()

    def answers(self, requests: Sequence[GenerateRequest]) -> dict[str, RequestOutput]:
        """All in the same steps; again, with what is cached by then."""
        found: dict[str, list[RequestOutput]] = {}
        for turn in range(2):
            for request in requests:
                self.core.add(replace(request, request_id=f"{request.request_id}.{turn}"))
            while self.core.has_work:
                for output in self.step():
                    found.setdefault(output.request_id, []).append(output)
        return {name: RequestOutput.joined(parts) for name, parts in found.items()}


def serve(
    folder: Path,
    device: torch.device,
    record: Record | None = None,
    *,
    ahead: bool = False,
    split: Split | None = None,
    **flags: object,
) -> Served:
    given = {"kv_tokens": CAPACITY, "dtype": "float32", "chunked_prefill_size": 48} | flags
    config = EngineConfig(model=str(folder), device="cpu", **given)
    files, described, _, dtype = chosen(config)
    reached = reached_of(config, described)
    model = make_model(config, files, reached, dtype, device, progress=False, split=split)
    packing = ProductPacking(choose=ProductTable(None).choice, quantize=None)
    head = load_head(config, files, model, dtype, device, packing)
    windows, capacity = Windows.of(config, model.config), config.kv_tokens
    states = States.of(config, model.config, dtype, 1 << 20, device)
    cache = make_cache(
        config,
        make_policy("lru"),
        capacity,
        0,
        windows=windows.size(config, capacity),
        states=states.capacity,
    )
    sizes = capacity, 400, windows.in_pool(cache.windows)
    pool, table = make_memory(config, model.config, *sizes, dtype, device, head.rows)
    shelf, state_pool, reports = AdapterShelf(model), states.pool(), SimpleQueue[Report]()
    parts = {"adapters": shelf, "states": state_pool, "record": record, "head": head.head}
    runner = ModelRunner(model, pool, table, device, **parts)
    masks = MaskFiller(described.vocab_size)
    launch = (lambda batch: runner.launch(batch)) if ahead else None  # which tests may watch
    places = Places()
    if config.host_kv_tokens:
        places = Places(Host(config, pool, state_pool, reports.put))
        places.start()
    more = {"masks": masks, "launch": launch, "tiering": places.tiering}
    core = make_core(config, cache, runner, byte_tokenizer(), **more)
    return Served(model, core, shelf, runner, pool, reports, places)


def asked(
    name: str, prompt: Sequence[int], *, namespace: Namespace | None = None, **params: object
) -> GenerateRequest:
    key = as_key(prompt)
    return GenerateRequest(
        request_id=name,
        key=key,
        params=SamplingParams(max_tokens=COUNT, **({"temperature": 0} | params)),
        max_tokens=COUNT,
        seed=7,
        namespace=namespace or Namespace(),
    )


PLAIN = [asked(f"plain {place}", prompt) for place, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama") / "m", "llama")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes that the CPU's products of bytes know."""
    folder = tmp_path_factory.mktemp("wide") / "m"
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    return make_checkpoint(folder, "qwen3", **sizes, tie_word_embeddings=True)


def same(ours: dict[str, RequestOutput], wanted: dict[str, RequestOutput]) -> None:
    assert {name: output.token_ids for name, output in ours.items()} == {
        name: output.token_ids for name, output in wanted.items()
    }


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("gpt_oss", {}),  # sinks, windows, experts
        ("gemma2", {}),  # capped scores
        ("deepseek_v2", {}),  # latents
        ("glm_moe_dsa", {}),  # an index
        ("llama", {"kv_cache_dtype": "int8"}),
        ("llama", {"model_impl": "transformers"}),
    ],
)
def test_the_cpu_s_tokens(
    gpu: PretendGpu, tmp_path: Path, family: str, flags: dict[str, str]
) -> None:
    folder = make_checkpoint(tmp_path / "m", family)
    ours = serve(folder, gpu.device, **flags).answers(PLAIN)
    same(ours, serve(folder, CPU, **flags).answers(PLAIN))
    assert max(output.cached_tokens for output in ours.values()) > len(SHARED) / 2


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter") / "a", llama)


def everything(served: Served, adapter: Path) -> list[GenerateRequest]:
    """Requests with all that a request may ask of logits and products, in the same steps."""
    name, weights = served.shelf.read("own", adapter)
    served.shelf.put(name, weights)
    letters = constraint(Grammar.regex("[a-f]{1,20}"), 320)
    return [
        *PLAIN,
        replace(asked("grammar", PROMPTS[0]), constraint=letters),
        replace(asked("grammar and logprobs", PROMPTS[1], logprobs=2), constraint=letters),
        asked("adapter", PROMPTS[0], namespace=Namespace(adapter_id=name)),
        asked("penalties", PROMPTS[0], repetition_penalty=1.5, presence_penalty=0.5),
        asked("bias", PROMPTS[2], logit_bias={5: 4.0}),
        asked("drawn", PROMPTS[2], temperature=0.8, top_p=0.9, top_k=40, min_p=0.01),
        asked("logprobs", PROMPTS[3], logprobs=3, prompt_logprobs=2),
    ]


def test_all_that_a_request_may_ask(gpu: PretendGpu, llama: Path, adapter: Path) -> None:
    there, here = serve(llama, gpu.device), serve(llama, CPU)
    ours, wanted = (each.answers(everything(each, adapter)) for each in (there, here))
    same(ours, wanted)
    for name in ("logprobs.0", "grammar and logprobs.1"):
        for one, other in zip(ours[name].logprobs, wanted[name].logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert ours["adapter.0"].token_ids != ours["plain 0.0"].token_ids


def check_siblings(
    patch: pytest.MonkeyPatch, gpu: PretendGpu, folder: Path, record: Record | None = None
) -> list[Counts]:
    """Drafts, half of them wrong, and their siblings give what the CPU gives without; one copy and
    one wait a step. Returns what each step took.
    """
    oracle = Oracle(patch)
    some = [
        replace(asked(f"{place}", prompt, logprobs=2), max_tokens=16)
        for place, prompt in enumerate(PROMPTS)
    ]
    wanted = serve(folder, CPU).answers(some)
    answers = [wanted[f"{request.request_id}.0"].token_ids for request in some]
    oracle.texts = [[*prompt, *its] for prompt, its in zip(PROMPTS, answers, strict=True)]
    there = serve(folder, gpu.device, record=record, speculative_algorithm="tree")
    steps, step = list[Counts](), there.core.step

    def counted() -> list[RequestOutput]:
        gpu.count()
        made = step()
        steps.append(gpu.count())
        return made

    patch.setattr(there.core, "step", counted)
    ours = there.answers(some)
    assert oracle.siblings > 2
    same(ours, wanted)
    for name, output in ours.items():
        both = zip(output.logprobs, wanted[name].logprobs, strict=True)
        assert all(a.logprob == pytest.approx(b.logprob, abs=1e-4) for a, b in both)
    assert {(step.copies, step.waits) for step in steps} <= {(1, 0), (1, 1)}
    return steps


def test_drafts_and_their_siblings(
    gpu: PretendGpu, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_siblings(monkeypatch, gpu, llama)


def check_weights_in_full(gpu: PretendGpu, model: Path) -> None:
    """Its weights are what the files stand for, and no product is the CPU's."""
    served = serve(model, gpu.device)
    assert isinstance(served.model, CausalLM)
    made = served.model.weights()
    config, files = served.model.config, files_of(model)
    is_file = isinstance(files, ModelFile)
    checkpoint = GGUFCheckpoint(files.gguf, config) if is_file else open_checkpoint(model)
    full = load_model(checkpoint, config, dtype=torch.float32, device=CPU, progress=False)
    wanted = full.weights()
    assert made.keys() == wanted.keys()
    for name, weight in made.items():
        assert torch.equal(weight.cpu(), wanted[name]), name
    assert not any(linear.is_compiled for _, linear in served.model.linears())
    assert all(output.token_ids for output in served.answers(PLAIN).values())


RECIPES = [
    Recipe("gptq", symmetric=False),
    *(
        pytest.param(recipe, marks=pytest.mark.slow)
        for recipe in (
            Recipe("awq", group=64, symmetric=False),
            Recipe("pack-quantized"),
            Recipe("int-quantized", bits=8, group=0),
        )
    ),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_quantized_folder(gpu: PretendGpu, wide: Path, tmp_path: Path, recipe: Recipe) -> None:
    quantize_folder(wide, tmp_path / "q", recipe)
    check_weights_in_full(gpu, tmp_path / "q")


@pytest.mark.parametrize("kind", ["Q8_0", pytest.param("Q4_K", marks=pytest.mark.slow)])
def test_a_gguf_file(gpu: PretendGpu, wide: Path, tmp_path: Path, kind: str) -> None:
    write_gguf(wide, tmp_path / "m.gguf", kind)
    check_weights_in_full(gpu, tmp_path / "m.gguf")


def test_experts_in_blocks(gpu: PretendGpu, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    plain = make_checkpoint(tmp_path / "plain", "gpt_oss", **sizes)
    write_mxfp4(plain, tmp_path / "q")
    check_weights_in_full(gpu, tmp_path / "q")


def steps_of(served: Served, gpu: PretendGpu, requests: Sequence[GenerateRequest]) -> list[Counts]:
    """What each step asked of the GPU."""
    for request in requests:
        served.core.add(request)
    counts = []
    while served.core.has_work:
        gpu.count()
        served.step()
        if not served.core.stuck:
            counts.append(gpu.count())
    return counts


def test_copies_of_a_step_do_not_grow_with_its_rows(gpu: PretendGpu, llama: Path) -> None:
    most = []
    for rows in (2, 9):
        served = serve(llama, gpu.device, chunked_prefill_size=2_000)
        prompts = [range(3 + 30 * row) for row in range(rows)]  # groups of several lengths
        steps = steps_of(served, gpu, [asked(str(len(prompt)), prompt) for prompt in prompts])
        most.append(max(steps, key=lambda step: step.launches))
    few, many = most
    assert many.launches > few.launches
    assert many.copies == few.copies == 1
    assert many.waits == few.waits == 1


# What decoding steps ask for, and how many launches they are, by torch's attention.
ASKED = {
    "greedy": ({}, 85),
    "drawn": ({"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01}, 145),
    "logprobs": ({"logprobs": 3}, 107),
    "penalties": ({"repetition_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {5: 4}}, 94),
}


@pytest.mark.parametrize("rows", [1, 16, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ASKED)
def test_a_step_is_one_copy_in_and_one_out(
    gpu: PretendGpu, llama: Path, what: str, rows: int
) -> None:
    """Where no mask and no draft head is asked for."""
    served = serve(llama, gpu.device, kv_tokens=4_000, chunked_prefill_size=4_000)
    params, launches = ASKED[what]
    requests = [asked(str(row), [*SHARED[:4], row, 3], **params) for row in range(rows)]
    steps = steps_of(served, gpu, requests)
    assert {(step.copies, step.waits) for step in steps} == {(1, 1)}
    assert steps[-1].launches <= launches


def test_masks_are_a_copy_of_their_own(gpu: PretendGpu, llama: Path) -> None:
    """They are made while the device computes."""
    letters = constraint(Grammar.regex("[a-f]{1,20}"), 320)
    request = replace(asked("grammar", PROMPTS[0]), constraint=letters)
    steps = steps_of(serve(llama, gpu.device), gpu, [request])
    assert {(step.copies, step.waits) for step in steps[2:]} == {(2, 1)}


def test_a_prompt_s_step_that_gives_no_token_is_not_waited_for(
    gpu: PretendGpu, llama: Path
) -> None:
    first, *_ = steps_of(serve(llama, gpu.device), gpu, [PLAIN[0]])
    assert (first.copies, first.waits) == (1, 0)
