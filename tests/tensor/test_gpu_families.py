"""Every family and feature on a device that pretends to be a GPU: nothing is mixed, and what a step
copies and waits for is what docs/gpu.md says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlm.testing.reference import make_checkpoint
from radixlm.text.model_folder import DEMO_MODEL
from tests.gpu_table import FAMILIES, FEATURES, PAGE, PART, Row, family, feature, rows_of, table_of
from tests.pretend_gpu import PretendGpu
from tests.pretend_ranks import two_ranks
from tests.tensor.draft_steps import Steps, draft_always
from tests.tensor.mtp_layers import make_mtp_checkpoint
from tests.tensor.test_pretend_gpu import CPU, PLAIN, PROMPTS, asked, same, serve, steps_of

PAGE_TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def said() -> dict[str, Row]:
    found = PART.search(PAGE_TEXT)
    assert found is not None
    return rows_of(found[0])


def test_the_page_names_all(said: dict[str, Row]) -> None:
    assert [*sorted(said)] == sorted([*FAMILIES, *FEATURES])
    assert rows_of(table_of(said)) == said


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(gpu: PretendGpu, tmp_path: Path, said: dict[str, Row], name: str) -> None:
    assert family(name, tmp_path, gpu) == said[name]


def test_two_ranks_give_the_tokens_of_one(gpu: PretendGpu, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "m", "llama")
    with two_ranks(folder, gpu) as ranks:
        same(ranks.answers(PLAIN), serve(folder, CPU).answers(PLAIN))


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature(
    gpu: PretendGpu,
    tmp_path: Path,
    said: dict[str, Row],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert feature(name, tmp_path, gpu, monkeypatch) == said[name]


@pytest.mark.parametrize("kind", ["eagle3", "glm4_moe", "deepseek_v3"])
def test_a_draft_head(
    gpu: PretendGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It drafts what it does on the CPU, and asks for as much for many rows as for one: a copy in,
    and a wait.
    """
    draft_always(monkeypatch)
    mtp = kind != "eagle3"
    folder = make_mtp_checkpoint(tmp_path / "m", kind) if mtp else DEMO_MODEL
    flags = {"speculative_algorithm": "mtp" if mtp else kind, "chunked_prefill_size": 2_000}
    for some in ([asked("a", PROMPTS[0])], PLAIN):
        steps, made = Steps(monkeypatch), []
        for device in (gpu.device, CPU):
            counts = steps_of(serve(folder, device, **flags), gpu, some)
            made.append(steps.drafts())
            steps.seen.clear()
            if device is not CPU:
                assert max(each.copies for each in counts) == 2
                assert {each.waits for each in counts} == {1, 2}
        assert made[0]
        assert made[0] == made[1]
