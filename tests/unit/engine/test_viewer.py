"""What waits for a viewer is bounded; one that is too slow begins anew."""

from __future__ import annotations

import asyncio
import threading

import pytest

from radixlm.core.errors import EngineDeadError, NodeGoneError
from radixlm.core.reports import MAX_WAITING, NodeView, TreeChange, TreeSnapshot
from radixlm.engine.engine_stats import EngineStats
from radixlm.engine.mailbox import MAX_WAITING_NODES, Viewer
from radixlm.engine.watching import Scene, SceneChange


class Looked:
    """What a viewer asks of the engine."""

    def __init__(self) -> None:
        self.looks = 0
        self.away: list[int] = []

    def viewer(self) -> Viewer:
        return Viewer(self.look, self.away.append)

    def look(self, _viewer: Viewer) -> int:
        self.looks += 1
        return self.looks


def scene(n_nodes: int = 0) -> Scene:
    view: list[NodeView] = [None] * n_nodes  # only counted
    return Scene(TreeSnapshot(1, 1, tuple(view)), (), EngineStats())


def change(n_nodes: int = 0) -> SceneChange:
    view: list[NodeView] = [None] * n_nodes
    return SceneChange(TreeChange(1, 1, (), tuple(view)), (), 0, (), EngineStats())


def test_sights_come_in_order():
    async def main() -> None:
        viewer = Looked().viewer()
        sights = [scene(), change(), change()]
        for sight in sights:
            viewer.deliver(sight)
        assert [await viewer.next() for _ in sights] == sights

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sights", "kept"),
    [
        ([change()] * MAX_WAITING, True),
        ([change()] * (MAX_WAITING + 1), False),
        ([scene(MAX_WAITING_NODES + 1)], True),
        ([change(), change(MAX_WAITING_NODES + 1)], False),
    ],
)
def test_a_slow_viewer_loses_what_waits_and_looks_again(sights, kept):
    async def main() -> None:
        looked = Looked()
        viewer = looked.viewer()
        for sight in sights:
            viewer.deliver(sight)
        assert viewer.dropped == (0 if kept else len(sights))
        assert looked.away == ([] if kept else [1])
        if not kept:
            waiting = asyncio.create_task(viewer.next())
            await asyncio.sleep(0)
            assert looked.looks == 2
            fresh = scene()
            viewer.deliver(fresh)
            assert await waiting is fresh

    asyncio.run(main())


@pytest.mark.parametrize("error", [NodeGoneError("gone"), EngineDeadError("dead")])
def test_what_was_seen_before_an_end_is_still_read(error):
    async def main() -> None:
        viewer = Looked().viewer()
        last = change()
        viewer.deliver(last)
        viewer.deliver(error)
        assert await viewer.next() is last
        with pytest.raises(type(error)):
            await viewer.next()

    asyncio.run(main())


def test_closed_once():
    async def main() -> None:
        looked = Looked()
        viewer = looked.viewer()
        viewer.close()
        viewer.close()
        assert looked.away == [1]

    asyncio.run(main())


@pytest.mark.parametrize("again", [False, True])
def test_too_much_comes_before_the_ticket_is_known(again):
    """The engine's thread may be that fast: then the ticket is given back all the same."""

    class Fast(Looked):
        def look(self, viewer: Viewer) -> int:
            if again is bool(self.looks):
                sights = [change() for _ in range(MAX_WAITING + 1)]
                engine.append(threading.Thread(target=lambda: list(map(viewer.deliver, sights))))
                engine[0].start()
                engine[0].join(0.2)
            return super().look(viewer)

    async def main() -> None:
        looked = Fast()
        viewer = looked.viewer()
        if again:
            viewer.close()
            waiting = asyncio.create_task(viewer.next())
            await asyncio.sleep(0)
            waiting.cancel()
        engine[0].join()
        assert viewer.dropped == MAX_WAITING + 1
        assert looked.away[-1] == looked.looks

    engine: list[threading.Thread] = []
    asyncio.run(main())


def test_a_viewer_whose_loop_is_closed_harms_nobody():
    async def main() -> Viewer:
        return Looked().viewer()

    asyncio.run(main()).deliver(change())
