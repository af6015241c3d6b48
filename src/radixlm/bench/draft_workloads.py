"""Workloads of `radixlm bench drafts`: recorded agents, text that does not repeat itself, an edit
with its prediction.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from radixlm.bench.agent_traces import Encode, RecordedCall, Session
from radixlm.cache import RadixTree
from radixlm.core.errors import ConfigError, reason_of
from radixlm.core.keys import Key, as_key

# The file that is edited: its lines, and how far apart those that change.
_LINES, _APART = 400, 33
EDIT = f"edit of {_LINES} lines"


class HeardText(NamedTuple):
    """A text that drafts are to know, of which the last `new` tokens are new."""

    tokens: Key
    new: int


class PlayedPart(NamedTuple):
    """A call that is played, and what drafts hear of before."""

    call: RecordedCall
    heard: Sequence[HeardText] = ()


class DraftWorkload(NamedTuple):
    """The parts that each stream plays, one after the other. cached: prompts are computed before;
    else they arrive in between.
    """

    name: str
    lanes: Sequence[Sequence[PlayedPart]]
    cached: bool = True


def of_trace(
    name: str, sessions: Sequence[Session], count: int, streams: int, context: int
) -> DraftWorkload:
    """One stream plays `count` calls of a trace, as far apart as can be; of several each plays
    sessions of its own, at most a call of each, so that no stream hears what another one is to
    answer. All other calls are heard of. context: tokens of a prompt that the model is given, its
    last ones.
    """
    if streams == 1:
        places = [(number, call) for number, its in enumerate(sessions) for call in range(len(its))]
    else:
        places = [(number, 2 * len(its) // 3) for number, its in enumerate(sessions)]
    spread = np.linspace(0, len(places) - 1, min(count, len(places))).astype(int)
    chosen = {places[at] for at in spread}
    lanes: list[list[PlayedPart]] = [[] for _ in range(streams)]
    since: list[list[HeardText]] = [[] for _ in range(streams)]
    for number, session in enumerate(sessions):
        heard, known = since[number % streams], session[0][0][:0]
        for place, (prompt, answer) in enumerate(session):
            heard.append(HeardText(prompt, prompt.size - _common(known, prompt)))
            known = np.concatenate((prompt, answer))
            if (number, place) in chosen and answer.size > 1:
                part = PlayedPart(RecordedCall(prompt[-context:], answer), tuple(heard))
                lanes[number % streams].append(part)
                heard.clear()
            heard.append(HeardText(known, answer.size))
    return DraftWorkload(name, lanes)


def _common(one: Key, other: Key) -> int:
    size = min(one.size, other.size)
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size


def without_repetition(
    text: Key, count: int, streams: int, context: int, out: int
) -> DraftWorkload:
    """Calls of a text's tokens in random order, so that they are as frequent as in it."""
    draw = np.random.default_rng(0)
    made = (draw.permutation(text)[: context + out] for _ in range(count))
    parts = [PlayedPart(RecordedCall(each[:context], each[context:])) for each in made]
    return DraftWorkload("no repetition", [parts[lane::streams] for lane in range(streams)])


def arriving(of: DraftWorkload) -> DraftWorkload:
    """The same calls with prompts of which nothing is cached."""
    return of._replace(name=f"{of.name}, prompts arriving", cached=False)


def edit(encode: Encode, context: int) -> DraftWorkload:
    """A file of Python of which every 33rd line changes, predicted as it was."""
    lines = Path(inspect.getfile(RadixTree)).read_text(encoding="utf-8").splitlines()[:_LINES]
    edited = [
        f"{line}  # checked" if n % _APART == _APART // 4 else line for n, line in enumerate(lines)
    ]
    before, after = (encode("\n".join(each)) for each in (lines, edited))
    prompt = np.concatenate((before, encode("\n\nThe same, with comments:\n\n")))[-context:]
    call = RecordedCall(prompt, after, prediction=before)
    return DraftWorkload(EDIT, [[PlayedPart(call)]])


def asked(path: Path, encode_chat: Callable[[str], Key]) -> Iterator[DraftWorkload]:
    """Prompts that the model answers itself, by kind: JSON lines with `kind` and `prompt`."""
    kinds: dict[str, list[PlayedPart]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            prompt = as_key(encode_chat(row["prompt"]))
            kinds.setdefault(row["kind"], []).append(PlayedPart(RecordedCall(prompt, None)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} holds no prompts: {reason_of(error)}") from None
    for kind, parts in kinds.items():
        yield DraftWorkload(kind, [parts])
