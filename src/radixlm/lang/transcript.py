"""The transcript of a state so far: the text, the messages in it, and how messages are written as
text.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

from radixlm.core.errors import InvalidRequestError
from radixlm.lang.ir import Expr, RoleBegin, RoleEnd, Text
from radixlm.text.chat_template import ChatTemplate

Message = dict[str, str]
Speakers = tuple[str, ...]
_KEPT = 1_024


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer, or the next piece of it.

    meta: what the backend says of it so far, as SGLang's `meta_info`.
    token_ids: its tokens, where the backend deals in tokens.
    cut: a stop ended the text, so the tokens may go on after it.
    """

    text: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    token_ids: tuple[int, ...] = ()
    cut: bool = False


class MessageFrame(NamedTuple):
    """The text around a message. written: the whole text up to the message's end, with marks in
    place of contents.
    """

    opening: str
    closing: str
    written: str = ""


class Roles(Protocol):
    """How messages are written. stops: texts that end an answer, where the model's own tokens do
    not.
    """

    @property
    def stops(self) -> tuple[str, ...]: ...

    def around(self, speakers: Speakers, /) -> MessageFrame:
        """The text around the last of the messages whose roles these are. Raises
        InvalidRequestError.
        """
        ...


class Transcript:
    """Grows by the program's texts and the model's answers. A backend may keep more: see `write`,
    `take` and `copy`, which are all that changes it.

    messages: those that are whole. role: of the one that is open.
    """

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.text = ""
        self.messages: list[Message] = []
        self.role: str | None = None
        self._message_start = 0

    @property
    def open_message(self) -> str:
        """The text of the open message so far."""
        return self.text[self._message_start :]

    def apply(self, expr: Expr) -> bool:
        """Write what needs no model; whether it does not. Raises ValueError."""
        match expr:
            case Text(text):
                self.write(text)
            case RoleBegin(role):
                self.begin(role)
            case RoleEnd(role):
                self.end(role)
            case _:
                return False
        return True

    def write(self, text: str) -> None:
        """The program says this."""
        self.text += text

    def take(self, answer: Answer) -> None:
        """The model said this."""
        self.text += answer.text

    def copy(self) -> Self:
        """One that changes apart from this one."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.messages = list(self.messages)
        return twin

    def begin(self, role: str) -> None:
        """Open a message. Raises ValueError within another one."""
        if self.role is not None:
            raise ValueError(f"a message of {role} begins within one of {self.role}")
        self.write(self._around(role).opening)
        self.role = role
        self._message_start = len(self.text)

    def end(self, role: str) -> None:
        """Close the open message. Raises ValueError when it is not one of `role`."""
        if self.role != role:
            raise ValueError(f"a message of {role} ends, but {self.role or 'none'} is open")
        said = self.open_message.lstrip()
        self.write(self._around(role).closing)
        self.messages.append({"role": role, "content": said})
        self.role = None

    def _around(self, role: str) -> MessageFrame:
        return self.roles.around((*(message["role"] for message in self.messages), role))


class TemplateRoles:
    """Roles of a chat template: what it writes around marks that stand for the contents.

    given: text that the tokenizer puts in front of every prompt, so that it is not written twice.
    """

    stops: tuple[str, ...] = ()

    def __init__(self, template: ChatTemplate, given: str = "") -> None:
        self._template = template
        self._given = given
        self._salt = uuid.uuid4().hex
        self._found = lru_cache(_KEPT)(self._find)

    def around(self, speakers: Speakers) -> MessageFrame:
        found = self._found(speakers)
        if len(speakers) > 1:
            return found
        return found._replace(opening=found.opening.removeprefix(self._given))

    def _find(self, speakers: Speakers) -> MessageFrame:
        before = self._found(speakers[:-1]).written if len(speakers) > 1 else ""
        mark = self._mark(len(speakers) - 1)
        head, closing = self._split(speakers, mark)
        if not head.startswith(before):
            raise InvalidRequestError(
                f"the chat template changes earlier messages when {', '.join(speakers)} follow "
                "each other, so they can not be written one by one"
            )
        if speakers[-1] == "assistant" and before:
            asked = self._render(speakers[:-1], add_generation_prompt=True)
            # Thinking models' templates may add more than the prompt to an answer in hindsight.
            head = asked if head.startswith(asked) and asked.startswith(before) else head
        return MessageFrame(head[len(before) :], closing, head + mark + closing)

    def _split(self, speakers: Speakers, mark: str) -> tuple[str, str]:
        """The text before the last message's content, and after it."""
        try:
            head, found, tail = self._render(speakers).partition(mark)
        except InvalidRequestError:
            found = ""
        if not found and speakers == ("system",):
            # Some write it as part of the first user's message only.
            head, found, _ = self._render(("system", "user")).partition(mark)
            tail = ""
        if not found:
            raise InvalidRequestError(f"the chat template leaves out messages of {speakers[-1]}")
        return head, tail

    def _render(self, speakers: Speakers, *, add_generation_prompt: bool = False) -> str:
        messages = [
            {"role": role, "content": self._mark(place)} for place, role in enumerate(speakers)
        ]
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def _mark(self, place: int) -> str:
        return f"<{place}:{self._salt}>"


class Habit(NamedTuple):
    """Roles by the habit of a family of models, for a server that does not give its template: each
    role's opening, and what closes all messages.
    """

    system: str
    user: str
    assistant: str
    closing: str
    stops: tuple[str, ...] = ()
    default_system: str = ""

    def around(self, speakers: Speakers) -> MessageFrame:
        first = ""
        if self.default_system and len(speakers) == 1 and speakers[0] != "system":
            first = self.system + self.default_system + self.closing
        return MessageFrame(first + str(getattr(self, speakers[-1])), self.closing)


def _named(opening: str, closing: str, stop: str) -> Habit:
    """opening: with {} in place of the role's name."""
    system, user, assistant = (opening.format(role) for role in ("system", "user", "assistant"))
    return Habit(system, user, assistant, closing, (stop,))


_CHATML = _named("<|im_start|>{}\n", "<|im_end|>\n", "<|im_end|>")
HABITS: Mapping[str, Habit] = MappingProxyType(
    {
        "default": Habit("SYSTEM:", "USER:", "ASSISTANT:", "\n"),
        "chatml": _CHATML,
        "qwen": _CHATML._replace(default_system="You are a helpful assistant."),
        "llama-3-instruct": _named(
            "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", "<|eot_id|>"
        ),
        "gemma-it": Habit(
            "",
            "<start_of_turn>user\n",
            "<start_of_turn>model\n",
            "<end_of_turn>\n",
            ("<end_of_turn>",),
        ),
    }
)
_FAMILIES = (
    (r"qwen", "qwen"),
    (r"llama-?3.*instruct", "llama-3-instruct"),
    (r"gemma.*it", "gemma-it"),
    (r"chatml|hermes|yi-.*chat", "chatml"),
)


def habit_of(model: str, name: str | None = None) -> Habit:
    """The named one, else that of the model's family, else a plain one. Raises ValueError."""
    if name is None:
        found = (habit for family, habit in _FAMILIES if re.search(family, model, re.IGNORECASE))
        name = next(found, "default")
    if name not in HABITS:
        raise ValueError(f"chat_template_name is one of {', '.join(HABITS)}, got {name!r}")
    return HABITS[name]
