"""Who touches a name that begins with one underscore, besides the object whose it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# Of named tuples, and of the answers of OpenAI's and Anthropic's clients: public all the same.
_PUBLIC = ("_asdict", "_fields", "_make", "_replace", "_request_id")
_OWN = ("self", "cls")
_BY_NAME = ("setattr", "getattr", "delattr", "hasattr")
_OURS = ("radixlm", "tests", "benchmarks", "fuzz", "scripts")


def private_names(path: Path) -> Iterator[str]:
    """One line for each place, as `12: value._name`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    libraries = set(_libraries(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if not _is_own(node.value) and _root(node) not in libraries:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            for name in filter(_is_private, (alias.name for alias in node.names)):
                yield f"{node.lineno}: from {node.module} import {name}"
        elif isinstance(node, ast.Call) and _name(node.func) in _BY_NAME:
            for name in _texts(node):
                if _is_private(name.rpartition(".")[2]) and _root(node.args[0]) not in libraries:
                    yield f"{node.lineno}: {ast.unparse(node.func)}(..., {name!r})"


def _is_private(name: str) -> bool:
    return (
        name.startswith("_") and not name.startswith("__") and name not in _PUBLIC and name != "_"
    )


def _is_own(value: ast.expr) -> bool:
    """`self`, `cls`, and `super()`."""
    called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    return (isinstance(value, ast.Name) and value.id in _OWN) or (
        called and value.func.id == "super"
    )


def _root(node: ast.expr) -> str:
    """What a chain of attributes begins with; empty where that is no name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _texts(call: ast.Call) -> Iterator[str]:
    for argument in call.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def _libraries(tree: ast.AST) -> Iterator[str]:
    """The names that other people's modules, and what they hold, have in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (
            isinstance(node, ast.ImportFrom) and not _is_ours(node.module or "")
        ):
            for alias in node.names:
                if not _is_ours(alias.name):
                    yield (alias.asname or alias.name).partition(".")[0]
