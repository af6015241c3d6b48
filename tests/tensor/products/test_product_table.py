"""Which way multiplies: by measurement, kept on disk, and measured anew when that is of no use."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from radixlm.kernels.jit import KernelStore
from radixlm.kernels.openmp import team
from radixlm.products import product_table as ways
from radixlm.products.gemm_choice import GemmChoice, GemmShape, ways_of
from radixlm.products.product_table import COUNTS, ProductTable, Times, choose

SHAPE = GemmShape(48, 32, "float32", "float32")


def even(seconds: float, **others: float) -> dict[int, float]:
    return {rows: others.get(f"at{rows}", seconds) for rows in COUNTS}


def test_each_number_of_rows_has_its_way() -> None:
    choice = GemmChoice([(8, "vectors"), (2048, "tiles")])
    assert [choice.way(rows) for rows in (0, 1, 8, 9, 2048, 9000)] == [
        *("vectors", "vectors", "vectors"),
        *("tiles", "tiles", "tiles"),
    ]
    assert choice.layout == "panels"


@pytest.mark.parametrize(
    ("times", "steps"),
    [
        ({"torch": even(1)}, [(2048, "torch")]),
        ({"tiles": even(1), "torch": even(2)}, [(2048, "tiles")]),
        ({"tiles": even(2), "onednn": even(1), "torch": even(2)}, [(2048, "onednn")]),
        # As fast, but for noise: the first.
        ({"tiles": even(1), "onednn": even(0.97)}, [(2048, "tiles")]),
        ({"tiles": even(1, at1=0.97), "vectors": even(2, at1=0.95)}, [(2048, "tiles")]),
        # One layout serves both of its ways.
        (
            {"tiles": even(1, at1=3), "vectors": even(2, at1=1), "onednn": even(1.2)},
            [(1, "vectors"), (2048, "tiles")],
        ),
        # What was too slow to be timed for many rows would have taken in proportion.
        ({"vectors": {1: 1.0}, "torch": even(1)}, [(2048, "torch")]),
    ],
)
def test_the_fastest_layout_and_its_ways(times: Times, steps: list[tuple[int, str]]) -> None:
    assert [*choose(times).steps] == steps


def test_all_ways_of_this_machine_are_timed() -> None:
    times = ways.measure(SHAPE)
    assert [*times] == ways_of(torch.empty(48, 32))
    for by_rows in times.values():  # while others use the machine, many rows may take too long
        assert by_rows
        assert [*by_rows] == [*COUNTS[: len(by_rows)]]
        assert min(by_rows.values()) > 0


def test_large_weights_are_timed_by_some_of_their_outputs() -> None:
    assert SHAPE.timed == SHAPE
    timed = GemmShape(150_000, 4096, "bfloat16", "float32").timed
    assert timed.outputs * 4096 == team().size << 21


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[GemmShape]:
    made: list[GemmShape] = []

    def measure(shape: GemmShape, _seconds: float) -> Times:
        made.append(shape)
        return {"vectors": even(1.0), "torch": even(2.0)}

    monkeypatch.setattr(ways, "measure", measure)
    return made


def test_times_are_kept(tmp_path: Path, measured: list[GemmShape]) -> None:
    for _ in range(2):
        table = ProductTable(KernelStore(tmp_path))
        assert table.times(SHAPE) == {"vectors": even(1.0), "torch": even(2.0)}
        assert table.choice(torch.empty(48, 32), torch.float32).layout == "panels"
    assert measured == [SHAPE]
    table.times(SHAPE, anew=True)
    assert len(measured) == 2


def test_the_first_of_two_processes_counts_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (ProductTable(KernelStore(tmp_path)) for _ in range(2))

    def measure(shape: GemmShape, _seconds: float) -> Times:
        monkeypatch.setattr(ways, "measure", lambda *_: {"torch": even(1.0)})
        first.times(shape)  # while the second one is still measuring
        return {"torch": even(2.0)}

    monkeypatch.setattr(ways, "measure", measure)
    assert second.times(SHAPE) == first.times(SHAPE) == {"torch": even(1.0)}
    assert ProductTable(KernelStore(tmp_path)).times(SHAPE) == {"torch": even(1.0)}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[[1, 2]]", b"[[[1], {}]]", b"3", json.dumps([[SHAPE, 3]]).encode()]
)
def test_a_damaged_table_is_measured_anew(
    content: bytes, tmp_path: Path, measured: list[GemmShape], caplog: pytest.LogCaptureFixture
) -> None:
    store = KernelStore(tmp_path)
    ProductTable(store).times(SHAPE)
    [file] = tmp_path.iterdir()
    store.put(file.name, content)
    with caplog.at_level(logging.INFO, "radixlm.products"):
        ProductTable(store).times(SHAPE)
    assert len(measured) == 2
    assert "damaged" in caplog.text or not content


def test_a_torn_file_is_measured_anew(tmp_path: Path, measured: list[GemmShape]) -> None:
    ProductTable(KernelStore(tmp_path)).times(SHAPE)
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    ProductTable(KernelStore(tmp_path)).times(SHAPE)
    assert len(measured) == 2


@pytest.mark.parametrize("other", ["processor", "threads"])
def test_another_machine_measures_for_itself(
    other: str, tmp_path: Path, measured: list[GemmShape], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = KernelStore(tmp_path)
    ProductTable(store).times(SHAPE)
    if other == "processor":
        monkeypatch.setattr("radixlm.kernels.jit.machine_id", lambda: ("another",))
    else:
        monkeypatch.setattr(team().__class__, "size", property(lambda _: 7))
    ProductTable(store).times(SHAPE)
    assert len(measured) == 2


def test_many_shapes_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def measure(_shape: GemmShape, seconds: float) -> Times:
        nonlocal now
        now += seconds
        return {"torch": even(1.0)}

    monkeypatch.setattr(ways, "measure", measure)
    monkeypatch.setattr(ways.time, "perf_counter", lambda: now)
    table = ProductTable(None)
    for outputs in range(48, 98):
        table.times(SHAPE._replace(outputs=outputs))
    assert 2 < now < 3


def test_one_call_counts_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def timed(products, x, _other, most) -> dict[str, float]:
        turns.append((len(x), most))
        return dict.fromkeys(products, 1e-9)

    monkeypatch.setattr(ways, "call_times", timed)
    ways.measure(SHAPE, -1.0)
    assert turns == [(rows, 1) for rows in COUNTS]
