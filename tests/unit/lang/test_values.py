"""Values: settled once, and waking only who waits for what has come."""

from __future__ import annotations

import asyncio
import threading

import pytest

from radixlm.core.errors import ProgramError
from radixlm.lang.interpreter import Value


def test_who_waits_for_the_end_is_not_woken_by_each_piece():
    value, ended = Value(), []
    value.add_done_callback(ended.append)
    for piece in ("a", "b", "c"):
        value.grow(piece)
    assert not ended
    value.settle("abc")
    assert ended == [value]
    assert value.result() == "abc"


def test_pieces_come_as_they_grow_to_threads_and_to_coroutines():
    value, found = Value(), []
    reader = threading.Thread(target=lambda: found.extend(value.pieces()), daemon=True)
    reader.start()

    async def read():
        pieces = value.apieces()
        for piece in ("a", "bc"):
            asyncio.get_running_loop().call_soon(value.grow, piece)
            assert await anext(pieces) == piece
        value.settle("abcd")
        return [piece async for piece in pieces]

    assert asyncio.run(read()) == ["d"]
    reader.join(60)
    assert "".join(found) == "abcd"


def test_a_reader_that_is_cancelled_leaves_the_value_to_others():
    value = Value()

    async def read():
        waiting = asyncio.create_task(anext(value.apieces()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(read())  # its loop is closed when the value grows
    value.grow("a")
    assert next(value.pieces()) == "a"


def test_what_is_settled_stays():
    value = Value()
    value.fail(ProgramError("broken", line="here"))
    value.settle("late")
    with pytest.raises(ProgramError, match="broken"):
        value.result()
    with pytest.raises(ProgramError, match="broken"):
        list(value.pieces())
