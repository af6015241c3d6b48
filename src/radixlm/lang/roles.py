"""How messages are written as text: by the model's own template, or by its family's habit."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol

from radixlm.core.errors import InvalidRequestError
from radixlm.text.chat_template import ChatTemplate

Speakers = tuple[str, ...]
_KEPT = 1_024


class Roles(Protocol):
    """What stands around a message. speakers: the roles of all messages up to and with this one.

    stops: texts that end an answer, where the model's own tokens do not.
    """

    stops: tuple[str, ...]

    def opening(self, speakers: Speakers) -> str: ...

    def closing(self, speakers: Speakers) -> str: ...


class _Around(NamedTuple):
    """A message, and `written`, the whole text up to its end with marks in place of contents."""

    opening: str
    closing: str
    written: str


class TemplateRoles:
    """By a chat template: what it writes around marks that stand for the contents.

    given: text that the tokenizer puts in front of every prompt, so that it is not written twice.
    """

    stops: tuple[str, ...] = ()

    def __init__(self, template: ChatTemplate, given: str = "") -> None:
        self._template = template
        self._given = given
        self._salt = uuid.uuid4().hex
        self._around = lru_cache(_KEPT)(self._find)

    def opening(self, speakers: Speakers) -> str:
        """Raises InvalidRequestError when the template refuses these roles in this order."""
        opening = self._around(speakers).opening
        return opening.removeprefix(self._given) if len(speakers) == 1 else opening

    def closing(self, speakers: Speakers) -> str:
        """As `opening`."""
        return self._around(speakers).closing

    def _find(self, speakers: Speakers) -> _Around:
        before = self._around(speakers[:-1]).written if len(speakers) > 1 else ""
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
        return _Around(head[len(before) :], closing, head + mark + closing)

    def _split(self, speakers: Speakers, mark: str) -> tuple[str, str]:
        """What comes before the last message's content, and behind it."""
        try:
            head, found, tail = self._render(speakers).partition(mark)
        except InvalidRequestError:
            found = ""
        if not found and speakers == ("system",):
            # Some write it as part of the first user's message only.
            head, found, tail = self._render(("system", "user")).partition(mark)
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
    """How a family of models writes messages: each role's opening, and what closes all of them."""

    system: str
    user: str
    assistant: str
    closing: str
    stops: tuple[str, ...] = ()
    default_system: str = ""


_CHATML = Habit(
    "<|im_start|>system\n",
    "<|im_start|>user\n",
    "<|im_start|>assistant\n",
    "<|im_end|>\n",
    stops=("<|im_end|>",),
)
HABITS: Mapping[str, Habit] = MappingProxyType(
    {
        "default": Habit("SYSTEM:", "USER:", "ASSISTANT:", "\n"),
        "chatml": _CHATML,
        "qwen": _CHATML._replace(default_system="You are a helpful assistant."),
        "llama-3-instruct": Habit(
            "<|start_header_id|>system<|end_header_id|>\n\n",
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
            stops=("<|eot_id|>",),
        ),
        "gemma-it": Habit(
            "",
            "<start_of_turn>user\n",
            "<start_of_turn>model\n",
            "<end_of_turn>\n",
            stops=("<end_of_turn>",),
        ),
    }
)
_FAMILIES = (
    (re.compile(r"qwen", re.IGNORECASE), "qwen"),
    (re.compile(r"llama-?3.*instruct", re.IGNORECASE), "llama-3-instruct"),
    (re.compile(r"gemma.*it", re.IGNORECASE), "gemma-it"),
    (re.compile(r"chatml|hermes|yi-.*chat", re.IGNORECASE), "chatml"),
)


class HabitRoles:
    """By a family's habit, for a server that does not tell its template."""

    def __init__(self, habit: Habit) -> None:
        self._habit = habit
        self.stops = habit.stops

    @classmethod
    def named(cls, name: str) -> HabitRoles:
        """Raises ValueError."""
        if name not in HABITS:
            raise ValueError(f"chat_template_name is one of {', '.join(HABITS)}, got {name!r}")
        return cls(HABITS[name])

    @classmethod
    def of_model(cls, name: str) -> HabitRoles:
        """Its family's, or a plain one."""
        found = (habit for family, habit in _FAMILIES if family.search(name))
        return cls.named(next(found, "default"))

    def opening(self, speakers: Speakers) -> str:
        habit = self._habit
        first = ""
        if habit.default_system and len(speakers) == 1 and speakers[0] != "system":
            first = habit.system + habit.default_system + habit.closing
        return first + str(getattr(habit, speakers[-1]))

    def closing(self, speakers: Speakers) -> str:  # noqa: ARG002
        return self._habit.closing
