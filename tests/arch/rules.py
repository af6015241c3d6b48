"""The rules of the house. Each takes a House and yields what breaks it, one line per place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from scripts.code_size import TOP, House, Module

MAX_FILE_LINES = 400
# One state machine, whose sums change together in every transition.
LONGER_FILES = {"radixlm.cache.radix.tree": 550}
MAX_FUNCTION_LINES = 60
# A future may be cancelled at any moment, so only this file completes one.
COMPLETES_FUTURES = "radixlm.core.futures"
# What nobody says, or says otherwise: `after`, `which hold`, `depends on`, `has no`.
_NOT_PLAIN = re.compile(
    r"\b(told|tells? of|is behind|whoever|hangs? on|is none of|so many|such as have|who looks)\b"
)

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NO_NOUN = frozenset(
    [
        "After",
        "And",
        "As",
        "At",
        "Because",
        "Before",
        "Behind",
        "Beside",
        "By",
        "For",
        "From",
        "If",
        "In",
        "It",
        "Its",
        "Nothing",
        "Of",
        "On",
        "So",
        "That",
        "These",
        "This",
        "Those",
        "To",
        "Until",
        "What",
        "Whatever",
        "When",
        "Where",
        "Which",
        "While",
        "Who",
        "Whose",
        "Why",
        "With",
        "Without",
    ]
)


def imports_follow_the_table(house: House) -> Iterator[str]:
    """A package imports only itself and what its row names."""
    for module in house.modules.values():
        if module.package is None:
            continue
        for item in module.imports_to_judge():
            other = house.modules.get(house.module_of(item.target) or "")
            where = f"{module.path}:{item.line}"
            if other is None:
                yield f"{where}: {item.target} does not exist"
            elif other.package is None:
                yield f"{where}: {module.package} imports the top package"
            elif not house.allows(module.package, other.package):
                yield f"{where}: {module.package} may not import {other.package}"


def every_package_is_in_the_table(house: House) -> Iterator[str]:
    for name in house.packages():
        if name not in house.may_import:
            yield f"{name} has no row in [tool.radixlm.may_import]"


def allowances_are_used(house: House) -> Iterator[str]:
    """A row names nothing that its package does not import, and has a package."""
    for name in house.may_import:
        if name not in house.packages():
            yield f"row {name} of [tool.radixlm.may_import] has no package: remove it"
            continue
        used = house.does_import(name)
        for other in house.may_import[name]:
            if other not in used:
                yield f"row {name} allows {other}, which it does not import: remove {other}"


def the_table_points_down(house: House) -> Iterator[str]:
    """Rows name known packages, and nothing leads back to where it came from."""
    for name, others in house.may_import.items():
        for other in others:
            if other not in house.may_import:
                yield f"row {name} names {other}, which has no row"
    yield from _cycle({name: set(others) for name, others in house.may_import.items()})


def own_imports_stand_at_the_top(house: House) -> Iterator[str]:
    """No import of ours inside a function, an `if TYPE_CHECKING` or a `try`."""
    for module in house.modules.values():
        if module.package is None:
            continue
        for item in module.own_imports:
            if not item.at_top:
                yield f"{module.path}:{item.line}: {item.target} is not imported at the top"


def modules_form_no_cycle(house: House) -> Iterator[str]:
    graph: dict[str, set[str]] = {}
    for name, module in house.modules.items():
        if module.package is not None:
            found = {house.module_of(item.target) for item in module.own_imports}
            graph[name] = {other for other in found if other and other != TOP}
    yield from _cycle(graph)


def names_say_one_thing(house: House) -> Iterator[str]:
    """No two modules of one name, so that a name alone says which one is meant."""
    found: dict[str, Module] = {}
    for module in house.modules.values():
        leaf = module.name.rpartition(".")[2]
        if module.is_package:
            continue
        if leaf in found:
            yield f"{module.path} has the name of {found[leaf].path}"
        found.setdefault(leaf, module)


def words_are_plain(house: House) -> Iterator[str]:
    """Docstrings and comments are written as one speaks, in the field's terms."""
    for module in house.modules.values():
        for number, line in enumerate(module.text.splitlines(), 1):
            if (word := _NOT_PLAIN.search(line)) is not None:
                yield f"{module.path}:{number}: {word.group()!r} is not plain English"


def docstrings_name_what_they_describe(house: House) -> Iterator[str]:
    """A docstring begins with a verb or a noun, not with a clause that lacks one."""
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if not isinstance(node, _DOCUMENTED) or not (text := ast.get_docstring(node)):
                continue
            if (word := text.split()[0].rstrip(",:")) in _NO_NOUN:
                yield f"{module.path}:{node.body[0].lineno}: a docstring begins with {word!r}"


def nothing_is_global(house: House) -> Iterator[str]:
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Global):
                yield f"{module.path}:{node.lineno}: global {', '.join(node.names)}"


def the_tree_sets_its_own_fields(house: House) -> Iterator[str]:
    """Nothing but the tree assigns to an attribute of one."""
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                continue
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner in ("tree", "_tree"):
                yield f"{module.path}:{node.lineno}: {ast.unparse(node)} is the tree's own"


def futures_are_completed_in_one_file(house: House) -> Iterator[str]:
    for module in house.modules.values():
        if module.name == COMPLETES_FUTURES:
            continue
        for node in ast.walk(module.tree):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            if name in ("set_result", "set_exception"):
                yield f"{module.path}:{node.lineno}: {name} raises once a future is cancelled"


def files_are_short(house: House) -> Iterator[str]:
    for module in house.modules.values():
        most = LONGER_FILES.get(module.name, MAX_FILE_LINES)
        if module.lines > most:
            yield f"{module.path}: {module.lines} lines, {most} are allowed"


def functions_are_short(house: House) -> Iterator[str]:
    for module in house.modules.values():
        for function in module.functions():
            if function.lines > MAX_FUNCTION_LINES:
                yield (
                    f"{module.path}:{function.line}: {function.name} has {function.lines} lines, "
                    f"{MAX_FUNCTION_LINES} are allowed"
                )


def packages_stay_below_their_ceilings(house: House) -> Iterator[str]:
    """The sum of the ceilings is the size that the house may have."""
    where = "[tool.radixlm.line_ceilings]"
    parts = house.parts()
    for name, modules in parts.items():
        lines, most = sum(module.code_lines for module in modules), house.line_ceilings.get(name)
        if most is None:
            yield f"{name} has no row in {where}: it has {lines} lines of code"
        elif lines > most:
            yield (
                f"{name} has {lines} lines of code, {most} are allowed: take lines away, or raise "
                f"its row in {where} and say why in the commit"
            )
    for name in house.line_ceilings:
        if name not in parts:
            yield f"row {name} of {where} has no package: remove it"


RULES = (
    imports_follow_the_table,
    every_package_is_in_the_table,
    allowances_are_used,
    the_table_points_down,
    own_imports_stand_at_the_top,
    modules_form_no_cycle,
    names_say_one_thing,
    words_are_plain,
    docstrings_name_what_they_describe,
    nothing_is_global,
    the_tree_sets_its_own_fields,
    futures_are_completed_in_one_file,
    files_are_short,
    functions_are_short,
    packages_stay_below_their_ceilings,
)


def _cycle(graph: dict[str, set[str]]) -> Iterator[str]:
    for name, others in graph.items():
        if name in others:
            yield f"cycle: {name} -> {name}"
    sorter = TopologicalSorter({name: others - {name} for name, others in graph.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        yield "cycle: " + " -> ".join(error.args[1][::-1])
