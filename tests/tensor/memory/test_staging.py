from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlm.memory.staging import Staging, staging_for
from tests.pretend_gpu import PretendGpu


def test_on_the_cpu_nothing_is_copied() -> None:
    numbers, done = np.arange(5), []
    sending = staging_for(torch.device("cpu"))
    sending.begin()
    made = sending.put(numbers)
    numbers[2] = 7
    assert made.tolist() == [0, 1, 7, 3, 4]
    sending.after(lambda: done.append(1))
    assert done == [1]


def test_a_gpu_s_numbers_are_one_copy(gpu: PretendGpu) -> None:
    staging = staging_for(gpu.device)
    given = [
        np.arange(3),
        np.array([[1.5, 2.5]]),
        np.arange(5, dtype=np.int32),
        np.zeros((0, 2), dtype=np.int64),
        np.array([0.1], dtype=np.float32),
    ]
    for turn in range(2):
        given = [numbers + 1 for numbers in given]
        staging.begin()
        gpu.count()
        made, seen = [staging.put(numbers) for numbers in given], list[int]()
        staging.after(lambda first=made[0], seen=seen: seen.extend(first.tolist()))
        assert not seen
        staging.send()
        assert gpu.count().copies == 1
        assert seen == [turn + 1, turn + 2, turn + 3]
        for ours, wanted in zip(made, given, strict=True):
            assert ours.shape == wanted.shape
            assert torch.equal(ours.cpu(), torch.from_numpy(wanted))


def test_what_comes_after_it_was_sent_goes_behind_it(gpu: PretendGpu) -> None:
    staging = staging_for(gpu.device)
    staging.begin()
    first = staging.put(np.arange(3))
    staging.send()
    second = staging.put(np.arange(4, 9))
    gpu.count()
    staging.send()
    assert gpu.count().copies == 1
    assert [*first.tolist(), *second.tolist()] == [0, 1, 2, 4, 5, 6, 7, 8]


def test_what_has_no_room_takes_a_copy_more_once(gpu: PretendGpu) -> None:
    staging, copies = Staging(gpu.device), []
    large = np.arange(100_000)
    for _ in range(2):
        staging.begin()
        gpu.count()
        small, made = staging.put(np.arange(3)), staging.put(large)
        staging.send()
        copies.append(gpu.count().copies)
        assert small.tolist() == [0, 1, 2]
        assert made.tolist() == large.tolist()
    assert copies == [2, 1]


@pytest.mark.parametrize("size", [1, 3, 17])
def test_numbers_begin_where_kernels_want_them(gpu: PretendGpu, size: int) -> None:
    staging = staging_for(gpu.device)
    staging.put(np.zeros(size, dtype=np.int32))
    assert staging.put(np.zeros(size)).storage_offset() * 8 % 16 == 0
