"""Documents stay short enough to be read, and their links lead somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.code_size import ROOT

DOCS = ROOT / "docs"
# What is read by those who use it: not the history of what was tried and measured.
GUIDES = [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "adr").glob("*.md"))]
ALL = [*GUIDES, *sorted(DOCS.glob("history/*.md")), *sorted((ROOT / "src").rglob("*.md"))]
ALL += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
MOST_WORDS, MOST_WORDS_README, LONGEST_LINE = 36_800, 1_000, 200
LINK = re.compile(r"\]\(([^)\s]+)\)")
# What scripts write between two comments is as long as what it shows.
GENERATED = re.compile(r"^<!-- (\w+): made by .*?^<!-- /\1 -->$", re.M | re.S)
FILE = re.compile(r"`([\w-]+(?:/[\w-]+)+\.(?:py|yaml))\b")
SCRIPT = re.compile(r"\b((?:benchmarks|fuzz|scripts)\.(?!md\b)[a-z]\w+)\b")
SOURCES = [path.as_posix() for path in sorted((ROOT / "src").rglob("*.py"))]
# A row of the ways through the house: a file, and names in it; another word may stand before it.
WAYS = re.compile(r"^## (?:The way of|A stored).*?^```\n(.*?)^```$", re.M | re.S)
ROW = re.compile(r"^(?:[a-z]+ +| +)(\w+(?:/\w+)+) +(\S+(?:, \S+)*)(?=  |$)", re.M)
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.M | re.S)


def words(paths: list[Path]) -> int:
    texts = (GENERATED.sub("", path.read_text(encoding="utf-8")) for path in paths)
    return sum(len(text.split()) for text in texts)


def anchors(path: Path) -> set[str]:
    """Those that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(LINK, "]", title).lower()) for title in titles]
    return {title.replace(" ", "-") for title in plain}


def dead_links(path: Path) -> Iterator[str]:
    for link in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}: {link}"


def gone(path: Path) -> Iterator[str]:
    """Files and scripts that a page names and that are not there."""
    text = path.read_text(encoding="utf-8")
    for name in FILE.findall(text):
        if not (ROOT / name).exists() and not any(each.endswith(f"/{name}") for each in SOURCES):
            yield name
    for name in SCRIPT.findall(text):
        script = ROOT / name.replace(".", "/")
        if not script.is_dir() and not script.with_suffix(".py").exists():
            yield name


def names_in(path: Path) -> Iterator[str]:
    """Functions and classes of a file, and methods by their class."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name"))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def wrong_rows(text: str) -> Iterator[str]:
    """Rows that name what is not there. `.name` is of the class before it."""
    for way in WAYS.findall(text):
        for line in filter(None, way.splitlines()):
            row = ROW.match(line)
            if not row:
                yield line
                continue
            sources = [path for path in SOURCES if path.endswith(f"/{row[1]}.py")]
            known, owner = {name for path in sources for name in names_in(Path(path))}, ""
            for name in row[2].split(", "):
                owner = owner if name.startswith(".") else name.partition(".")[0]
                if (owner + name if name.startswith(".") else name) not in known:
                    yield f"{row[1]} {name}"


def test_the_ways_lead_through_functions_that_are_there() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert sum(len(way.splitlines()) for way in WAYS.findall(text)) > 50
    assert list(wrong_rows(text)) == []


def test_a_wrong_row_is_found() -> None:
    rows = [
        "in   core/clock  Clock.now, .gone  x",
        "     core/none  x",
        "     core/clock  Clok",
        "what",
    ]
    page = "\n".join(["## The way of one", "", "```", *rows, "```"])
    wrong = ["core/clock .gone", "core/none x", "core/clock Clok", "what"]
    assert list(wrong_rows(f"{page}\n")) == wrong


def test_the_readme_is_short() -> None:
    assert words([ROOT / "README.md"]) <= MOST_WORDS_README


def test_guides_and_decisions_are_short() -> None:
    assert words(GUIDES) <= MOST_WORDS


@pytest.mark.parametrize("path", [ROOT / "README.md", *GUIDES], ids=lambda path: path.name)
def test_lines_are_short(path: Path) -> None:
    lines = GENERATED.sub("", path.read_text(encoding="utf-8")).splitlines()
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    assert list(dead_links(path)) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n[x](#a-b-c) [y](#d) [z](none.md) `[v](w)`\n")
    assert list(dead_links(page)) == [f"{page}: #d", f"{page}: none.md"]


@pytest.mark.parametrize("path", [ROOT / "CONTRIBUTING.md", *GUIDES], ids=lambda path: path.name)
def test_what_is_named_is_there(path: Path) -> None:
    assert list(gone(path)) == []


def test_what_is_gone_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`formats/files.py` `core/filed.py` `scripts/clients.py: x` benchmarks.wires\n")
    assert list(gone(page)) == ["core/filed.py", "benchmarks.wires"]
