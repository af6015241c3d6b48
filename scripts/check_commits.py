"""Check the messages of commits: `make commits`.

    python -m scripts.check_commits

A subject has at most 72 characters, and a body says why. Older commits than the rule are left out,
and so are merges. A shallow clone, or a copy without git's history, may not have the first commit
of the rule: then none is looked at, and that is said. Exits with 1 where a message breaks the rule.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BEFORE = "a6048e981571"  # the last commit before the rule
MAX_SUBJECT = 72
_FORMAT = "%h%n%s%n%b%x00"  # a message has no NUL


class Commit(NamedTuple):
    name: str
    subject: str
    body: str


def commits_after(first: str, root: Path) -> list[Commit] | None:
    """Those that HEAD has and `first` has not; None where git or that commit is not there."""
    command = ["git", "log", "--no-merges", f"--format={_FORMAT}", f"{first}..HEAD"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    messages = done.stdout.decode(errors="replace").split("\0")
    return [Commit(*message.lstrip().split("\n", 2)) for message in messages if message.strip()]


def broken_rules(commit: Commit) -> Iterator[str]:
    """What is wrong with a message, one line for each rule that it breaks."""
    length = len(commit.subject)
    if length > MAX_SUBJECT:
        yield f"its subject has {length} characters, {MAX_SUBJECT} are allowed"
    if not commit.body.strip():
        yield "it has no body: say why, after an empty line"


def check(first: str, root: Path) -> int:
    """Print what is wrong with commits after `first`; 1 where something is, otherwise 0."""
    commits = commits_after(first, root)
    if commits is None:
        print(f"no commit was looked at: there is no git, or no {first} in its history")
        return 0
    found = [(commit, line) for commit in commits for line in broken_rules(commit)]
    for commit, line in found:
        print(f"{commit.name} {commit.subject!r}: {line}")
    print(f"{len(commits)} commits after {first} were looked at")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(check(BEFORE, ROOT))
