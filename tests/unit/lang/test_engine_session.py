"""Programs on an engine: what is made of its outputs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from radixlm.core.errors import InvalidRequestError
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.engine import Limits
from radixlm.lang.engine_backend import EngineBackend
from radixlm.lang.ir import DEFAULTS
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import byte_level

OUTPUTS = [
    RequestOutput("a", text="one", token_ids=(1, 2), prompt_tokens=1),
    RequestOutput("a", text=" two", token_ids=(3,), prompt_tokens=1),
    RequestOutput(
        "a",
        text="",
        token_ids=(4,),
        prompt_tokens=1,
        finish_reason=FinishReason.STOP,
        matched_stop=".",
    ),
]


class Engine:
    info = SimpleNamespace(name="")
    chat_template = None
    tokenizer = Tokenizer(byte_level(), {})
    limits = Limits(2_000, 2_000, tokenizer.vocab_size)

    def flush_cache(self):
        return 0

    async def stream(self, prompt, params):
        for output in OUTPUTS:
            yield output


@pytest.mark.parametrize(("stream", "pieces"), [(True, ["one", " two", ""]), (False, ["one two"])])
def test_an_answer_that_nobody_watches_is_one_piece(stream, pieces):
    session = EngineBackend(Engine())
    said = session.begin()
    said.write("x")

    async def answer():
        return [piece async for piece in session.answer(said, DEFAULTS, stream=stream)]

    found = asyncio.run(answer())
    assert [piece.text for piece in found] == pieces
    assert sum((piece.token_ids for piece in found), ()) == (1, 2, 3, 4)
    assert found[-1].meta["completion_tokens"] == 4
    assert [piece.cut for piece in found] == [False] * (len(pieces) - 1) + [True]


def test_an_engine_says_what_is_wrong_with_an_empty_prompt():
    class Refusing(Engine):
        async def stream(self, prompt, params):
            raise InvalidRequestError("the prompt is empty", param="prompt")
            yield

    session = EngineBackend(Refusing())
    params = replace(DEFAULTS, max_new_tokens=0, return_logprob=True, top_logprobs_num=2)

    async def answer():
        async for _ in session.answer(session.begin(), params, stream=False):
            pass

    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        asyncio.run(answer())
