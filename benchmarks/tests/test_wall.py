import asyncio

import pytest

from benchmarks.wall import wall
from benchmarks.wire import Pool, request_bytes


@pytest.mark.slow
def test_it_refuses_each_whole_request() -> None:
    async def ask(port: int) -> list[int]:
        pool = Pool(port)
        bodies = [None, {"prompt": "a" * 100_000}, {"prompt": ""}]
        answers = [await pool.ask(request_bytes("POST", "/", body)) for body in bodies]
        assert all("retry-after" in answer.headers for answer in answers)
        await pool.close()
        return [answer.status for answer in answers]

    with wall() as port:
        assert asyncio.run(ask(port)) == [429, 429, 429]
