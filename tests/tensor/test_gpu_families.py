"""Every family and feature on a device that pretends to be a GPU: nothing is mixed, and what a step
copies and waits for is what docs/gpu.md says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlm.testing.reference import make_checkpoint
from tests.gpu_table import FAMILIES, FEATURES, PAGE, PART, Row, family, feature, rows_of, table_of
from tests.pretend_gpu import PretendGpu
from tests.pretend_ranks import two_ranks
from tests.tensor.test_pretend_gpu import CPU, PLAIN, same, serve

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
