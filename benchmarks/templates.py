"""What is made of models' own chat templates: their calls, their thoughts, and all that is said.

    python -m benchmarks.templates FOLDER [--only NAME] [--show] [--docs]

For each template of a folder: which format of calls and thoughts is found for it; whether turns
that the template itself writes (calls with values of all kinds, two and three calls, thoughts) are
read back as what they were made of, whole and in two pieces at each place; and whether every word
of conversations of every kind is found in the prompt that the server makes of them, in order. What
is wrong is printed, with --show next to the text that it is about; --docs puts the table into
docs/tools.md. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tqdm import tqdm

from benchmarks.template_calls import (
    CALLS,
    LEFT_OUT,
    SPECIAL,
    THOUGHTS,
    Read,
    Turn,
    Written,
    differing_cut,
    read,
    right,
    written,
)
from benchmarks.template_chats import CHATS, Verdict, judged
from radixlm.parsers import call_format
from radixlm.parsers.call_format import CallFormat
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.found import BY_ITS_CALL, calls_in
from radixlm.parsers.style import AnswerStyle
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.model_folder import DEMO_MODEL
from radixlm.text.tokenizer import Tokenizer

DOCS = Path(__file__).parent.parent / "docs" / "tools.md"
_RIGHT, _ANOTHER, _TEXT = "right", "taken for another", "text"


@dataclass(frozen=True, slots=True)
class Back:
    """What became of one turn that a template wrote. outcome: right, or what it was taken for."""

    outcome: str
    said: Written
    found: Read
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One template. turns: by the case's name; a text says why the template did not write it."""

    name: str
    calls: str
    thoughts: str
    found: str
    turns: Mapping[str, Back | str]
    chats: Mapping[str, Verdict]

    def outcome(self, cases: Mapping[str, Turn]) -> str | None:
        """Of all the cases that the template writes: the worst; None without any."""
        outcomes = [back.outcome for name in cases if isinstance(back := self.turns[name], Back)]
        order = (_TEXT, _ANOTHER, _RIGHT)
        return min(outcomes, key=order.index, default=None)


def name_of(style: AnswerStyle) -> str:
    """The name of the style's format, without what varies with the template."""
    form = replace(style.calls, described=True)
    named = ((name, replace(other, described=True)) for name, other in FORMATS.items())
    return next(name for name, other in named if other == form)


def read_back(template: ChatTemplate, style: AnswerStyle, turn: Turn, *, cuts: bool) -> Back | str:
    """What the turn becomes, written by the template and read again."""
    said = written(template, turn)
    if isinstance(said, str):
        return said
    found = read(style, said.prompt, [said.text])
    if right(found, turn):
        cut = differing_cut(style, said, found) if cuts else None
        return Back(_RIGHT if cut is None else _ANOTHER, said, found, cut or "")
    if turn.calls and not turn.reasoning:
        as_other = style.calls.described or bool(found.calls)
    else:
        as_other = bool(found.reasoning)
    return Back(_ANOTHER if as_other else _TEXT, said, found)


def row(path: Path, *, cuts: bool) -> Row:
    """All that is known of one template."""
    template = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL)
    style = AnswerStyle.found(template)
    tokenizer = Tokenizer.load(DEMO_MODEL)
    return Row(
        path.stem,
        name_of(style),
        _code(style.thinking.begin.strip()) if style.thinking else "",
        calls_in(template).how,
        {
            name: read_back(template, style, turn, cuts=cuts)
            for name, turn in {**CALLS, **THOUGHTS}.items()
        },
        {name: judged(chat, template, style, tokenizer) for name, chat in CHATS.items()},
    )


def print_wrong(each: Row, *, show: bool) -> None:
    """What is wrong with one template, a line each."""
    for name, back in each.turns.items():
        if isinstance(back, Back) and back.outcome != _RIGHT:
            print(f"{each.name}: {name}: {back.outcome} ({each.calls}) {back.cut}")
            if show:
                print(f"    prompt  …{back.said.prompt[-60:]!r} {back.said.how}")
                print(f"    written {back.said.text!r}\n    read    {back.found}")
        elif isinstance(back, str) and back != LEFT_OUT:
            print(f"{each.name}: {name}: the template does not write it: {back}")
    for name, verdict in each.chats.items():
        if verdict.outcome != "ok":
            print(f"{each.name}: {name}: {verdict.outcome}: {verdict.words}")


