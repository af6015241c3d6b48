"""How one model's answers are read: found once, from its chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from radixlm.core.grammar import Grammar
from radixlm.parsers import json_formats, qwen_coder, reasoning
from radixlm.parsers.events import AnswerParser, PlainParser
from radixlm.parsers.formats import (
    FORMATS,
    HERMES,
    JSON,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    PYTHONIC,
    QWEN_CODER,
    CallFormat,
)
from radixlm.parsers.lark import answer_grammar
from radixlm.parsers.reasoning import ReasoningParser
from radixlm.parsers.tools import ToolUse
from radixlm.text.tokenizer import Tokenizer

AUTO = "auto"
_TOOLS = re.compile(r"\btools\b")
# How templates tell the model of it: `[func_name1(params_name1=params_value1, …)]`.
_PYTHONIC = re.compile(r"\[\w+\(\w+=")


class Thinking(Enum):
    """Whether answers begin with thoughts: never, where the model opens them, or always."""

    NEVER = auto()
    OPENED = auto()
    ALWAYS = auto()


# By the names that vLLM and SGLang have for them.
THINKING = {
    "none": Thinking.NEVER,
    "qwen3": Thinking.OPENED,
    "deepseek-r1": Thinking.ALWAYS,
    "deepseek_r1": Thinking.ALWAYS,
}


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """calls: the format of calls. thinking: whether there are thoughts before an answer."""

    calls: CallFormat = JSON
    thinking: Thinking = Thinking.NEVER

    @classmethod
    def of(
        cls, template: str, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO
    ) -> AnswerStyle:
        """The style of a model with this chat template, or the one that is named.

        A template that knows no tools, or writes calls in no known format, gets JSON.
        """
        if tool_call_parser == AUTO:
            calls = _calls_of(template)
        else:
            calls = FORMATS[tool_call_parser]
            if calls is MISTRAL and json_formats.ARGUMENTS in template:
                calls = MISTRAL_NAMED
        if reasoning_parser == AUTO:
            thinks = reasoning.END in template
            return cls(calls, Thinking.OPENED if thinks else Thinking.NEVER)
        return cls(calls, THINKING[reasoning_parser])

    def parser(self, use: ToolUse, prompt: str) -> AnswerParser:
        """For one answer to `prompt`, as the template wrote it."""
        parser: AnswerParser = PlainParser()
        if use.may_call:
            tools = {tool.name: tool.parameters for tool in use.tools}
            most = None if use.parallel else 1
            parser = self.calls.parser(tools, self.calls.new_id, most=most)
        if self.thinking is Thinking.NEVER:
            return parser
        return ReasoningParser(parser, opened=self._opened_by(prompt))

    def grammar(
        self, use: ToolUse, prompt: str, tokenizer: Tokenizer, wanted: Grammar | None = None
    ) -> Grammar | None:
        """What an answer to `prompt` must look like; None when it may be anything.

        wanted: what it must look like but for thoughts and calls. Raises InvalidRequestError.
        """
        if wanted is None and not use.constrained:
            return None
        opened = None if self.thinking is Thinking.NEVER else self._opened_by(prompt)
        if wanted is not None and not use.may_call and opened is None:
            return wanted
        special = self._special(tokenizer)
        text = answer_grammar(self.calls, use, special=special, opened=opened, wanted=wanted)
        return Grammar.lark(text, param="tools" if wanted is None else wanted.param)

    def shown(self, use: ToolUse, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that must show in an answer's text, so that its parser sees them."""
        markers = (*(self.calls.markers if use.may_call else ()), *self._thought_markers)
        special = self._special(tokenizer)
        return frozenset(special[marker] for marker in markers if marker in special)

    @property
    def _thought_markers(self) -> tuple[str, ...]:
        return () if self.thinking is Thinking.NEVER else (reasoning.BEGIN, reasoning.END)

    def _special(self, tokenizer: Tokenizer) -> dict[str, int]:
        """The markers that are special tokens."""
        tokens = {
            marker: tokenizer.token_id(marker)
            for marker in (*self.calls.markers, *self._thought_markers)
        }
        return {
            marker: token
            for marker, token in tokens.items()
            if token is not None and token in tokenizer.special_ids
        }

    def _opened_by(self, prompt: str) -> bool:
        """Whether the prompt's end leaves thoughts open."""
        prompt = prompt.rstrip()
        if self.thinking is Thinking.ALWAYS:
            return not prompt.endswith(reasoning.END)
        return prompt.endswith(reasoning.BEGIN)


def _calls_of(template: str) -> CallFormat:
    if not _TOOLS.search(template):
        return JSON
    if json_formats.HERMES_BEGIN in template:
        return QWEN_CODER if qwen_coder.FUNCTION in template else HERMES
    if json_formats.MISTRAL_BEGIN in template:
        return MISTRAL_NAMED if json_formats.ARGUMENTS in template else MISTRAL
    if _PYTHONIC.search(template):
        return PYTHONIC
    if json_formats.TAG in template or (
        '"parameters": ' in template and "<|start_header_id|>" in template
    ):
        return LLAMA
    return JSON
