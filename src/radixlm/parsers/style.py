"""How one model's answers are read: found once, from its chat template."""

from __future__ import annotations

from dataclasses import dataclass

from radixlm.core.grammar import Grammar
from radixlm.parsers import AnswerParser, PlainParser, steps
from radixlm.parsers.formats import AUTO, format_named
from radixlm.parsers.grammars import answer_grammar, channel_grammar
from radixlm.parsers.json_formats import JSON
from radixlm.parsers.steps import THINKING, ReasoningParser, Thinking
from radixlm.parsers.tool_calls import CallFormat
from radixlm.parsers.tools import ToolUse
from radixlm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """calls: the format of calls. thinking: whether reasoning comes before an answer."""

    calls: CallFormat = JSON
    thinking: Thinking = Thinking.NEVER

    @classmethod
    def of(
        cls, template: str, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO
    ) -> AnswerStyle:
        """The style of a model with this chat template, or the one that is named."""
        thinking = Thinking.OPENED if steps.END in template else Thinking.NEVER
        if reasoning_parser != AUTO:
            thinking = THINKING[reasoning_parser]
        return cls(format_named(tool_call_parser, template), thinking)

    def parser(self, use: ToolUse, prompt: str) -> AnswerParser:
        """For one answer to `prompt`, as the template wrote it."""
        parser: AnswerParser = PlainParser()
        if use.may_call or self.calls.channels:
            callable_ = use.tools if use.may_call else ()
            tools = {tool.name: tool.parameters for tool in callable_}
            most = None if use.parallel else 1
            parser = self.calls.parser(tools, self.calls.new_id, most=most)
        if self.thinking is Thinking.NEVER:
            return parser
        return ReasoningParser(parser, opened=self.thinking.opened_by(prompt))

    def grammar(
        self, use: ToolUse, prompt: str, tokenizer: Tokenizer, wanted: Grammar | None = None
    ) -> Grammar | None:
        """What an answer to `prompt` must look like; None when it may be anything.

        wanted: what it must look like apart from reasoning and calls. Raises InvalidRequestError.
        """
        if wanted is None and not use.constrained:
            return None
        if self.calls.channels:
            text = channel_grammar(use, special=self._special(tokenizer), wanted=wanted)
            return Grammar.lark(text, param="tools" if wanted is None else wanted.param)
        opened = None if self.thinking is Thinking.NEVER else self.thinking.opened_by(prompt)
        if wanted is not None and not use.may_call and opened is None:
            return wanted
        special = self._special(tokenizer)
        text = answer_grammar(self.calls, use, special=special, opened=opened, wanted=wanted)
        return Grammar.lark(text, param="tools" if wanted is None else wanted.param)

    def shown(self, use: ToolUse, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that must show in an answer's text, so that its parser sees them."""
        hidden = () if use.may_call or self.calls.channels else self.calls.markers
        special = self._special(tokenizer)
        return frozenset(token for marker, token in special.items() if marker not in hidden)

    def _special(self, tokenizer: Tokenizer) -> dict[str, int]:
        """The markers that are special tokens."""
        thoughts = () if self.thinking is Thinking.NEVER else (steps.BEGIN, steps.END)
        tokens = {marker: tokenizer.token_id(marker) for marker in (*self.calls.markers, *thoughts)}
        return {
            marker: token
            for marker, token in tokens.items()
            if token is not None and token in tokenizer.special_ids
        }