def summary(rows: Sequence[Row]) -> dict[str, object]:
    """The counts of all templates."""
    calls = Counter(outcome for each in rows if (outcome := each.outcome(CALLS)))
    thoughts = Counter(outcome for each in rows if (outcome := each.outcome(THOUGHTS)))
    chats = Counter(verdict.outcome for each in rows for verdict in each.chats.values())
    refusals = Counter(
        verdict.words
        for each in rows
        for verdict in each.chats.values()
        if verdict.outcome == "refused"
    )
    left_out = sum(len(verdict.left_out) for each in rows for verdict in each.chats.values())
    return {
        "benchmark": "templates",
        "templates": len(rows),
        "calls": dict(calls),
        "thoughts": dict(thoughts),
        "chats": dict(chats),
        "thoughts_left_out": left_out,
        "refusals": dict(refusals.most_common()),
        "passed": all(not set(found) - {_RIGHT, "ok"} for found in (calls, thoughts, chats)),
    }


def table(rows: Sequence[Row]) -> str:
    """A row for each way of writing calls and thoughts, with the templates that have it.

    What found the format of calls stands there where it was not a call.
    """
    families: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for each in rows:
        family = family_of(each.name)
        by = "" if each.found == BY_ITS_CALL else each.found
        families[each.calls, each.thoughts, by].setdefault(family.lower(), family)
    lines = ["| calls | thoughts | found by | templates |", "|---|---|---|---|"]
    for key, names in sorted(families.items()):
        lines.append(f"| {' | '.join(key)} | {', '.join(sorted(names.values()))} |")
    return "\n".join(lines) + "\n"


def formats() -> str:
    """A row for each format of calls: its names, and how it writes one."""
    names: dict[CallFormat, list[str]] = defaultdict(list)
    for name, form in FORMATS.items():
        names[form].append(f"`{name}`")
    lines = ["| `--tool-call-parser` | a call (⏎: a line break) |", "|---|---|"]
    for form, known in names.items():
        written = form.write([call_format.Written("now", {"zone": "CET", "days": 2})])
        lines.append(f"| {', '.join(known)} | {_code(written)} |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Text as code in a cell of a table."""
    inner = text.replace("\n", "⏎").replace("|", "\\|")
    # A fence of four is in no format; spaces keep it apart from the text's own.
    return f"```` {inner} ````" if "`" in text else f"`{inner}`"


def family_of(name: str) -> str:
    """A template's family, out of its file's name.

    >>> family_of("meta-llama-Llama-3.1-8B-Instruct"), family_of("xin-GLM-4.7-Flash")
    ('Llama-3.1', 'GLM-4.7')
    """
    name = _OWNER.sub("", name)
    return _SIZE.split(name, maxsplit=1)[0]


_OWNER = re.compile(
    r"^(xin|Qwen(?=-Qw)|meta-llama|mistralai|deepseek-ai|google|ibm-granite|microsoft|moonshotai"
    r"|openai|unsloth(-mistral)?|NousResearch|NVIDIA|CohereForAI|HuggingFaceTB|ByteDance|meetkai"
    r"|fireworks-ai|stepfun-ai|llama-cpp)-"
)
_SIZE = re.compile(
    r"-(?:[\d.x]+[bB]\b|A[\d.]+[bB]|\d{4}|chat|instruct|thinking|preview|flash|it\b|sft|dpo)"
    r"|(?<=\d)-(?:medium|large|small)",
    re.IGNORECASE,
)


def put_into_docs(name: str, content: str) -> None:
    """Put a table between its markers."""
    pattern = re.compile(rf"(<!-- {name}:[^>]*-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    made, count = pattern.subn(lambda found: found[1] + content + found[2], DOCS.read_text())
    if count != 1:
        raise SystemExit(f"{DOCS} has {count} parts called {name}, not one")
    DOCS.write_text(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="with *.jinja files")
    parser.add_argument("--only", default="", help="templates whose name has this in it")
    parser.add_argument("--no-cuts", action="store_true", help="read turns whole only")
    parser.add_argument("--show", action="store_true", help="print the texts that are wrong")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/tools.md")
    options = parser.parse_args()
    paths = sorted(path for path in options.folder.glob("*.jinja") if options.only in path.stem)
    work = partial(row, cuts=not options.no_cuts)
    with ProcessPoolExecutor() as pool:
        rows = list(tqdm(pool.map(work, paths), total=len(paths), disable=None))
    for each in rows:
        print_wrong(each, show=options.show)
    print(table(rows))
    if options.docs:
        put_into_docs("templates", table(rows))
        put_into_docs("formats", formats())
    report = summary(rows)
    print(json.dumps(report))
    sys.exit(not report["passed"])


if __name__ == "__main__":
    main()
