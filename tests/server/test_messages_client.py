"""Anthropic's own client."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic.types import ModelInfo

from tests import chat_templates
from tests.messages_support import CALL, TOOLS, USER, served
from tests.published import strictly
from tests.server_support import (
    NAME,
)


def test_anthropic_s_client_gets_what_it_asks_for():
    with served({"api_key": ("first",)}, template=chat_templates.HERMES, script=CALL) as client:
        made = client.messages.create(
            model=NAME, max_tokens=200, messages=[USER], system="Be kind.", tools=TOOLS
        )
        assert made.stop_reason == "tool_use"
        call = made.content[1]
        assert call.input == {"city": "Bern"}
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        messages: Any = [
            USER,
            {"role": "assistant", "content": made.content},
            {"role": "user", "content": [result]},
        ]
        fields: Any = {"model": NAME, "messages": messages, "system": "Be kind.", "tools": TOOLS}
        with client.messages.stream(max_tokens=200, **fields) as stream:
            final = stream.get_final_message()
        assert final.content[1].input == {"city": "Bern"}
        assert final.usage.cache_read_input_tokens > 300
        count = client.messages.count_tokens(**fields).input_tokens
        assert count == final.usage.input_tokens + final.usage.cache_read_input_tokens
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="another", max_tokens=2, messages=[USER])
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.count_tokens(model=NAME, messages=[USER])


@pytest.mark.slow
def test_anthropic_s_tool_runner_goes_on_without_a_thread():
    seen = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        seen.append(city)
        return "12 degrees"

    with served(template=chat_templates.HERMES, script=CALL) as client:
        runner = client.beta.messages.tool_runner(
            model=NAME, max_tokens=200, messages=[USER], tools=[get_weather], max_iterations=2
        )
        assert len(list(runner)) == 2
    assert seen[0] == "Bern"


def test_anthropic_s_client_finds_the_model():
    with served() as client:
        page = client.models.list(limit=20)
        assert [model.id for model in page] == [NAME]
        assert (page.has_more, page.first_id, page.last_id) == (False, NAME, NAME)
        found = client.models.with_raw_response.retrieve(NAME)
        strictly(ModelInfo, found.text())
        assert found.headers["request-id"]
        assert found.parse() == page.data[0]
        with pytest.raises(anthropic.NotFoundError) as error:
            client.models.retrieve("another")
        assert error.value.type == "not_found_error"
