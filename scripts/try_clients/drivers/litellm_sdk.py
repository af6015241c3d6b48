"""litellm's SDK: chats and a call by its openai, hosted_vllm and anthropic providers."""

from __future__ import annotations

from typing import Any

import litellm

from scripts.try_clients.drivers.asked import (
    QUESTIONS,
    SYSTEM,
    TOOL,
    WEATHER,
    arguments,
    check,
)


def talk(provider: str, base: str, key: str, model: str) -> list[int]:
    """Send back each answer as litellm gives it; how many tokens of each turn were cached."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    cached: list[int] = []

    def ask(**more: Any) -> Any:
        answer = litellm.completion(
            model=f"{provider}/{model}",
            api_base=base,
            api_key=key,
            messages=messages,
            max_tokens=40,
            **more,
        )
        messages.append(answer.choices[0].message.model_dump())
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
        return messages[-1]

    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        ask()
    messages.append({"role": "user", "content": "How is the weather in Paris?"})
    called = ask(tools=[TOOL], tool_choice="required")
    (call,) = called["tool_calls"]
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": WEATHER})
    ask(tools=[TOOL], tool_choice="none")
    pieces = litellm.completion(
        model=f"{provider}/{model}",
        api_base=base,
        api_key=key,
        messages=[*messages, {"role": "user", "content": "Thank you."}],
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    whole: Any = litellm.stream_chunk_builder(list(pieces))
    cached.append(whole.usage.prompt_tokens_details.cached_tokens or 0)
    return cached


def main() -> None:
    url, key, model = arguments()
    litellm.suppress_debug_info = True
    cached: list[int] = []
    for provider, base in (
        ("openai", f"{url}/v1"),
        ("hosted_vllm", f"{url}/v1"),
        ("anthropic", url),
    ):
        cached += talk(provider, base, key, model)
    litellm.completion(
        model=f"openai/{model}",
        api_base=f"{url}/v1",
        api_key=key,
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello"}],
        max_tokens=20,
        reasoning_effort="low",
        allowed_openai_params=["reasoning_effort"],
    )
    check(cached)


if __name__ == "__main__":
    main()
