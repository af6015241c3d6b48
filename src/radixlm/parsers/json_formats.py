"""The formats that write a call as JSON, `{"name": …, "arguments": {…}}`: one parser each."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from radixlm.parsers.steps import Steps
from radixlm.parsers.tool_calls import CallFormat, CallParser

# As Hermes and Mistral call it, and as Llama does.
_ARGUMENTS = ("arguments", "parameters")
# Half of a surrogate pair is no character, so no answer can hold it.
_SURROGATE = re.compile("[\ud800-\udfff]")
_INSIDE = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPED = '"\\/bfnrt'
_DIGITS = "0123456789"
_HEX = _DIGITS + "abcdefABCDEF"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_CLOSES = {"{": "}", "[": "]"}


_FENCE = "```"
HERMES_BEGIN = "<tool_call>"
HERMES_END = "</tool_call>"
LLAMA_BEGIN = "<|python_tag|>"
_SEPARATOR = ";"
MISTRAL_BEGIN = "[TOOL_CALLS]"
MISTRAL_ARGUMENTS = "[ARGS]"
_CALL_ID = "[CALL_ID]"


class JsonCallParser(CallParser):
    """Reads a call's fields in any order, passes over those it does not know, and gives the
    arguments away as the model writes them.

    The JSON is read here, character by character: libraries for partial JSON (jiter) do not say
    where an object ends or goes wrong, and read all of it again with each piece.
    """

    # Of the call that is being read: from where its arguments are to be sent, where they end, up
    # to where its text is complete, and its arguments, where they were written as a string.
    _unsent: int | None = None
    _end: int | None = None
    _known = 0
    _spelled: str | None = None

    def _read_call(self) -> Steps[bool]:
        self._unsent = self._end = self._spelled = None
        read = self._object() if self._name is None else self._only_arguments()
        whole = yield from read
        cut = self._cut and self._at == len(self._text)
        if not whole and self._end is not None and self._name is not None:
            # Its last brace is missing, as it happens to small models.
            whole, self._at = True, self._known
        self._paused()
        if self._name is not None and self._unsent is None and (whole or cut):
            self._more(self._spelled or ("{}" if whole else ""))
        self._unsent = None
        return whole

    def _paused(self) -> None:
        """Send what has come of the arguments."""
        if self._unsent is not None and self._name is not None:
            end = self._at if self._end is None else self._end
            self._more(self._text[self._unsent : end])
            self._unsent = max(self._unsent, end)

    def _only_arguments(self) -> Steps[bool]:
        yield from self._json_spaces()
        if (yield from self._peek()) != "{":
            return False
        self._unsent = self._at
        return (yield from self._value())

    def _object(self) -> Steps[bool]:
        """Read the call; False when its JSON is broken, or it is no call of a known tool."""
        yield from self._json_spaces()
        if not (yield from self._one_of("{")):
            return False
        while True:
            yield from self._json_spaces()
            start = self._at
            if not (yield from self._key()):
                return False
            key = json.loads(self._text[start : self._at - 1])
            yield from self._json_spaces()
            if not (yield from self._field(key)):
                return False
            yield from self._json_spaces()
            if (yield from self._one_of("}")):
                return self._name is not None
            if not (yield from self._one_of(",")):
                return False

    def _field(self, key: str) -> Steps[bool]:
        """Read the value of one of the call's fields."""
        start, first = self._at, (yield from self._peek())
        if key == "name":
            if first != '"' or self._name is not None or not (yield from self._value()):
                return False
            name = json.loads(self._text[start : self._at])
            self._name, self._known = (name if name in self._tools else None), self._at
            return self._name is not None
        if key not in _ARGUMENTS:
            return (yield from self._value())
        if self._unsent is not None or self._spelled is not None or first not in ("{", '"', "n"):
            return False
        if first == "{":
            self._unsent = start
        if not (yield from self._value()):
            return False
        if first == "{":
            self._end = self._known = self._at
            return True
        # Some models write the arguments as a string, or null.
        self._spelled = json.loads(self._text[start : self._at]) or "{}"
        fits = is_object(self._spelled) and not _SURROGATE.search(self._spelled)
        self._at -= not fits
        return fits

    def _value(self) -> Steps[bool]:
        """Read a JSON value; where it is wrong, `_at` is at the first wrong character."""
        closes: list[str] = []  # of the objects and arrays that are open
        while True:
            yield from self._json_spaces()
            opened = yield from self._peek()
            if opened in _CLOSES:
                self._at += 1
                yield from self._json_spaces()
                if not (yield from self._one_of(_CLOSES[opened])):
                    closes.append(_CLOSES[opened])
                    if opened == "{" and not (yield from self._key()):
                        return False
                    continue
            elif not (yield from self._scalar(opened)):
                return False
            while closes:
                yield from self._json_spaces()
                if (yield from self._one_of(",")):
                    if closes[-1] == "}" and not (yield from self._key()):
                        return False
                    break
                if not (yield from self._one_of(closes[-1])):
                    return False
                closes.pop()
            else:
                return True

    def _key(self) -> Steps[bool]:
        """Read a key and its colon."""
        yield from self._json_spaces()
        if (yield from self._peek()) != '"' or not (yield from self._string()):
            return False
        yield from self._json_spaces()
        return (yield from self._one_of(":"))

    def _scalar(self, first: str) -> Steps[bool]:
        if first == '"':
            return (yield from self._string())
        if first not in _LITERALS:
            return (yield from self._number())
        for letter in _LITERALS[first]:
            if not (yield from self._one_of(letter)):
                return False
        return True

    def _string(self) -> Steps[bool]:
        self._at += 1
        while True:
            if found := _INSIDE.match(self._text, self._at):
                self._at = found.end()
            character = yield from self._peek()
            if character == '"':
                self._at += 1
                return True
            if character and _INSIDE.fullmatch(character):
                continue
            if not (yield from self._one_of("\\")):
                return False
            if (yield from self._one_of("u")):
                for _ in range(4):
                    if not (yield from self._one_of(_HEX)):
                        return False
            elif not (yield from self._one_of(_ESCAPED)):
                return False

    def _number(self) -> Steps[bool]:
        yield from self._one_of("-")
        if not (yield from self._one_of("0")) and not (
            yield from self._while(_DIGITS.__contains__)
        ):
            return False
        if (yield from self._one_of(".")) and not (yield from self._while(_DIGITS.__contains__)):
            return False
        if (yield from self._one_of("eE")):
            yield from self._one_of("+-")
            return bool((yield from self._while(_DIGITS.__contains__)))
        return True

    def _json_spaces(self) -> Steps[str]:
        return self._while(" \t\n\r".__contains__)

    def _one_of(self, characters: str) -> Steps[bool]:
        """Read one character if it is one of these."""
        found = yield from self._peek()
        if not found or found not in characters:
            return False
        self._at += 1
        return True


