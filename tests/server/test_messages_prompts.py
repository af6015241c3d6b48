"""/v1/messages: what its blocks are to the model, and how many tokens that is."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import MessageTokensCount

from radixlm.server.anthropic.messages_body import CountBody
from radixlm.server.anthropic.messages_conversation import conversation_of
from radixlm.server.http.body import checked
from tests.messages_support import TOOLS, USER, model, send
from tests.published import strictly
from tests.server_support import (
    CHATML,
    refused,
)


def test_an_answer_that_is_begun_goes_on():
    with model("hello", CHATML) as client:
        begun = [USER, {"role": "assistant", "content": "I say"}]
        body = send(client, begun).json()
        chat = client.post(
            "/v1/chat/completions", messages=begun, continue_final_message=True, max_tokens=1
        ).json()
        usage = body["usage"]
        assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_turns_of_one_role_are_one(fake):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    apart = [{"role": "user", "content": "a"}, {"role": "user", "content": [parts[1]]}]
    counts = [
        fake.post("/v1/messages/count_tokens", messages=messages).json()["input_tokens"]
        for messages in (apart, [{"role": "user", "content": parts}])
    ]
    assert counts[0] == counts[1]


DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "It rains."},
    "title": "Bern",
    "context": "of today",
    "citations": {"enabled": False},
}
PARTS = {"type": "content", "content": [{"type": "text", "text": "It rains."}]}
FOUND = {
    "type": "search_result",
    "source": "https://example.org",
    "title": "Bern",
    "content": [{"type": "text", "text": "It rains."}],
}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (DOCUMENT, "Bern\nof today\nIt rains."),
        ({"type": "document", "source": PARTS}, "It rains."),
        (FOUND, "Bern\nhttps://example.org\nIt rains."),
    ],
)
def test_documents_and_search_results_are_texts(fake, block, text):
    call = {"type": "tool_use", "id": "c", "name": "get_weather", "input": {}}

    def count(told: Any) -> list[int]:
        counts = []
        result = {"type": "tool_result", "tool_use_id": "c", "content": [told]}
        asked = [USER, {"role": "assistant", "content": [call]}]
        for messages in (
            [{"role": "user", "content": [told]}],
            [*asked, {"role": "user", "content": [result]}],
        ):
            answer = fake.post("/v1/messages/count_tokens", messages=messages)
            assert answer.status_code == 200, answer.text
            counts.append(answer.json()["input_tokens"])
        return counts

    assert count(block) == count({"type": "text", "text": text})


def test_documents_that_are_no_text_are_refused_by_name(fake):
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "a"}
    for change, path in (
        ({"source": pdf}, "messages[0].content[0].source"),
        ({"citations": {"enabled": True}}, "messages[0].content[0].citations"),
    ):
        messages = [{"role": "user", "content": [{**DOCUMENT, **change}]}]
        error = refused(fake.post("/v1/messages", messages=messages, max_tokens=1))
        assert path in error["message"]


def test_thoughts_that_cannot_be_read_are_left_out(fake):
    def count(*before: Any) -> int:
        said = {"role": "assistant", "content": [*before, {"type": "text", "text": "a"}]}
        messages = [USER, said, USER]
        answer = fake.post("/v1/messages/count_tokens", messages=messages)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["input_tokens"])

    assert count({"type": "redacted_thinking", "data": "x"}) == count()


def test_a_failed_tool_says_so():
    with model("Yes.") as client:
        call = {"type": "tool_use", "id": "c", "name": "get_weather", "input": {}}

        def count(**result: Any) -> int:
            block = {"type": "tool_result", "tool_use_id": "c", **result}
            messages = [
                USER,
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [block]},
            ]
            answer = client.post("/v1/messages/count_tokens", messages=messages, tools=TOOLS)
            assert answer.status_code == 200, answer.text
            return answer.json()["input_tokens"]

        text = [{"type": "text", "text": "no"}]
        assert count(content=text, is_error=True) == count(content="Error: no")
        assert count(content="no", is_error=False) == count(content="no")
        assert count() == count(content="")


def test_tokens_are_counted_as_they_are_computed(fake):
    answer = fake.post("/v1/messages/count_tokens", messages=[USER], system="Be kind.")
    strictly(MessageTokensCount, answer.text)
    usage = send(fake, system="Be kind.").json()["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert answer.json()["input_tokens"] == total
    assert (
        "max_tokens"
        in refused(fake.post("/v1/messages/count_tokens", messages=[USER], max_tokens=1))["message"]
    )


def test_the_prompt_alone_can_be_computed(fake):
    long = [{"role": "user", "content": "warm " * 50}]
    body = send(fake, long, max_tokens=0).json()
    assert (body["content"], body["usage"]["output_tokens"]) == ([], 0)
    again = send(fake, long).json()["usage"]
    assert again["input_tokens"] == 1


def test_the_limit_is_what_fits(fake):
    long = [{"role": "user", "content": "x" * 1900}]
    body = send(fake, long, max_tokens=32_000).json()
    assert body["stop_reason"] == "model_context_window_exceeded"
    usage = body["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"]
    assert total == 2000
    error = refused(send(fake, [{"role": "user", "content": "x" * 2500}]))
    assert error["type"] == "invalid_request_error"
    assert "prompt is too long" in error["message"]


def marked(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral", **more}}


def test_cache_breakpoints_are_taken(fake):
    plain = send(fake, [{"role": "user", "content": "a"}], system="s").json()
    found = send(
        fake,
        [{"role": "user", "content": [marked("a")]}],
        system=[marked("s", ttl="1h")],
        cache_control={"type": "ephemeral"},
    )
    assert found.status_code == 200, found.text
    assert found.json()["content"] == plain["content"]
    many = [marked(text) for text in "abcde"]
    within = [{**FOUND, "content": many}]
    source = {"type": "content", "content": many}
    for blocks in (many, within, [{"type": "document", "source": source}]):
        error = refused(send(fake, [{"role": "user", "content": blocks}]))
        assert "5 places" in error["message"]


def test_a_breakpoint_within_a_document_is_at_its_end():
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    part = {**PARTS["content"][0], **mark}
    source = {"type": "content", "content": [part, PARTS["content"][0]]}
    document = {"type": "document", "source": source}
    for within, marked_itself in (
        (document, {"type": "document", "source": PARTS, **mark}),
        ({**FOUND, "content": [part]}, {**FOUND, **mark}),
    ):
        found = [
            conversation_of(
                checked(CountBody, {"messages": [{"role": "user", "content": [block]}]})
            )
            for block in (within, marked_itself)
        ]
        assert found[0].wishes == found[1].wishes
        assert [wish.ttl for wish in found[0].wishes] == [3_600.0]
