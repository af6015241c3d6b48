"""What a state says so far: the text, and the messages that the text was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from radixlm.lang.roles import Roles

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said. meta: what the backend tells of it, as SGLang's `meta_info`.

    token_ids: its tokens, where the backend deals in tokens.
    cut: a stop ended the text, so the tokens may go on behind it.
    """

    text: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    token_ids: tuple[int, ...] = ()
    cut: bool = False


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
        """What the open message says so far."""
        return self.text[self._message_start :]

    def write(self, text: str) -> None:
        """The program says this."""
        self.text += text

    def take(self, answer: Answer) -> None:
        """The model said this."""
        self.text += answer.text

    def copy(self) -> Self:
        """One that goes its own way from here."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.messages = list(self.messages)
        return twin

    def begin(self, role: str) -> None:
        """Open a message. Raises ValueError within another one."""
        if self.role is not None:
            raise ValueError(f"a message of {role} begins within one of {self.role}")
        self.write(self.roles.opening((*self._speakers(), role)))
        self.role = role
        self._message_start = len(self.text)

    def end(self, role: str) -> None:
        """Close the open message. Raises ValueError when it is not one of `role`."""
        if self.role != role:
            raise ValueError(f"a message of {role} ends, but {self.role or 'none'} is open")
        said = self.open_message.lstrip()
        self.write(self.roles.closing((*self._speakers(), role)))
        self.messages.append({"role": role, "content": said})
        self.role = None

    def _speakers(self) -> tuple[str, ...]:
        return tuple(message["role"] for message in self.messages)
