"""Grammars are compiled once, refused with their field, and never hold anybody up for long."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radixlm.core.errors import (
    EngineDeadError,
    InvalidRequestError,
    NoTrialError,
    QueueFullError,
)
from radixlm.core.grammar import Grammar
from radixlm.structured_output import Compiler
from radixlm.structured_output import compiler as compiling
from radixlm.structured_output.grammar_source import MAX_GBNF_LENGTH, GrammarError
from radixlm.structured_output.matcher import Table
from radixlm.structured_output.trial import Trial, Tried
from radixlm.text.tokenizer import Tokenizer
from tests.engines import byte_tokenizer


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler(byte_tokenizer(), vocab_size=256, eos_ids=(0,))
    yield made
    made.close()


def _schema(**schema: object) -> Grammar:
    return Grammar.json_schema(schema, param="the field")


def _chain(length: int) -> str:
    """Rules that each name the next one."""
    return "\n".join(
        ["start: a0", *(f'a{i}: "x" a{i + 1}' for i in range(length)), f'a{length}: "y"']
    )


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.regex("("),
        Grammar.regex(r"(a)\1"),
        Grammar.regex("(?=a)a"),
        Grammar.regex(r"[^\s\S]"),
        Grammar.regex("(" * 50_000),
        Grammar.json_schema("{"),
        Grammar.json_schema("5"),
        Grammar.json_schema("false"),
        _schema(type="strin"),
        _schema(properties=5),
        _schema(type="integer", minimum=5, maximum=3),
        _schema(type="object", properties={"a": False}, required=["a"]),
        _schema(allOf=[{"type": "string"}, {"type": "integer"}]),
        _schema(**{"not": {"type": "string"}}),
        _schema(type="array", uniqueItems=True),
        _schema(type="string", format="unheard of"),
        _schema(**{"$ref": "#"}),
        _schema(**{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
        _schema(**{"$ref": "#/$defs/missing"}),
        _schema(**{"$ref": "https://example.com/schema.json"}),
        _schema(type="object", properties={"a": {"$ref": "#"}}, required=["a"]),
        Grammar.json_schema('{"items":' * 5_000 + "{}" + "}" * 5_000),
        Grammar.lark("start: missing"),
        Grammar.lark('start: "a" start'),
        Grammar.lark("start: <|no_such_token|>"),
        Grammar.lark("start: " + "(" * 5_000 + '"a"' + ")" * 5_000),
        Grammar.lark("root = 5"),
        Grammar.lark('root ::= "a"\n' + 'b ::= "b"\n' * (MAX_GBNF_LENGTH // 8)),
    ],
)
def test_what_no_answer_can_follow_is_refused_with_its_field(
    compiler: Compiler, grammar: Grammar
) -> None:
    with pytest.raises(InvalidRequestError, match="can not be followed: ") as caught:
        compiler.compile(grammar)
    assert caught.value.param == grammar.param
    assert len(str(caught.value)) < 600


def test_a_reason_says_what_is_wrong(compiler: Compiler) -> None:
    with pytest.raises(InvalidRequestError, match="uniqueItems"):
        compiler.compile(_schema(type="array", uniqueItems=True))
    with pytest.raises(InvalidRequestError, match=r"minimum \(5\) is greater"):
        compiler.compile(_schema(type="integer", minimum=5, maximum=3))
    with pytest.raises(InvalidRequestError, match="no answer that ends"):
        compiler.compile(Grammar.regex(r"[^\s\S]"))


@pytest.mark.parametrize(
    "grammar",
    [
        # Seconds, and hundreds of megabytes; llguidance does not bound it.
        _schema(type="integer", multipleOf=999_983),
        # Hours.
        pytest.param(
            _schema(
                allOf=[
                    {"type": "string", "pattern": f"[a-z]{{{i},}}(x|y)*{i}"} for i in range(1, 60)
                ]
            ),
            marks=pytest.mark.slow,
        ),
        # Overflows the stack of whoever compiles it.
        Grammar.lark(_chain(3_500)),
        _schema(
            **{
                "$ref": "#/$defs/0",
                "$defs": {
                    **{str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(2_000)},
                    "2000": {"type": "integer"},
                },
            }
        ),
    ],
    ids=["slow", "endless", "deep lark", "deep schema"],
)
def test_what_takes_too_long_or_crashes_does_so_elsewhere(grammar: Grammar) -> None:
    trial = Trial(Table.of(byte_tokenizer(), 256, (0,)), seconds=0.5)
    with pytest.raises(GrammarError, match=r"more than 0\.5 s"):
        trial.check(grammar)
    trial.check(Grammar.regex("a"))  # with a new process
    trial.close()


def test_a_grammar_is_compiled_once(compiler: Compiler) -> None:
    one = compiler.compile(Grammar.regex("once", param="one field"))
    assert compiler.compile(Grammar.regex("once", param="another")) is one
    assert compiler.compile(Grammar.lark('start: "once"')) is not one


@pytest.mark.parametrize(("bound", "most"), [("MAX_KEPT", 4), ("MAX_KEPT_CHARACTERS", 20)])
def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    monkeypatch.setattr(compiling, bound, most)
    compiler = Compiler(byte_tokenizer(), vocab_size=256, eos_ids=())
    grammars = [Grammar.regex(f"kept{index}") for index in range(5)]
    made = [compiler.compile(grammar) for grammar in grammars]
    again = [compiler.compile(grammar) for grammar in grammars[::-1]][::-1]
    compiler.close()
    assert [one is two for one, two in zip(made, again, strict=True)] == [False] + [True] * 4


class Trials:
    """Of a compiler: they wait until they may go on. order: those that were tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        check = Trial.check

        def slowly(trial: Trial, grammar: Grammar) -> Tried:
            self.begun.set()
            self.go_on.wait(60)
            self.order.append(grammar.text)
            return check(trial, grammar)

        monkeypatch.setattr(Trial, "check", slowly)


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    return Trials(monkeypatch)


