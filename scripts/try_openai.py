"""Use a running server through the `openai` package, and say what came of each call.

    radixlm serve &
    python scripts/try_openai.py [--base-url http://127.0.0.1:30000/v1]

The last check asks twice under one long system prompt and compares the cached tokens that the
server reports with the common prefix of the two prompts, counted with the model's own tokenizer.
Ends in one JSON line; exits with 1 when something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
from rich.console import Console
from rich.table import Table

from radixlm.core.keys import common_prefix
from radixlm.text.chat_template import ChatTemplate, require_template
from radixlm.text.tokenizer import Tokenizer

QUESTION = "What is the capital of France?"
Outcome = tuple[bool, str]


class Calls:
    """One method per call; each says whether it is right, and what it saw."""

    def __init__(self, base_url: str) -> None:
        self.client = openai.OpenAI(base_url=base_url, api_key="none")
        self.model = self.client.models.list().data[0].id
        info = httpx.get(base_url.removesuffix("/v1") + "/get_model_info").json()
        folder = Path(info["model_path"])
        self.tokenizer = Tokenizer.load(folder)
        self.template = require_template(ChatTemplate.load(folder))

    def chat(self) -> Outcome:
        answer = self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": QUESTION}], temperature=0
        )
        text = answer.choices[0].message.content or ""
        return "Paris" in text, f"{text!r}, {answer.choices[0].finish_reason}"

    def chat_streaming(self) -> Outcome:
        chunks = list(
            self.client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": QUESTION}],
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
        good = "Paris" in text and usage is not None and not chunks[-1].choices
        return good, f"{text!r} in {len(chunks)} chunks, usage {usage and usage.total_tokens}"

    def completion(self) -> Outcome:
        answer = self.client.completions.create(
            model=self.model, prompt="The capital of France is", temperature=0, max_tokens=8
        )
        return "Paris" in answer.choices[0].text, repr(answer.choices[0].text)

    def completion_streaming(self) -> Outcome:
        chunks = self.client.completions.create(
            model=self.model,
            prompt="The capital of Spain is",
            temperature=0,
            max_tokens=8,
            stream=True,
        )
        text = "".join(chunk.choices[0].text for chunk in chunks)
        return "Madrid" in text, repr(text)

    def two_choices(self) -> Outcome:
        answer = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": "Tell me a story about a cat."}],
            n=2,
            seed=7,
            max_tokens=24,
        )
        texts = [choice.message.content for choice in answer.choices]
        good = [choice.index for choice in answer.choices] == [0, 1] and texts[0] != texts[1]
        return good, " | ".join(repr(text) for text in texts)

    def logprobs(self) -> Outcome:
        answer = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            logprobs=True,
            top_logprobs=2,
            max_tokens=3,
        )
        found = answer.choices[0].logprobs
        content = found.content if found and found.content else []
        good = len(content) == 3 and all(len(item.top_logprobs) == 2 for item in content)
        return good, ", ".join(f"{item.token!r} {item.logprob:.3f}" for item in content)

    def stop(self) -> Outcome:
        answer = self.client.completions.create(
            model=self.model,
            prompt="The capital of France is",
            temperature=0,
            max_tokens=16,
            stop=["ris"],
        )
        choice = answer.choices[0]
        good = choice.text.endswith("Pa") and choice.finish_reason == "stop"
        return good, f"{choice.text!r}, {choice.finish_reason}"

    def seed(self) -> Outcome:
        texts = [
            self.client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": "Tell me a story about a dog."}],
                temperature=1.2,
                seed=seed,
                max_tokens=24,
            )
            .choices[0]
            .message.content
            for seed in (1, 1, 2)
        ]
        return texts[0] == texts[1] != texts[2], " | ".join(repr(text) for text in texts)

    def shared_system_prompt(self) -> Outcome:
        rule = "Rule {}: be kind, be short, and answer only what you know. "
        system = "".join(rule.format(number) for number in range(1, 400))
        ids = self.tokenizer.encode(system, add_special_tokens=False)[:500]
        system = self.tokenizer.decode(ids)
        keys, cached = [], 0
        for question in (QUESTION, "What is 12 + 7?"):
            messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ]
            answer = self.client.chat.completions.create(
                model=self.model,
                messages=messages,  # type: ignore[arg-type]
                temperature=0,
                max_tokens=8,
            )
            rendered = self.template.render(messages, add_generation_prompt=True)
            keys.append(self.tokenizer.encode(rendered))
            usage = answer.usage
            if usage is None or usage.prompt_tokens != keys[-1].size:
                return False, f"prompt of {keys[-1].size} tokens, usage {usage}"
            details = usage.prompt_tokens_details
            cached = (details.cached_tokens or 0) if details else 0
        shared = common_prefix(*keys)
        report = f"system prompt {ids.size}, shared {shared}, reported as cached {cached}"
        return cached == shared >= 500, report


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--base-url", default="http://127.0.0.1:30000/v1")
    calls = Calls(options.parse_args().base_url)
    checks: list[Callable[[], Outcome]] = [
        calls.chat,
        calls.chat_streaming,
        calls.completion,
        calls.completion_streaming,
        calls.two_choices,
        calls.logprobs,
        calls.stop,
        calls.seed,
        calls.shared_system_prompt,
    ]
    table = Table(title=f"openai {openai.__version__} against {calls.model}", show_lines=True)
    for name in ("call", "right", "seen"):
        table.add_column(name)
    outcomes = {}
    for check in checks:
        good, seen = check()
        outcomes[check.__name__] = good
        table.add_row(check.__name__, "yes" if good else "NO", seen)
    Console(width=140).print(table)
    print(json.dumps({"openai": openai.__version__, "right": outcomes}))
    return 0 if all(outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
