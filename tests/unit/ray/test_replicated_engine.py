"""What an ingress makes of its replicas' calls."""

from __future__ import annotations

import json

import pytest

from tests.aside import Aside

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
# Each call streams what its script says: tokens, "." with the last, errors, and waits that last.
COMMON = """
import asyncio
import json
import numpy as np
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import RequestCancelledError
from radixlm.core.errors import EngineDeadError, InvalidRequestError
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.ray.replica_calls import ReplicaViewer, ReplicaDiedError, answered, items
from radixlm.ray.replicated_engine import ReplicatedEngine
from radixlm.ray.replica import Described
from radixlm.routing import ReplicaStatus
from tests.server_support import fake_engine


class Call:
    def __init__(self, script):
        self.script, self.stopped = iter(script), asyncio.Event()

    def __aiter__(self):
        return self

    async def __anext__(self):
        said = next(self.script, None)
        if said == "wait":
            await self.stopped.wait()
        if self.stopped.is_set():
            raise RequestCancelledError("it")
        if said is None:
            raise StopAsyncIteration
        if isinstance(said, Exception):
            raise said
        if isinstance(said, list):
            return said[0]
        ends = FinishReason.STOP if said.endswith(".") else None
        letters = said.removesuffix(".")
        tokens = tuple(map(ord, letters))
        return RequestOutput("r", text=letters, token_ids=tokens, finish_reason=ends)

    def cancel(self):
        self.stopped.set()


class Method:
    def __init__(self, scripts):
        self.scripts = iter(scripts)

    def options(self, stream):
        return self

    def remote(self, *arguments, **named):
        return Call(next(self.scripts))


class Handle:
    def __init__(self, scripts):
        self.generate = Method(scripts)


class RouterHandle:
    async def ask(self, method):
        return []

    async def close(self):
        pass


def died(name):
    error = ActorDiedError()
    error.actor_id = name
    return error


def failed(cause):
    return RayTaskError("generate", "the traceback", cause).as_instanceof_cause()


async def answer(scripts, then=None):
    engine, _ = fake_engine()
    described = Described(engine.config, engine.info, engine.limits, {}, "1")
    served = ReplicatedEngine(Handle(scripts), RouterHandle(), described, engine.tokenizer, None)
    said = []
    request = GenerateRequest("r", np.arange(3, dtype=np.int32), SamplingParams(max_tokens=9))
    if then is not None:
        asyncio.get_running_loop().call_later(0.3, then, served)
    try:
        async for output in served.stream_all([request]):
            said.append(output.text + (output.finish_reason or ""))
    except Exception as error:
        said.append(type(error).__name__ + ": " + str(error).splitlines()[-1])
    await served.close()
    await engine.close()
    return said
"""
ANSWERS = (
    COMMON
    + """
abort = lambda served: served.abort(None)
everything = {
    "goes on": [["a", died("one")], ["a", "b."]],
    "died after its end": [["a", "b.", died("one")], ["x."]],
    "two deaths": [["a", died("one")], [died("two")], ["a", "b."]],
    "one that is dead, twice": [[died("one")], [died("one")], ["a."]],
    "an engine that died": [[failed(EngineDeadError("a rank is gone"))], ["a."]],
    "engines that die of it": [[failed(ReplicaDiedError(f"{n}: x"))] for n in ("one", "two")],
    "a fault of ours": [[failed(KeyError("x"))], ["a."]],
    "bad": [[[InvalidRequestError("too long")]], ["a."]],
    "it just ends": [["a"], ["a", "b."]],
    "always": [[EngineDeadError("a rank is gone")] for _ in range(9)],
}
aborts = {
    "while it waits": [["wait"]],
    "while it answers": [["a", "wait"]],
    "between two tries": [[died("one")], ["a."]],
}

async def main():
    found = {}
    for name, scripts in everything.items():
        found[name] = await answer(scripts)
    for name, scripts in aborts.items():
        found[name] = await answer(scripts, abort)
    print(json.dumps(found))

asyncio.run(asyncio.wait_for(main(), 60))
"""
)
VIEWS = (
    COMMON
    + """
async def main():
    scripts = iter([["a", "b"], ["c"], []])
    viewer = ReplicaViewer(lambda: items(Call(next(scripts))))
    print(*[(await viewer.next()).text for _ in range(3)])
    try:
        await viewer.next()
    except EngineDeadError as error:
        print(error)
    async def gone():
        raise failed(EngineDeadError("a rank is gone"))
    try:
        await answered(gone())
    except EngineDeadError as error:
        print(error)

asyncio.run(asyncio.wait_for(main(), 60))
"""
)

POOLS = (
    COMMON
    + """
class Known(RouterHandle):
    def __init__(self, digest):
        self.found = [
            ReplicaStatus(f"of {size}", 0.0, 0, 0.0, {}, None, digest, size) for size in (900, 700)
        ]

    async def ask(self, method):
        return self.found

async def main():
    engine, _ = fake_engine()
    described = Described(engine.config, engine.info, engine.limits, {}, "1")
    router = Known(engine.tokenizer.digest)
    served = ReplicatedEngine(Handle([]), router, described, engine.tokenizer, None)
    print(served.limits.longest)
    await served.ready()
    print(served.limits.longest)
    await served.close()
    await engine.close()

asyncio.run(asyncio.wait_for(main(), 60))
"""
)


@pytest.mark.slow
def test_an_answer_goes_on_as_long_as_it_may(aside: Aside) -> None:
    found = json.loads(aside.run(ANSWERS))
    two = "EngineDeadError: 2 replicas have died while they had this request, and no more are tried"
    assert found == {
        "goes on": ["a", "bstop"],
        "died after its end": ["a", "bstop"],
        "two deaths": ["a", two],
        "one that is dead, twice": ["astop"],
        "an engine that died": ["astop"],
        "engines that die of it": [two],
        "a fault of ours": ["RayTaskError(KeyError): the traceback"],
        "bad": ["InvalidRequestError: too long"],
        "it just ends": ["a", "bstop"],
        "always": ["EngineDeadError: no replica answers: a rank is gone"],
        "while it waits": ["abort"],
        "while it answers": ["a", "abort"],
        "between two tries": ["abort"],
    }


@pytest.mark.slow
def test_a_view_begins_anew_when_its_replica_ends_it(aside: Aside) -> None:
    a_while, nothing, gone = aside.run(VIEWS).splitlines()
    assert a_while == "a b c"
    assert nothing == "the replica shows nothing"
    assert gone == "a replica is gone: a rank is gone"


@pytest.mark.slow
def test_a_request_may_be_as_long_as_the_smallest_pool_lets_it(aside: Aside) -> None:
    assert aside.run(POOLS).split() == ["2000", "700"]
