"""Whether a chat template keeps the prefix: whether each turn's prompt begins with the one before
it and its answer. Where it does not, nothing after that place can come from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import common_beginning, common_prefix
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer

# In characters. Longer prompts are not looked at, so that loading does not wait for them.
LONGEST_PROMPT = 100_000
_SHOWN = 24
_QUESTION = {"role": "user", "content": "Is it so?"}
_NEXT = {"role": "user", "content": "Why?"}


class _AnswerProbe(NamedTuple):
    """An answer as the model writes it, and the message that a client sends it back as."""

    what: str
    written: str
    sent_back: Mapping[str, Any]
    fix: str


_PROBES = (
    _AnswerProbe("text", "Yes, it is.", {"content": "Yes, it is."}, ""),
    _AnswerProbe(
        "white space around an answer",
        "\n Yes, it is. \n",
        {"content": "\n Yes, it is. \n"},
        "send back answers as they came, and keep their tokens: /v1/responses with "
        "previous_response_id does where the template lets them be",
    ),
    _AnswerProbe(
        "reasoning of earlier turns",
        "<think>\nIt may be.\n</think>\n\nYes, it is.",
        {"content": "Yes, it is.", "reasoning_content": "It may be."},
        "a template that writes reasoning_content of every turn, given with --chat-template",
    ),
)


@dataclass(frozen=True, slots=True)
class BrokenPrefix:
    """A part of a conversation that a template does not keep.

    written, rendered: the text of the first turn, and that of the next one in its place, from the
    first difference on. tokens: how many of the first turn's the next one begins with, and how many
    there are. fix: what can be done, "" where that is nothing.
    """

    what: str
    written: str
    rendered: str
    tokens: tuple[int, int]
    fix: str


def broken_prefixes(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[BrokenPrefix, ...]:
    """The parts of conversations that the template does not keep; a good one keeps all.

    Renders and tokenizes a few short conversations. It passes over those that the template refuses
    or makes very long, or the tokenizer cannot read, and reasoning where the template knows none.
    """
    found = (_broken(template, tokenizer, probe) for probe in _PROBES if _concerns(template, probe))
    return tuple(broken for broken in found if broken is not None)


def warning_of(broken: Sequence[BrokenPrefix]) -> str:
    places = "; ".join(
        f"{entry.what}: {entry.written!r} becomes {entry.rendered!r}" for entry in broken
    )
    return f"the chat template does not keep earlier turns, so the cache ends there: {places}"


def _concerns(template: ChatTemplate, probe: _AnswerProbe) -> bool:
    thinks = any(word in template.source for word in ("reasoning_content", "</think>"))
    return thinks or "reasoning_content" not in probe.sent_back


def _broken(
    template: ChatTemplate, tokenizer: Tokenizer, probe: _AnswerProbe
) -> BrokenPrefix | None:
    answer = {"role": "assistant", **probe.sent_back}
    try:
        asked = template.render_chat([_QUESTION], described=True)
        after = template.render_chat([_QUESTION, answer, _NEXT], described=True)
    except InvalidRequestError:
        return None
    first = asked + _rest_of(probe.written, asked)
    if after.startswith(first) or max(len(first), len(after)) > LONGEST_PROMPT:
        return None
    at = common_beginning(first, after)
    try:
        key = tokenizer.encode(first, add_special_tokens=False)
        same = common_prefix(key, tokenizer.encode(after, add_special_tokens=False))
    except Exception:  # the library raises bare Exception where a vocabulary lacks what it needs
        return None
    return BrokenPrefix(
        probe.what,
        first[at : at + _SHOWN],
        after[at : at + _SHOWN],
        (same, int(key.size)),
        probe.fix,
    )


def _rest_of(written: str, prompt: str) -> str:
    """The text that is left to write where the prompt has opened the reasoning already."""
    opened = "<think>\n"
    return written.removeprefix(opened) if prompt.endswith(opened) else written
