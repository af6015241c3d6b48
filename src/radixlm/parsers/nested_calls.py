"""Reads calls whose arguments are tags within tags, as MiniMax M3 writes them:

    NS<invoke name="f">NS<a>xNS</a>NS<b>NS<item>1NS</item>NS</b>NS</invoke>

NS is a special token, which no value can have in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from radixlm.parsers.call_format import FieldCall
from radixlm.parsers.field_calls import TagCallReader, value_of
from radixlm.parsers.one_call import CallContext, CallEvents
from radixlm.parsers.run import Steps, Words
from radixlm.parsers.tools import choices, types_of

_TEXT = frozenset({"string"})
_ITEM = "item"
_DEEPEST = 64  # levels; what is deeper is no value
_EMPTY: Mapping[frozenset[str], Any] = {frozenset({"array"}): [], frozenset({"object"}): {}}


class NestedCallReader(TagCallReader):
    """A text ends at the next NS, whether that closes it or not; an object with its own tag."""

    def __init__(self, around: CallContext, shape: FieldCall) -> None:
        super().__init__(around, shape)
        self._space = shape.key_before.removesuffix("<")
        self._spaces = Words((self._space,))
        self._tags_within = NestedTags(shape)

    def _up_to_end(self, call: CallEvents, certain: Callable[[int], None]) -> Steps[int | None]:  # noqa: ARG002
        cursor, start, end_tag = self._cursor, self._cursor.at, self._end_tag
        first = yield from cursor.after_spaces(start)
        if (yield from cursor.comes((self._space,), first)) and not (
            yield from cursor.comes((end_tag,), first)
        ):
            seen, end = start, -1
            while end < 0:
                if (closed := cursor.text.find(end_tag, seen)) >= 0:
                    seen = closed + len(end_tag)
                    end = self._tags_within.end_of(cursor.text, self._open, start)
                elif cursor.ended:
                    return None
                else:
                    seen = max(seen, len(cursor.text) - len(end_tag))
                    yield from cursor.wait()
            cursor.at = end + len(end_tag)
            return end
        while (end := cursor.text.find(self._space, start)) < 0:
            start = len(cursor.text) - self._spaces.begun(cursor.text, start)
            certain(start)
            if cursor.ended:
                return None
            yield from cursor.wait()
        certain(end)
        cursor.at = end
        if not (yield from cursor.skip(end_tag)):
            behind = end + len(self._space)
            if not (yield from cursor.comes((self._shape.key_before, self._shape.closes), end)):
                cursor.at = behind  # what is left of a closing tag
        return end

    def _json(
        self,
        written: str,
        types: frozenset[str],  # noqa: ARG002
        schema: Any,
        call: CallEvents,
    ) -> str | None:
        value = self._tags_within.read(written, schema, call.schema)
        try:
            made = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            return None
        return None if self._space in made else made


class NestedTags:
    """Reads a value whose objects and arrays are tags: `<a>1</a><b><item>2</item></b>`."""

    def __init__(self, shape: FieldCall) -> None:
        self._shape = shape
        opening = re.escape(shape.key_before) + r"([^\s<>/]+)" + re.escape(shape.key_after)
        self._opening = re.compile(opening)

    def read(self, written: str, schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
        """The value. schema: what it follows, in `root`. Text that is no such tags is a text."""
        entries = list(self._entries(written.strip())) if depth < _DEEPEST else []
        types = types_of(schema, root)
        if not entries and not written.strip() and types in _EMPTY:
            return _EMPTY[types]
        if types == _TEXT or not entries:
            return written if types == _TEXT else json.loads(value_of(written, types))
        inner = choices(schema, root).schemas
        if all(key == _ITEM for key, _ in entries) and "array" in types:
            below = _below(inner, "items", None)
            return [self.read(text, below, root, depth + 1) for _, text in entries]
        return {
            key: self.read(text, _below(inner, "properties", key), root, depth + 1)
            for key, text in entries
        }

    def _entries(self, text: str) -> Iterator[tuple[str, str]]:
        """The tags that follow each other, by their names; none where there is other text."""
        found, at = [], 0
        while opened := self._opening.match(text, at):
            end = self.end_of(text, opened[1], opened.end())
            if end < 0:
                return
            found.append((opened[1], text[opened.end() : end]))
            at = end + len(self._shape.end(opened[1]))
            at += len(text[at:]) - len(text[at:].lstrip())
        if at == len(text):
            yield from found

    def end_of(self, text: str, key: str, at: int) -> int:
        """The place of the closing tag of `key`, past inner ones of the same name."""
        shape, depth = self._shape, 1
        opening, closing = shape.key_before + key + shape.key_after, shape.end(key)
        while depth:
            end = text.find(closing, at)
            if end < 0:
                return -1
            depth += text.count(opening, at, end) - 1
            at = end + len(closing)
        return end


def _below(schemas: Sequence[Any], keyword: str, key: str | None) -> Any:
    """The schema of what stands in a value; None where none of `schemas` has one."""
    for schema in schemas:
        inner = schema.get(keyword) if isinstance(schema, Mapping) else None
        if key is not None:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if inner is not None:
            return inner
    return None
