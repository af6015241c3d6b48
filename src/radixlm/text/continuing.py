"""A last answer left open, so that the model goes on with it.

The template writes it with a mark at its end, and the text stops there:

    <|user|>Why?<|assistant|>Because#<|end|>   ->   <|user|>Why?<|assistant|>Because

Many templates leave out, trim or move parts of a last answer, thoughts above all. What they wrote
counts only if the answer stands there as it was given; else it is put behind what the template
writes in front of an answer.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import common_beginning

Json = dict[str, Any]
# Writes messages, and the opening of an answer behind them where it is asked for.
Write = Callable[[Sequence[Json], bool], str]

_PARAM = "continue_final_message"
_OPENS, _CLOSES = "<think>\n", "\n</think>\n\n"
# A marker such as <think> or [THINK] at the beginning of an answer.
_MARKER = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z_]+\])")


def continued(write: Write, messages: Sequence[Json]) -> str:
    """The prompt that ends with the last message's text, or its thoughts where it has no text.

    Raises InvalidRequestError.
    """
    if not messages or not isinstance(messages[-1]["content"], str):
        raise InvalidRequestError(f"{_PARAM} needs a last message with text", param=_PARAM)
    *others, last = messages
    answers = last["role"] == "assistant"
    for text in _by_template(write, others, last):
        if not answers or _keeps(text, write(others, False), last):
            return text
    if answers:
        return _behind(write(others, True), _written(last))
    raise InvalidRequestError(
        "the chat template leaves out the last message, so it cannot be continued", param=_PARAM
    )


def _by_template(write: Write, others: Sequence[Json], last: Json) -> Iterator[str]:
    """The template's own rendering of it: to the end of the text, and to its beginning."""
    mark = uuid.uuid4().hex
    text = last["content"]
    thinks = not text and bool(last.get("reasoning_content"))
    name = "reasoning_content" if thinks else "content"
    for before, behind in ((last[name], ""), ("", last[name])):
        try:
            written = write([*others, {**last, name: before + mark}], False)
        except InvalidRequestError:
            continue
        head, found, _ = written.rpartition(mark)
        if found:
            yield head + behind


def _keeps(text: str, before: str, last: Json) -> bool:
    """Whether it ends as it was given, and no thought was opened in front of one that it opens.

    before: the prompt without the last message.
    """
    thoughts, given = last.get("reasoning_content") or "", last["content"]
    head = text[: len(text) - len(given or thoughts)]
    if text[len(head) :] != (given or thoughts) or (given and thoughts not in head):
        return False
    marker = _MARKER.match(given)
    return marker is None or marker[1] not in head[common_beginning(head, before) :]


def _written(last: Json) -> str:
    """Thoughts and text as most models write them."""
    thoughts, text = last.get("reasoning_content"), str(last["content"])
    if not thoughts:
        return text
    return f"{_OPENS}{thoughts}{_CLOSES}{text}" if text else f"{_OPENS}{thoughts}"


def _behind(prompt: str, written: str) -> str:
    """A prompt may have opened the thought already."""
    marker = _MARKER.match(written)
    if marker is None or not prompt.rstrip().endswith(marker[1]):
        return prompt + written
    rest = written[marker.end() :]
    return prompt + (rest.removeprefix("\n") if prompt.endswith("\n") else rest)
