"""How one model's answers are read: found once, from its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from radixlm.core.grammar import Grammar
from radixlm.core.sampling import ThoughtMarks
from radixlm.parsers import AnswerParser, PlainParser
from radixlm.parsers.call_format import CallFormat, Written
from radixlm.parsers.families import JSON
from radixlm.parsers.formats import AUTO, FORMATS
from radixlm.parsers.found import calls_in, thoughts_in
from radixlm.parsers.grammars import answer_grammar, channel_grammar
from radixlm.parsers.harmony import FINAL, MARKERS, MESSAGE, START, HarmonyReader
from radixlm.parsers.one_call import Offered
from radixlm.parsers.reader import AnswerReader
from radixlm.parsers.thoughts import THOUGHTS, Thoughts
from radixlm.parsers.tools import ToolUse
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.thinking_switch import ThinkingSwitch
from radixlm.text.tokenizer import Tokenizer
from radixlm.text.tool_text import AS_JSON, CallText

_ASKS = """To call functions, write nothing but calls, in this form; you are given the results then:
"""
# Some templates join them to texts, and refuse without.
_NO_TOKENS = {"bos_token": "", "eos_token": "", "unk_token": "", "pad_token": ""}


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """calls: the format of calls. thinking: how reasoning comes before an answer; None if never."""

    calls: CallFormat = JSON
    thinking: Thoughts | None = None

    @classmethod
    def of(
        cls, template: str, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO
    ) -> AnswerStyle:
        """The style of a model with this chat template, or the one that is named.

        Renders some small conversations. Raises ModelError when the template is not valid.
        """
        return cls.found(ChatTemplate(template, _NO_TOKENS), tool_call_parser, reasoning_parser)

    @classmethod
    def found(
        cls,
        template: ChatTemplate,
        tool_call_parser: str = AUTO,
        reasoning_parser: str = AUTO,
        switch: ThinkingSwitch | None = None,
    ) -> AnswerStyle:
        """The style of a template that is there, as `of`. switch: the template's, where it was
        found.
        """
        calls = FORMATS.get(tool_call_parser)
        if calls is None or calls.also:
            written = calls_in(template).calls
            others = () if calls is None else (replace(form, also=()) for form in calls.also)
            if calls is None or replace(written, also=()) in others:
                calls = written  # it is the same family's newer way
        if reasoning_parser != AUTO:
            return cls(calls, THOUGHTS[reasoning_parser])
        if calls.channels:
            return cls(calls)
        return cls(calls, thoughts_in(template, switch or ThinkingSwitch.of(template)))

    @property
    def names(self) -> tuple[str, str]:
        """The names of both formats, as --tool-call-parser and --reasoning-parser take them; the
        latter is `none` where calls, too, are in channels.
        """
        plain = replace(self.calls, described=False, also=())
        known = (
            name
            for name, form in FORMATS.items()
            if replace(form, described=False, also=()) == plain
        )
        thoughts = (name for name, form in THOUGHTS.items() if form == self.thinking)
        return next(known, AUTO), next(thoughts, AUTO)

    @property
    def call_text(self) -> CallText:
        """How calls are written where the model's template does not."""
        form = self.calls
        if not form.described:
            return AS_JSON
        example = form.write([Written("NAME", {"PARAMETER": "VALUE"})])
        return CallText(partial(_written, form), _ASKS + example)

    def parser(self, use: ToolUse, prompt: str) -> AnswerParser:
        """A parser for one answer to `prompt`, as the template wrote it."""
        begun = self.calls.opened_by(prompt)
        form = self.calls if use.may_call or begun else None
        tools = {tool.name: tool.parameters for tool in use.tools} if use.may_call else {}
        offered = Offered(tools, mends=not use.constrained)
        most = None if use.parallel else 1
        if not use.may_call:
            most = 0
        if self.calls.channels:
            return HarmonyReader(offered, self.calls.new_id, most=most)
        if form is None and self.thinking is None:
            return PlainParser()
        return AnswerReader(
            form,
            offered,
            self.calls.new_id,
            thoughts=self.thinking,
            opened=self.thinking is not None and self.thinking.opened_by(prompt),
            begun=begun,
            most=most,
        )

    def marks(self, prompt: str) -> ThoughtMarks | None:
        """The marks between which stop strings do not count in an answer to `prompt`; of an answer
        in channels, all before the final one's message, so calls too.
        """
        if self.calls.channels:
            begun = FINAL in prompt.rpartition(START)[2]
            return None if begun else ThoughtMarks("", (FINAL, MESSAGE))
        form = self.thinking
        if form is None:
            return None
        begin = "" if form.opened_by(prompt) else form.begin.strip()
        return ThoughtMarks(begin, (form.end.strip(),))

    def grammar(
        self,
        use: ToolUse,
        prompt: str,
        tokenizer: Tokenizer,
        wanted: Grammar | None = None,
        *,
        thinks: bool = True,
    ) -> Grammar | None:
        """The grammar of answers to `prompt`; None when they may be anything.

        wanted: what it must look like apart from reasoning and calls. thinks: it may begin with
        reasoning; else only where `prompt` opened it. Raises InvalidRequestError.
        """
        if wanted is None and not use.constrained:
            return None
        special = self._special(tokenizer)
        param = "tools" if wanted is None else wanted.param
        if self.calls.channels:
            return Grammar.lark(channel_grammar(use, special=special, wanted=wanted), param=param)
        if wanted is not None and not use.may_call and self.thinking is None:
            return wanted
        text = answer_grammar(
            *(self.calls, use),
            special=special,
            thoughts=self.thinking,
            prompt=prompt,
            wanted=wanted,
            thinks=thinks,
        )
        return Grammar.lark(text, param=param)

    def shown(self, use: ToolUse, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that must show in an answer's text, so that its parser sees them."""
        with_calls = use.may_call or self.calls.channels
        return frozenset(self._special(tokenizer, calls=with_calls).values())

    def _special(self, tokenizer: Tokenizer, *, calls: bool = True) -> dict[str, int]:
        """The markers that are special tokens."""
        literals = [*MARKERS] if self.calls.channels else []
        literals += self.calls.literals() if calls else ()
        literals += () if self.thinking is None else self.thinking.literals
        return tokenizer.special_in("\0".join(literals))


def _written(form: CallFormat, functions: Sequence[Mapping[str, Any]]) -> str:
    return form.write([Written(each["name"], each["arguments"]) for each in functions])
