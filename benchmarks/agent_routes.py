"""An agent's side of its loop, on each of the routes that it may use."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpx

from benchmarks.agent_tools import INSTRUCTIONS, tools

PATIENCE = 600.0
CALL_TOKENS, TEXT_TOKENS = 300, 150

Json = dict[str, Any]


class Reply(NamedTuple):
    """What came of a request, in tokens. calls: the ids of what the agent is to do now."""

    prompt: int
    cached: int
    output: int
    calls: Sequence[str]


class Agent(ABC):
    """One conversation. Answers are drawn, equal for equal seeds.

    pins: what was sent is marked, so that the server keeps it.
    """

    path: str

    def __init__(self, url: str, seed: int, *, pins: bool) -> None:
        self._http = httpx.Client(base_url=url, timeout=PATIENCE)
        self._seed = seed
        self._turn = 0
        self._pins = pins

    def ask(self, *, calls: bool) -> Reply:
        """Send the conversation; the answer is calls and nothing else, or text."""
        self._turn += 1
        response = self._http.post(self.path, json=self._body(calls=calls))
        if not response.is_success:
            raise SystemExit(f"{self.path} said {response.status_code}: {response.text[:1_000]}")
        return self._take(response.json())

    @abstractmethod
    def hear(self, calls: Sequence[str], text: str) -> None:
        """The results of calls, or what the user says where there were none."""

    @abstractmethod
    def _body(self, *, calls: bool) -> Json:
        """The next request."""

    @abstractmethod
    def _take(self, answer: Any) -> Reply:
        """Remember an answer as a client does."""

    def _sampling(self) -> Json:
        return {"temperature": 1.0, "top_p": 1.0}


class Chat(Agent):
    """/v1/chat/completions."""

    path = "/v1/chat/completions"

    def __init__(self, url: str, seed: int, *, pins: bool) -> None:
        super().__init__(url, seed, pins=pins)
        self._messages: list[Json] = [{"role": "system", "content": INSTRUCTIONS}]

    def hear(self, calls: Sequence[str], text: str) -> None:
        if not calls:
            self._messages.append({"role": "user", "content": text})
        for call in calls:
            self._messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def _body(self, *, calls: bool) -> Json:
        return {
            "messages": self._messages,
            "tools": [
                {"type": "function", "function": _function(*tool, "parameters")} for tool in tools()
            ],
            "tool_choice": "required" if calls else "none",
            "parallel_tool_calls": False,
            "max_tokens": CALL_TOKENS if calls else TEXT_TOKENS,
            "seed": self._seed + self._turn,
            **self._sampling(),
            **_kept(pins=self._pins),
        }

    def _take(self, answer: Any) -> Reply:
        message, usage = answer["choices"][0]["message"], answer["usage"]
        self._messages.append(message)
        return Reply(
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
            [call["id"] for call in message.get("tool_calls", ())],
        )


class Responses(Agent):
    """/v1/responses, with the whole input in each request."""

    path = "/v1/responses"

    def __init__(self, url: str, seed: int, *, pins: bool) -> None:
        super().__init__(url, seed, pins=pins)
        self._input: list[Json] = []

    def hear(self, calls: Sequence[str], text: str) -> None:
        if not calls:
            self._input.append({"role": "user", "content": text})
        for call in calls:
            self._input.append({"type": "function_call_output", "call_id": call, "output": text})

    def _body(self, *, calls: bool) -> Json:
        return {
            "instructions": INSTRUCTIONS,
            "input": self._input,
            "tools": [{"type": "function", **_function(*tool, "parameters")} for tool in tools()],
            "tool_choice": "required" if calls else "none",
            "parallel_tool_calls": False,
            "max_output_tokens": CALL_TOKENS if calls else TEXT_TOKENS,
            "store": False,
            **self._sampling(),
            **_kept(pins=self._pins),
        }

    def _take(self, answer: Any) -> Reply:
        self._input += answer["output"]
        usage = answer["usage"]
        return Reply(
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
            usage["output_tokens"],
            [item["call_id"] for item in answer["output"] if item["type"] == "function_call"],
        )


class Continued(Responses):
    """/v1/responses, each request with what is new, and the response that it continues."""

    _previous: str | None = None

    def _body(self, *, calls: bool) -> Json:
        return {
            **super()._body(calls=calls),
            "store": True,
            "previous_response_id": self._previous,
        }

    def _take(self, answer: Any) -> Reply:
        reply = super()._take(answer)
        self._previous = answer["id"]
        self._input = []
        return reply


class Messages(Agent):
    """/v1/messages. Its marks move on with the conversation, as those of agents do."""

    path = "/v1/messages"

    def __init__(self, url: str, seed: int, *, pins: bool) -> None:
        super().__init__(url, seed, pins=pins)
        self._messages: list[Json] = []

    def hear(self, calls: Sequence[str], text: str) -> None:
        blocks: list[Json] = [{"type": "text", "text": text}]
        if calls:
            blocks = [
                {"type": "tool_result", "tool_use_id": call, "content": text} for call in calls
            ]
        self._messages.append({"role": "user", "content": blocks})

    def _body(self, *, calls: bool) -> Json:
        choice = {"type": "any", "disable_parallel_tool_use": True} if calls else {"type": "none"}
        return {
            "model": self._model(),
            "system": [{"type": "text", "text": INSTRUCTIONS, **_mark(pins=self._pins)}],
            "messages": self._messages,
            "tools": [_function(*tool, "input_schema") for tool in tools()],
            "tool_choice": choice,
            "max_tokens": CALL_TOKENS if calls else TEXT_TOKENS,
            **self._sampling(),
            **_mark(pins=self._pins),
        }

    def _model(self) -> str:
        listed: str = self._http.get("/v1/models").json()["data"][0]["id"]
        return listed

    def _take(self, answer: Any) -> Reply:
        self._messages.append({"role": "assistant", "content": answer["content"]})
        usage = answer["usage"]
        cached = usage["cache_read_input_tokens"]
        prompt = cached + usage["cache_creation_input_tokens"] + usage["input_tokens"]
        calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        return Reply(prompt, cached, usage["output_tokens"], calls)


AGENTS: Mapping[str, type[Agent]] = {
    "chat/completions": Chat,
    "responses, continued": Continued,
    "responses, resent": Responses,
    "messages": Messages,
}


def fill(url: str, tokens: int, seed: int, length: int = 1_000) -> None:
    """Another client's prompts, of so many tokens together, one after the other."""
    for place in range(-(-tokens // length)):
        # Their first tokens differ, so nothing of one helps another.
        prompt = [1_000 + seed % 1_000, 1_000 + place, *range(300, 298 + length)]
        body = json.dumps({"prompt": prompt, "max_tokens": 1})
        httpx.post(f"{url}/v1/completions", content=body, timeout=PATIENCE).raise_for_status()


def _function(name: str, description: str, schema: Json, schema_name: str) -> Json:
    return {"name": name, "description": description, schema_name: schema, "strict": True}


def _kept(*, pins: bool) -> Json:
    """The whole prompt."""
    return {"prompt_cache_options": {"ttl": "30m"}} if pins else {}


def _mark(*, pins: bool) -> Json:
    return {"cache_control": {"type": "ephemeral"}} if pins else {}