def is_object(text: str) -> bool:
    """Whether `text` is a JSON object, and nothing else."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        json.loads(text, parse_constant=refuse, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return text[0] == "{" and text[-1] == "}"


class JsonParser(JsonCallParser):
    """The answer begins with `{"name": "f", "arguments": {}}`, or several one below the other.

    They may be a list, or stand in a fence, as models like to write it.
    """

    def _run(self) -> Steps[None]:
        yield from self._skip_spaces()
        fenced = (yield from self._skip(_FENCE + "json")) or (yield from self._skip(_FENCE))
        yield from self._skip_spaces()
        if (yield from self._skip("[")):
            called = yield from self._calls(",")
            if called:
                yield from self._closed_by("]")
        else:
            while called := (yield from self._call()):  # one below the other
                yield from self._skip_spaces()
                if not self._may_call or (yield from self._peek()) != "{":
                    break
        if called and fenced:
            yield from self._closed_by(_FENCE)
        yield from self._rest()


# For models that were taught no format of their own.
JSON = CallFormat(
    parser=JsonParser, join="\n", never_begins=r"\s*(```(json)?\s*)?(\[\s*)?\{", described=False
)


class HermesParser(JsonCallParser):
    """`<tool_call>{"name": "f", "arguments": {}}</tool_call>`, any number, with text around.

    Source: https://github.com/NousResearch/Hermes-Function-Calling
    """

    def _run(self) -> Steps[None]:
        return self._tagged_calls(HERMES_BEGIN, HERMES_END)


HERMES = CallFormat(
    parser=HermesParser,
    begin=HERMES_BEGIN,
    opens="\n",
    closes="\n",
    end=HERMES_END,
    again="\n",
    markers=(HERMES_BEGIN, HERMES_END),
)


class LlamaParser(JsonCallParser):
    """The answer begins with `{"name": "f", "parameters": {}}`, or has it after <|python_tag|>.

    Further calls follow after a semicolon.
    Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/
    """

    def _run(self) -> Steps[None]:
        yield from self._skip_spaces()
        if (yield from self._peek()) == "{":
            yield from self._calls(_SEPARATOR)
        while self._may_call and (yield from self._until(LLAMA_BEGIN)):
            yield from self._calls(_SEPARATOR)
        yield from self._rest()


LLAMA = CallFormat(
    parser=LlamaParser,
    key="parameters",
    join=_SEPARATOR + " ",
    never_begins=r"(\s*\{|(?s:.*)<\|python_tag\|>)",
    markers=(LLAMA_BEGIN,),
)


class MistralParser(JsonCallParser):
    """`[TOOL_CALLS] [{"name": "f", "arguments": {}}, …]`, or, since tokenizer version 11,
    `[TOOL_CALLS]f[ARGS]{}` once for each call.

    Source: https://docs.mistral.ai/guides/tokenization/
    """

    def _run(self) -> Steps[None]:
        while self._may_call and (yield from self._until(MISTRAL_BEGIN)):
            yield from self._skip_spaces()
            if (yield from self._skip("[")):
                if (yield from self._calls(",")):
                    yield from self._closed_by("]")
            else:
                yield from self._named_call()
        yield from self._rest()

    def _named_call(self) -> Steps[None]:
        name = yield from self._word()
        if (yield from self._skip(_CALL_ID)):
            yield from self._word()
        yield from self._skip(MISTRAL_ARGUMENTS)
        if name in self._tools:
            yield from self._call(name)
        else:
            self._give(self._at)


# Mistral's templates take only ids of nine letters or digits.
MISTRAL = CallFormat(
    parser=MistralParser,
    begin=MISTRAL_BEGIN,
    opens=" [",
    join=", ",
    closes="]",
    markers=(MISTRAL_BEGIN,),
    id_prefix="",
    id_length=9,
)
MISTRAL_NAMED = replace(
    MISTRAL,
    opens="",
    join=None,
    closes="",
    names=MISTRAL_ARGUMENTS,
    again="",
    markers=(MISTRAL_BEGIN, MISTRAL_ARGUMENTS, _CALL_ID),
)