@pytest.fixture
def made() -> Iterator[Compiler]:
    compiler = Compiler(byte_tokenizer(), vocab_size=256, eos_ids=())
    yield compiler
    compiler.close()


@pytest.mark.parametrize(
    ("waiting", "says"),
    [({"a": 2, "b": 1}, "3 grammars .*, 0 of them yours"), ({"me": 2}, "2 .*, 2 of them yours")],
)
def test_grammars_that_wait_are_bounded(
    made: Compiler,
    trials: Trials,
    monkeypatch: pytest.MonkeyPatch,
    waiting: dict[str, int],
    says: str,
) -> None:
    """Altogether, and each tenant's: its grammars leave room for another's."""
    monkeypatch.setattr(compiling, "MAX_WAITING", 3)
    monkeypatch.setattr(compiling, "MAX_WAITING_OF_TENANT", 2)
    accepted = [
        made.submit(Grammar.regex(f"{tenant}{index}"), tenant)
        for tenant, count in waiting.items()
        for index in range(count)
    ]
    with pytest.raises(QueueFullError, match=says):
        made.submit(Grammar.regex("one too many"), "me")
    if "me" in waiting:
        accepted.append(made.submit(Grammar.regex("another's"), "b"))
    trials.go_on.set()
    for future in accepted:
        future.result(60)
    made.submit(Grammar.regex("one too many"), "me").result(60)


def test_tenants_take_turns(made: Compiler, trials: Trials) -> None:
    waiting = [made.submit(Grammar.regex("a0"), "a")]
    trials.begun.wait(60)
    waiting += [made.submit(Grammar.regex(f"a{i}"), "a") for i in range(1, 4)]
    waiting += [made.submit(Grammar.regex(f"b{i}"), "b") for i in range(2)]
    trials.go_on.set()
    for future in waiting:
        future.result(60)
    assert trials.order == ["a0", "a1", "b0", "a2", "b1", "a3"]


def test_closing_gives_up_what_waits(made: Compiler, trials: Trials) -> None:
    first, second = (made.submit(Grammar.regex(text)) for text in ("first", "second"))
    second.add_done_callback(lambda _: trials.go_on.set())
    trials.begun.wait(60)
    made.close()
    assert first.done()
    assert second.cancelled()


def test_a_process_that_can_not_start_is_not_the_grammar_s_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = Trial(Table.of(byte_tokenizer(), 256, (0,)))
    for program in ("/nowhere/at/all", "/bin/false"):
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", program)
            with pytest.raises(NoTrialError, match="did not start"):
                trial.check(Grammar.regex("a"))
    trial.check(Grammar.regex("a"))
    trial.close()


def test_nothing_is_compiled_after_closing(made: Compiler) -> None:
    before = threading.active_count()
    made.close()
    with pytest.raises(EngineDeadError, match="shut down"):
        made.submit(Grammar.regex("a"))
    assert threading.active_count() == before


def test_after_closing_nothing_is_left(made: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    before = threading.active_count()
    made.compile(Grammar.regex("a"))
    [process] = processes
    assert process.poll() is None
    made.close()
    assert process.returncode is not None
    assert threading.active_count() == before


def test_a_schema_of_everything(compiler: Compiler) -> None:
    matcher = compiler.compile(Grammar.json_schema(True)).matcher()
    text = json.dumps({"a": [1, None, "b"]})
    assert matcher.accept(byte_tokenizer().encode(text).tolist())
    assert matcher.complete


def test_gbnf_is_taken_too(compiler: Compiler) -> None:
    matcher = compiler.compile(Grammar.lark('root ::= "y" "es"')).matcher()
    assert byte_tokenizer().decode(matcher.forced()) == "yes"


def test_a_model_without_an_end_of_sequence_ends_where_nothing_can_follow() -> None:
    compiler = Compiler(byte_tokenizer(), vocab_size=256, eos_ids=())
    matcher = compiler.compile(Grammar.regex("ab?")).matcher()
    assert matcher.accept(byte_tokenizer().encode("a").tolist())
    assert not matcher.complete
    assert matcher.accept(byte_tokenizer().encode("b").tolist())
    assert matcher.complete
    compiler.close()


def test_special_tokens_are_no_text() -> None:
    """What spells one is cut as text, else a forced answer would hold the end of sequence."""
    demo = Path(__file__).parents[3] / "src" / "radixlm" / "demo_model"
    tokenizer = Tokenizer.load(demo)
    [special, *_] = sorted(tokenizer.special_ids)
    spelled = tokenizer.spelling(special) or ""
    compiler = Compiler(tokenizer, vocab_size=tokenizer.vocab_size, eos_ids=(special,))
    matcher = compiler.compile(Grammar.json_schema({"const": f"a{spelled}b"})).matcher()
    forced = matcher.forced()
    assert not tokenizer.special_ids & set(forced)
    assert tokenizer.decode(forced) == f'"a{spelled}b"'
    assert matcher.accept(forced)
    assert matcher.complete
    compiler.close()
