"""Recorded sessions of agents: what each call was given, and what was answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from radixlm.core.errors import ConfigError, reason_of
from radixlm.core.keys import Key

Encode = Callable[[str], Key]


class RecordedCall(NamedTuple):
    """A call of a model. answer: None where the model is to answer itself. prediction: what its
    client predicts of it.
    """

    prompt: Key
    answer: Key | None
    prediction: Key | None = None


Session = list[tuple[Key, Key]]


def read_traces(folder: Path, encode: Encode) -> Iterator[tuple[str, list[Session]]]:
    """The sessions of each trace in a folder, as prompts and answers: `NAME.jsonl` with a session a
    line (`messages`), or `NAME/*.jsonl` with a session a file and a call a line (`input`,
    `output`). Raises ConfigError for files of another form.
    """
    for path in sorted(folder.iterdir()):
        try:
            if path.is_dir():
                files = sorted(path.glob("*.jsonl"))
                yield path.name, [list(_calls(file, encode)) for file in files]
            elif path.suffix == ".jsonl":
                lines = path.read_text(encoding="utf-8").splitlines()
                read = [list(_turns(json.loads(line)["messages"], encode)) for line in lines]
                yield path.stem, read
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no trace: {reason_of(error)}") from None


def _calls(file: Path, encode: Encode) -> Iterator[tuple[Key, Key]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        call = json.loads(line)
        if call["input"]:
            yield encode(call["input"]), encode(call["output"])


def _turns(messages: Sequence[Mapping[str, Any]], encode: Encode) -> Iterator[tuple[Key, Key]]:
    """A call for each message of the assistant, tokenized message by message."""
    before: list[Key] = []
    for message in messages:
        text = message.get("content") or ""
        for call in message.get("tool_calls") or ():
            of = call["function"]
            made = {"name": of["name"], "arguments": json.loads(of["arguments"])}
            text += f"\n<tool_call>{json.dumps(made)}</tool_call>"
        before.append(encode(f"\n{message['role']}: "))
        body = encode(text)
        if message["role"] == "assistant":
            yield np.concatenate(before), body
        before.append(body)
