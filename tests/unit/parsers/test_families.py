"""Each format's calls, as it writes them, are read back."""

from __future__ import annotations

import json

import pytest

from radixlm.parsers.call_format import CDATA, CDATA_END, FieldCall, Written
from radixlm.parsers.families import GLM47, MINICPM, SEED
from radixlm.parsers.formats import FORMATS
from tests.unit.parsers.readings import joined, read

FORMS = {form: name for name, form in reversed(FORMATS.items())}
VALUES = {
    "text": 'a "b"\n<c> é 😀 {x}',
    "digits": "5",
    "word": "null",
    "count": 3,
    "share": -0.0005,
    "on": True,
    "nothing": None,
    "list": [1, "x", {"k": None}],
    "map": {"k": [True], "l": {"m": "n"}},
}
TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
TYPES |= {"NoneType": "null", "list": "array", "dict": "object"}
TOOLS = {
    "f": {"properties": {key: {"type": TYPES[type(v).__name__]} for key, v in VALUES.items()}},
    "now": {},
}
BOTH = [Written("f", VALUES), Written("now", {})]


@pytest.mark.parametrize("form", FORMS, ids=FORMS.values())
def test_what_a_format_writes_is_read_back(form):
    several = form.join is not None or form.again is not None
    calls = BOTH if several else BOTH[:1]
    for most in (None, 1):
        answer = read(form, form.write(calls[:most]), tools=TOOLS, most=most)
        assert answer.text == ""
        made = [(call.name, json.loads(call.arguments)) for call in answer.calls]
        assert made == [(call.name, call.arguments) for call in calls[:most]]


@pytest.mark.parametrize("form", FORMS, ids=FORMS.values())
def test_at_every_cut(form):
    calls = [Written("f", {"text": "a<b\n", "count": 3}), Written("now", {})]
    text = form.write(calls if form.join is not None or form.again is not None else calls[:1])
    whole = joined([text], form, cut=False, tools=TOOLS)
    assert len(whole.calls) >= 1
    for place in range(len(text)):
        pieces = [text[:place], text[place:]]
        assert joined(pieces, form, cut=False, tools=TOOLS) == whole, text[:place]


def field(form: FieldCall, key: str, value: str) -> str:
    return form.key_before + key + form.key_after + value + form.end(key)


@pytest.mark.parametrize("form", [SEED, GLM47])
def test_crooked_tags(form):
    """An argument twice, closed twice or never, and calls whose own ends are missing."""
    call = form.call
    begin = form.begin + form.opens + call.before + "f" + call.after
    text, count = field(call, "text", "a"), field(call, "count", "3")
    ends = call.closes + form.closes + form.end
    end = call.value_end.strip()
    for written, made in {
        begin + text + count + ends: {"text": "a", "count": 3},
        begin + text + field(call, "text", "b") + ends: {"text": "b"},
        begin + text.replace(end, end * 2) + count + ends: {"text": "a", "count": 3},
        begin + text.replace(end, "") + count + ends: {"text": "a", "count": 3},
        begin + text + count.replace(end, "") + ends: {"text": "a", "count": 3},
        begin + text + count + form.end: {"text": "a", "count": 3},
        begin + text + count: {"text": "a", "count": 3},
        begin + text + count + ends + form.end: {"text": "a", "count": 3},
        begin + text + count + form.begin: {"text": "a", "count": 3},
        begin + field(call, "text", f"x {end} y") + ends: {"text": f"x {end} y"},
    }.items():
        answer = read(form, written, tools=TOOLS)
        assert [json.loads(made.arguments) for made in answer.calls] == [made], written
        assert answer.text == "", written


def test_texts_with_markup_stand_in_cdata():
    call = Written("f", {"text": "a <b> & c"})
    assert CDATA + "a <b> & c" + CDATA_END in MINICPM.write([call])
    inner = "x </param> y"
    text = MINICPM.write([Written("f", {"text": inner})])
    assert json.loads(read(MINICPM, text, tools=TOOLS).calls[0].arguments) == {"text": inner}
    bare = text.replace(CDATA, "").replace(CDATA_END, "")
    assert json.loads(read(MINICPM, bare, tools=TOOLS).calls[0].arguments) == {"text": inner}
