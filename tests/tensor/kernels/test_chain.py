"""Calls made again in one go are the calls that were made."""

from __future__ import annotations

import torch
from torch import Tensor

from radixlm.kernels.chain import Chain
from radixlm.kernels.openmp import Worker, team
from radixlm.layers.linear import RMSNorm
from radixlm.products.compiled import TensorOptions, norm_kernel

_OPTIONS = TensorOptions(torch.float32, torch.device("cpu"))
_SIZE = 64


def test_each_call_sees_what_the_ones_before_it_left() -> None:
    """Three norms, each of what the one before it gave: on one row, and on more than one thread."""
    norms = [_norm(factor) for factor in (2.0, 3.0, 0.5)]
    for rows in (1, 40):
        x, places = torch.randn(rows, _SIZE), [torch.empty(rows, _SIZE) for _ in norms]
        with team().recorded() as calls:
            _through(norms, x, places)
        chain = Chain(calls, [])
        for _ in range(50):
            x.copy_(torch.randn(rows, _SIZE))
            for place in places:
                place.zero_()
            chain([])
            made = [place.clone() for place in places]
            _through(norms, x, places)
            assert all(map(torch.equal, made, places))


def test_what_is_renewed_comes_from_the_new_worker() -> None:
    weight = torch.ones(_SIZE)
    x, out = torch.randn(2, _SIZE), torch.empty(2, _SIZE)

    def worker(hidden: Tensor) -> Worker:
        return Worker(
            norm_kernel(bfloat16=False),
            rows=2,
            width=_SIZE,
            weight=weight.data_ptr(),
            hidden=hidden.data_ptr(),
            out=out.data_ptr(),
            stride=out.stride(0) * out.element_size(),
        )

    first, second = worker(x), worker(other := 2 * torch.randn(2, _SIZE) + 1)
    with team().recorded() as calls:
        first()
    Chain(calls, [(first, ["hidden"])])([second])
    expected = other / other.pow(2).mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(out, expected)


def test_nothing_is_recorded_before_and_after() -> None:
    norm, x = _norm(1.0), torch.randn(1, _SIZE)
    norm(x)
    with team().recorded() as calls:
        norm(x)
    norm(x)
    assert len(calls) == 1


def _norm(factor: float) -> RMSNorm:
    norm = RMSNorm(_SIZE, 1e-5, _OPTIONS)
    norm.weight.copy_(torch.randn(_SIZE) * factor)
    return norm


def _through(norms: list[RMSNorm], x: Tensor, places: list[Tensor]) -> None:
    for norm, place in zip(norms, places, strict=True):
        x = norm(x, None, place)
