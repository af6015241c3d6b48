"""`pydantic-ai`: an agent that calls a tool, reads its result and answers, over all three APIs."""

from __future__ import annotations

from importlib.metadata import version
from typing import Literal

from pydantic_ai import Agent, ModelSettings, RunContext, Tool, ToolOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from scripts.try_clients.outcome import Outcome
from scripts.try_clients.questions import QUESTION, WEATHER, City
from scripts.try_clients.server import KEY, MODEL, Served

_OUTPUT = "answer"


def use_pydantic_ai(server: Served) -> Outcome:
    """The same loop by each API, whole and streamed. Raises AssertionError."""
    openai = OpenAIProvider(base_url=server.v1, api_key=KEY)
    anthropic = AnthropicProvider(base_url=server.url, api_key=KEY)
    models: tuple[Model, ...] = (
        OpenAIChatModel(MODEL, provider=openai),
        OpenAIResponsesModel(MODEL, provider=openai),
        AnthropicModel(MODEL, provider=anthropic),
    )
    cached = [_loop(model) for model in models]
    return Outcome(
        client="pydantic-ai",
        version=version("pydantic_ai_slim"),
        did="agents by chat, responses and messages: a tool called, its result read, "
        "the output a pydantic model",
        numbers={"agents": len(models), "least_cached_in_the_loop": min(cached)},
    )


def _loop(model: Model) -> int:
    """Run one agent to its end. Gives the tokens that were cached."""
    calls: list[str] = []

    def get_weather(city: Literal["Paris", "Oslo"]) -> str:
        """The weather in a city."""
        calls.append(city)
        return WEATHER

    agent = Agent(
        model,
        tools=[Tool(get_weather, strict=True)],
        output_type=ToolOutput(City, name=_OUTPUT, strict=True),
        model_settings=_tool_first,
    )
    run = agent.run_sync(QUESTION)
    called = [
        part.tool_name
        for message in run.all_messages()
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    assert called == ["get_weather", _OUTPUT], called
    assert len(calls) == 1, calls
    assert isinstance(run.output, City), run.output
    cached = int(run.usage.cache_read_tokens)
    assert cached > 0, run.usage
    return cached


def _tool_first(context: RunContext[None]) -> ModelSettings:
    """The first step calls the tool, the second answers: the model would do as it likes."""
    name = "get_weather" if context.run_step < 2 else _OUTPUT
    return ModelSettings(temperature=0, max_tokens=100, tool_choice=[name])
