"""Answers in channels, as gpt-oss writes them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import llguidance
import pytest

from radixlm.parsers import Answered, ToolCall
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.harmony import HARMONY, MARKERS, HarmonyReader
from radixlm.parsers.one_call import Offered
from radixlm.parsers.style import AnswerStyle
from radixlm.parsers.tools import Calling, Tool, ToolUse
from radixlm.text.tokenizer import Tokenizer
from tests import chat_templates
from tests.text_samples import byte_level

TOOLS = {"get_weather": {}, "now": {}}
THOUGHT = "<|channel|>analysis<|message|>Say hi.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Hi!"
WEATHER = '{"city": "Bern"}'


def calling(name: str, arguments: str = WEATHER) -> str:
    to = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
    return f"{to}<|message|>{arguments}<|call|>"


def new_ids() -> Callable[[], str]:
    numbers = count()
    return lambda: f"id{next(numbers)}"


def read(text: str, *, cut: bool = False) -> Answered:
    """The answer, which must be the same however it comes."""
    whole, pieces = (
        HarmonyReader(Offered(TOOLS), new_ids()),
        HarmonyReader(Offered(TOOLS), new_ids()),
    )
    answer = Answered().add([*whole.push(text), *whole.flush(cut=cut)])
    by_character = Answered()
    for character in text:
        by_character.add(pieces.push(character))
    assert by_character.add(pieces.flush(cut=cut)) == answer
    return answer


@pytest.mark.parametrize(
    ("written", "text", "reasoning"),
    [
        (THOUGHT + FINAL, "Hi!", "Say hi."),
        (THOUGHT + FINAL + "<|return|>", "Hi!", "Say hi."),
        (FINAL, "Hi!", ""),
        ("<|channel|>analysis<|message|>Hm", "", "Hm"),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + FINAL,
            "I look.Hi!",
            "",
        ),
        (THOUGHT + "<|channel|>fin", "", "Say hi."),
        ("Hi!", "Hi!", ""),
        ("a <|message|> b", "a <|message|> b", ""),
        ("x" * 500, "x" * 500, ""),
        ("", "", ""),
    ],
)
def test_thoughts_and_answers_are_apart(written: str, text: str, reasoning: str) -> None:
    answer = read(written)
    assert (answer.text, answer.reasoning, answer.calls) == (text, reasoning, [])


def test_calls() -> None:
    answer = read(THOUGHT + calling("get_weather"))
    assert answer.calls == [ToolCall("id0", "get_weather", WEATHER)]
    assert (answer.text, answer.reasoning) == ("", "Say hi.")
    two = read(calling("now", "{}") + "<|start|>assistant" + calling("get_weather"))
    assert [call.name for call in two.calls] == ["now", "get_weather"]
    old = "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
    assert read(old).calls == [ToolCall("id0", "now", "{}")]


def test_recipients_and_bodies_may_be_bare() -> None:
    bare = "<|channel|>commentary to=now<|message|><|call|>"
    assert read(bare).calls == [ToolCall("id0", "now", "{}")]
    assert read(calling("now", "")).calls == [ToolCall("id0", "now", "{}")]
    assert read(calling("rm")).calls == [ToolCall("id0", "rm", WEATHER)]


def test_what_calls_nothing_is_text() -> None:
    nobody = calling("rm").replace("functions.", "")
    assert (read(nobody).calls, read(nobody).text) == ([], WEATHER)
    assert read(calling("now", "soon")).text == "soon"


def test_a_call_that_was_cut() -> None:
    cut = read(calling("get_weather").partition("Bern")[0], cut=True)
    assert cut.calls == [ToolCall("id0", "get_weather", '{"city": "')]


def test_a_template_with_channels_tells() -> None:
    for template in (
        chat_templates.HARMONY,
        "<|start|>assistant<|channel|>final<|message|>{{ tools }}",
    ):
        assert AnswerStyle.of(template).calls == HARMONY == FORMATS["gpt-oss"]
    style = AnswerStyle.of(chat_templates.HARMONY)
    parser = style.parser(ToolUse(), "")
    assert Answered().add([*parser.push(THOUGHT + FINAL), *parser.flush()]).reasoning == "Say hi."


def test_markers_always_show() -> None:
    backend = byte_level()
    backend.add_special_tokens(["<|channel|>", "<|message|>"])
    tokenizer = Tokenizer(backend, {})
    wanted = {tokenizer.token_id(text) for text in ("<|channel|>", "<|message|>")}
    assert AnswerStyle(HARMONY).shown(ToolUse(), tokenizer) >= wanted


class _Vocabulary:
    """A tokenizer as llguidance takes one; answers end with another token than messages."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id, self.bos_token_id = 0, None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: object) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError
        return []


NOW = calling("now", "{}").removesuffix("<|call|>")
WRONG = calling("now", "[]").removesuffix("<|call|>")


@pytest.mark.parametrize("special", [(), MARKERS], ids=["text", "special"])
@pytest.mark.parametrize(
    ("calling_", "allowed", "refused"),
    [
        (Calling.REQUIRED, [NOW, THOUGHT + NOW], [FINAL, "x", WRONG]),
        (Calling.AUTO, [NOW, FINAL, THOUGHT + FINAL], ["x", WRONG]),
    ],
)
def test_grammars_have_channels(
    calling_: Calling, allowed: list[str], refused: list[str], special: tuple[str, ...]
) -> None:
    backend = byte_level()
    backend.add_special_tokens(list(special))
    tokenizer = Tokenizer(backend, {})
    use = ToolUse((Tool("now", {"type": "object"}, strict=True),), calling_)
    grammar = AnswerStyle(HARMONY).grammar(use, "", tokenizer)
    assert grammar is not None
    wrapped = llguidance.TokenizerWrapper(_Vocabulary(tokenizer))
    made = llguidance.LLTokenizer(wrapped, n_vocab=tokenizer.vocab_size)
    for text in (*allowed, *refused):
        ids = tokenizer.encode(text, add_special_tokens=False).tolist()
        matcher = llguidance.LLMatcher(made, grammar.text, log_level=0)
        fits = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert fits == (text in allowed), text
