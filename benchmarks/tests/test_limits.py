"""benchmarks/limits.py: what it counts, and that its profile covers a step."""

from __future__ import annotations

import pytest
import torch

from benchmarks.limits import Bench, Step, bytes_read, operations, random_model, steps
from benchmarks.step_profile import heading_of
from radixlm.bench import machine
from radixlm.bench.machine import Timing, head_product, layer_products, product_rates
from radixlm.layers.linear import Linear
from radixlm.models import ModelConfig
from radixlm.runner.model_runner import ModelRunner
from radixlm.testing.checkpoints import SHAPES

TINY = ModelConfig.from_hf(SHAPES["tiny"])
SMOLLM = ModelConfig.from_hf(SHAPES["smollm-135m"])


def test_products_are_all_weights_but_the_norms():
    weights = sum(product.weights for product in (*layer_products(SMOLLM), head_product(SMOLLM)))
    assert weights == 134_515_008 - 61 * 576


def test_operations_of_a_chunk_and_of_a_decode_step():
    # Per layer: 64 x (128 + 64 + 384) + 192 x 64 weights; 2 layers, a head of 512 x 64.
    layers, head = 2 * (64 * 576 + 192 * 64), 512 * 64
    chunk = Step("prefill", 1, 10)
    assert operations(TINY, chunk) == 2 * (10 * layers + head) + 4 * 2 * 64 * 55
    decode = Step("decode", 3, 1, own=4, shared=7)
    assert operations(TINY, decode) == 2 * 3 * (layers + head) + 4 * 2 * 64 * 3 * 12


def test_shared_keys_and_values_are_read_once():
    apart, together = Step("a", 3, 1, own=11), Step("b", 3, 1, own=4, shared=7)
    token = 2 * 2 * 2 * 16 * 4
    difference = bytes_read(TINY, apart, torch.float32) - bytes_read(TINY, together, torch.float32)
    assert difference == (36 - 22) * token


@pytest.fixture(scope="module")
def bench():
    return Bench(random_model("tiny", torch.float32), torch.float32, steps(quick=True))


def test_every_step_runs(bench):
    for step in steps(quick=True):
        assert min(bench.seconds(step, Timing(0.0, least=1, most=1))) > 0


@pytest.mark.parametrize("step", [Step("prefill", 1, 64), Step("decode", 8, 1, own=32)])
def test_a_profile_names_what_a_step_does(bench, step):
    before = Linear.__call__, ModelRunner.execute
    parts = bench.profile(step, 3)
    assert (Linear.__call__, ModelRunner.execute) == before
    named = {"qkv", "o", "gate-up", "down", "attention", "norms", "activation", "rotary", "head"}
    assert named <= parts.keys()
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


def test_headings():
    assert heading_of(Linear.__call__) is None
    assert heading_of(ModelRunner.execute) == "rest"


@pytest.mark.parametrize("known", [False, True])
def test_products_of_onednn_are_timed_where_it_has_them(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "has_onednn", lambda _: known)
    [product, *_] = layer_products(TINY)
    rates = product_rates(product, 2, torch.float32, Timing(0.0, 0, 1))
    assert set(rates) == ({"mm", "packed"} if known else {"mm"})
