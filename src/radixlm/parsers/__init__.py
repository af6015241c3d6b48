"""Answers taken apart: the text itself, what a model thought, and the tools it calls.

A parser reads an answer's text as it comes and gives events; a whole answer is its events joined.
So what is streamed and what is sent whole can not differ.
"""

from radixlm.parsers.events import (
    Answered,
    AnswerEvent,
    AnswerParser,
    PlainParser,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCall,
    ToolCallBegun,
    ToolCallCut,
    ToolCallEnded,
)

__all__ = [
    "AnswerEvent",
    "AnswerParser",
    "Answered",
    "PlainParser",
    "ReasoningDelta",
    "TextDelta",
    "ToolArguments",
    "ToolCall",
    "ToolCallBegun",
    "ToolCallCut",
    "ToolCallEnded",
]
