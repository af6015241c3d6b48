"""What an agent sends with every request: instructions and tools, about as long as real ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

INSTRUCTIONS = """You are an engineer who works on the user's repository through the tools below.

Before you change anything, look at how the code around it is written, and write in the same \
way. Read a file before you edit it. Search for a name before you rename it, so that no place is \
left behind. Prefer a small change in an existing file to a new file. Never invent a path, a \
flag or the result of a command: look it up, or say that you do not know.

When you run commands, run one at a time and read what comes back before you go on. A command \
that deletes, overwrites or publishes something needs the user's word first. When a test fails, \
find out why before you change the test. Do not commit unless you are asked to.

Keep the user informed in one or two sentences between the steps, without repeating what the \
tools have shown already. When all is done, say what you changed, how it was checked, and what \
is left. If the request is not clear, ask one question instead of guessing."""

_PATH = "Where the file is, from the root of the repository."
_LIMIT = "How many lines to give at most; the rest is left out and counted."


class _Field(NamedTuple):
    description: str
    schema: Mapping[str, Any]


def _text(description: str, longest: int = 24) -> _Field:
    return _Field(description, {"type": "string", "maxLength": longest})


def _count(description: str, most: int = 2_000) -> _Field:
    return _Field(description, {"type": "integer", "minimum": 0, "maximum": most})


def _one_of(description: str, *names: str) -> _Field:
    return _Field(description, {"type": "string", "enum": list(names)})


_TOOLS: Mapping[str, tuple[str, Mapping[str, _Field]]] = {
    "read_file": (
        (
            "Gives the text of a file with its line numbers. Reads from the first line unless told "
            "otherwise. Files that are no text are refused. Use it before every edit."
        ),
        {
            "path": _text(_PATH),
            "first_line": _count("The line to begin with."),
            "limit": _count(_LIMIT),
        },
    ),
    "write_file": (
        (
            "Puts a whole text into a file, and makes the file if there is none. What was in it "
            "before is lost: use edit_file to change a part of it."
        ),
        {"path": _text(_PATH), "text": _text("All that the file is to hold.", 48)},
    ),
    "edit_file": (
        (
            "Replaces a text in a file by another one. The old text must stand in the file exactly "
            "once, white space included; give the lines around it to make it the only one."
        ),
        {
            "path": _text(_PATH),
            "old": _text("What stands there."),
            "new": _text("What is to stand."),
        },
    ),
    "list_files": (
        "Lists what is in a folder, folders first. What the repository ignores is left out.",
        {
            "path": _text("The folder, from the root of the repository."),
            "depth": _count("How deep.", 9),
        },
    ),
    "search_text": (
        (
            "Finds a regular expression in all files of the repository, and gives the lines where "
            "it stands, with the file and the line's number. Use it rather than a command."
        ),
        {
            "pattern": _text("The expression, in the syntax of Python."),
            "files": _text("Which files, as a glob; all of them without it."),
            "limit": _count(_LIMIT),
        },
    ),
    "run_command": (
        (
            "Runs a command in a shell, in the root of the repository, and gives what it printed "
            "and how it ended. It is ended after the given time. Nothing stays between two "
            "commands but what is on the disk."
        ),
        {"command": _text("The command.", 48), "seconds": _count("How long it may take.", 600)},
    ),
    "run_tests": (
        "Runs the tests, or some of them, and gives a summary and the text of each failure.",
        {
            "path": _text("A file or a folder of tests; all of them without it."),
            "which": _one_of("All, or those that failed last time.", "all", "failed"),
            "limit": _count(_LIMIT),
        },
    ),
    "show_changes": (
        "Shows what was changed since the last commit, as a unified diff.",
        {"path": _text(_PATH), "what": _one_of("Of what.", "staged", "unstaged", "both")},
    ),
    "show_history": (
        "Lists the latest commits, the newest first: their names, authors, dates and first lines.",
        {"path": _text("Only those that touch this file."), "limit": _count(_LIMIT)},
    ),
    "fetch_page": (
        (
            "Gives a page of the web as text. Pages that need a login are refused. Use it for the "
            "documentation of libraries, never for what the repository itself can tell."
        ),
        {"address": _text("The page's address.", 40), "limit": _count(_LIMIT)},
    ),
    "take_note": (
        "Remembers something for later: the list of what is left to do, or what was found out.",
        {
            "kind": _one_of("What it is.", "to do", "done", "found"),
            "text": _text("In a sentence.", 40),
        },
    ),
    "ask_user": (
        "Asks the user a question and waits for the answer. Ask for what you can not find out.",
        {"question": _text("One question.", 40)},
    ),
}


def tools() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each tool's name, description, and the JSON schema of its arguments."""
    for name, (description, fields) in _TOOLS.items():
        properties = {
            field: {"description": told.description, **told.schema}
            for field, told in fields.items()
        }
        yield (
            name,
            description,
            {
                "type": "object",
                "properties": properties,
                "required": list(fields),
                "additionalProperties": False,
            },
        )
