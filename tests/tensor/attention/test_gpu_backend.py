"""The kernels of GPUs, in Triton's interpreter: the contract of all backends."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from radixlm.attention.plan import ChunkSize, Sharing, make_plan
from radixlm.kernels import gpu_launch
from radixlm.kernels.gpu_launch import Launch
from radixlm.layers.linear import QueryKeyNorm, RMSNorm, add_norm
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool, LayerShape
from radixlm.products.compiled import TensorOptions, gated
from radixlm.runner.step_graphs import RecordableBackend
from tests.tensor.attention import test_latents
from tests.tensor.attention_cases import (
    ALL_BACKENDS,
    EVERYTHING,
    HEADS,
    KINDS,
    Case,
    Heads,
    Path,
    attention,
    in_codes,
    make_case,
    make_tree_case,
    random_tree,
    reference,
    run,
    worst_in_trees,
)

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="needs Triton: make gpu-kernels"
    ),
    # numpy says what rows of a tile that nobody asked for, and numbers that are none, give.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CPU = torch.device("cpu")
DTYPES = [(torch.float32, 5e-6), (torch.bfloat16, 3e-2)]


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> None:
    """Triton looks for this while it is imported, and when a kernel is made."""
    if "triton" in sys.modules and "TRITON_INTERPRET" not in os.environ:
        pytest.skip("Triton was imported without its interpreter: make gpu-kernels")
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "near"), DTYPES)
def test_steps_over_trees(kind: str, dtype: torch.dtype, near: float) -> None:
    assert worst_in_trees(kind, dtype, "cpu", HEADS, "gpu", most=4) < near


def off(case: Case, sharing: Sharing | None = None, window: int | None = None) -> float:
    out = run(case, sharing, "gpu", window)
    return (out.double() - reference(case, window)).abs().max().item()


@pytest.mark.parametrize(
    "heads", [Heads(9, 3, 10), Heads(20, 1, 24), Heads(2, 2, 40), Heads(2, 1, 300)], ids=str
)
def test_any_shape_of_heads(heads: Heads) -> None:
    shapes = [(70, 1), (3, 9), (0, 40)]
    case = make_case(shapes, heads, torch.float32, "cpu", seed=1, scattered=True)
    assert off(case) < 5e-6
    assert off(in_codes(case)) < 2e-5


@pytest.mark.parametrize("window", [1, 7, 64, ChunkSize(20)])
def test_chunks_in_windows(window: int) -> None:
    shapes = [(90, 30), (0, 70), (100, 1), (63, 1)]
    case = make_case(shapes, HEADS, torch.float32, "cpu", seed=window, scattered=True)
    assert off(case, window=window) < 5e-6


def test_a_long_context_is_cut_for_all_processors() -> None:
    case = make_case([(900, 1), (40, 1)], HEADS, torch.float32, "cpu", seed=2, scattered=True)
    assert off(case) < 5e-6
    reads = ALL_BACKENDS["gpu"](case.pool, 6).reads(make_plan(case.rows), 900, None)
    lengths = reads.numbers[8 : 8 + 7 * reads.numbers[0]].reshape(-1, 7)[:, 3]
    assert 3 < len(lengths) < 9
    assert 64 < max(lengths) < 330


def test_nothing_is_shared_where_parts_had_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [Path(((0, 20), (n // 2, 30)), n, 1) for n in range(2, 6)]
    case = make_tree_case(paths, HEADS, torch.float32, "cpu", seed=3, page=1)
    assert make_plan(case.rows, EVERYTHING).shared
    for room in (1 << 20, 0):
        monkeypatch.setattr("radixlm.attention.gpu_backend.PARTS_BYTES", room)
        assert off(case, EVERYTHING) < 5e-6


def test_what_is_no_number_is_seen() -> None:
    case = make_case([(40, 1), (30, 9)], HEADS, torch.float32, "cpu", seed=4, scattered=False)
    case.k[-1] = float("nan")
    for made in (case, in_codes(case)):
        out = run(made, backend="gpu")
        assert out[-1].isnan().all()
        assert not out[0].isnan().any()


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("norm", [None, "before", "after"])
def test_queries_and_keys_are_placed_as_by_torch(norm: str | None, coded: bool) -> None:
    case = make_case(
        [(7, 5), (3, 1)], Heads(4, 2, 20), torch.float32, "cpu", seed=5, scattered=True
    )
    case.v[2, 1, 3], case.k[4] = float("inf"), 0
    weights = QueryKeyNorm(4, 20, 1e-5, TensorOptions(torch.float32, CPU), after=norm == "after")
    weights.q_weight.uniform_(0.5, 2)
    weights.k_weight.uniform_(0.5, 2)
    rotation = Rotation(torch.randn(6, 20), torch.rand(6))
    made = []
    for name in ("torch", "gpu"):
        pool = KVPool(2, case.pool.capacity, 2, 20, torch.float32, coded=coded)
        qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
        attend = ALL_BACKENDS[name](pool, 4).prepare(make_plan(case.rows), case.table, case.slots)
        out = attend(1, qkv, rotation, weights if norm else None)
        made.append((pool, out.nan_to_num(7)))
    (theirs, wanted), (ours, out) = made
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.scales[1], theirs.scales[1], equal_nan=True)
    for side in ("keys", "values"):
        one, other = (getattr(pool, side)[1][case.slots].float() for pool in (ours, theirs))
        assert (one - other).nan_to_num(0).abs().max() <= (1 if coded else 1e-5)
        assert not coded or (one != other).float().mean() < 0.01


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 5e-6), (torch.bfloat16, 4e-2)])
def test_latents_over_trees(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, near: float
) -> None:
    """Absorbed; and the last row of the last step, a prompt, expanded beside others."""
    monkeypatch.setattr(gpu_launch, "DEVICES", ("cpu",))
    for seed, page in enumerate((0, 1, 4)):
        paths = random_tree(np.random.default_rng(seed), depth=3, page=page)[:5]
        paths += [Path((), 9, 60)] if seed == 2 else []
        step = test_latents.make_step(paths, dtype, seed=seed, page=page)
        assert isinstance(test_latents.backend_of(step, "compiled"), RecordableBackend)
        test_latents.check(step, "compiled", near)


def test_heads_of_a_token_that_no_tile_has_room_for() -> None:
    module = importlib.import_module("radixlm.attention.gpu_backend")
    tiles = (module.Tile(16, 16, 4, 2, 2, 2),) * 2
    shapes, heads = [(70, 1), (3, 9)], Heads(72, 2, 10)
    case = make_case(shapes, heads, torch.float32, "cpu", seed=1, scattered=True)
    backend = ALL_BACKENDS["gpu"](case.pool, 72, tiles=tiles)
    assert backend.group == 12
    out = attention(backend.prepare(make_plan(case.rows), case.table, case.slots), case)
    assert (out.double() - reference(case)).abs().max() < 5e-6


def test_a_layer_that_reads_another_s_keys() -> None:
    case = make_case([(0, 9), (0, 3)], HEADS, torch.float32, "cpu", seed=6, scattered=True)
    shapes = LayerShape(2, 16), LayerShape(2, 16, source=0)
    qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
    made = []
    for name in ("torch", "gpu"):
        pool = KVPool(2, case.pool.capacity, 2, 16, torch.float32, shapes=shapes)
        attend = ALL_BACKENDS[name](pool, 6).prepare(make_plan(case.rows), case.table, case.slots)
        rotation = Rotation(torch.ones(12, 16))
        attend(0, qkv.clone(), rotation, None)
        made.append(attend(1, case.q.flatten(1).flip(1).contiguous(), rotation, None))
    torch.testing.assert_close(*made, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("added", [False, True])
def test_norms_and_gates_are_torch_s(dtype: torch.dtype, added: bool) -> None:
    rows = importlib.import_module("radixlm.kernels.gpu_rows")
    near = 1e-6 if dtype == torch.float32 else 2e-2
    options = TensorOptions(dtype, torch.device("cpu"))
    norm, theirs = RMSNorm(36, 1e-5, options), torch.randn(3, 36).to(dtype)
    norm.weight.uniform_(0.5, 2)
    ours, part = theirs.clone(), torch.randn(3, 36).to(dtype) if added else None
    wanted = norm(theirs, part)
    out = add_norm(Launch(rows.add_norm), ours, part, norm.weight, 1e-5)
    torch.testing.assert_close(ours, theirs, atol=near, rtol=near)
    torch.testing.assert_close(out, wanted, atol=near, rtol=near)
    both = torch.randn(3, 2_600).to(dtype)
    one, other = both.chunk(2, dim=1)
    wanted = torch.nn.functional.silu(one) * other
    torch.testing.assert_close(gated(Launch(rows.gated), both), wanted, atol=near, rtol=near)


@pytest.mark.slow
def test_what_compiled_kernels_take() -> None:
    """No memory for registers that there are not, tensor cores, and memory that a GPU has."""
    command = [sys.executable, "-m", "tests.compiled_kernels"]
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    said = subprocess.check_output(command, env=kept, text=True)  # noqa: S603
    rows = [json.loads(line) for line in said.splitlines()]
    kernels = {"place", "place_latents", "attend", "merge", "add_norm", "gated", "multiply", "fill"}
    assert {row["kernel"] for row in rows} == kernels
    for row in rows:
        assert row["stack"] <= {90: 0, 80: 16}[row["capability"]], row
        assert row["shared"] <= {90: 232_448, 80: 101_376}[row["capability"]], row
        if row["kernel"] in ("attend", "multiply"):
            assert row["wgmma" if row["capability"] == 90 and row["M"] >= 64 else "mma"] > 0, row
            assert row["async"] > 0, row
