"""What chances of checkpoints look at."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from radixlm.cache.components.reuse_chances import ReuseChances


class Farther:
    """A node that is as far as distances go: what is below it is not asked for."""

    end = 4096

    @property
    def children(self):
        pytest.fail("a way is followed farther than it matters")


def test_a_way_is_followed_as_far_as_distances_differ() -> None:
    chances = ReuseChances()
    far = SimpleNamespace(end=0, children={0: Farther()})
    leaf = SimpleNamespace(end=4095, children={})
    near = SimpleNamespace(end=0, children={0: leaf})
    chances.used(far, 0)
    assert chances.of(far, 0) > chances.of(near, 0)
