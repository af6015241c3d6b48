"""A chat's messages and tools, written by the model's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from radixlm.server.messages import to_messages
from radixlm.server.protocol import ChatMessage, TemplateFields
from radixlm.server.tool_fields import tools_for_template
from radixlm.text.answers.style import AnswerStyle
from radixlm.text.breakpoints import Place, with_marks
from radixlm.text.chat_template import ChatTemplate, as_plain_text
from radixlm.text.outline import Outline
from radixlm.text.tokenizer import Tokenizer
from radixlm.text.tool_prompt import told_in_text

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Rendering:
    """mark: for `as_plain_text`. said, tools: as templates take them.

    Raises InvalidRequestError that names the field.
    """

    messages: InitVar[Sequence[ChatMessage]]
    fields: TemplateFields
    template: ChatTemplate
    style: AnswerStyle
    tokenizer: Tokenizer
    mark: str
    said: Sequence[Json] = field(init=False)
    tools: Sequence[Json] = field(init=False)

    def __post_init__(self, messages: Sequence[ChatMessage]) -> None:
        object.__setattr__(self, "said", to_messages(messages))
        object.__setattr__(self, "tools", tools_for_template(self.fields.tools or ()))

    def render(self, marks: Mapping[Place, str]) -> str:
        """The text, with each mark at the end of its place. Raises InvalidRequestError."""
        plain, known = with_marks(self.said, self.tools, marks)
        if not self.style.calls.described:
            takes_system = self.template.takes_system
            plain, known = told_in_text(plain, known, takes_system=takes_system), []
        continued = bool(self.fields.continue_final_message)
        return self.template.render(
            as_plain_text(plain, self.tokenizer, self.mark, continue_final_message=continued),
            tools=as_plain_text(known, self.tokenizer, self.mark) or None,
            **self.fields.template_variables(),
        )

    def outline(self, text: str) -> Outline:
        """Where the messages lie in what was rendered."""
        return Outline(text.replace(self.mark, ""), self.said, self.tools)
