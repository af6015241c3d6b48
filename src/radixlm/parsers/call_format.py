"""How a family of models writes calls of tools: declared, not programmed.

From one declaration follow the parser, the grammar of constrained answers, the calls that are
written back into a prompt, and how the family is found (`found`).
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CDATA, CDATA_END = "<![CDATA[", "]]>"
_MARKUP = re.compile(r"[<>&\"'\n]")
_ALPHABET = string.ascii_letters + string.digits


class Written(NamedTuple):
    """A call as it is written: the tool's name, and its arguments as values."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCall:
    """A call that is one JSON object: `{"name": NAME, "arguments": {…}}`.

    name, arguments: the keys. Without `name` the object is `{NAME: {…}}`.
    """

    name: str = "name"
    arguments: str = "arguments"

    def write(self, call: Written, place: int) -> str:  # noqa: ARG002
        if not self.name:
            return _json({call.name: call.arguments})
        return _json({self.name: call.name, self.arguments: call.arguments})

    @property
    def literals(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCall:
    """A call whose name stands before its arguments, which are a JSON object:

        before NAME after {…} closes

    spelled: how the name is written, with {name}, and {place} for the call's number in its message.
    id_marker: what may stand between the name and `after`, with an id behind it.
    """

    before: str = ""
    spelled: str = "{name}"
    id_marker: str = ""
    after: str
    closes: str = ""

    def opening(self, name: str, place: int = 0) -> str:
        return self.before + self.spelled.format(name=name, place=place) + self.after

    def write(self, call: Written, place: int) -> str:
        return self.opening(call.name, place) + _json(call.arguments) + self.closes

    @property
    def literals(self) -> Iterable[str]:
        return (self.before, self.id_marker, self.after, self.closes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCall:
    """A call whose arguments are written one by one:

        before NAME after (FIELD (join FIELD)*)? closes
        FIELD: key_before KEY key_after pad VALUE pad value_end

    value_end: what ends a value, with {key} in it where it names the argument; texts stand before
        it without quotes. "": all values are JSON, or Python's.
    json_after: in place of key_after before a value that is JSON and no text; "": the tool's schema
        says what is a text.
    quote: what stands around a text in place of JSON's quotes; keys of objects have none then.
    nested: objects and arrays are written as tags, too; entries of an array as `item`.
    cdata: texts with markup or line breaks stand between CDATA and CDATA_END.
    """

    before: str = ""
    after: str
    key_before: str = ""
    key_after: str
    json_after: str = ""
    pad: str = ""
    value_end: str = ""
    join: str = ""
    closes: str = ""
    quote: str = ""
    nested: bool = False
    cdata: bool = False

    def write(self, call: Written, place: int) -> str:  # noqa: ARG002
        fields = (self._field(key, value) for key, value in call.arguments.items())
        return f"{self.before}{call.name}{self.after}{self.join.join(fields)}{self.closes}"

    def _field(self, key: str, value: Any) -> str:
        after = self.key_after if isinstance(value, str) or not self.json_after else self.json_after
        return (
            f"{self.key_before}{key}{after}{self.pad}{self.value(value)}{self.pad}{self.end(key)}"
        )

    def end(self, key: str) -> str:
        return self.value_end.replace("{key}", key)

    def value(self, value: Any) -> str:
        """One argument's value as it is written."""
        if self.quote:
            return self._quoted(value)
        if not self.value_end:
            return _json(value)
        if self.nested and isinstance(value, dict | list):
            entries = value.items() if isinstance(value, dict) else (("item", v) for v in value)
            return "".join(self._field(key, entry) for key, entry in entries)
        if self.cdata and isinstance(value, str) and _MARKUP.search(value):
            return CDATA + value + CDATA_END
        return value if isinstance(value, str) else _json(value)

    def _quoted(self, value: Any) -> str:
        match value:
            case str():
                return self.quote + value + self.quote
            case Mapping():
                entries = (f"{key}{self.key_after}{self._quoted(v)}" for key, v in value.items())
                return "{" + self.join.join(entries) + "}"
            case list():
                return "[" + self.join.join(map(self._quoted, value)) + "]"
        return _json(value)

    @property
    def literals(self) -> Iterable[str]:
        ends = (self.key_before, self.key_after, self.json_after, self.value_end)
        return (self.before, self.after, *ends, self.closes, self.quote)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How answers that call tools look:

        begin opens CALL (join CALL)* closes end (again begin opens CALL closes end)*

    begin, end: markers around calls; "" when the answer must begin with them, or ends with them.
    call: how one is written.
    join, again: what stands between calls, None where there is no such way.
    also: formats that its models write as well, and that are read besides.
    signs: texts in a prompt with tools, by which a template shows the format that writes no call.
    plain: in place of a name, what shows that text follows; see functionary.
    never_begins: a regex; without `begin`, text of which the parser would read calls.
    id_prefix, id_length: of a call's id: the length is that of its random part.
    described: the model's own template describes the tools; else our text does.
    channels: all of an answer is messages in channels, reasoning among them: see `harmony`.
    """

    call: JsonCall | NamedCall | FieldCall = JsonCall()
    begin: str = ""
    opens: str = ""
    join: str | None = None
    closes: str = ""
    end: str = ""
    again: str | None = None
    also: tuple[CallFormat, ...] = ()
    signs: tuple[str, ...] = ()
    plain: str = ""
    never_begins: str = ""
    id_prefix: str = "call_"
    id_length: int = 24
    described: bool = True
    channels: bool = False

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt's end opened the calls, so that text has `plain` before it."""
        return bool(self.plain) and prompt.endswith(self.begin)

    def new_id(self) -> str:
        """A fresh id for a call."""
        letters = (secrets.choice(_ALPHABET) for _ in range(self.id_length))
        return self.id_prefix + "".join(letters)

    def write(self, calls: Sequence[Written]) -> str:
        """Calls, as an answer has them."""
        written = [self.call.write(call, place) for place, call in enumerate(calls)]
        groups = written if self.join is None else [self.join.join(written)]
        again = self.again or ""
        return again.join(
            self.begin + self.opens + group + self.closes + self.end for group in groups
        )

    def literals(self) -> Iterator[str]:
        """All that is written besides names and values."""
        yield from (self.begin, self.opens, self.closes, self.end, *self.call.literals)
        for form in self.also:
            yield from form.literals()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
