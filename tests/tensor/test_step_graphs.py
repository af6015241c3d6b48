"""Recorded steps, on a device that pretends to be a GPU; its kernels by Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm.core.request import Pooled
from radixlm.memory.staging import NoPlaceError, staging_for
from radixlm.models import CausalLM
from radixlm.runner.step_graphs import FixedMemory, StepGraphs, record_for, why_eager
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.quantized_folders import (
    Recipe,
    quantize_folder,
    set_section,
    write_mxfp4,
    write_plain,
)
from radixlm.testing.reference import make_checkpoint
from tests.pretend_gpu import Counts, PretendGpu, with_kernels
from tests.tensor.test_pretend_gpu import (
    CPU,
    SHARED,
    asked,
    check_siblings,
    same,
    serve,
    steps_of,
)

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or "TRITON_INTERPRET" not in os.environ,
    reason="needs Triton's interpreter: make gpu-kernels",
)
# numpy says what rows of a tile that nobody asked for give.
noisy = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def kernels(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> PretendGpu:
    with_kernels(gpu, monkeypatch)
    return gpu


def counted(gpu: PretendGpu, work: Callable[[], object]) -> Counts:
    gpu.count()
    work()
    return gpu.count()


def test_what_is_recorded_reads_what_lies_there_by_then(gpu: PretendGpu) -> None:
    x = torch.tensor([1.0, 2.0], device=gpu.device)
    again = gpu.recorded(lambda: x.add(1).mul_(2)[:1])
    where = again().held.data_ptr()
    x.copy_(torch.tensor([5.0, 6.0], device=gpu.device))
    assert counted(gpu, again) == Counts(launches=1, largest=0)
    assert again().tolist() == [12.0]
    assert again().held.data_ptr() == where


@pytest.mark.parametrize(
    "work",
    [lambda x: x.sum().item(), lambda x: x + torch.ones(2).to(x.device), lambda x: x[[1]]],
    ids=["a wait", "a copy", "places of the host"],
)
def test_a_copy_or_a_wait_is_not_recorded(
    gpu: PretendGpu, work: Callable[[Tensor], Tensor]
) -> None:
    x = torch.zeros(2, device=gpu.device)
    with pytest.raises(RuntimeError, match="where calls are recorded"):
        gpu.recorded(lambda: work(x))


def test_numbers_lie_where_the_last_step_s_lay(gpu: PretendGpu) -> None:
    staging = staging_for(gpu.device)
    memory = FixedMemory(4, 20, staging)
    for size in (4, 1, 3):
        staging.begin()
        memory.begin()
        first, second = (
            memory.put(np.arange(size) + n, room, fill) for n, room, fill in ((1, 4, -1), (5, 7, 0))
        )
        memory.send()
        counts = counted(gpu, staging.send)
        assert (counts.launches, counts.copies, counts.waits) == (1, 1, 0)
        assert first.tolist() == [*range(1, size + 1), *[-1] * (4 - size)]
        assert second.tolist() == [*range(5, size + 5), *[0] * (7 - size)]
        assert (first.storage_offset(), second.storage_offset()) == (0, 4)
    with pytest.raises(NoPlaceError, match="5 numbers, where there is room for 4"):
        memory.put(np.arange(5), 4)


class OneNumber:
    def numbers(self, tokens: int) -> int:
        return tokens


def test_a_step_that_there_is_no_memory_to_record_stays_eager(gpu: PretendGpu) -> None:
    def record(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise torch.OutOfMemoryError

    graphs = StepGraphs(OneNumber(), staging_for(gpu.device), record)
    memory = graphs.memory(3)
    assert memory is not None
    assert graphs.run(memory, lambda: torch.ones(3)).tolist() == [1, 1, 1]
    assert graphs.memory(4) is None
    assert graphs.memory(5) is not None


def test_no_other_device_records(tmp_path: Path) -> None:
    served = serve(make_checkpoint(tmp_path / "m", "llama"), CPU)
    assert record_for(served.model, served.pool) is None
    assert why_eager(object(), served.pool) == ("transformers' modules",)


@pytest.mark.parametrize(
    ("family", "reasons"),
    [
        ("llama", ()),
        ("gemma3_text", ()),
        ("mixtral", ("experts",)),
        ("lfm2", ("states",)),
        ("gemma4_text", ("experts", "heads of several shapes")),
        ("deepseek_v2", ("experts",)),
        ("glm_moe_dsa", ("experts", "an index")),
    ],
)
def test_a_model_whose_calls_depend_on_its_tokens_is_not_recorded(
    tmp_path: Path, family: str, reasons: tuple[str, ...]
) -> None:
    """Experts, states; and draft heads: they read what a step's own calls have taken for them."""
    served = serve(make_checkpoint(tmp_path / "m", family), CPU)
    assert isinstance(served.model, CausalLM)
    assert why_eager(served.model, served.pool) == reasons
    served.model.take((0,))
    assert "a draft head" in why_eager(served.model, served.pool)


def requests(count: int, **params: object) -> list:
    prompts = [[*SHARED, n, n + 1] for n in range(count)]
    return [asked(f"{n}", prompt, **params) for n, prompt in enumerate(prompts)]


@needs_triton
@noisy
@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("llama", {}),
        ("qwen3", {"kv_cache_dtype": "int8"}),
        ("gemma3_text", {}),  # windows
        ("deepseek_v2", {}),  # latents
        ("mistral4", {}),  # and factors of queries
    ],
)
@pytest.mark.parametrize("ahead", [False, True])
def test_recorded_steps_give_the_cpu_s_tokens(
    kernels: PretendGpu, tmp_path: Path, family: str, flags: dict[str, str], ahead: bool
) -> None:
    """Over trees, of any number of rows that there is room for; launched ahead or not."""
    folder = make_checkpoint(tmp_path / "m", family)
    some = [*requests(5), asked("short", SHARED[:33]), asked("drawn", SHARED[:9], temperature=0.9)]
    there = serve(folder, kernels.device, record=kernels.recorded, ahead=ahead, **flags)
    same(there.answers(some), serve(folder, CPU, **flags).answers(some))


