"""Are calls that models write wrong read as the right calls, or as text?

    python -m fuzz.crooked_calls [FOLDER] [--calls 100000] [--seed 0] [--show 5]

Writes random calls in every format, and by every chat template of a folder that writes calls;
damages each in one way, a fifth of them in two; cuts the stream anywhere; and looks at what the
parser makes of it: the right calls, text, the beginning of a call that is not whole, or else what
must not be: a call with a value that was not written (`invented`), a name that is gone (`lost`),
other calls than for the text in one piece (`differs`). Shows for each format and damage the share
of calls that are read as they were meant. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json
from tqdm import tqdm

from benchmarks.template_calls import SPECIAL, Call, Found, Read, Turn, read, right, written
from benchmarks.templates import name_of
from fuzz.call_damage import DAMAGES, REWRITING, UNRECOVERABLE, Sample, Write
from fuzz.call_writers import write
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.style import AnswerStyle
from radixlm.text.chat_template import ChatTemplate

WRONG = ("invented", "lost", "differs", "raised")
_CHUNK = 500
_PARTS = (
    *("Bern", "a b", 'say "hi"', "it's", "line\nbreak", "tab\there", "{x: [1]}", "<b>bold</b>"),
    *("Grüße", "日本 🙂", "C:\\dir", "50 %", "x = 1;", "</div>", "[a](b)", "# Title", "true", "7"),
)


class Source(NamedTuple):
    """What writes calls. format: its row in the table."""

    format: str
    style: AnswerStyle
    write: Write


Origin = Path | str  # of a source: a template's file, or a format's name


class Outcome(NamedTuple):
    """What became of one sample. damages: the names of what was done to it."""

    format: str
    damages: tuple[str, ...]
    found: str
    about: str = ""


def source_of(origin: Origin) -> Source:
    """A chat template, or a format, as what writes calls."""
    if isinstance(origin, str):
        style = AnswerStyle.of("", origin, "none" if FORMATS[origin].channels else "qwen3")
        return Source(name_of(style), style, partial(write, origin))
    template = ChatTemplate(origin.read_text(encoding="utf-8"), SPECIAL)
    style = AnswerStyle.found(template)
    return Source(name_of(style), style, partial(_written, template))


def origins(folder: Path | None) -> tuple[list[Origin], list[str]]:
    """A name of every format, and the templates of the folder that write calls,
    one of those that write alike; and the names of those that are left out, since their calls are
    not read right even undamaged.
    """
    left_out = []
    made: dict[object, Origin] = {}
    for name, known in FORMATS.items():
        made.setdefault(known, name)
    turn = random_turn(random.Random(0), 1)
    for path in sorted(folder.glob("*.jinja")) if folder else ():
        source = source_of(path)
        if (said := source.write(turn)) is not None:
            prompt, text = said
            if right(read(source.style, prompt, [text]), turn):
                made.setdefault((source.format, text), path)
            else:
                left_out.append(path.stem)
    return list(made.values()), left_out


def _written(template: ChatTemplate, turn: Turn) -> tuple[str, str] | None:
    said = written(template, turn)
    return None if isinstance(said, str) else (said.prompt, said.text)


def random_turn(draw: random.Random, calls: int) -> Turn:
    """Calls of the tools, with arguments of all kinds."""
    return Turn(tuple(_call(draw) for _ in range(calls)))


def _call(draw: random.Random) -> Call:
    match draw.randrange(4):
        case 0:
            return Call("get_weather", {"city": _text(draw), "days": draw.randrange(100)})
        case 1:
            keys = ("on", "count", "ratio", "list", "tree", "note")
            values: Sequence[Any] = (
                *(draw.random() < 0.5, draw.randrange(-9, 999), draw.choice((0.25, -1.5, 1e3))),
                *(
                    draw.sample(_PARTS, 2),
                    {"a": [1, False], "b": {"c": f"c {draw.choice(_PARTS)}"}},
                ),
                _text(draw),
            )
            chosen = sorted(draw.sample(range(len(keys)), draw.randint(1, len(keys))))
            return Call("configure", {keys[place]: values[place] for place in chosen})
        case _:
            return Call("write_file", {"path": _text(draw), "text": _text(draw)})


def _text(draw: random.Random) -> str:
    return " ".join(draw.sample(_PARTS, draw.randint(1, 4)))


def sample_of(draw: random.Random, source: Source) -> Sample:
    """One or two calls as the source writes them."""
    for calls in (1 if draw.random() < 0.6 else 2, 1):
        turn = random_turn(draw, calls)
        said = source.write(turn)
        if said is not None:
            return Sample(turn, *said, source.write)
    raise ValueError(f"{source.format} does not write {turn}")


_ALONE = frozenset({"cut off", "key twice"})


def damaged(draw: random.Random, sample: Sample, count: int) -> tuple[Sample, tuple[str, ...]]:
    """The sample with so many different damages of those that apply to it."""
    done: list[str] = []
    names = [*DAMAGES]
    draw.shuffle(names)
    for name in names:
        if len(done) == count:
            break
        if done and (name in REWRITING or _ALONE & {name, *done}):
            continue  # from these another damage can not be told apart
        if name.startswith("closing") and any(each.startswith("closing") for each in done):
            continue
        if (made := DAMAGES[name](draw, sample)) is not None:
            sample, done = made, [*done, name]
    return sample, tuple(done)


def outcome(draw: random.Random, style: AnswerStyle, sample: Sample) -> tuple[str, str]:
    """What the parser makes of the sample in pieces, and what to show of it."""
    cuts = sorted(draw.choices(range(len(sample.text) + 1), k=draw.randint(0, 6)))
    ends = zip([0, *cuts], [*cuts, len(sample.text)], strict=True)
    pieces = [sample.text[start:end] for start, end in ends]
    try:
        found = read(style, sample.prompt, pieces, cut=sample.cut)
        whole = read(style, sample.prompt, [sample.text], cut=sample.cut)
    except Exception as error:  # nothing may be raised
        return "raised", repr(error)
    about = f"{sample.text!r}\n    read as {found}"
    if found != whole:
        return "differs", f"{about}\n    in one  {whole}"
    return judged(sample, found), about


def judged(sample: Sample, found: Read) -> str:
    """`right`; `text`, where calls are not read; `begun`, with one that is not whole; `overrun`,
    with one whose value also has what stands after it; `invented`; `lost`.
    """
    missing = [*sample.turn.calls]
    outcomes = set()
    for call in found.calls:
        fits = ((each, _fit(sample, each, call)) for each in missing)
        match = next(((each, fit) for each, fit in fits if fit), None)
        if match is None:
            return "invented"
        missing.remove(match[0])
        outcomes.add(match[1])
    broken = "".join(call.arguments for call in found.calls if not call.whole)
    said = found.text + found.reasoning + broken
    if not sample.cut and not sample.partly and any(call.name not in said for call in missing):
        return "lost"
    order = ("overrun", "begun", "text", "right")
    return min(outcomes | ({"text"} if missing else {"right"}), key=order.index)


def _fit(sample: Sample, meant: Call, found: Found) -> str:
    """How what was found is the call that was meant: `right`, `begun`, `overrun`; or "", not."""
    values = _values(found)
    if found.name != meant.name or not isinstance(values, dict):
        return ""
    complete = values.keys() == meant.arguments.keys()
    if not values.keys() <= meant.arguments.keys() or not (
        complete or sample.partly or not found.whole
    ):
        return ""
    last = None if found.whole or not values else [*values][-1]
    others = [key for key in values if key != last]
    if not all(
        _same(sample, values[key], meant.arguments[key])
        or (key in sample.others and values[key] == sample.others[key])
        for key in others
    ):
        return ""
    if last is None or _begins(sample, values[last], meant.arguments[last]):
        return "right" if found.whole else "begun"
    return "overrun" if _runs_over(values[last], meant.arguments[last]) else ""


def _runs_over(value: Any, meant: Any) -> bool:
    """Whether the last text in a value goes on behind the one that was meant."""
    match value, meant:
        case [*before, last], [*begin, end]:
            return before == begin and _runs_over(last, end)
        case dict(), dict() if value and [*value] == [*meant]:
            *before, last = value
            return all(value[key] == meant[key] for key in before) and _runs_over(
                value[last], meant[last]
            )
    return str(value).startswith(str(meant))


def _values(found: Found) -> Any:
    """The arguments as far as they came; None where they are whole and no JSON."""
    try:
        return json.loads(found.arguments)
    except ValueError:
        if found.whole:
            return None
    try:
        return from_json(found.arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}


def _same(sample: Sample, value: Any, meant: Any) -> bool:
    if _spelled(value) == _spelled(meant):
        return True
    if isinstance(meant, str) and "\ue000" in meant:
        # Of half a pair nothing is a character.
        return value in [meant.replace("\ue000", half) for half in ("", "\ufffd")]
    if not sample.loosely:
        return False
    match value, meant:
        case [*entries], [*others] if len(entries) == len(others):
            return all(map(partial(_same, sample), entries, others))
        case dict(), dict() if value.keys() == meant.keys():
            return all(_same(sample, value[key], meant[key]) for key in value)
    return str(value) == str(meant) or _spelled(value) == meant or value == _spelled(meant)


def _begins(sample: Sample, value: Any, meant: Any) -> bool:
    """Whether the value, which was cut, begins like the one that was meant."""
    if _same(sample, value, meant):
        return True
    match value, meant:
        case str(), _:
            text = meant if isinstance(meant, str) else _spelled(meant)
            return text.replace("\ue000", "\ufffd").startswith(value.rstrip("\ufffd"))
        case [*some], [*all_]:
            return len(some) <= len(all_) and all(
                _begins(sample, one, other) for one, other in zip(some, all_, strict=False)
            )
        case dict(), dict():
            return all(
                key in meant and _begins(sample, each, meant[key]) for key, each in value.items()
            )
    return isinstance(value, int | float) and _spelled(meant).startswith(str(value))


def _spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def fuzz(origin: Origin, seed: int, calls: int) -> list[Outcome]:
    """The outcomes of so many samples of one source."""
    draw, source = random.Random(f"{seed} {origin}"), source_of(origin)
    made = []
    for _ in range(calls):
        clean = sample_of(draw, source)
        sample, names = damaged(draw, clean, 2 if draw.random() < 0.2 else 1)
        found, about = outcome(draw, source.style, sample)
        made.append(Outcome(source.format, names, found, about if found in WRONG else ""))
    return made


def tasks(chosen: Sequence[Origin], calls: int, seed: int) -> Iterator[tuple[Origin, int, int]]:
    """Of each source as many samples, in chunks: the arguments of `fuzz`."""
    share = -(-calls // len(chosen))
    for origin in chosen:
        for start in range(0, share, _CHUNK):
            yield origin, seed * share + start, min(_CHUNK, share - start)


def table(outcomes: Sequence[Outcome]) -> str:
    """For each format and damage, the share of calls that are read as they were meant; %."""
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for each in outcomes:
        if len(each.damages) == 1:
            for row in (each.format, "all"):
                counts[row][each.damages[0]][each.found] += 1
    lines = [f"| | {' | '.join(DAMAGES)} |", "|---" * (len(DAMAGES) + 1) + "|"]
    for name in [*sorted(counts.keys() - {"all"}), "all"]:
        shares = (_share(counts[name][damage]) for damage in DAMAGES)
        lines.append(f"| {name} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _share(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    if not total:
        return "–"
    bad = "!" if any(counts.get(name) for name in WRONG) else ""
    return f"{100 * counts.get('right', 0) / total:.0f}{bad}"


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The counts of all samples; recovered: of those with one damage that can be put right."""
    found = Counter(each.found for each in outcomes)
    single: dict[str, Counter[str]] = {name: Counter() for name in DAMAGES}
    for each in outcomes:
        if len(each.damages) == 1:
            single[each.damages[0]][each.found] += 1
    shares = {
        name: round(counts["right"] / max(counts.total(), 1), 4) for name, counts in single.items()
    }
    together = Counter[str]()
    for name in single.keys() - UNRECOVERABLE:
        together += single[name]
    recovered = together["right"] / max(together.total(), 1)
    return {
        "benchmark": "crooked_calls",
        "calls": len(outcomes),
        "outcomes": dict(found.most_common()),
        "recovered": round(recovered, 4),
        "of": together.total(),
        "by_damage": shares,
        "passed": not any(found[name] for name in WRONG) and recovered >= 0.95,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?", help="of chat templates, *.jinja")
    parser.add_argument("--calls", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=1, help="wrong ones of each kind, default: 1")
    options = parser.parse_args()
    chosen, left_out = origins(options.folder)
    if left_out:
        print(f"read wrong even undamaged: {', '.join(left_out)}")
    work = list(tasks(chosen, options.calls, options.seed))
    with ProcessPoolExecutor() as pool:
        chunks = pool.map(fuzz, *zip(*work, strict=True))
        outcomes = [each for made in tqdm(chunks, total=len(work), disable=None) for each in made]
    shown: Counter[tuple[str, ...]] = Counter()
    for each in outcomes:
        kind = (each.found, each.format, *each.damages)
        if each.found in WRONG and len(each.damages) == 1 and shown[kind] < options.show:
            shown[kind] += 1
            print(f"{each.found}: {each.format}, {' and '.join(each.damages)}: {each.about}")
    print(f"% read as they were meant (!: some are wrong)\n\n{table(outcomes)}\n")
    report = summary(outcomes)
    print(json.dumps(report))
    sys.exit(not report["passed"])


if __name__ == "__main__":
    main()
