from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlm.attention.backends import CpuBackend
from radixlm.attention.plan import AttentionPlan, Sharing, make_plan
from radixlm.attention.torch_parts import attend_part, plain_part
from radixlm.memory.pools import KVPool
from tests.pairs import pairs
from tests.tensor.attention_cases import (
    Heads,
    Path,
    make_tree_case,
    random_tree,
    reference,
    run,
)

EVERYTHING = Sharing(largest=99, fewest=1, shortest=0, least_saved=1, least_view=1)
SOME = Sharing(largest=99, fewest=1, shortest=0, least_saved=20, least_view=8)
RULES = [EVERYTHING, SOME]


@pytest.mark.parametrize("backend", ["torch", "cpu", "tiles"])
@pytest.mark.parametrize(
    ("page", "depth", "heads", "rule"),
    pairs([0, 4, 1, 16], [1, 6, 3], [Heads(4, 4, 8), Heads(6, 3, 16), Heads(8, 2, 8)], RULES),
)
def test_any_tree_equals_the_plain_backend(
    rule: Sharing, heads: Heads, page: int, depth: int, backend: str
) -> None:
    for seed in range(2):
        paths = random_tree(np.random.default_rng(seed), depth=depth, page=page)
        case = make_tree_case(paths, heads, torch.float32, "cpu", seed=seed, page=page)
        plain = run(case)
        shared = run(case, rule, backend)
        assert (shared - plain).abs().max().item() < 1e-5, paths
        assert (shared.double() - reference(case)).abs().max().item() < 1e-5, paths


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", ["torch", "cpu", "tiles"])
def test_bfloat16_is_within_its_precision(rule: Sharing, backend: str) -> None:
    for seed in range(3):
        paths = random_tree(np.random.default_rng(seed), depth=4, page=4)
        heads = Heads(6, 3, 16)
        case = make_tree_case(paths, heads, torch.bfloat16, "cpu", seed=seed, page=4)
        out = run(case, rule, backend)
        assert out.dtype == torch.bfloat16
        assert (out.double() - reference(case)).abs().max().item() < 2e-2, paths


