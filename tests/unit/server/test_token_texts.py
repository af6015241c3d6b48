"""A chunk tells of the tokens whose text it brings, however the tokens came."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from radixlm.core.keys import as_key
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput, TokenLogprob
from radixlm.core.sampling import SamplingParams
from radixlm.parsers import AnswerParser, PlainParser
from radixlm.parsers.one_call import Offered
from radixlm.parsers.reader import AnswerReader
from radixlm.parsers.thoughts import THINK
from radixlm.server.bodies import logprobs as token_texts
from radixlm.server.bodies.protocol import ChatBody, CompletionBody
from radixlm.server.openai.chat_writer import ChatWriter
from radixlm.server.openai.completions import CompletionWriter
from radixlm.server.pipeline.chat import ChatPrompt, ChatTask
from radixlm.server.pipeline.generation import Generation
from radixlm.text.detokenizer import Detokenizer
from radixlm.text.tokenizer import Tokenizer
from tests.server_support import events_of, service_with
from tests.text_samples import byte_level

TOKENIZER = Tokenizer(byte_level(), {})
TEXTS = ["the hello 你好", "hell wor the world<|end|>", "é🙂 worlthe", "the the wor"]
STOPS: list[tuple[str, ...]] = [(), ("world",), ("hellothe", "the wor")]


def outputs_of(text: str, stop: tuple[str, ...]) -> list[RequestOutput]:
    """An output for each token, as the engine gives them."""
    reads = Detokenizer(TOKENIZER, stop=stop)
    made = []
    for token in TOKENIZER.encode(text).tolist():
        piece = reads.push(token)
        made.append(RequestOutput("r", piece.text, (token,), logprobs=(TokenLogprob(token, -1.0),)))
        if piece.stop is not None:
            break
    last = made.pop()
    ended = RequestOutput(
        "r",
        last.text + reads.flush().text,
        last.token_ids,
        finish_reason=FinishReason.STOP,
        logprobs=last.logprobs,
    )
    return [*made, ended]


def cuts(outputs: list[RequestOutput]) -> Iterator[list[RequestOutput]]:
    """The same outputs as readers of different speeds get them."""
    for size in (1, 2, 3, len(outputs)):
        for first in range(1, size + 1):
            starts = [0, *range(first, len(outputs), size), len(outputs)]
            parts = [outputs[a:b] for a, b in pairwise(starts) if a < b]
            yield [RequestOutput.joined(part) for part in parts]


def generation_of(params: SamplingParams) -> Generation:
    return Generation("r", [GenerateRequest("r-0", as_key([1]), params)])


def chat_choices(outputs: list[RequestOutput], parser: AnswerParser) -> list[dict[str, Any]]:
    fields = {"logprobs": True, "return_token_ids": True, "stream": True}
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})
    prompt = ChatPrompt("", as_key([1]))
    task = ChatTask(generation_of(SamplingParams(logprobs=0)), prompt, lambda: parser)
    chunks = events_of(ChatWriter(service_with(TOKENIZER), task, body), outputs)
    return [dict(chunk["choices"][0]) for chunk in chunks]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_chat_s_chunks_tell_of_the_tokens_whose_text_they_bring(text, stop):
    outputs = outputs_of(text, stop)
    whole = RequestOutput.joined(outputs)
    seen = set()
    for part in cuts(outputs):
        told = []
        choices = chat_choices(part, PlainParser())
        for choice in choices:
            entries = choice["logprobs"]["content"] if choice["logprobs"] else []
            spelled = b"".join(bytes(entry["bytes"]) for entry in entries)
            told.append((choice["delta"].get("content") or "", spelled, tuple(choice["token_ids"])))
        assert "".join(content for content, *_ in told) == whole.text
        assert [token for *_, ids in told for token in ids] == list(whole.token_ids)
        brought = [(content, spelled) for content, spelled, _ in told if spelled]
        *most, (content, spelled) = brought
        assert all(content.encode() == spelled for content, spelled in most)
        # At the end, what the client does not get: a stop string, a special token.
        assert spelled.startswith(content.encode())
        assert all(spelled or not content for content, spelled, _ in told)
        seen.add(tuple(told))
    assert len(seen) == 1  # however late they were read


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_completion_s_chunks_do_so_too(text, stop):
    outputs = outputs_of(text, stop)
    whole = RequestOutput.joined(outputs)
    fields = {"logprobs": 0, "return_token_ids": True, "stream": True}
    body = CompletionBody.model_validate({"prompt": "a", **fields})
    for part in cuts(outputs):
        generation = generation_of(SamplingParams(logprobs=0))
        writer = CompletionWriter(service_with(TOKENIZER), generation, body)
        chunks = [chunk["choices"][0] for chunk in events_of(writer, part)]
        assert "".join(chunk["text"] for chunk in chunks) == whole.text
        assert [token for chunk in chunks for token in chunk["token_ids"]] == list(whole.token_ids)
        for chunk in chunks[:-1]:
            spelled = b"".join(map(TOKENIZER.token_bytes, chunk["token_ids"]))
            assert chunk["text"].encode() == spelled
            assert chunk["text"]
            assert chunk["logprobs"]
            assert len(chunk["logprobs"]["tokens"]) == len(chunk["token_ids"])


def test_each_token_is_looked_at_a_few_times_only():
    """A long run without text, as halves of a character make it, was looked at for every token."""
    steps = 0

    def count(frame, event, _):
        nonlocal steps
        steps += event == "line"
        return count if frame.f_code.co_filename == token_texts.__file__ else None

    end = TOKENIZER.encode("<|end|>").tolist()
    texts = token_texts.TokenTexts(TOKENIZER, SamplingParams(), as_key([1]))
    last = RequestOutput("r", "a", (TOKENIZER.encode("a")[0],), finish_reason=FinishReason.STOP)
    traced = sys.gettrace()
    sys.settrace(count)
    try:
        before = [[*texts.pieces(RequestOutput("r", "", tuple(end)))] for _ in range(200)]
        [piece] = texts.pieces(last)
    finally:
        sys.settrace(traced)
    assert not any(before)
    assert len(piece.token_ids) == 201
    assert 201 < steps < 201 * 30


def test_what_a_parser_holds_back_comes_with_its_tokens():
    outputs = outputs_of("a<th </think> b<", ())
    for part in cuts(outputs):
        choices = chat_choices(
            part, AnswerReader(None, Offered({}), str, thoughts=THINK, opened=True)
        )
        ids = [token for choice in choices for token in choice["token_ids"]]
        assert ids == [token for output in outputs for token in output.token_ids]
        told = {
            choice["delta"]["reasoning_content"]: TOKENIZER.decode(choice["token_ids"])
            for choice in choices
            if "reasoning_content" in choice["delta"]
        }
        assert told == {"a": "a", "<th": "<th"}
