"""The `openai` package behind something else, a router or a proxy: turns whole and streamed."""

from __future__ import annotations

import sys
from typing import Any

import openai

from scripts.try_clients.drivers.asked import (
    QUESTIONS,
    SYSTEM,
    TOOL,
    WEATHER,
    arguments,
    check,
)


def chat(client: openai.OpenAI, model: str) -> list[int]:
    """Turns, a call and its result, and a stream; how many tokens of each were cached."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    cached: list[int] = []

    def ask(**more: Any) -> Any:
        answer = client.chat.completions.create(
            model=model, messages=messages, max_tokens=40, **more
        )
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        cached.append(_cached(answer.usage))
        return answer.choices[0].message

    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        ask()
    messages.append({"role": "user", "content": "How is the weather in Paris?"})
    (call,) = ask(tools=[TOOL], tool_choice="required").tool_calls
    messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER})
    ask(tools=[TOOL], tool_choice="none")
    stream = client.chat.completions.create(
        model=model,
        messages=[*messages, {"role": "user", "content": "Thank you."}],
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last = stream
    return [*cached, _cached(last.usage)]


def complete(client: openai.OpenAI, model: str) -> list[int]:
    prompt = f"{SYSTEM}\nOnce upon a time"
    answers = [
        client.completions.create(model=model, prompt=prompt, max_tokens=20) for _ in range(2)
    ]
    return [_cached(answer.usage) for answer in answers]


def respond(client: openai.OpenAI, model: str) -> list[int]:
    items: list[Any] = []
    cached: list[int] = []
    for question in QUESTIONS:
        items.append({"role": "user", "content": question})
        answer = client.responses.create(
            model=model, instructions=SYSTEM, input=items, max_output_tokens=40, store=False
        )
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        assert answer.usage is not None
        cached.append(answer.usage.input_tokens_details.cached_tokens)
    return cached


_WAYS = {"chat": chat, "completions": complete, "responses": respond}


def _cached(usage: Any) -> int:
    return usage.prompt_tokens_details.cached_tokens or 0


def main() -> None:
    url, key, model = arguments()
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=120)
    for way in sys.argv[4:]:
        check(_WAYS[way](client, model))


if __name__ == "__main__":
    main()