@pytest.mark.parametrize("backend", ["torch", "cpu", "tiles"])
def test_large_scores_do_not_overflow_when_merged(backend: str) -> None:
    case = make_tree_case(
        [Path(((1, 30),), 5, 1)] * 3, Heads(4, 1, 8), torch.float32, "cpu", seed=2, page=0
    )
    case = case._replace(q=case.q * 300)
    shared = run(case, EVERYTHING, backend)
    # Scores are hundreds: their own last bits are 1e-5, on whatever processor.
    torch.testing.assert_close(shared, run(case), atol=2e-4, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_the_plain_part_equals_the_kernel(masked: bool) -> None:
    """What other devices than the CPU use, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=generator) for n in (5, 11, 11))
    mask = torch.zeros(2, 1, 1, 11).masked_fill_(torch.arange(11) > 7, -torch.inf)
    wanted = attend_part(q, k, v, mask if masked else None, 0.3)
    made = plain_part(q, k, v, mask if masked else None, 0.3)
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def _plan(paths: list[Path], rule: Sharing, page: int = 0) -> AttentionPlan:
    case = make_tree_case(paths, Heads(1, 1, 2), torch.float32, "cpu", seed=0, page=page)
    return make_plan(case.rows, rule)


def test_a_node_is_read_once_for_neighbouring_rows() -> None:
    root, left, right = (1, 100), (2, 50), (3, 40)
    paths = [
        Path((root, left), 5, 1),
        Path((root, left), 6, 3),
        Path((root, right), 0, 1),
        Path((root, right), 7, 1),
        Path((), 9, 1),
    ]
    plan = _plan(paths, Sharing(largest=99, fewest=1, shortest=0, least_saved=40, least_view=1))
    assert sorted((r.first, r.stop, r.length) for r in plan.shared) == [
        (0, 4, 50),
        (0, 6, 100),
        (4, 6, 40),
    ]
    assert [(s.token, s.start, s.context) for s in plan.rows] == [
        (0, 150, 6),
        (1, 150, 9),
        (4, 140, 1),
        (5, 140, 8),
        (6, 0, 10),
    ]
    assert plan.kv_tokens_read == 190 + 6 + 9 + 1 + 8 + 10
    assert plan.kv_tokens_of_rows == 156 + 159 + 141 + 148 + 10


def test_small_nodes_are_read_with_what_follows() -> None:
    """By those who share that; all others, and what comes last, are left to the rows."""
    trunk = ((1, 10), (2, 90), (3, 4), (4, 80), (5, 7))
    paths = [Path(trunk, 2, 1), Path(trunk, 2, 1), Path(trunk[:3], 1, 1), Path(trunk[:1], 1, 1)]
    rule = Sharing(largest=99, fewest=1, shortest=0, least_saved=80, least_view=1)
    plan = _plan(paths, rule)
    assert _reads(plan) == [(0, 2, 104, 87), (0, 3, 0, 104)]
    assert [(s.token, s.start, s.context) for s in plan.rows] == [
        (0, 191, 3),
        (1, 191, 3),
        (2, 104, 2),
        (3, 0, 12),
    ]
    plan = _plan(paths, rule._replace(align=16))
    assert _reads(plan) == [(0, 2, 96, 80), (0, 3, 0, 96)]
    assert [(s.start, s.context) for s in plan.rows] == [(176, 18), (176, 18), (96, 10), (0, 12)]


def _reads(plan: AttentionPlan) -> list[tuple[int, int, int, int]]:
    return sorted((read.first, read.stop, read.start, read.length) for read in plan.shared)


def test_few_readers_read_by_themselves() -> None:
    rule = Sharing(largest=99, fewest=4, shortest=0, least_saved=60, least_view=1)
    assert not _plan([Path(((1, 500),), 1, 1)] * 4, rule).shared
    assert not _plan([Path(((1, 59),), 1, 1)] * 5, rule).shared
    assert [r.length for r in _plan([Path(((1, 60),), 1, 1)] * 5, rule).shared] == [60]
    # New tokens count, not rows.
    chunked = [Path(((1, 60),), 1, 1), Path(((1, 60),), 1, 4)]
    assert _plan(chunked, rule).shared
    # But rows that have many read by themselves, and what is shared has to pay for the merging.
    assert not _plan(chunked, rule._replace(largest=3)).shared
    assert not _plan(chunked, rule._replace(shortest=1)).shared
    assert _plan(chunked * 2, rule._replace(shortest=30)).shared


def test_short_runs_are_gathered_together() -> None:
    trunk = ((1, 64), (2, 64))
    rule = Sharing(largest=99, fewest=1, shortest=0, least_saved=1, least_view=100)
    (read,) = _plan([Path(trunk, 1, 1)] * 2, rule, page=4).shared
    assert read.length == 128
    assert len(read.extents) > 1
    (read,) = _plan([Path(trunk, 1, 1)] * 2, rule).shared
    assert [stop - start for start, stop in read.extents] == [128]


def test_rows_that_are_not_neighbours_do_not_share() -> None:
    """The order of rows is the scheduler's business: attention is right in any order."""
    paths = [Path(((1, 50),), 3, 1), Path((), 8, 2), Path(((1, 50),), 4, 1)]
    assert not _plan(paths, SOME).shared
    case = make_tree_case(paths, Heads(2, 2, 4), torch.float32, "cpu", seed=1, page=4)
    torch.testing.assert_close(run(case, EVERYTHING), run(case), atol=1e-5, rtol=0)


def test_a_node_that_holds_new_tokens_is_not_shared() -> None:
    case = make_tree_case([Path((), 8, 2)], Heads(2, 2, 4), torch.float32, "cpu", seed=1, page=0)
    (row,) = case.rows
    node = row.segments[0]._replace(node_id=7)
    object.__setattr__(row, "segments", (node,))
    assert not make_plan([row, row], EVERYTHING).shared


@pytest.mark.slow  # kernels of two shapes that no other test has are compiled
def test_the_rule_depends_on_the_work_of_a_token() -> None:
    small = KVPool(1, 4, 3, 64, torch.float32)
    large = KVPool(1, 4, 8, 128, torch.float32)
    rules = [CpuBackend(small, 9).sharing, CpuBackend(large, 16).sharing]
    assert rules[0].least_saved > 3 * rules[1].least_saved
    assert not make_plan([], rules[0]).shared
