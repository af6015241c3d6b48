"""Reads calls whose arguments stand one by one, and makes the JSON of them."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from radixlm.parsers.call_format import CDATA, CDATA_END, FieldCall
from radixlm.parsers.one_call import LONGEST_NAME, CallContext, CallEvents
from radixlm.parsers.run import Steps, Words, before_spaces, pieces_of
from radixlm.parsers.tools import ANY_TYPE, fits, types_of
from radixlm.parsers.values import as_json, unquoted_json

_TEXT = frozenset({"string"})
_NO_TEXT = ANY_TYPE - _TEXT
_WORD = re.compile(r"[\w.-]+")
_QUOTES = ('"', "'")
_IN_WORD = re.compile(r"[\w.-]", re.ASCII)
_NEVER_IN_NAME = frozenset(">\n\"'=()[]{}<")


class _FieldReader:
    """A call begins with its first argument: until then it may be none."""

    def __init__(self, around: CallContext, shape: FieldCall) -> None:
        self._around, self._cursor, self._shape = around, around.cursor, shape
        self._given: frozenset[str] = frozenset()  # the names of the call's arguments so far
        self._last = ""
        self._open = self._end_tag = ""  # the argument that is read, and what closes it

    def read(self, call: CallEvents) -> Steps[bool]:
        self._given = frozenset()
        cursor = self._cursor
        whole = yield from self._fields(call)
        if cursor.ended and not whole:  # it waited for more, and nothing has come
            cursor.at = len(cursor.text)
            if cursor.cut and call.name is not None:
                call.more("", cursor.at)
        return whole

    @abstractmethod
    def _fields(self, call: CallEvents) -> Steps[bool]:
        """Read one call: its name, then `_argument` for each, then `_close`."""

    def _is_over(self) -> Steps[bool]:
        """Whether the call ends here without its own closing tag."""
        cursor, around = self._cursor, self._around
        if not around.offered.mends:
            return not self._shape.closes and bool((yield from cursor.comes(around.ends)))
        over = yield from cursor.comes((*around.ends, *around.begins))
        return bool(over) or ((yield from cursor.peek()) == "" and not cursor.cut)

    def _is_new(self, key: str) -> bool:
        """Whether it is a name, and none that was there before; the later one counts for those who
        write it twice.
        """
        return bool(key) and (self._around.offered.mends or key not in self._given)

    def _argument(self, call: CallEvents, key: str, value: str) -> None:
        """Give away one argument. value: JSON, or the begin of it, which `more` goes on with."""
        written = f"{', ' if self._given else '{'}{json.dumps(key, ensure_ascii=False)}: {value}"
        call.more(written, self._cursor.at)
        self._given |= {key}
        self._last = key

    def _close(self, call: CallEvents) -> bool:
        call.more("}" if self._given else "{}", self._cursor.at)
        return True


class PythonCallReader(_FieldReader):
    """Reads `f(a="b", c=[1, None])`, or Gemma 4's `call:f{a:<|"|>b<|"|>,c:1}`.

    Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_2/
    """

    def _fields(self, call: CallEvents) -> Steps[bool]:
        cursor, shape = self._cursor, self._shape
        yield from cursor.skip_loosely(shape.before)
        name = yield from cursor.take(_IN_WORD.match, LONGEST_NAME)
        if not (yield from cursor.skip(shape.after)) or not call.names(name):
            return False
        yield from cursor.spaces()
        while not (yield from cursor.skip(shape.closes)):
            if self._given and (yield from self._is_over()):
                break
            if not (yield from self._field(call)):
                return False
        return self._close(call)

    def _field(self, call: CallEvents) -> Steps[bool]:
        """Read `key=value`, and the comma after it."""
        cursor = self._cursor
        key = yield from cursor.take(_IN_WORD.match, LONGEST_NAME)
        yield from cursor.spaces()
        if not self._is_new(key) or not (yield from cursor.skip(self._shape.key_after)):
            return False
        quote = self._shape.quote
        ends = self._around.ends if self._around.offered.mends else ()
        written = yield from cursor.balanced((quote,) if quote else _QUOTES, ends=ends)
        written = written.strip()
        value = unquoted_json(written, quote) if quote else as_json(written)
        if not written or value is None:
            return False
        self._argument(call, key, value)
        yield from cursor.skip(",")
        yield from cursor.spaces()
        return True


class TagCallReader(_FieldReader):
    """Reads arguments between tags, `<parameter=a>b</parameter>`.

    Texts stand there without quotes: a mark in the tag, or the tool's schema says what is one.

    A value ends with its closing tag, if a tag or the answer's end follows; else that belongs to a
    text that has it in it. Where it is missing, the next opening tag of an argument of this tool
    ends the value, or what ends the call. Until that is known, nothing of a value is given away.
    """

    def _fields(self, call: CallEvents) -> Steps[bool]:
        cursor, shape = self._cursor, self._shape
        if not (yield from self._named(call)):
            return False
        while True:
            yield from cursor.spaces()
            while self._given and (yield from cursor.skip_loosely(shape.end(self._last))):
                yield from cursor.spaces()  # closed twice
            if shape.closes and (yield from cursor.skip(shape.closes)):
                return self._close(call)
            if (yield from cursor.skip(shape.key_before)):
                if not (yield from self._field(call)):
                    return False
            elif (yield from self._is_over()):
                return self._close(call)
            else:
                return False

    def _named(self, call: CallEvents) -> Steps[bool]:
        """Read the call's opening, and its tool's name."""
        cursor, shape = self._cursor, self._shape
        if shape.before and not (yield from cursor.skip_loosely(shape.before)):
            return False
        name = yield from cursor.take(lambda letter: letter not in _NEVER_IN_NAME, LONGEST_NAME)
        if shape.after.strip() and not (yield from cursor.skip_loosely(shape.after)):
            return False
        return (yield from cursor.peek()) != "" and call.names(name.strip())

    def _field(self, call: CallEvents) -> Steps[bool]:
        """Read an argument, whose opening was read."""
        cursor, shape = self._cursor, self._shape
        key = yield from self._key()
        if not self._is_new(key):
            return False
        if shape.json_after and (yield from cursor.skip_loosely(shape.json_after)):
            types = _NO_TEXT
        elif (yield from self._behind_key()):
            types = (
                _TEXT if shape.json_after else types_of(_property(call.schema, key), call.schema)
            )
        else:
            return False
        if shape.pad:
            yield from cursor.skip(shape.pad)
        self._open, self._end_tag = key, shape.end(key).strip()
        if shape.cdata:
            if (yield from cursor.skip_loosely(CDATA)):
                self._end_tag = CDATA_END
            elif cursor.ended and CDATA.startswith(cursor.text[cursor.at :].lstrip()):
                return False  # cut off there
        if types == _TEXT:
            return (yield from self._text(call, key))
        return (yield from self._value(call, key, types))

    def _behind_key(self) -> Steps[bool]:
        """Read what stands between an argument's name and its value."""
        cursor, written = self._cursor, self._shape.key_after.rstrip()
        if (yield from cursor.skip_loosely(written)):
            return True
        first, *others = pieces_of(written)
        if not others or not self._around.offered.mends:
            return False
        while (yield from cursor.skip_loosely(first)):
            pass  # closed twice, or not at all
        return (yield from cursor.skip_loosely(others[-1]))

    def _key(self) -> Steps[str]:
        stop = self._shape.key_after.lstrip()[0]
        letters = self._cursor.take(lambda letter: letter != stop and letter != "\n", LONGEST_NAME)
        return (yield from letters).strip()

    def _text(self, call: CallEvents, key: str) -> Steps[bool]:
        """Read a text, and give it away as it comes."""
        cursor = self._cursor
        self._argument(call, key, '"')
        sent = cursor.at

        def certain(upto: int) -> None:
            nonlocal sent
            if upto > sent:
                text, sent = cursor.text[sent:upto], upto
                call.more(json.dumps(text, ensure_ascii=False)[1:-1], upto)

        end = yield from self._up_to_end(call, certain)
        if end is None:
            return False
        certain(end)
        call.more('"', cursor.at)
        return True

    def _value(self, call: CallEvents, key: str, types: frozenset[str]) -> Steps[bool]:
        """Read a value that may be other than a text."""
        start = self._cursor.at
        end = yield from self._up_to_end(call, lambda _: None)
        if end is None:
            return False
        written = self._cursor.text[start:end]
        value = self._json(written, types, _property(call.schema, key), call)
        if value is None:
            return False
        self._argument(call, key, value)
        return True

    def _json(
        self,
        written: str,
        types: frozenset[str],
        schema: Any,  # noqa: ARG002
        call: CallEvents,  # noqa: ARG002
    ) -> str | None:
        """A value's JSON; None where it is none. schema: of the value alone."""
        if "string" not in types and any(tag in written for tag in self._tags("")):
            return None  # not even as a text
        return value_of(written, types)

    def _up_to_end(self, call: CallEvents, certain: Callable[[int], None]) -> Steps[int | None]:
        """The end of the value that begins here; the cursor has passed its closing tag then. None
        where the answer ends before. certain: is given places up to which all is of the value.
        """
        cursor, end_tag = self._cursor, self._end_tag
        tags = self._tags(end_tag)
        words, at = Words(tags), cursor.at
        while True:
            if not (found := words.first(cursor.text, at)):
                at = len(cursor.text) - words.begun(cursor.text, at)
                certain(before_spaces(cursor.text, 0, at))
                if cursor.ended:
                    return None
                yield from cursor.wait()
                continue
            place, tag = found.start(), found[0]
            certain(before_spaces(cursor.text, 0, place))
            if (yield from cursor.comes(tags, place)) != tag:
                continue  # it is a longer one
            if (yield from self._ends_value(call, place, tag, end_tag)):
                closed = tag == end_tag
                cursor.at = place + len(tag) if closed else place
                if not closed:
                    return before_spaces(cursor.text, 0, place)
                pad = self._shape.pad
                return place - (bool(pad) and cursor.text.endswith(pad, 0, place))
            at = place + 1

    def _tags(self, end_tag: str) -> tuple[str, ...]:
        """The tags that may end a value."""
        if not self._around.offered.mends or end_tag == CDATA_END:
            return tuple(filter(None, (end_tag,)))
        own = (end_tag, self._shape.key_before, self._shape.closes)
        # The begin of calls where it closes them, as crooked models write it.
        return (*filter(None, own), *self._around.ends, *self._around.begins)

    def _ends_value(self, call: CallEvents, place: int, tag: str, end_tag: str) -> Steps[bool]:
        """Whether a tag ends the value, and does not belong to it."""
        cursor, shape, around = self._cursor, self._shape, self._around
        if not around.offered.mends or tag == CDATA_END:
            return True
        if tag == shape.key_before and tag != end_tag:
            return (yield from self._opens(call, place + len(tag)))
        behind = yield from cursor.after_spaces(place + len(tag))
        if behind >= len(cursor.text):
            return True
        follow: tuple[str, ...] = (*around.ends, *around.begins)
        if tag == end_tag:
            padded = not shape.pad or cursor.text.endswith(shape.pad, 0, place)
            follow = (shape.key_before, shape.closes, *around.ends, *around.begins)
            follow += (end_tag,) if padded else ()
        if (yield from cursor.comes(follow, behind)):
            return True
        # Or it was cut off there.
        return cursor.ended and any(word.startswith(cursor.text[behind:]) for word in follow)

    def _opens(self, call: CallEvents, at: int) -> Steps[bool]:
        """Whether the opening tag of another argument of this tool stands at a place."""
        cursor, start = self._cursor, self._cursor.at
        known = call.schema.get("properties")
        cursor.at = at
        key = yield from self._key()
        complete = yield from cursor.skip_loosely(pieces_of(self._shape.key_after)[0])
        cursor.at = start
        named = key in known if isinstance(known, Mapping) and known else bool(_WORD.fullmatch(key))
        return complete and named


def value_of(written: str, types: frozenset[str]) -> str:
    """The JSON of a value that stands between tags, of one of these types."""
    value = as_json(written)
    is_text = value is None or ("string" in types and (value[0] == '"' or not fits(value, types)))
    return json.dumps(written, ensure_ascii=False) if is_text else str(value)


def _property(schema: Mapping[str, Any], key: str) -> Any:
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None
