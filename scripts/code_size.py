"""Print how big the house is and who imports whom.

    python -m scripts.code_size [--sizes]

--sizes: only the packages, their files and lines, and what their ceilings leave. Lines of code are
lines that are neither blank nor only a comment; docstrings count. The reading of the source tree is
shared with `tests/arch`, which enforces the limits.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TOP = "radixlm"
_PLACE = re.compile(rf"{TOP}(\.\w+)+:\w+")
_IMPORT_BY_NAME = ("import_module", "__import__")
_START = f"{TOP}.cli.start."  # its functions import by name, too


class Function(NamedTuple):
    name: str
    line: int
    lines: int


class OwnImport(NamedTuple):
    """An import of ours. at_top: it is a plain statement of the module, in nothing else."""

    target: str
    line: int
    at_top: bool


@dataclass(frozen=True)
class Module:
    """One source file. name: dotted, the top package first. package: its row in the table of
    imports, `server.http` where there is such a row; None for the top package's `__init__`.
    """

    name: str
    package: str | None
    path: Path
    is_package: bool
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def code_lines(self) -> int:
        skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT}
        skipped |= {tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
        used: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in skipped:
                used.update(range(token.start[0], token.end[0] + 1))
        source = self.text.splitlines()
        return sum(1 for line in used if line <= len(source) and source[line - 1].strip())

    def functions(self) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield Function(node.name, node.lineno, lines)

    @cached_property
    def own_imports(self) -> tuple[OwnImport, ...]:
        """Imports of ours, wherever they stand; `from a import b` names a.b."""
        return tuple(self._own_imports())

    def _own_imports(self) -> Iterator[OwnImport]:
        top_level = {id(node) for node in self.tree.body}
        for node in ast.walk(self.tree):
            for target in self._targets(node):
                if target == TOP or target.startswith(TOP + "."):
                    yield OwnImport(target, getattr(node, "lineno", 0), id(node) in top_level)

    @cached_property
    def lazy_imports(self) -> tuple[OwnImport, ...]:
        """Imports of ours by name: texts like `radixlm.module:name`, with a dot for the colon; and
        calls such as `import_module`, as they are written where their argument is no text.
        """
        return tuple(self._lazy_imports())

    def _lazy_imports(self) -> Iterator[OwnImport]:
        own = (item.target for item in self.own_imports)
        functions = {*_IMPORT_BY_NAME, *(name.removeprefix(_START) for name in own)}
        for node in ast.walk(self.tree):
            target = None
            if isinstance(node, ast.Constant) and _PLACE.fullmatch(str(node.value)):
                target = str(node.value).replace(":", ".")
            elif isinstance(node, ast.Call) and node.args and _called(node) in functions:
                target = _imported(node)
            if target is not None:
                yield OwnImport(target, getattr(node, "lineno", 0), at_top=False)

    def imports_to_judge(self) -> Iterator[OwnImport]:
        """All imports whose module is known: the table says whether they may be."""
        yield from self.own_imports
        yield from (item for item in self.lazy_imports if item.target.startswith(TOP + "."))

    def _targets(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if not isinstance(node, ast.ImportFrom):
            return []
        base = node.module or ""
        if node.level:
            above = self.name.split(".")
            above = above[: len(above) - node.level + self.is_package]
            base = ".".join([*above, base] if base else above)
        return [f"{base}.{alias.name}" for alias in node.names]


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def _imported(call: ast.Call) -> str | None:
    """What a call imports by name; None for another library, and for texts found as such."""
    argument = call.args[0]
    if not isinstance(argument, ast.Constant):
        return ast.unparse(call)
    text = str(argument.value)
    ours = text.partition(".")[0] in (TOP, "")  # or relative
    return text if ours and not _PLACE.fullmatch(text) else None


@dataclass(frozen=True)
class House:
    """All modules below src/radixlm, the table of what may import what, and how many lines of code
    each package may have.
    """

    modules: Mapping[str, Module]
    may_import: Mapping[str, list[str]]
    line_ceilings: Mapping[str, int]

    @classmethod
    def read(cls, root: Path) -> House:
        settings: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())
        tables = settings["tool"]["radixlm"]
        may_import = tables["may_import"]
        source = root / "src" / TOP
        modules = {}
        for path in sorted(source.rglob("*.py")):
            parts = [TOP, *path.relative_to(source).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            package = _row_of(parts[1:-1] or parts[1:], may_import)
            modules[name] = Module(
                name, package, path.relative_to(root), is_package, path.read_text()
            )
        return cls(modules, may_import, tables["line_ceilings"])

    def allows(self, package: str, other: str) -> bool:
        """Whether one may import the other: `server` allows none of the floors `server.http` ..."""
        return other in (package, *self.may_import.get(package, []))

    def packages(self) -> list[str]:
        """The rows that have source, in the table's order, then those it does not know."""
        found = {module.package for module in self.modules.values()} - {None}
        known = [name for name in self.may_import if name in found]
        return known + sorted(str(name) for name in found if name not in self.may_import)

    def parts(self) -> dict[str, list[Module]]:
        """Every module once: by package, and the top package's own as `__init__`."""
        named = {name: self.of_package(name) for name in self.packages()}
        return {**named, "__init__": self.of_package(None)}

    def of_package(self, package: str | None) -> list[Module]:
        return [module for module in self.modules.values() if module.package == package]

    def module_of(self, target: str) -> str | None:
        """The module that holds the imported name `target`; None when there is no such module."""
        for name in (target, target.rpartition(".")[0]):
            if name in self.modules:
                return name
        return None

    def does_import(self, package: str) -> set[str]:
        """The packages that a package's modules import, at once or later, itself left out."""
        found = set()
        for module in self.of_package(package):
            for target in (item.target for item in module.imports_to_judge()):
                other = self.modules.get(self.module_of(target) or "")
                found.add(target if other is None else other.package or TOP)
        return found - {package}


