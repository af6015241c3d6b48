"""A chat, whichever API it came by, as the model's template takes it.

Each API turns its bodies into a `Conversation`; from there on there is one way for all of them.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from pydantic_core import from_json

from radixlm.core.errors import wrong
from radixlm.observe.causes import Outline
from radixlm.parsers.style import AnswerStyle
from radixlm.server.bodies.cache_control import Wish
from radixlm.text.breakpoints import PrefixEnd, with_marks
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.thinking_switch import ThinkingSwitch, ThinkingWish
from radixlm.text.tokenizer import Tokenizer

Json = dict[str, Any]
Content = str | list[Json]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_SEAL = "radixlm1."
_ENDS = {"add_generation_prompt": None, "continue_final_message": False}
# Of a message, in the order in which templates and digests see them.
_FIELDS = ("role", "name", "reasoning_content", "content", "tool_calls")


def new_id(kind: str) -> str:
    """A fresh id, which begins with what it is of."""
    return f"{kind}_{uuid.uuid4().hex}"


def sealed(text: str) -> str:
    """`text` as ASCII without spaces."""
    return _SEAL + base64.urlsafe_b64encode(text.encode()).decode()


def unsealed(token: str) -> str | None:
    """The text that `sealed` made `token` of; None for anything else."""
    if not token.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(
            token.removeprefix(_SEAL).encode(), altchars=b"-_", validate=True
        ).decode()
    except (binascii.Error, ValueError):
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """messages, tools, variables: what the template is given. thinking: what is wished of it; see
    `asking`.

    wishes: what is to stay cached. edited: the messages that edits of the context changed.
    add_special_tokens: around what the template wrote.
    """

    messages: Sequence[Json]
    tools: Sequence[Json] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    wishes: Sequence[Wish] = ()
    edited: Collection[int] = ()
    add_special_tokens: bool = False
    thinking: ThinkingWish = ThinkingWish()

    def asking(self, switch: ThinkingSwitch) -> Conversation:
        """The same, with what is wished of thinking among the variables."""
        # In one order: answers are remembered by them.
        variables = {**_ENDS, **switch.variables(self.thinking, self.variables)}
        return replace(self, variables=variables)

    def render(
        self,
        template: ChatTemplate,
        style: AnswerStyle,
        tokenizer: Tokenizer,
        mark: str,
        marks: Mapping[PrefixEnd, str] | None = None,
    ) -> str:
        """The text, with each of `marks` at the end of its place. mark: for the template's
        `plain_text`.

        Raises InvalidRequestError.
        """
        marked, tools = with_marks(self.messages, self.tools, marks or {})
        return template.render_chat(
            *(marked, tools),
            described=style.calls.described,
            calls=style.call_text,
            quoted=partial(template.plain_text, tokenizer, mark),
            **self.variables,
        )

    def outline(self, text: str, mark: str) -> Outline:
        """The places of the messages in `text`, which was rendered with `mark`."""
        return Outline(text.replace(mark, ""), self.messages, self.tools, self.edited)

    def only(self, places: Sequence[int]) -> Conversation:
        """The same with these of its messages, and what is to be kept of them."""
        fresh = {place: number for number, place in enumerate(places)}
        wishes = []
        for place, ttl in self.wishes:
            if place is None or place.kind == "tool":
                wishes.append(Wish(place, ttl))
            elif place.of in fresh:
                wishes.append(Wish(place._replace(of=fresh[place.of]), ttl))
        messages = [self.messages[place] for place in places]
        edited = {fresh[place] for place in self.edited if place in fresh}
        return replace(self, messages=messages, wishes=wishes, edited=edited)


class Thread:
    """Puts messages together, one after the other, and what is to stay cached of them.

    A result must answer a call of the last message that had any, and each only once.
    """

    def __init__(self, no_call: str) -> None:
        """no_call: what errors say of a result that answers none."""
        self.wishes: list[Wish] = []
        self._messages: list[Json] = []
        self._no_call = no_call
        self._waiting: dict[str, str] = {}  # names of what the last message calls, by the ids

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def last(self) -> Json:
        """The message that is being put together; empty without any."""
        return self._messages[-1] if self._messages else {}

    def begin(self, role: str, **fields: Any) -> Json:
        """A new message."""
        self._waiting = {}
        self._messages.append({"role": role, **fields})
        return self.last

    def call(self, call_id: str, name: str, arguments: Json, path: str) -> None:
        """The last message calls a tool. path: of the field with the id."""
        if call_id in self._waiting:
            raise wrong(path, f"{call_id!r:.80} stands twice")
        self._waiting[call_id] = name
        called = {"name": name, "arguments": arguments}
        entry = {"id": call_id, "type": "function", "function": called}
        self.last.setdefault("tool_calls", []).append(entry)

    def result(self, call_id: str, content: Content, path: str, name: str | None = None) -> None:
        """Add what a tool gave. path: of the field with the call's id."""
        called = self._waiting.pop(call_id, None)
        if called is None:
            unknown = f"is {self._no_call} before it, or was answered already"
            raise wrong(path, f"{call_id!r:.80} {unknown}")
        answered = {"tool_call_id": call_id, "name": name or called}
        self._messages.append({"role": "tool", "content": content, **answered})

    def keep(self, kind: Literal["part", "call"], at: int, ttl: float) -> None:
        """Note that what ends with this part or call of the last message is to stay cached."""
        self.wishes.append(Wish(PrefixEnd(kind, at, len(self) - 1), ttl))

    def messages(self) -> list[Json]:
        """All of them, each with a content and its fields in one order."""
        return [_in_order(message) for message in self._messages]


def _in_order(message: Json) -> Json:
    if message["role"] == "tool":
        return message
    whole = {"content": "", **message}
    return {name: whole[name] for name in _FIELDS if name in whole}


def text_part(text: str) -> Json:
    """A part of a content."""
    return {"type": "text", "text": text}


def read_arguments(text: str, path: str) -> Json:
    """A call's arguments: templates write them their own way. Of a call that was cut off, what came
    whole. path: of their field. Raises InvalidRequestError.
    """
    try:
        arguments = _whole(_read(text or "{}"))
    except (ValueError, RecursionError) as error:
        raise wrong(path, f"is not valid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise wrong(path, f"must be a JSON object, got {text!r:.80}")
    return arguments


def _whole(value: Any) -> Any:
    """The same with U+FFFD for halves of surrogate pairs, which no prompt can hold."""
    text = json.dumps(value, ensure_ascii=False)
    mended = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value if mended == text else json.loads(mended)


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError as error:
        try:
            return from_json(arguments, allow_partial=True)
        except ValueError:
            raise error from None
