"""openai-agents: an agent whose session is a conversation of the server's, to its end."""

from __future__ import annotations

import asyncio

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)

from scripts.try_clients.drivers.asked import QUESTIONS, SYSTEM, arguments


async def talk() -> None:
    url, key, name = arguments()
    set_tracing_disabled(disabled=True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    settings = ModelSettings(temperature=0, max_tokens=40)
    model = OpenAIResponsesModel(model=name, openai_client=client)
    agent = Agent(name="guide", instructions=SYSTEM, model=model, model_settings=settings)
    session = OpenAIConversationsSession(openai_client=client)
    for number, question in enumerate(QUESTIONS, 1):
        assert (await Runner.run(agent, question, session=session)).final_output
        assert len(await session.get_items()) == 2 * number
    streamed = Runner.run_streamed(agent, QUESTIONS[0], session=session)
    events = [event async for event in streamed.stream_events()]
    assert len(events) > 4, "the stream came in one piece"
    assert streamed.final_output
    last = await session.pop_item()
    assert last is not None
    await session.add_items([{"role": "user", "content": str(n)} for n in range(45)])
    assert len(await session.get_items()) == 2 * len(QUESTIONS) + 1 + 45
    await session.clear_session()
    made = (await client.conversations.create()).id
    for question in QUESTIONS:
        assert (await Runner.run(agent, question, conversation_id=made)).final_output
    both = [Runner.run(agent, question, conversation_id=made) for question in QUESTIONS[:2]]
    assert all(each.final_output for each in await asyncio.gather(*both))  # one waits for the other
    await client.conversations.delete(made)


if __name__ == "__main__":
    asyncio.run(talk())