SIZES = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}


def gptq(base: Path, made: Path) -> dict[str, Tensor]:
    return quantize_folder(base, made, Recipe("gptq", group=32, symmetric=False))


def gguf(base: Path, made: Path) -> dict[str, Tensor]:
    return write_gguf(base, made, "Q8_0")


@needs_triton
@noisy
@pytest.mark.parametrize(
    ("family", "write"),
    [
        ("qwen3", gptq),
        ("gpt_oss", write_mxfp4),
        ("qwen3_moe", None),
        ("deepseek_v2", None),
        ("llama", gguf),
    ],
)
def test_weights_that_stay_codes_and_experts_are_recorded(
    kernels: PretendGpu, tmp_path: Path, family: str, write: Callable | None
) -> None:
    """As the CPU computes with the same weights in full."""
    base = folder = make_checkpoint(
        tmp_path / "base", family, **SIZES, tie_word_embeddings=write is gguf
    )
    if write is not None:
        folder = tmp_path / ("m.gguf" if write is gguf else "quantized")
        base = write_plain(base, tmp_path / "plain", write(base, folder))
    there = serve(folder, kernels.device, record=kernels.recorded)
    same(there.answers(requests(3)), serve(base, CPU).answers(requests(3)))
    assert why_eager(there.model, there.pool) == ()
    steps = steps_of(there, kernels, [asked("one", SHARED[:9])])
    assert {(step.copies, step.waits) for step in steps[1:]} == {(1, 1)}
    assert min(step.launches for step in steps) <= 9
    coded = [linear for _, linear in there.model.linears() if not linear.weight.numel()]
    assert write is None or len(coded) >= 2 * there.model.config.n_layers


@needs_triton
@noisy
def test_experts_that_are_not_alike_are_computed_one_by_one(
    kernels: PretendGpu, tmp_path: Path
) -> None:
    """One of them is not quantized where it goes down: none is computed by all of them together."""
    base, folder = make_checkpoint(tmp_path / "base", "qwen3_moe", **SIZES), tmp_path / "made"
    whole = quantize_folder(base, folder, Recipe("pack-quantized"))
    name, file = "model.layers.1.mlp.experts.0.down_proj", folder / "model.safetensors"
    stored = {k: v for k, v in load_file(file).items() if not k.startswith(name)}
    save_file(stored | {f"{name}.weight": whole[f"{name}.weight"]}, file)
    section = Recipe("pack-quantized").section
    set_section(folder, section | {"ignore": ["lm_head", name]})
    there = serve(folder, kernels.device)
    plain = serve(write_plain(base, tmp_path / "plain", whole), CPU)
    same(there.answers(requests(3)), plain.answers(requests(3)))
    assert why_eager(there.model, there.pool) == ("experts",)


@needs_triton
@noisy
def test_a_recorded_step_is_a_handful_of_launches(kernels: PretendGpu, tmp_path: Path) -> None:
    """The table, fixed memory, the record, five of the sampler; without a record eleven a layer."""
    folder, launches = make_checkpoint(tmp_path / "m", "llama"), []
    for record in (None, kernels.recorded):
        served = serve(folder, kernels.device, record=record)
        steps = steps_of(served, kernels, requests(3))
        assert {(step.copies, step.waits) for step in steps[3:]} == {(1, 1)}
        launches.append(min(step.launches for step in steps))
    eager, recorded = launches
    assert eager <= 11 * served.model.config.n_layers + 11
    assert recorded <= 8


@needs_triton
@noisy
def test_a_step_without_room_is_computed_as_others(
    kernels: PretendGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose contexts are in more parts."""
    monkeypatch.setattr("radixlm.attention.gpu_backend.PARTS_OF_A_TOKEN", 0)
    folder = make_checkpoint(tmp_path / "m", "llama")
    there = serve(folder, kernels.device, record=kernels.recorded)
    steps = steps_of(there, kernels, requests(3))
    assert {(step.copies, step.waits) for step in steps[3:]} == {(1, 1)}
    again = there.answers(requests(3))
    same(again, serve(folder, CPU).answers(requests(3)))
    assert steps[-1].launches > 11


@needs_triton
@noisy
def test_recorded_steps_have_drafts_and_their_siblings(
    kernels: PretendGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sibling's row of the table is there before the record is made again."""
    folder = make_checkpoint(tmp_path / "m", "llama")
    steps = check_siblings(monkeypatch, kernels, folder, kernels.recorded)
    # With log-probabilities; without a record, as the first of each size, about a hundred.
    assert sum(step.launches < 40 for step in steps) > len(steps) / 2


@needs_triton
@noisy
def test_steps_with_pooled_rows_are_not_recorded(kernels: PretendGpu, tmp_path: Path) -> None:
    """Their states are read besides the logits, which is all that a record gives."""
    folder = make_checkpoint(tmp_path / "m", "llama")
    some = [replace(each, pooled=Pooled.LAST) for each in requests(4)]
    there = serve(folder, kernels.device, record=kernels.recorded)
    ours, wanted = there.answers(some), serve(folder, CPU).answers(some)
    for name, output in wanted.items():
        assert ours[name].hidden == pytest.approx(output.hidden, abs=1e-5)
