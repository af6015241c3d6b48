"""The CPU's own kernels: shapes, pieces, threads, and what must not vanish in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from radixlm.attention import backends
from radixlm.attention.backends import CpuBackend, make_backend
from radixlm.attention.plan import make_plan
from radixlm.attention.torch_backend import TorchBackend
from radixlm.core.errors import ConfigError
from radixlm.kernels.openmp import team
from radixlm.memory.pools import KVPool
from tests.tensor.attention_cases import (
    BACKENDS,
    DTYPES,
    Heads,
    Path,
    attention,
    make_case,
    make_tree_case,
    reference,
    run,
)

WAYS = ["direct", "tiles"]
CPU = torch.device("cpu")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow  # each shape is compiled: test_same_bits compares others with the reference
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize(
    ("heads", "kind"),
    [
        (Heads(32, 1, 96), 0),
        (Heads(13, 1, 24), 1),
        (Heads(6, 2, 10), 0),
        (Heads(6, 2, 10), 1),
        (Heads(71, 1, 16), 0),
    ],
    ids=str,
)
def test_any_shape_of_heads(backend: str, heads: Heads, kind: int) -> None:
    """Several vectors a head, several blocks of queries a key head, halves of vectors."""
    dtype, near = DTYPES[kind]
    shapes = [(70, 1), (3, 9), (0, 140)]
    case = make_case(shapes, heads, dtype, "cpu", seed=1, scattered=True)
    out = run(case, backend=backend)
    assert (out.double() - reference(case)).abs().max().item() < near


def test_more_queries_of_a_token_than_a_block_has() -> None:
    case = make_case([(0, 140)], Heads(400, 1, 8), torch.bfloat16, "cpu", seed=1, scattered=True)
    out = run(case, backend="tiles")
    assert (out.double() - reference(case)).abs().max().item() < 3e-2


@pytest.mark.parametrize("larger", [1, 30, 300])
@pytest.mark.parametrize(("dtype", "near"), DTYPES)
def test_scores_that_grow_along_the_context(dtype: torch.dtype, near: float, larger: float) -> None:
    """What the first token is measured from is nothing beside what comes later."""
    case = make_case([(1500, 60), (0, 700)], Heads(3, 1, 64), dtype, "cpu", seed=6, scattered=False)
    for keys in (case.pool.keys[1][3:1503], case.k[60:]):
        keys *= torch.linspace(0, larger, len(keys)).to(dtype)[:, None, None]
    out = run(case, backend="tiles")
    assert (out.double() - reference(case)).abs().max().item() < near + 1e-5 * larger


@pytest.mark.parametrize(("dtype", "near"), DTYPES)
def test_pieces_leave_out_what_is_shared(dtype: torch.dtype, near: float) -> None:
    nodes = ((1, 100), (2, 600), (3, 2))
    paths = [Path(nodes, 900, 1), Path(nodes[:2], 0, 1)]
    case = make_tree_case(paths, Heads(6, 3, 16), dtype, "cpu", seed=2, page=2)
    sharing = CpuBackend(case.pool, 6).sharing._replace(fewest=1, least_saved=300)
    out = run(case, sharing, "direct")
    assert (out.double() - reference(case)).abs().max().item() < near


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("shapes", [[(300, 1)] * 5, [(3000, 1)], [(2000, 40)]])
def test_threads_may_change_between_planning_and_computing(
    backend: str, shapes: list[tuple[int, int]]
) -> None:
    case = make_case(shapes, Heads(6, 3, 16), torch.float32, "cpu", seed=3, scattered=True)
    made = BACKENDS[backend](case.pool, 6)
    attend = made.prepare(make_plan(case.rows), case.table, case.slots)
    wanted = attention(attend, case)
    assert (wanted.double() - reference(case)).abs().max().item() < 5e-6
    for count in (7, 1):
        torch.set_num_threads(count)
        assert torch.equal(attention(attend, case), wanted)


@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("factor", [-1e20, 1e14])
def test_scores_beyond_all_bounds(backend: str, factor: float) -> None:
    """-inf of all tokens is nothing that can be divided by; of huge ones the largest has it all."""
    case = make_case([(40, 5)], Heads(2, 1, 16), torch.float32, "cpu", seed=3, scattered=False)
    case.pool.keys[1][case.table[1, :40].long()] = 1e19 if factor < 0 else 1.0
    case.k.fill_(1e19 if factor < 0 else 1.0)
    case.q.fill_(factor)
    case.q[..., 0] = factor * (1 + 1e-4)
    out = run(case, backend=backend)
    if factor < 0:
        assert bool(out.isnan().all())
    else:
        assert (out.double() - reference(case)).abs().max().item() < 5e-6


@pytest.mark.parametrize("backend", WAYS)
def test_scratch_does_not_hang_on_the_default_type(backend: str) -> None:
    """Somebody else in the process may be loading a model under another default."""
    shapes = [(900, 1)] * 3 + [(2000, 3)]
    case = make_case(shapes, Heads(6, 3, 16), torch.float32, "cpu", seed=4, scattered=True)
    wanted = run(case, backend=backend)
    torch.set_default_dtype(torch.bfloat16)
    try:
        out = run(case, backend=backend)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("context", [15, 16, 64, 67])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_numbers_are_seen(
    dtype: torch.dtype, backend: str, context: int, broken: float
) -> None:
    """They must reach the logits, where they are refused."""
    case = make_case([(context, 1)], Heads(6, 3, 16), dtype, "cpu", seed=5, scattered=False)
    case.pool.keys[1][case.table[1, 3].long()] = broken
    assert not run(case, backend=backend).isfinite().any(dim=-1).all()
    case = make_case([(context, 1)], Heads(6, 3, 16), dtype, "cpu", seed=5, scattered=False)
    case.q.fill_(float("nan"))
    assert bool(run(case, backend=backend).isnan().all())


def test_a_machine_gets_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, double = KVPool(1, 4, 1, 8, torch.float32), KVPool(1, 4, 1, 8, torch.float64)
    if team().is_whole:
        assert isinstance(make_backend(plain, 2), CpuBackend)
    assert isinstance(make_backend(double, 2), TorchBackend)
    with pytest.raises(ConfigError, match=r"--deterministic .* float64 on cpu"):
        make_backend(double, 2, deterministic=True)
    monkeypatch.setattr(backends, "team", Alone)
    assert isinstance(make_backend(plain, 2), TorchBackend)
    with pytest.raises(ConfigError, match="OpenMP's threads"):
        make_backend(plain, 2, deterministic=True)


class Alone:
    """Where torch brings no threads that others can use."""

    is_whole = False