def _row_of(folders: list[str], rows: Collection[str]) -> str | None:
    two = ".".join(folders[:2])
    if two in rows:
        return two
    return folders[0] if folders != ["__init__"] else None


def table(header: list[str], rows: list[list[str]]) -> str:
    """A plain text table; columns of numbers stand right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            cell.rjust(width) if cell.lstrip("-")[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def size_table(house: House) -> str:
    """Of each package: files, lines of code, its ceiling and what that leaves, the lines of its
    longest file and function.
    """
    rows = [_size_row(name, modules, house) for name, modules in house.parts().items()]
    rows.append(_size_row("total", list(house.modules.values()), house))
    header = ["package", "files", "lines of code", "ceiling", "left", "longest file", "function"]
    return table(header, rows)


def _size_row(name: str, modules: list[Module], house: House) -> list[str]:
    code = sum(module.code_lines for module in modules)
    ceilings = house.line_ceilings
    most = sum(ceilings.values()) if name == "total" else ceilings.get(name, 0)
    file = max((module.lines for module in modules), default=0)
    function = max((f.lines for module in modules for f in module.functions()), default=0)
    numbers = (len(modules), code, most, most - code, file, function)
    return [name, *(f"{number:,}" for number in numbers)]


def longest(house: House) -> str:
    """The longest file and the longest function, by all their lines."""
    file = max(house.modules.values(), key=lambda module: module.lines)
    functions = [(f, module) for module in house.modules.values() for f in module.functions()]
    lines = [f"longest file      {file.path}: {file.lines} lines"]
    if functions:
        function, module = max(functions, key=lambda pair: pair[0].lines)
        place = f"{module.path}:{function.line} {function.name}"
        lines.append(f"longest function  {place}: {function.lines} lines")
    return "\n".join(lines)


def arch_rows(house: House) -> list[list[str]]:
    """Each package's imports; what its row does not allow is marked."""
    rows = []
    for name in house.packages():
        does = house.does_import(name)
        known = [other for other in house.packages() if other in does]
        marked = [each if house.allows(name, each) else f"{each} (!)" for each in known]
        rows.append([name, ", ".join(marked + sorted(does - set(known))) or "-"])
    return rows


def word_rows(root: Path) -> list[list[str]]:
    """Words of what people read, in the README, the guides and the decisions."""
    adrs = sorted((root / "docs" / "adr").glob("*.md"))
    pages = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    pages += [*sorted((root / "docs").glob("*.md")), *sorted((root / "src").rglob("*.md"))]
    counts = [(str(page.relative_to(root)), _words(page)) for page in pages]
    counts.append((f"docs/adr ({len(adrs)})", sum(map(_words, adrs))))
    counts.append(("total", sum(count for _, count in counts)))
    return [[name, f"{count:,}"] for name, count in counts]


def _words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", action="store_true", help="only the sizes of packages")
    options = parser.parse_args()
    house = House.read(ROOT)
    parts = [size_table(house), longest(house)]
    if not options.sizes:
        parts += [table(["package", "imports"], arch_rows(house))]
        parts += [table(["page", "words"], word_rows(ROOT))]
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
